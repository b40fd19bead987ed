"""Tokens moving through depth: planes to look at, paths, animations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image

from meanfield._checks import require, require_finite, require_positive_integer
from meanfield._files import replacing
from meanfield.plotting._style import BLUE, new_figure, paper_style


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
