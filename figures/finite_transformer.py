"""Gaps between a transformer trained by SGD and the mean-field flow: steps, layers, heads."""

import numpy as np

from meanfield import fit_rate, plotting

EXPERIMENTS = ("finite_transformer",)


def draw(runs):
    """(a) Steps, full batches and minibatches; (b) layers; (c) heads; (d) along training."""
    run = runs["finite_transformer"]
    found = {name: run.load(name) for name in ("steps", "noise", "L", "M", "limit")}
    with plotting.paper_style():
        figure, axes = plotting.new_figure(2, 2, aspect=0.92)
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
        _rates(
            axes[0, 0],
            {
                "full batches": (found["steps"], "heads", plotting.BLUE),
                "minibatches": (found["noise"], "heads", plotting.RED),
            },
        )
        _powers(axes[0, 0], np.union1d(found["steps"]["sizes"], found["noise"]["sizes"]))
        axes[0, 0].set_xlabel("step of training time $dt$")
        axes[0, 0].set_ylabel("heads: distance from the flow")
        plotting.panel_label(axes[0, 0], "a", "steps of SGD")
        _rates(
            axes[0, 1],
            {
                "heads": (found["L"], "heads", plotting.BLUE),
                "risk": (found["L"], "risk", plotting.RED),
            },
        )
        axes[0, 1].set_xlabel("layers $L$")
        axes[0, 1].set_ylabel("distance from the flow")
        plotting.panel_label(axes[0, 1], "b", "layers")
        _rates(
            axes[1, 0],
            {
                "heads": (found["M"], "heads", plotting.BLUE),
                "outputs": (found["M"], "output", plotting.GREEN),
                "risk": (found["M"], "risk", plotting.RED),
                "rate without $M$": (found["M"], "control", plotting.GREY),
            },
        )
        axes[1, 0].set_xlabel("heads per layer $M$")
        axes[1, 0].set_ylabel("distance from the flow")
        plotting.panel_label(axes[1, 0], "c", "heads")
        _along(axes[1, 1], found)
    return figure


def _rates(ax, series) -> None:
    """Gaps at the end (the risk's: largest on the way) against the sizes, with their rates."""
    for (label, (table, kind, color)), marker in zip(
        series.items(), plotting.MARKERS, strict=False
    ):
        gaps = table[kind].max(axis=-1) if kind == "risk" else table[kind][..., -1]
        rate = fit_rate(table["sizes"], gaps)
        plotting.rate_plot(
            ax,
            table["sizes"],
            gaps,
            label=label,
            rate=rate,
            color=color,
            marker=marker,
            band=False,
        )
    plotting.legend_below(ax)


def _powers(ax, sizes) -> None:
    """Steps on the axis, powers of two as such."""
    exact = np.log2(sizes) == np.round(np.log2(sizes))
    names = [
        f"$2^{{{np.log2(size):.0f}}}$" if is_power else f"{size:.3g}"
        for size, is_power in zip(sizes, exact, strict=True)
    ]
    ax.set_xticks(sizes, names)


def _along(ax, found) -> None:
    """Gaps of the heads along training over their rates: one curve for each cause if they hold."""
    causes = (
        ("steps", 1.0, r"$g/dt$", plotting.ORANGE),
        ("noise", 0.5, r"$g/dt^{1/2}$", plotting.RED),
        ("L", -1.0, r"$L\,g$", plotting.GREEN),
        ("M", -0.5, r"$M^{1/2}\,g$", plotting.BLUE),
    )
    time = found["limit"]["time"]
    for (name, order, label, color), marker in zip(causes, plotting.MARKERS, strict=False):
        table = found[name]
        shades = np.linspace(0.35, 1.0, len(table["sizes"]))
        for row, size in enumerate(table["sizes"]):
            gaps = np.sqrt(np.mean(table["heads"][:, row] ** 2, axis=0)) / size**order
            ax.plot(
                time,
                gaps,
                marker + "-",
                color=color,
                alpha=shades[row],
                label=label if row == len(shades) - 1 else None,
            )
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("training time $t$")
    ax.set_ylabel("distance $g$ of the heads, scaled")
    plotting.legend_below(ax, num_columns=2)
    plotting.panel_label(ax, "d", "along training")


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["finite_transformer"]
    chosen = run.configuration["parameters"]
    return (
        f"A transformer (d = {chosen['dim']}, {chosen['num_contexts']} contexts of"
        f" {chosen['num_tokens']} tokens) trained by plain SGD at rate L M dt against the"
        " mean-field flow, one cause of a gap at a time: the same heads in both, labelled"
        " distances, root mean squares over draws; no transport between independent ensembles."
        f" (a) L = {chosen['num_layers']}, M = {chosen['num_heads']}, minibatches of"
        f" {chosen['minibatch']}; against Runge-Kutta steps in training time. (b) Against Heun's"
        " scheme on four times the largest L cells. (c) Against the ensemble from which the M"
        f" heads of each layer are drawn with replacement ({chosen['num_reference']} a layer);"
        " risk: largest gap on the way; grey: SGD at rate L dt. (d) Heads, all sizes, darker where"
        f" finer."
    )
