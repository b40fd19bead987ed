"""Errors over a grid of layers L and heads M with the laws that were fitted to them."""

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from meanfield import plotting

EXPERIMENTS = ("joint_limit",)

TITLES = {"constant": "one ensemble for all layers", "independent": "new heads in each layer"}
POWERS = {"constant": (0.0, 0.5), "independent": (0.5, 0.5), "published": (1 / 3, 0.5)}
NAMES = {
    "constant": r"$e^2 = (a/L)^2 + b^2/M$",
    "independent": r"$e^2 = (a/L)^2 + b^2/(LM)$",
    "published": r"published: $e = a/L + b\,L^{-1/3}M^{-1/2}$",
}
STYLES: dict[str, Any] = {"constant": "-", "independent": "--", "published": (0, (1, 1.5))}


def predicted(name, coefficients, depths, width):
    """The law on the line M = width: squares for the two laws, the published rate as a sum."""
    p, q = POWERS[name]
    parts = np.stack([coefficients[0] / depths, coefficients[1] * depths**-p * width**-q])
    return parts.sum(axis=0) if name == "published" else np.sqrt((parts**2).sum(axis=0))


def draw(runs):
    """Each family against L, a curve for every other M; all laws at the smallest and largest."""
    stored = runs["joint_limit"].load("grid")
    depths, widths = stored["depths"], stored["widths"]
    shown = np.unique(np.linspace(0, len(widths) - 1, min(len(widths), 3)).round().astype(int))
    fine = np.geomspace(depths.min(), depths.max(), 60)
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.86)
        for ax, letter, (family, title) in zip(axes[0], "ab", TITLES.items(), strict=True):
            for column, color, marker in zip(
                shown, plotting.PALETTE, plotting.MARKERS, strict=False
            ):
                errors = stored[f"{family}_errors"][:, column]
                seen = stored["seen"][:, column]
                ax.plot(depths[seen], errors[seen], marker, color=color)
                ax.plot(depths[~seen], errors[~seen], marker, color=color, markerfacecolor="white")
                for name, style in STYLES.items():
                    form = "sum" if name == "published" else "squares"
                    line = predicted(name, stored[f"{family}_{form}_{name}"], fine, widths[column])
                    width = 1.2 if name == family else 0.8
                    ax.plot(fine, line, linestyle=style, color=color, linewidth=width)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.xaxis.set_major_locator(FixedLocator(list(depths)))
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.xaxis.set_minor_locator(NullLocator())
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel("layers $L$")
        axes[0, 0].set_ylabel("relative error of tokens")
        low = min(ax.get_ylim()[0] for ax in axes[0])
        high = max(ax.get_ylim()[1] for ax in axes[0])
        for ax in axes[0]:
            ax.set_ylim(low, high)
        heads = [
            Line2D([], [], marker=marker, color=color, linestyle="", label=f"$M = {int(m)}$")
            for m, color, marker in zip(
                widths[shown], plotting.PALETTE, plotting.MARKERS, strict=False
            )
        ]
        laws = [
            Line2D([], [], color="0.2", linestyle=STYLES[name], label=label)
            for name, label in NAMES.items()
        ]
        figure.legend(
            handles=[*heads, *laws], loc="outside lower center", ncols=3, columnspacing=1.2
        )
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["joint_limit"]
    chosen, stored = run.configuration["parameters"], run.load("grid")
    missed = ", ".join(
        f"{float(stored[f'{family}_{form}_{name}_missed']):.1%} ({name}, {form})"
        for family in TITLES
        for form in ("squares", "sum")
        for name in POWERS
        if name in (family, "published")
    )
    return (
        "Depth and width together. Root mean square over"
        f" {chosen['num_replicates']} draws of the distance of {chosen['num_tokens']} coupled"
        f" tokens from the limit, relative to their path, d = {chosen['dim']}; heads are drawn from"
        f" {chosen['num_reference']}. Laws are fitted to the cells with filled markers (those"
        " of all M, not only the three shown) and asked about the open ones."
        f" Held-out relative errors, the two families in turn: {missed}."
    )
