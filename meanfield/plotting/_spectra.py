"""Spectra, matrices as colours, null directions over context-token pairs."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meanfield._checks import require

_ZEROS = "zeros"  # the group id of markers that stand for zeros


def spectrum(
    ax: Axes,
    values: Any,
    *,
    label: str,
    threshold: float | None = None,
    interval: Any = None,
    num_zero: int = 0,
    floor: float = 1e-18,
    color: str | None = None,
    marker: str = "o",
) -> Line2D:
    """Eigen- or singular values in falling order, logarithmic; values below ``floor`` sit on it.

    ``interval [2, P]`` (lower and upper ends, in the order of ``values``) becomes error bars. A
    dashed line marks the threshold under which values count as zero. The ``num_zero`` smallest are
    zero to rounding: open markers at the bottom of the axis, whatever their size (those of a second
    spectrum above them). Returns the line of the points that are not.
    """
    values = np.asarray(values, float).ravel()
    order = np.argsort(values)[::-1]
    values = values[order]
    index = np.arange(1, len(values) + 1)
    require(
        0 <= num_zero <= len(values),
        f"num_zero is {num_zero} for {len(values)} values",
        f"0 to {len(values)}",
        "count the values that are zero to rounding",
    )
    kept, size = len(values) - num_zero, 3.0 if len(values) <= 40 else 2.0
    clipped = np.maximum(values[:kept], floor)
    (line,) = ax.plot(index[:kept], clipped, marker, color=color, label=label, markersize=size)
    shade = line.get_color()
    if interval is not None:
        ends = np.asarray(interval, float)
        require(
            ends.shape == (2, len(values)),
            f"interval has shape {ends.shape}",
            f"(2, {len(values)}): a lower and an upper end for each value",
            "pass one pair per value, or None",
        )
        low, high = np.maximum(ends[:, order[:kept]], floor)
        ax.vlines(index[:kept], low, high, color=shade, linewidth=0.9, alpha=0.6)
    if num_zero:
        rows = sum(other.get_gid() == _ZEROS for other in ax.lines)
        level = np.full(num_zero, 0.03 + 0.05 * rows)
        open_marker: dict[str, Any] = {
            "color": shade,
            "markerfacecolor": "white",
            "markersize": size,
            "clip_on": False,
            "transform": ax.get_xaxis_transform(),  # axis fractions: no place on a log scale is 0
            "gid": _ZEROS,
        }
        label = "zero to rounding (not to scale)"
        ax.plot(index[kept:], level, marker, label=f"_{label}" if rows else label, **open_marker)
        low = clipped.min() if kept else 1.0
        ax.update_datalim([(1.0, low / 30)], updatex=False)  # room between them and the rest
    if threshold is not None:
        ax.axhline(threshold, color=shade, linestyle=(0, (4, 3)), linewidth=0.8)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(_FromOne(6, integer=True))
    ax.set_xlabel("index")
    ax.set_ylabel("value")
    return line


class _FromOne(MaxNLocator):
    """Integer ticks that begin at 1: there is no eigenvalue 0."""

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        """1, 3, 5 or 1, 20, 40 where its parent has 0, 2, 4 and 0, 20, 40."""
        ticks = np.asarray(super().tick_values(max(vmin, 0.0), vmax))
        step = ticks[1] - ticks[0] if len(ticks) > 1 else 1
        return ticks + 1 if 1 < step < 5 else np.unique(np.maximum(ticks, 1))


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


def null_directions(ax: Axes, vectors: Any, contexts: Any) -> AxesImage:
    """Null vectors ``[P, k]`` over context-token pairs as a signed strip, one row per vector.

    ``contexts [P]`` is the context of each pair, numbered from 1: pairs of one context stand
    together, a line between contexts. Each vector is scaled to largest entry 1. Returns the image.
    """
    vectors, contexts = np.asarray(vectors, float), np.asarray(contexts)
    require(
        vectors.ndim == 2 and 0 not in vectors.shape and contexts.shape == vectors.shape[:1],
        f"vectors has shape {vectors.shape} and contexts {contexts.shape}",
        "[P, k] with k >= 1 and [P]",
        "pass the null vectors as columns",
    )
    vectors = vectors / np.maximum(np.abs(vectors).max(axis=0), 1e-300)
    num_pairs, num = vectors.shape
    image = heat_strip(
        ax,
        vectors.T[::-1],
        name="weight of the pair",
        extent=(0.5, num_pairs + 0.5, 0.5, num + 0.5),
        signed=True,
    )
    starts = np.flatnonzero(np.diff(contexts, prepend=contexts[0] - 1))
    for start in starts[1:] if len(starts) <= 40 else ():  # more would cover what they separate
        ax.axvline(start + 0.5, color="0.4", linewidth=0.6)
    middles = (starts + np.append(starts[1:], num_pairs) + 1) / 2
    step = -(-len(starts) // 12)  # at most twelve numbers on the axis
    ax.set_xticks(middles[::step], [str(name) for name in contexts[starts][::step]])
    rows = np.arange(1, num + 1)[:: -(-num // 6)]
    ax.set_yticks(num + 1 - rows, [str(row) for row in rows])
    ax.set_xlabel("context (its pairs side by side)")
    ax.set_ylabel("null direction")
    return image
