"""lambda_min against number of contexts, separation of parameters and head scale, four families."""

import numpy as np

from meanfield import fit_rate, plotting
from meanfield.records import shown

EXPERIMENTS = ("ntk_families",)
CLAIMS = ()  # the caption says them in words

FAMILIES = {
    "cubes": ("cubes", plotting.BLUE, "o"),
    "laplace": ("Laplace", plotting.RED, "s"),
    "mixtures": ("mixtures", plotting.GREEN, "^"),
    "clouds": ("clouds", plotting.ORANGE, "D"),
}
PANELS = (
    ("contexts", "contexts", "contexts $N$"),
    ("separation", "separation of two laws", "separation $t$"),
    ("scale", "head scale, two laws", "head scale $s$"),
)


def draw(runs):
    """One panel for each sweep; dashed lines are fits, their slopes in the legends."""
    sweeps = runs["ntk_families"].load("sweeps")
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.3)
        for ax, letter, (name, title, words) in zip(axes[0], "abc", PANELS, strict=True):
            sizes = sweeps[name]
            for family, (label, color, marker) in FAMILIES.items():
                values = sweeps[f"{family}_{name}_lambda_min"]
                middle = np.exp(
                    np.log(values).mean(axis=0)
                )  # the mean that the slopes are fitted to
                rate = (
                    fit_rate(sizes, values, aggregate="geometric") if name != "contexts" else None
                )
                plotting.rate_plot(
                    ax, sizes, middle, label=label, rate=rate, color=color, marker=marker
                )
                low, high = values.min(axis=0), values.max(axis=0)
                ax.fill_between(sizes, low, high, color=color, alpha=0.16, linewidth=0)
            if name == "contexts":
                ax.set_xscale("linear")
                ax.set_xticks(sizes)
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel(words)
            plotting.legend_below(ax)
        axes[0, 0].set_ylabel(r"$\lambda_{\min}$ of the V-part")
    return figure


def caption(runs):
    """What is measured, beside what theory says."""
    run = runs["ntk_families"]
    chosen, sweeps = run.configuration["parameters"], run.load("sweeps")
    slopes = {
        name: ", ".join(shown(_slope(sweeps, family, name)) for family in FAMILIES)
        for name in ("separation", "scale")
    }
    symmetric, cloud = chosen["expected_symmetric_slope"], chosen["expected_cloud_slope"]
    return (
        "Positivity of the tangent kernel for four families of token laws, d = 2, K = 3 shared"
        f" queries, M = {chosen['num_heads']} heads: smallest eigenvalue of the V-part, geometric"
        f" means and ranges over {chosen['num_replicates']} draws of the heads. (a) Against the"
        " number of contexts of distinct parameters: positive for all, but falling steeply."
        " (b) For two laws whose parameters are t apart; slopes"
        f" {slopes['separation']} (cubes, Laplace, mixtures, clouds), expected"
        f" {chosen['expected_separation_slope']:g}. (c) For two laws under heads of scale s; slopes"
        f" {slopes['scale']}, expected {symmetric:g} for the symmetric laws and {cloud:g} for"
        " clouds. Dashed: fitted power laws."
    )


def _slope(sweeps, family, name):
    rate = fit_rate(sweeps[name], sweeps[f"{family}_{name}_lambda_min"], aggregate="geometric")
    return rate.slope
