"""Causal attention: spectra of its kernel, its training beside full attention, its adjoint."""

import numpy as np

from meanfield import fit_rate, plotting

EXPERIMENTS = ("causal",)

CASES = (
    ("full", "full", plotting.GREY, "o"),
    ("later", "causal, no first tokens", plotting.GREEN, "s"),
    ("causal", "causal", plotting.BLUE, "^"),
    ("shared", "causal, shared prefix", plotting.RED, "v"),
)


def draw(runs):
    """(a) Eigenvalues of the first problem; (b) its risks; (c) the gap of the adjoints."""
    run = runs["causal"]
    kernel, risks, adjoint = (run.load(name) for name in ("kernel", "training", "adjoint"))
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.3)
        ax = axes[0, 0]
        for name, label, color, marker in CASES:
            nullity = int(kernel[f"{name}_nullity"][0])
            plotting.spectrum(
                ax,
                kernel[f"{name}_eigenvalues"][0],
                label=label,
                num_zero=nullity,
                color=color,
                marker=marker,
            )
        ax.set_ylabel("eigenvalue")
        plotting.panel_label(ax, "a", "kernel (open: zero)")
        plotting.legend_below(ax)

        ax = axes[0, 1]
        time = run.configuration["parameters"]["dt"] * np.arange(risks["causal"].shape[1])
        for name, label, color, _ in CASES[:3]:
            plotting.training_curve(ax, time[1:], risks[name][0][1:], label=label, color=color)
            ax.plot(time[1:], risks[f"{name}_lazy"][0][1:], ":", color="black", linewidth=0.9)
        ax.plot([], [], ":", color="black", label="prediction")
        plotting.level_lines(ax, {"null space of causal": float(risks["plateau"][0])})
        ax.set_xscale("log")
        ax.set_ylabel("risk / initial risk")
        plotting.panel_label(ax, "b", "lazy training")
        plotting.legend_below(ax)

        ax = axes[0, 2]
        sizes = adjoint["sizes"][0] if adjoint["sizes"].ndim > 1 else adjoint["sizes"]
        rate = fit_rate(sizes, adjoint["gaps"])
        plotting.rate_plot(
            ax, sizes, adjoint["gaps"], label="gap of adjoints", rate=rate, color=plotting.BLUE
        )
        plotting.reference_triangle(ax, -1.0, rate, start=float(sizes[-3]))
        ax.set_xlabel("layers $L$")
        ax.set_ylabel("relative gap of gradients")
        plotting.panel_label(ax, "c", "causal adjoint")
        plotting.legend_below(ax)
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["causal"]
    chosen = run.configuration["parameters"]
    return (
        f"Causal attention, {chosen['num_contexts']} contexts of {chosen['num_tokens']} tokens in"
        f" the plane, M = {chosen['num_heads']}. (a) Eigenvalues of the scalar V-kernel of one"
        " layer, first problem; open markers are zero to rounding. (b) Risk along training from"
        f" V = 0 with targets at distance {chosen['lazy_scale']:g}; dotted: residuals under the"
        " fixed kernel of prefix laws (or of whole laws, full attention). (c) Continuous against"
        f" discrete adjoint, {chosen['num_replicates']} problems."
    )
