"""Paper style: sizes, colours, figures of print size, files that are byte-stable."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from meanfield._checks import require_positive_integer
from meanfield._files import replacing

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
    figure: Figure,
    path: str | Path,
    formats: tuple[str, ...] = ("png", "pdf"),
    *,
    dots_per_inch: float | int = STYLE["savefig.dpi"],
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
                options = {"format": kind, "metadata": metadata.get(kind), "dpi": dots_per_inch}
                figure.savefig(temporary, **options)
            written.append(target)
    return written


def legend_below(ax: Axes, *, num_columns: int = 1, handle_length: float = 1.0) -> Legend:
    """The legend of an axis under it, where it covers no data; the layout makes room for it.

    ``handle_length`` in units of the font's size: 1 for colours, 2.6 where line styles are told.
    """
    compact: dict[str, Any] = {
        "ncols": num_columns,
        "handlelength": handle_length,
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
