"""Curves: errors against sizes with their rates, quantities along training, baselines."""

import fractions
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
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

from meanfield._checks import require
from meanfield.plotting._style import GREY
from meanfield.rates import Rate


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
