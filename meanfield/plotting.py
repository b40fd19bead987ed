"""Paper style and drawing primitives: rates, token paths, training curves, spectra, heat strips.

Free of jax: a figure builds from stored arrays where no solver is installed. Primitives draw on
axes that they are given and return the artists that hold the data; nothing here touches pyplot's
global state. Files are byte-stable: the same arrays give the same PNG and PDF.
"""

import contextlib
import fractions
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.ticker import (
    FixedLocator,
    LogFormatterSciNotation,
    LogLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)
from PIL import Image

from meanfield._checks import require, require_finite, require_positive_integer
from meanfield._files import replacing
from meanfield.rates import Rate

COLUMN_WIDTH = 3.4  # inches: one column of a two-column paper
TEXT_WIDTH = 7.0  # inches: both columns
GOLDEN = 0.68  # height of an axis over its width

# Okabe and Ito's palette, told apart under every common colour blindness; black is kept for text.
BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#7A7A7A",
)
PALETTE = (BLUE, RED, GREEN, ORANGE, PINK, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral",  # ships with matplotlib: the same glyphs on every machine
    "mathtext.fontset": "stix",
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.3,
    "legend.labelspacing": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.titlelocation": "left",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.6,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "savefig.bbox": None,  # the figure keeps the size it was designed for
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "image.cmap": "cividis",
    "pdf.fonttype": 42,
    "path.simplify": False,
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """The house's rcParams inside the block, the user's again after it."""
    with mpl.rc_context(STYLE):
        yield


def new_figure(
    num_rows: int = 1, num_columns: int = 1, *, width: float | None = None, aspect: float = GOLDEN
) -> tuple[Figure, np.ndarray]:
    """A figure of print size in paper style and its axes ``[num_rows, num_columns]``.

    Width: one column for one axis in a row, the whole text width for more, unless given (inches).
    """
    require_positive_integer("num_rows", num_rows)
    require_positive_integer("num_columns", num_columns)
    width = width or (COLUMN_WIDTH if num_columns == 1 else TEXT_WIDTH)
    with paper_style():
        height = aspect * width * num_rows / num_columns
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def save_figure(
    figure: Figure, path: str | Path, formats: tuple[str, ...] = ("png", "pdf")
) -> list:
    """Write ``path.png`` and ``path.pdf`` (a .png or .pdf suffix of ``path`` is dropped).

    Each file appears whole or not at all, without dates or versions in it: the same figure gives
    the same bytes. Returns the paths written. Raises: `MeanfieldError` if a place is not writable.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".png", ".pdf") else path
    metadata = {
        "png": {"Software": None},
        "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    }
    written = []
    with paper_style():
        for kind in formats:
            target = stem.with_name(f"{stem.name}.{kind}")
            with replacing(target) as temporary:
                figure.savefig(temporary, format=kind, metadata=metadata.get(kind))
            written.append(target)
    return written


def fraction_text(value: float) -> str:
    """``0.5 -> "1/2"``, ``2.0 -> "2"``; three digits where no denominator up to 4 fits."""
    simple = fractions.Fraction(value).limit_denominator(4)
    return str(simple) if abs(float(simple) - value) < 1e-9 else f"{value:.3g}"


def rate_text(rate: Rate) -> str:
    """``-0.50 [-0.53, -0.47]``: slope and interval, with proper minus signs."""
    lower, upper = rate.interval
    return f"{rate.slope:.2f} [{lower:.2f}, {upper:.2f}]".replace("-", "\N{MINUS SIGN}")


def rate_plot(
    ax: Axes,
    sizes: Any,
    errors: Any,
    *,
    label: str,
    rate: Rate | None = None,
    color: str | None = None,
    marker: str = "o",
    band: bool = True,
    quantiles: tuple[float, float] = (0.1, 0.9),
) -> Line2D:
    """Errors against sizes, both logarithmic: points, band over replicates, fitted line.

    Args:
        sizes: ``[K]``.
        errors: ``[K]``, or replicates ``[R, K]``: the points are then root mean squares, and a
            ``band`` runs between two ``quantiles`` of the replicates.
        rate: its line is dashed and its slope and interval join the legend's label.

    Returns: the line that holds the points.
    """
    sizes, errors = np.asarray(sizes, float), np.asarray(errors, float)
    require(
        sizes.ndim == 1 and errors.ndim in (1, 2) and errors.shape[-1:] == sizes.shape,
        f"sizes has shape {sizes.shape} and errors {errors.shape}",
        "[K] and [K] or [R, K]",
        "pass one error per size",
    )
    centre = errors if errors.ndim == 1 else np.sqrt(np.mean(errors**2, axis=0))
    if rate is not None:
        label = f"{label}: {rate_text(rate)}"
    (points,) = ax.plot(sizes, centre, marker, color=color, label=label)
    shade = points.get_color()
    if errors.ndim == 2 and band:
        low, high = np.quantile(errors, quantiles, axis=0)
        ax.fill_between(sizes, low, high, color=shade, alpha=0.16, linewidth=0)
    if rate is not None:
        ends = np.array([sizes.min(), sizes.max()])
        ax.plot(ends, rate.predict(ends), "--", color=shade, linewidth=0.9)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(list(sizes)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.margins(y=0.08)
    _label_log_axis(ax)
    return points


def _label_log_axis(ax: Axes) -> None:
    """Plain numbers 1, 2, 5 where errors span few decades, whole powers of ten otherwise."""
    low, high = ax.dataLim.intervaly
    if low >= 1e-3 and high < 1e3 and high / low < 10**2.5:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        ax.yaxis.set_major_locator(LogLocator(numticks=8))
        ax.yaxis.set_major_formatter(LogFormatterSciNotation())
    ax.yaxis.set_minor_formatter(NullFormatter())


def reference_triangle(
    ax: Axes,
    slope: float,
    rate: Rate,
    *,
    start: float,
    width: float = 2.0,
    gap: float = 0.6,
    color: str = GREY,
) -> Polygon:
    """A triangle of the expected slope under the line of ``rate``.

    It runs from size ``start`` to ``width * start`` and stays below ``gap`` times the fitted line.
    The legs carry 1 and the order. Returns the polygon.
    """
    x0, x1, rise = start, start * width, width ** abs(slope)
    here, there = rate.predict([x0, x1])
    y0 = gap * (min(there, here / rise) if slope < 0 else min(here, there / rise))
    upright = x0 if slope < 0 else x1
    polygon = Polygon(
        [(x0, y0), (x1, y0), (upright, y0 * rise)],
        closed=True,
        facecolor=color,
        edgecolor=color,
        alpha=0.35,
        linewidth=0.6,
    )
    ax.add_patch(polygon)
    ax.autoscale_view()
    style: dict[str, Any] = {"fontsize": 7, "color": "0.3", "textcoords": "offset points"}
    beside = (-2.5, 0) if slope < 0 else (2.5, 0)
    ax.annotate(
        fraction_text(abs(slope)),
        (upright, y0 * np.sqrt(rise)),
        xytext=beside,
        ha="right" if slope < 0 else "left",
        va="center",
        **style,
    )
    ax.annotate("1", (x0 * np.sqrt(width), y0), xytext=(0, -2), ha="center", va="top", **style)
    return polygon


class Plane(NamedTuple):
    """A plane of R^d to look at: centre ``[d]``, orthonormal axes ``[2, d]``, axis labels."""

    centre: np.ndarray
    axes: np.ndarray
    labels: tuple[str, str]

    def project(self, points: Any) -> np.ndarray:
        """Coordinates ``[..., 2]`` of points ``[..., d]``."""
        return (np.asarray(points, float) - self.centre) @ self.axes.T


def principal_plane(points: Any) -> Plane:
    """The plane of the first two principal axes of points ``[..., d]``; d = 2 is left as it is.

    The labels say which axes they are and the share of variance each holds. Signs are fixed (each
    axis's largest entry is positive), so that a picture does not flip from run to run.
    """
    points = np.asarray(points, float)
    dim = points.shape[-1]
    require(dim >= 2, f"points of dimension {dim}", "at least 2", "use token_paths, which plots")
    require_finite("points", points)
    if dim == 2:
        return Plane(np.zeros(2), np.eye(2), ("$x_1$", "$x_2$"))
    flat = points.reshape(-1, dim)
    centre = flat.mean(axis=0)
    _, values, vectors = np.linalg.svd(flat - centre, full_matrices=False)
    vectors = np.concatenate([vectors, np.zeros((2, dim))])[:2]
    largest = np.abs(vectors).argmax(axis=1)
    vectors = vectors * np.where(vectors[np.arange(2), largest] < 0, -1.0, 1.0)[:, None]
    shares = np.concatenate([values, np.zeros(2)])[:2] ** 2 / max((values**2).sum(), 1e-300)
    labels = [f"principal axis {i + 1} ({share:.0%})" for i, share in enumerate(shares)]
    return Plane(centre, vectors, (labels[0], labels[1]))


def token_paths(
    ax: Axes,
    path: Any,
    *,
    weights: Any = None,
    plane: Plane | None = None,
    color: str = BLUE,
    label: str | None = None,
) -> LineCollection:
    """Paths of tokens from depth 0 (open circles) to the end (filled), ``path [L+1, n, d]``.

    d > 2 is seen in ``plane`` (default: the first two principal axes, and the axis labels say so);
    d = 1 is drawn against the depth node. Areas follow ``weights [n]``; zero-mass query tokens are
    stars.

    Returns: the collection of n paths (its segments hold the data).
    """
    path = np.asarray(path, float)
    require(
        path.ndim == 3 and path.shape[0] >= 2,
        f"path has shape {path.shape}",
        "[L+1, n, d]",
        "pass solution.path of one measure",
    )
    num_nodes, num_tokens, dim = path.shape
    mass = np.full(num_tokens, 1 / num_tokens) if weights is None else np.asarray(weights, float)
    require(
        mass.shape == (num_tokens,),
        f"weights has shape {mass.shape}",
        f"({num_tokens},)",
        "pass one weight per token",
    )
    if dim == 1:
        depth = np.broadcast_to(np.arange(num_nodes)[:, None, None], path.shape)
        seen, names = np.concatenate([depth, path], axis=-1), ("depth node", "$x$")
    else:
        plane = plane or principal_plane(path)
        seen, names = plane.project(path), plane.labels
    lines = LineCollection(
        list(seen.swapaxes(0, 1)), colors=color, linewidths=0.7, alpha=0.55, label=label
    )
    ax.add_collection(lines)
    areas = np.clip(12.0 * mass / max(mass.max(), 1e-300), 2.0, None)
    query = mass == 0
    for chosen, shape, size in ((~query, "o", areas), (query, "*", np.full(num_tokens, 40.0))):
        if chosen.any():
            start, end = seen[0, chosen].T, seen[-1, chosen].T
            kind = {"s": size[chosen], "marker": shape, "edgecolors": color, "zorder": 3}
            ax.scatter(*start, facecolors="white", linewidths=0.6, **kind)
            ax.scatter(*end, facecolors=color, linewidths=0.4, **kind)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    if dim > 1:
        ax.set_aspect("equal", adjustable="datalim")
    ax.autoscale_view()
    return lines


def training_curve(
    ax: Axes,
    time: Any,
    values: Any,
    *,
    label: str,
    color: str | None = None,
    line_style: str = "-",
    name: str = "risk",
    logarithmic: bool = True,
) -> Line2D:
    """A quantity along training time; the risk on a logarithmic scale. Returns its line."""
    (line,) = ax.plot(time, values, line_style, color=color, label=label)
    ax.set_xlabel("training time $t$")
    ax.set_ylabel(name)
    if logarithmic:
        ax.set_yscale("log")
    return line


def level_lines(ax: Axes, levels: Mapping[str, float], *, color: str = "0.35") -> list[Line2D]:
    """Horizontal dashed lines with their names at the right end, for baselines to be beaten."""
    lines = []
    for name, level in levels.items():
        lines.append(ax.axhline(level, linestyle=(0, (4, 3)), color=color, linewidth=0.8))
        ax.annotate(
            name,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(-1, 1.5),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7,
            color=color,
        )
    return lines


def spectrum(
    ax: Axes,
    values: Any,
    *,
    label: str,
    threshold: float | None = None,
    floor: float = 1e-18,
    color: str | None = None,
    marker: str = "o",
) -> Line2D:
    """Eigen- or singular values in falling order, logarithmic; values below ``floor`` sit on it.

    A dashed line marks the threshold under which values count as zero. Returns the points' line.
    """
    values = np.sort(np.asarray(values, float).ravel())[::-1]
    index = np.arange(1, len(values) + 1)
    clipped = np.maximum(values, floor)
    (line,) = ax.plot(index, clipped, marker, color=color, label=label, markersize=3)
    if threshold is not None:
        ax.axhline(threshold, color=line.get_color(), linestyle=(0, (4, 3)), linewidth=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("index")
    ax.set_ylabel("value")
    return line


def heat_strip(
    ax: Axes,
    values: Any,
    *,
    name: str,
    extent: tuple[float, float, float, float] | None = None,
    signed: bool = False,
) -> AxesImage:
    """A matrix ``[rows, columns]`` as colours with its bar; row 0 at the bottom.

    ``extent = (left, right, bottom, top)`` puts numbers on the axes (depth from 0 to 1, say).
    ``signed`` centres a diverging map at 0. Returns the image that holds the data.
    """
    values = np.asarray(values, float)
    require(values.ndim == 2, f"values has shape {values.shape}", "[rows, columns]", "reshape it")
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = ax.imshow(
        values,
        aspect="auto",
        origin="lower",
        extent=extent,
        interpolation="nearest",
        cmap="RdBu_r" if signed else "cividis",
        vmin=-limit if signed else None,
        vmax=limit if signed else None,
    )
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.06)
    bar.set_label(name)
    bar.outline.set_linewidth(0.5)
    return image


def legend_below(ax: Axes, *, num_columns: int = 1) -> Legend:
    """The legend of an axis under it, where it covers no data; the layout makes room for it."""
    compact: dict[str, Any] = {
        "ncols": num_columns,
        "handlelength": 1.0,
        "handletextpad": 0.4,
        "columnspacing": 0.9,
    }
    figure = ax.figure
    if isinstance(figure, Figure) and len(figure.axes) == 1:
        # a figure's own legend may be wider than the axis without squeezing it
        return figure.legend(loc="outside lower center", **compact)
    return ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), **compact)


def panel_label(ax: Axes, letter: str, text: str = "") -> None:
    """``(a) text`` above the left end of an axis."""
    ax.set_title(f"({letter}) {text}".strip())


def save_animation(
    figure: Figure,
    update: Callable[[int], None],
    num_frames: int,
    path: str | Path,
    *,
    fps: int = 12,
) -> Path:
    """Render ``update(0), ..., update(num_frames - 1)`` to an endless GIF, whole or not at all.

    All frames share the palette of the last one. Cost: one rendering per frame.
    """
    require_positive_integer("num_frames", num_frames)
    path = Path(path)
    canvas = FigureCanvasAgg(figure)
    frames = []
    with paper_style():
        for index in range(num_frames):
            update(index)
            canvas.draw()
            frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    palette = frames[-1].quantize(256)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    with replacing(path) as temporary:
        indexed[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=1000 // fps,
            loop=0,
        )
    return path


def animate_tokens(
    path: Any,
    file: str | Path,
    *,
    weights: Any = None,
    plane: Plane | None = None,
    color: str = BLUE,
    fps: int = 12,
) -> Path:
    """Tokens moving through depth, ``path [L+1, n, d]``, with the trails behind them, as a GIF.

    The view is that of `token_paths` and stays still. Cost: L + 1 renderings.
    """
    path = np.asarray(path, float)
    require(
        path.ndim == 3 and path.shape[-1] >= 2,
        f"path has shape {path.shape}",
        "[L+1, n, d] with d >= 2",
        "pass solution.path of one measure in at least two dimensions",
    )
    plane = plane or principal_plane(path)
    seen = plane.project(path)
    figure, axes = new_figure(aspect=1.0)
    ax = axes[0, 0]
    with paper_style():
        trails = token_paths(ax, path, weights=weights, plane=plane, color=color)
        for dots in list(ax.collections[1:]):
            dots.remove()
        moving = ax.scatter(*seen[0].T, s=10, color=color, zorder=3)
        low, high = seen.min(axis=(0, 1)), seen.max(axis=(0, 1))
        margin = 0.05 * max((high - low).max(), 1e-12)
        ax.set_xlim(low[0] - margin, high[0] + margin)
        ax.set_ylim(low[1] - margin, high[1] + margin)
        ax.set_aspect("equal", adjustable="box")

    def update(index: int) -> None:
        trails.set_segments(list(seen[: index + 1].swapaxes(0, 1)))
        moving.set_offsets(seen[index])
        ax.set_title(f"depth node {index} of {len(path) - 1}")

    return save_animation(figure, update, len(path), file, fps=fps)
