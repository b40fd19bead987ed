"""Digits: risk and its kernel predictions, accuracy beside baselines, spectra, token paths."""

import numpy as np
from matplotlib.figure import Figure

from meanfield import plotting as draw_with
from meanfield.records import RunDirectory, shown

EXPERIMENTS = ("digits_training",)
CLAIMS = ()  # the caption says them in words
NUM_DIGITS = 3
BASELINES = {
    "kernel_ridge": ("kernel ridge at $V=0$", (0, (1, 1.2))),
    "logistic_regression": ("logistic regression", (0, (4, 2))),
    "nearest_class_mean": ("nearest class mean", (0, (5, 1.5, 1, 1.5))),
}


def draw(runs: dict[str, RunDirectory]) -> Figure:
    """Two rows of three panels, text width."""
    run = runs["digits_training"]
    fit, classify, paths = run.load("fit"), run.load("classify"), run.load("paths")
    baselines = run.load("baselines")
    figure, axes = draw_with.new_figure(2, 3, aspect=0.82)
    figure.get_layout_engine().set(w_pad=0.07)
    with draw_with.paper_style():
        _risk(axes[0, 0], fit)
        _accuracy(axes[0, 1], classify, baselines)
        _spectra(axes[0, 2], fit)
        plane = draw_with.Plane(
            np.zeros(paths["paths"].shape[-1]),
            np.eye(2, paths["paths"].shape[-1]),
            ("$x_1$ (image column at $s=0$)", "$x_2$ (image row at $s=0$)"),
        )
        for i, ax in enumerate(axes[1]):
            _paths(ax, paths, i, plane)
            draw_with.panel_label(
                ax, "def"[i], f"a {paths['labels'][i]}, read as {paths['predicted'][i]}"
            )
        axes[1, 1].set_ylabel("")
        axes[1, 2].set_ylabel("")
    return figure


def _risk(ax, fit) -> None:
    start = fit["risk"][0]
    for name, label, color, style in (
        ("risk", "measured", draw_with.BLUE, "-"),
        ("along", "from $K(t)$ along the flow", draw_with.RED, ":"),
        ("frozen", "from $K(0)$, features frozen", draw_with.GREY, "--"),
    ):
        draw_with.training_curve(
            ax, fit["time"], fit[name] / start, label=label, color=color, line_style=style
        )
    ax.set_ylabel("risk / initial risk")
    low = min(fit[name].min() for name in ("risk", "along", "frozen")) / start
    ax.set_ylim(bottom=low**1.7)  # room for the legend under a convex curve
    ax.legend(loc="lower left")
    draw_with.panel_label(ax, "a", "fit")


def _accuracy(ax, classify, baselines) -> None:
    for name, label, color in (
        ("train_accuracy", "training images", draw_with.SKY),
        ("test_accuracy", "test images", draw_with.BLUE),
    ):
        draw_with.training_curve(
            ax,
            classify["time"],
            classify[name],
            label=label,
            color=color,
            name="accuracy",
            logarithmic=False,
        )
    for key, (label, dashes) in BASELINES.items():
        ax.axhline(
            float(baselines[key]), color="0.35", linestyle=dashes, linewidth=0.9, label=label
        )
    ax.set_ylim(0.0, 1.03)
    ax.legend(loc="best")
    draw_with.panel_label(ax, "b", "classification")


def _spectra(ax, fit) -> None:
    for values, label, color, marker in (
        (fit["spectra"][0], "start", draw_with.GREY, "o"),
        (fit["spectra"][1], "end", draw_with.BLUE, "s"),
    ):
        draw_with.spectrum(ax, values, label=label, color=color, marker=marker)
    ax.set_ylabel("eigenvalues of $K/N$")
    ax.legend(loc="upper right")
    draw_with.panel_label(ax, "c", "tangent kernel of the fit")


def _paths(ax, paths, i: int, plane) -> None:
    keep = (paths["weights"][i] > 0) | (np.arange(paths["weights"].shape[1]) == 0)
    draw_with.token_paths(
        ax, paths["paths"][i][:, keep], weights=paths["weights"][i][keep], plane=plane
    )
    target = plane.project(paths["anchors"][paths["labels"][i]])
    ax.plot(*target, "x", color=draw_with.RED, markersize=6, markeredgewidth=1.5, zorder=4)


def caption(runs: dict[str, RunDirectory]) -> str:
    """What is seen, with the stored numbers."""
    run = runs["digits_training"]
    fit, classify, baselines = run.load("fit"), run.load("classify"), run.load("baselines")
    p = run.configuration["parameters"]
    ratio = fit["risk"][-1] / fit["risk"][0]
    frozen = fit["frozen"][-1] / fit["frozen"][0]
    return (
        f"Digits as token measures in d = {p['dim']}, L = {p['num_cells']} layers of"
        f" M = {p['num_heads']} heads, V = 0 at the start. (a) {p['num_fit']} images fitted by the"
        f" conditional gradient flow: risk ratio {shown(ratio)} at training time"
        f" {fit['time'][-1]:.3g}; the frozen kernel predicts {shown(frozen)}. (b)"
        f" {p['num_train']} training images: test accuracy {classify['test_accuracy'][-1]:.3f} on"
        f" {p['num_test']} images, beside kernel ridge {float(baselines['kernel_ridge']):.3f},"
        f" logistic regression {float(baselines['logistic_regression']):.3f} and nearest class mean"
        f" {float(baselines['nearest_class_mean']):.3f}. (c) Spectrum of the tangent kernel before"
        " and after the fit. (d-f) Tokens of three test images from depth 0 (open) to 1 (filled) in"
        " the first two coordinates, area = mass; star: query token; cross: anchor of the class."
    )
