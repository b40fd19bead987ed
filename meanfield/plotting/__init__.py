"""Paper style and drawing primitives: rates, token paths, training curves, spectra, heat strips.

Free of jax: a figure builds from stored arrays where no solver is installed. Primitives draw on
axes that they are given and return the artists that hold the data; nothing here touches pyplot's
global state. Files are byte-stable: the same arrays give the same PNG and PDF.
"""

from meanfield.plotting._curves import (
    fraction_text,
    level_lines,
    rate_plot,
    rate_text,
    reference_triangle,
    training_curve,
)
from meanfield.plotting._spectra import heat_strip, null_directions, spectrum
from meanfield.plotting._style import (
    BLUE,
    COLUMN_WIDTH,
    GOLDEN,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PALETTE,
    PINK,
    RED,
    SKY,
    STYLE,
    TEXT_WIDTH,
    YELLOW,
    legend_below,
    new_figure,
    panel_label,
    paper_style,
    save_figure,
)
from meanfield.plotting._tokens import (
    Plane,
    animate_tokens,
    principal_plane,
    save_animation,
    token_paths,
)

__all__ = [
    "BLUE",
    "COLUMN_WIDTH",
    "GOLDEN",
    "GREEN",
    "GREY",
    "MARKERS",
    "ORANGE",
    "PALETTE",
    "PINK",
    "RED",
    "SKY",
    "STYLE",
    "TEXT_WIDTH",
    "YELLOW",
    "Plane",
    "animate_tokens",
    "fraction_text",
    "heat_strip",
    "legend_below",
    "level_lines",
    "new_figure",
    "null_directions",
    "panel_label",
    "paper_style",
    "principal_plane",
    "rate_plot",
    "rate_text",
    "reference_triangle",
    "save_animation",
    "save_figure",
    "spectrum",
    "token_paths",
    "training_curve",
]
