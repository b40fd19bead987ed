"""Numbers of claims as words, by one rule for tables, captions and the command line."""

import math
import re

_DIGITS = 4  # significant ones
_ROUNDING = 1e-12  # what is smaller, and only has to be small, differs from machine to machine


def shown(value: float | str) -> str:
    """A number of a table: exact where four digits say it all, else with all four; words whole."""
    if isinstance(value, str):
        return value
    short = f"{value:.{_DIGITS}g}"
    if not math.isfinite(value) or float(short) == value:
        return _tidy(short)
    return _rounded(value, _DIGITS - 1 - _exponent(value), abs(value))


def shown_result(
    measured: float | str, interval: tuple[float, float] | None, expected: float | str
) -> tuple[str, str]:
    """A measured number and its interval ("" for None), rounded alike.

    To two digits of the interval's half-width, but to no more than four of the largest number. A
    number at rounding level that has to lie below a bound is rounded up to a power of ten.
    """
    if interval is None:
        return _below(measured, expected) or shown(measured), ""
    low, high = interval
    all_three = (low, high) if isinstance(measured, str) else (low, high, measured)
    scale = max((abs(number) for number in all_three if math.isfinite(number)), default=1.0)
    places = _DIGITS - 1 - _exponent(scale)
    if 0 < high - low < math.inf:
        places = min(places, 1 - _exponent((high - low) / 2))
    ends = ", ".join(_rounded(end, places, scale) for end in (low, high))
    text = measured if isinstance(measured, str) else _rounded(measured, places, scale)
    return text, f"[{ends}]"


def _below(measured: float | str, expected: float | str) -> str:
    """``< 1e-15`` for 6e-16, where that says that the bound is kept; else nothing."""
    bound = re.match(r"(?:below|at most) (\d[\d.]*(?:e[+-]?\d+)?)(?!\S)", str(expected))
    if isinstance(measured, str) or bound is None or not 0 < measured < _ROUNDING:
        return ""
    power = int(f"{measured:.16e}".split("e")[1]) + 1
    return f"< 1e{power}" if float(f"1e{power}") <= float(bound[1]) else ""


def _exponent(value: float) -> int:
    """The power of ten of a number's first digit, once it is rounded."""
    return int(f"{value:.{_DIGITS - 1}e}".split("e")[1]) if math.isfinite(value) else 0


def _rounded(value: float, places: int, scale: float) -> str:
    """``value`` to so many decimal places; with a power of ten where ``scale`` asks for one."""
    if value == 0 or not math.isfinite(value):
        return str(value) if value else "0"
    if 1e-3 <= scale < 1e6:
        text = f"{value:.{max(places, 0)}f}"
        return text.removeprefix("-") if not text.strip("-0.") else text
    return _tidy(f"{value:.{max(places + _exponent(value), 0)}e}")


def _tidy(text: str) -> str:
    """``1e-05`` as ``1e-5``, ``1e+05`` as ``1e5``."""
    digits, _, power = text.partition("e")
    return f"{digits}e{int(power)}" if power else text
