"""Clouds in .csv files: strict, so that no token is lost to a header or a typing error."""

import csv
import re
from pathlib import Path

import numpy as np

from meanfield._checks import MeanfieldError, require
from meanfield._files import require_regular


def read_csv(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of numbers below an optional row of names; a last column ``weight`` is split off."""
    mend = "write one token per row, numbers separated by commas"
    require_regular(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle)
            rows = [
                (reader.line_num, cells)
                for row in reader
                if len(cells := [cell.strip() for cell in row]) > 1 or any(cells)
            ]
    except FileNotFoundError:
        raise MeanfieldError(f"{path} does not exist", "a .csv file", "check the path") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeanfieldError(f"{path} cannot be read ({error})", "a .csv file", mend) from None
    require(rows, f"{path} is empty", "a row per token", mend)
    header: list[str] = []
    if not any(_is_number_in_python(cell) for cell in rows[0][1]):
        header, rows = rows[0][1], rows[1:]
    require(rows, f"{path} holds no token", "a row per token", mend)
    width = len(header or rows[0][1])
    for line, cells in rows:
        require(
            len(cells) == width,
            f"{path}, line {line}: {len(cells)} cells",
            f"{width}, as in the {'header' if header else 'first row'}",
            mend,
        )
        for cell in cells:
            require(
                _NUMBER.fullmatch(cell),
                f"{path}, line {line}: {cell!r:.40} is no number",
                "numbers in every row below a header without any",
                mend,
            )
    table = np.array([[float(cell) for cell in cells] for _, cells in rows])
    doubtful = [
        name
        for place, name in enumerate(header, 1)
        if name.lower() in ("weight", "weights") and (name, place) != ("weight", width)
    ]
    require(
        not doubtful,
        f"{path}: the column {(doubtful or [''])[0]!r} in a header of {width}",
        "weights in the last column, under the name 'weight'",
        "move it there and rename it, or give a coordinate another name",
    )
    if header[-1:] != ["weight"]:
        return table, None
    require(width > 1, f"{path} holds weights alone", "coordinates before them", mend)
    return table[:, :-1], table[:, -1]


_NUMBER = re.compile(
    r"[+-]?(nan|inf(inity)?|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.IGNORECASE
)


def _is_number_in_python(cell: str) -> bool:
    """True also of what is no number in a file (``1_0``): such a row is a bad one, no header."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
