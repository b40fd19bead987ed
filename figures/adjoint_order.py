"""Gap of the two adjoints and drift of the Hamiltonian against the number of layers L."""

import numpy as np

from meanfield import fit_rate, plotting

EXPERIMENTS = ("adjoint_order",)

SCHEMES = {
    "euler": ("Euler", plotting.BLUE, "o"),
    "heun": ("Heun", plotting.RED, "s"),
    "rk4": ("RK4", plotting.GREEN, "^"),
}
PANELS = (("gap", "gap of the two adjoints"), ("drift", "drift of the Hamiltonian"))


def draw(runs):
    """(a) Continuous against discrete adjoint; (b) the Hamiltonian, with the control."""
    orders = runs["adjoint_order"].load("orders")
    sizes = orders["sizes"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.84)
        for ax, letter, (key, title) in zip(axes[0], "ab", PANELS, strict=True):
            series = [(f"{name}_{key}", *style) for name, style in SCHEMES.items()]
            if key == "drift":
                series.append(("euler_varying", "heads vary", plotting.GREY, "v"))
            for name, label, color, marker in series:
                rate = fit_rate(sizes, orders[name], aggregate="geometric")
                plotting.rate_plot(
                    ax, sizes, rate.errors, label=label, rate=rate, color=color, marker=marker
                )
                low, high = np.quantile(orders[name], (0.1, 0.9), axis=0)
                ax.fill_between(sizes, low, high, color=color, alpha=0.16, linewidth=0)
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel("layers $L$")
            plotting.legend_below(ax)
        axes[0, 0].set_ylabel("relative gap of gradients")
        axes[0, 1].set_ylabel("relative change along depth")
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["adjoint_order"]
    chosen = run.configuration["parameters"]
    return (
        f"Adjoint of {chosen['num_heads']} heads that are the same at all depths,"
        f" {chosen['num_tokens']} tokens, d = {chosen['dim']}; points: geometric means over"
        f" {chosen['num_replicates']} problems, bands: 10% to 90% quantile. (a) Gradient of the"
        " discrete risk against the backward equation solved by the same scheme. (b) Largest change"
        " of the Hamiltonian along depth; grey: Euler, heads that grow with depth."
    )
