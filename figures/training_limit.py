"""Distances of crowds of M heads from the mean-field flow, along training and in M; depth."""

import numpy as np

from meanfield import fit_rate, plotting

EXPERIMENTS = ("training_limit",)


def draw(runs):
    """(a) Along training, scaled by M^(1/2); (b) at the end against M; (c) L against 2L."""
    run = runs["training_limit"]
    crowds, depth = run.load("crowds"), run.load("depth")
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.18)
        figure.get_layout_engine().set(w_pad=0.06)
        _along(axes[0, 0], crowds)
        _in_width(axes[0, 1], crowds)
        _in_depth(axes[0, 2], depth)
    return figure


def _along(ax, crowds) -> None:
    """Root mean squares times M^(1/2): one curve if the rate holds at every time."""
    shades = np.linspace(0.35, 1.0, len(crowds["sizes"]))
    for row, (size, shade) in enumerate(zip(crowds["sizes"], shades, strict=True)):
        scaled = np.sqrt(size * np.mean(crowds["heads"][:, row] ** 2, axis=0))
        label = f"$M={size:g}$" if row in (0, len(shades) - 1) else None
        ax.plot(crowds["time"], scaled, "o-", color=plotting.BLUE, alpha=shade, label=label)
    ax.set_xlabel("training time $t$")
    ax.set_ylabel(r"$M^{1/2}\,d_M(t)$")
    plotting.legend_below(ax, num_columns=2)
    plotting.panel_label(ax, "a", "heads along training")


def _in_width(ax, crowds) -> None:
    """Heads at the end, the largest risk gap, the control."""
    sizes = crowds["sizes"]
    series = (
        ("heads", crowds["heads"][..., -1], plotting.BLUE),
        ("risk", crowds["risk"].max(axis=-1), plotting.RED),
        ("control", crowds["control"][..., -1], plotting.GREY),
    )
    for (name, errors, color), marker in zip(series, plotting.MARKERS, strict=False):
        rate = fit_rate(sizes, errors)
        plotting.rate_plot(
            ax, sizes, errors, label=name, rate=rate, color=color, marker=marker, band=False
        )
    shown = fit_rate(sizes, series[1][1])
    plotting.reference_triangle(ax, -0.5, shown, start=float(sizes[1]))
    ax.set_xlabel("heads per layer $M$")
    ax.set_ylabel("distance from the limit")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "b", "rate in $M$")


def _in_depth(ax, depth) -> None:
    """Heads at the end and the largest risk gap between L and 2L layers."""
    sizes = depth["sizes"]
    series = (
        ("heads", depth["heads"][..., -1], plotting.BLUE),
        ("risk", depth["risk"].max(axis=-1), plotting.RED),
    )
    for (name, errors, color), marker in zip(series, plotting.MARKERS, strict=False):
        rate = fit_rate(sizes, errors)
        plotting.rate_plot(ax, sizes, errors, label=name, rate=rate, color=color, marker=marker)
    plotting.reference_triangle(ax, -1.0, fit_rate(sizes, series[1][1]), start=float(sizes[1]))
    ax.set_xlabel("layers $L$")
    ax.set_ylabel("distance from $2L$ layers")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "c", "rate in $L$")


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["training_limit"]
    chosen = run.configuration["parameters"]
    return (
        f"Propagation of chaos in training. {chosen['num_replicates']} draws of M of"
        f" {chosen['num_reference']} heads in each of {chosen['num_cells']} layers, d ="
        f" {chosen['dim']}; the same heads trained in their own crowd and in that of the reference:"
        " labelled distances, no transport between independent ensembles. (a) Root mean squares"
        " times the root of M. (b) At the end, the largest gap of the risk on the way, copies of"
        f" four heads. (c) L and 2L layers, {chosen['num_depth_draws']} draws."
    )
