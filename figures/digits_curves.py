"""Digits: learning curves in images, pixels, heads and layers; gaps of the read-outs."""

import numpy as np
from scipy import stats

from meanfield import fit_rate, plotting

EXPERIMENTS = ("digits_training",)
CLAIMS = ("curves*",)
SWEEPS = (  # arrays, their sizes, the axis
    ("images", "images", "training images"),
    ("pools", "pixels", "pixels of an image $n$"),
    ("heads", "heads", "heads per layer $M$"),
    ("layers", "layers", "layers $L$"),
)


def draw(runs):
    """(a-d) Test accuracy and risk along each sweep; (e, f) gaps of the read-outs in M and L."""
    curves = runs["digits_training"].load("curves")
    with plotting.paper_style():
        figure, axes = plotting.new_figure(2, 3, aspect=0.95)
        figure.get_layout_engine().set(w_pad=0.06)
        panels = axes.ravel()
        for ax, letter, sweep in zip(panels, "abcd", SWEEPS, strict=False):
            _learning(ax, curves, *sweep)
            plotting.panel_label(ax, letter, f"in {sweep[2].split(' $')[0]}")
        for ax in (panels[1], panels[2]):
            ax.set_ylabel("")
        panels[0].legend(loc="best")
        _gap(panels[4], curves, "heads", "$M$", -0.5)
        plotting.panel_label(panels[4], "e", "read-outs of $M$ and $2M$")
        _gap(panels[5], curves, "layers", "$L$", None)
        plotting.panel_label(panels[5], "f", "read-outs of $L$ and $2L$")
    return figure


def interval(draws) -> tuple[np.ndarray, np.ndarray]:
    """Means over seeds and half-widths of their 95% intervals, ``[K]`` each."""
    half = stats.t.ppf(0.975, len(draws) - 1) * stats.sem(draws, axis=0)
    return draws.mean(axis=0), half


def _learning(ax, curves, name: str, sizes: str, words: str) -> None:
    for kind, label, color, marker in (
        ("accuracy", "test accuracy", plotting.BLUE, "o"),
        ("risk", "test risk / initial", plotting.RED, "s"),
    ):
        mean, half = interval(curves[f"{name}_{kind}"])
        ax.errorbar(
            curves[sizes], mean, half, fmt=f"{marker}-", color=color, capsize=2, label=label
        )
    chance = ax.axhline(0.1, linestyle=(0, (4, 3)), color="0.35", linewidth=0.8)
    chance.set_label("chance")
    ax.set_xscale("log", base=2)
    ax.set_xticks(curves[sizes], [f"{size:g}" for size in curves[sizes]])
    ax.minorticks_off()
    ax.set_ylim(0.0, 1.0)
    ax.set_xlabel(words)
    ax.set_ylabel("accuracy, risk")


def _gap(ax, curves, name: str, letter: str, slope: float | None) -> None:
    sizes, gaps = curves[name][:-1], curves[f"{name}_gap"]
    rate = None if slope is None else fit_rate(sizes, gaps, min_sizes=3)
    plotting.rate_plot(ax, sizes, gaps, label="measured", rate=rate, color=plotting.BLUE)
    if slope is not None and rate is not None:
        plotting.reference_triangle(ax, slope, rate, start=float(sizes[1]))
        ax.set_ylim(bottom=0.85 * ax.get_ylim()[0])  # room for the triangle's label
    ax.set_xlabel(f"{'heads' if name == 'heads' else 'layers'} {letter}")
    ax.set_ylabel("root mean square gap")
    plotting.legend_below(ax)


def caption(runs):
    """The base, what is varied, the accuracies at the ends."""
    run = runs["digits_training"]
    curves, p = run.load("curves"), run.configuration["parameters"]
    ends = "; ".join(
        f"{words.split(' $')[0]} {curves[sizes][0]:g} to {curves[sizes][-1]:g}:"
        f" {means[0]:.3f} to {means[-1]:.3f}"
        for name, sizes, words in SWEEPS
        for means in [curves[f"{name}_accuracy"].mean(axis=0)]
    )
    tokens = ", ".join(f"{value:.3g}" for value in curves["tokens"])
    return (
        f"Learning curves on digits in d = {p['dim']}. One quantity is varied, the others stay at"
        f" {max(p['curve_images'])} training images, pooling {p['base_pool']}, M ="
        f" {p['base_heads']}, L = {p['base_layers']}; {p['curve_steps']} steps of"
        f" {p['curve_minibatch']} images each. Means and 95% intervals over"
        f" {p['curve_seeds']} seeds of split, heads and minibatches. (a-d) Accuracy and risk on"
        f" {p['curve_test']} test images; accuracy from the first to the last point: {ends}. The"
        f" images of (b) have {tokens} tokens on average, after pooling. (e, f) Root mean squares"
        " over test images of the distance between the read-outs of two nets, the smaller one's"
        f" heads among the larger one's."
    )
