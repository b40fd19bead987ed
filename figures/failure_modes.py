"""Risk over the foretold plateau: duplicates, translates in one layer and several, a Gaussian."""

import numpy as np

from meanfield import plotting

EXPERIMENTS = ("failure_modes",)

LAYERS = (("one", "one layer", ":"), ("deep", "several layers", "-"))
GAUSSIAN = (
    ("mean", "mean not 0", plotting.BLUE, "o"),
    ("centred", "mean 0", plotting.GREEN, "s"),
    ("reversed", "reversed", plotting.RED, "^"),
)


def draw(runs):
    """(a) duplicates, (b) translates along training, (c) escape, (d) the Gaussian context."""
    run = runs["failure_modes"]
    clouds, escape, gaussian = (run.load(name) for name in ("clouds", "escape", "gaussian"))
    with plotting.paper_style():
        figure, axes = plotting.new_figure(2, 2, aspect=0.72)
        _ratios(axes[0, 0], clouds, "duplicates", (1e-9, 30), level=1.0)
        axes[0, 0].set_ylabel(r"risk / spread of targets $-\,1$")
        plotting.panel_label(axes[0, 0], "a", "one context twice")
        _ratios(axes[0, 1], clouds, "translates", (1e-6, 30), level=0.0)
        axes[0, 1].axhline(1.0, color="0.35", linewidth=0.6)
        axes[0, 1].set_ylabel("risk / projection")
        plotting.panel_label(axes[0, 1], "b", "translated contexts")
        _escape(axes[1, 0], escape)
        _gaussian(axes[1, 1], gaussian)
    return figure


def _ratios(ax, clouds, name, limits, *, level) -> None:
    """Geometric mean over draws of ratio - level, for each eps, in one layer and in several."""
    last = 1  # gradient at which some curve is still to be seen
    for eps, color in zip(clouds["residuals"], plotting.PALETTE, strict=False):
        for key, words, style in LAYERS:
            ratio = clouds[f"{name}_{key}"][:, np.flatnonzero(clouds["residuals"] == eps)[0]]
            middle = np.exp(np.log(np.maximum(ratio - level, 1e-16)).mean(axis=0))
            label = rf"$\varepsilon={eps:g}$, {words}"
            ax.plot(middle, style, color=color, label=label)
            last = max([last, *np.flatnonzero(middle > limits[0])[-1:]])
    ax.set_yscale("log")
    ax.set_ylim(*limits)
    ax.set_xlim(-0.03 * last, 1.05 * last)
    ax.set_xlabel("gradients")
    plotting.legend_below(ax, num_columns=2)


def _escape(ax, escape) -> None:
    """Weight of the null direction at a fixed training time, with a line of slope 2."""
    sizes, weight = escape["sizes"], escape["weight"]
    for number, row in enumerate(weight):
        label = "draws" if number == 0 else None
        ax.plot(sizes, row, "-", color=plotting.SKY, linewidth=0.6, label=label)
    middle = np.exp(np.log(weight).mean(axis=0))
    ax.plot(sizes, middle, "o", color=plotting.BLUE, label="geometric mean")
    line = middle[-1] * (sizes / sizes[-1]) ** 2
    ax.plot(sizes, line, "--", color=plotting.RED, label="slope 2")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.minorticks_off()
    ax.set_xlabel(r"residual $\varepsilon$")
    ax.set_ylabel(r"$|F_t v|^2$, $v$ null at $t=0$")
    plotting.legend_below(ax, num_columns=3)
    plotting.panel_label(ax, "c", "depth breaks the translation")


def _gaussian(ax, gaussian) -> None:
    """Final risk against prediction, both over the affine residual."""
    for kind, words, color, marker in GAUSSIAN:
        unit = gaussian[f"{kind}_affine"]
        ax.plot(
            gaussian[f"{kind}_foretold"] / unit,
            gaussian[f"{kind}_final"] / unit,
            marker,
            color=color,
            label=words,
        )
    low, high = ax.get_xlim()
    ends = np.array([0.9, max(high, ax.get_ylim()[1])])
    ax.plot(ends, ends, "-", color=plotting.GREY, linewidth=0.8, zorder=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("foretold / affine residual")
    ax.set_ylabel("final risk / affine residual")
    plotting.legend_below(ax, num_columns=3)
    plotting.panel_label(ax, "d", "a Gaussian, exact closure")


def caption(runs):
    """What is seen, from stored numbers."""
    run = runs["failure_modes"]
    chosen = run.configuration["parameters"]
    return (
        f"Plateaus where positivity fails, {chosen['num_draws']} draws, d = 2, K ="
        f" {chosen['num_queries']} shared queries, L = 1 and L = {chosen['num_cells']} layers, M ="
        f" {chosen['num_heads']} heads, V = 0 at the start. (a, b) Geometric means of the risk over"
        " the foretold plateau (a: less 1), for residuals of size eps. (c) Weight of the kernel's"
        f" null direction after {chosen['escape_steps']} steps of equal training time. (d) K ="
        f" {chosen['num_gaussian_queries']} queries of a Gaussian context: the affine residual, the"
        " linear one for mean 0, an infimum (points above the line) for reversed targets."
    )
