"""What moves, against the size of the residual and against M; alignment with the target."""

import numpy as np

from meanfield import fit_rate, plotting

EXPERIMENTS = ("lazy_to_rich",)

SERIES = (
    ("values", "$|V_t|$", plotting.BLUE, "o"),
    ("kernel", r"$|K_t-K_0|/|K_0|$", plotting.GREEN, "^"),
    ("scores", "$|A_t-A_0|$", plotting.RED, "s"),
    ("gap", "$|r-r_{lazy}|$", plotting.ORANGE, "D"),
)
COLORS = (plotting.BLUE, plotting.GREEN, plotting.RED)


def draw(runs):
    """(a) Orders in eps; (b) alignment; (c) the sweep in M."""
    run = runs["lazy_to_rich"]
    scale, control, width = (run.load(name) for name in ("scale", "control", "width"))
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.3)
        figure.get_layout_engine().set(w_pad=0.06)
        _orders(axes[0, 0], scale, control)
        _alignment(axes[0, 1], scale)
        _width(axes[0, 2], width)
    return figure


def _middle(rows):
    return np.exp(np.log(rows).mean(axis=0))


def _orders(ax, scale, control) -> None:
    """Geometric means; lines fitted to the small sizes."""
    sizes, num = scale["sizes"], int(scale["num_fitted"])
    for name, label, color, marker in SERIES:
        rate = fit_rate(sizes[:num], scale[name][:, :num], aggregate="geometric")
        ax.plot(
            sizes, _middle(scale[name]), marker, color=color, label=f"{label}: {rate.slope:.2f}"
        )
        ax.plot(sizes, rate.predict(sizes), "--", color=color, linewidth=0.8)
    rate = fit_rate(sizes[:num], control["scores"][:, :num], aggregate="geometric")
    label = f"control, $|A_t-A_0|$: {rate.slope:.2f}"
    ax.plot(sizes, _middle(control["scores"]), "x", color=plotting.GREY, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(r"residual at the start $\varepsilon$")
    ax.set_ylabel("movement")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "a", "orders in the residual")


def _alignment(ax, scale) -> None:
    """Every draw's alignment before and after, and the means."""
    sizes = scale["sizes"]
    change = scale["aligned_after"] - scale["aligned_before"]
    for number, row in enumerate(change):
        label = "draws" if number == 0 else None
        ax.plot(sizes, row, "-", color=plotting.SKY, linewidth=0.6, label=label)
    ax.plot(sizes, change.mean(axis=0), "o-", color=plotting.BLUE, label="mean")
    ax.axhline(0.0, color="0.35", linewidth=0.6)
    ax.set_xscale("log")
    ax.set_xlabel(r"residual at the start $\varepsilon$")
    ax.set_ylabel("change of the alignment")
    plotting.legend_below(ax, num_columns=2)
    plotting.panel_label(ax, "b", "kernel and target")


def _width(ax, width) -> None:
    """Movement of A at a mild residual (filled), of the kernel at a rich one (open)."""
    heads = width["heads"]
    for gamma, color, scores, kernel in zip(
        width["gammas"], COLORS, width["mild_scores"], width["rich_kernel"], strict=True
    ):
        rate = fit_rate(heads, scores, aggregate="geometric", min_sizes=3)
        label = f"$A$, $M^{{-{gamma:g}}}$: {rate.slope:.2f}"
        ax.plot(heads, _middle(scores), "s", color=color, label=label.replace(": -", ": \u2212"))
        ax.plot(heads, rate.predict(heads), "--", color=color, linewidth=0.8)
        ax.plot(heads, _middle(kernel), "^-", color=color, markerfacecolor="white", linewidth=0.6)
    ax.plot([], [], "^-", color="0.35", markerfacecolor="white", label=r"$|K_t-K_0|/|K_0|$")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(heads, [f"{number:g}" for number in heads])
    ax.minorticks_off()
    ax.set_xlabel("heads $M$")
    ax.set_ylabel("movement")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "c", "heads summed with $M^{-g}$")


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["lazy_to_rich"]
    chosen = run.configuration["parameters"]
    return (
        f"From lazy to rich, {chosen['num_draws']} draws of {chosen['num_contexts']} contexts of"
        f" {chosen['num_tokens']} tokens, d = {chosen['dim']}, L = {chosen['num_cells']}, V = 0 at"
        " the start. (a) Geometric means of what moved after a fixed training time, M ="
        f" {max(chosen['heads'])}, lines fitted to the {len(chosen['sizes'])} smallest residuals."
        " (b) Alignment of the kernel with the residual of the start, after less before. (c) Sums"
        f" over heads with three powers of 1/M: movement of A at eps = {chosen['rich_sizes'][0]:g},"
        f" change of the kernel at eps = {chosen['rich_sizes'][-1]:g}."
    )
