"""Validation: error types and the few checks that every public entry shares. Free of jax.

An error is one line that says what was given, what is expected and how to mend it. The command
line prints that line and exits with code 2.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Verdict = Literal["consistent", "inconsistent", "undecided"]
_WIDEST = 1.5  # tolerances to one side: an interval that reaches further says too little


class MeanfieldError(ValueError):
    """Bad input, or a run that cannot go on: ``given; expected ...; mend``, on one line."""

    def __init__(self, given: str, expected: str, mend: str):
        self.given, self.expected, self.mend = given, expected, mend
        text = f"{given}; expected {expected}; {mend}"
        super().__init__(" ".join(text.split()))

    def __reduce__(self):
        return type(self), (self.given, self.expected, self.mend)


class DomainError(MeanfieldError):
    """A law, closure or formula was asked for a value outside the domain where it is finite."""


class NonFiniteError(MeanfieldError):
    """A solve produced NaN or infinity; the message names the depth cell and what to do."""


def require(condition: Any, given: str, expected: str, mend: str) -> None:
    """Raise `MeanfieldError` unless ``condition`` holds (``assert`` vanishes under ``-O``)."""
    if not condition:
        raise MeanfieldError(given, expected, mend)


def is_concrete(*values: Any) -> bool:
    """True unless a value is being traced by jax: only concrete values can be looked at."""
    jax = sys.modules.get("jax")
    return jax is None or not any(isinstance(value, jax.core.Tracer) for value in values)


def require_finite(name: str, values: Any) -> None:
    """Raise unless every entry is finite, and name the first index that is not."""
    values = np.asarray(values)
    bad = ~np.isfinite(values)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = list(index)
        raise MeanfieldError(
            f"{name} holds {values[index]} at index {where} ({int(bad.sum())} bad entries)",
            "finite numbers",
            "remove or repair those entries",
        )


def require_positive_integer(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer >= 1."""
    ok = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1
    require(ok, f"{name} is {value!r}", "an integer of at least 1", f"pass {name}=1 or more")


def check_parameters(
    parameters: Any,
    *,
    at_least: Mapping[str, int | float] | None = None,
    at_most: Mapping[str, int | float] | None = None,
    multiple_of: Mapping[str, int] | None = None,
    num_sizes: int = 4,
) -> None:
    """Refuse an experiment's parameters before any work; call it from ``__post_init__``.

    Integers are counts, at least 1; numbers are finite and positive, except those named
    ``expected_...`` (finite); ``seed`` and ``..._seed`` lie in 0 ... 2^63 - 1; tuples are sizes of
    a sweep: at least ``num_sizes`` distinct ones, each under the rule of its kind.

    Args:
        parameters: an instance of a dataclass.
        at_least, at_most: other bounds, by field.
        multiple_of: what an integer must be a multiple of, by field.
        num_sizes: sizes that a slope needs.

    Raises: `MeanfieldError` naming the flag.
    """
    at_least, at_most, multiple_of = at_least or {}, at_most or {}, multiple_of or {}
    for field in dataclasses.fields(parameters):
        name, given = field.name, getattr(parameters, field.name)
        flag = f"--{name.replace('_', '-')}"
        is_seed = name == "seed" or name.endswith("_seed")
        values = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        if values is given:
            require(
                len(set(values)) == len(values) >= num_sizes,
                f"{flag} {' '.join(map(str, values))}".strip(),
                f"at least {num_sizes} sizes, all different",
                "a slope needs them: correct the list",
            )
        for value in list[Any](values):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                continue
            if isinstance(value, int | np.integer):
                kind, low, high = "an integer", 0 if is_seed else 1, 2**63 - 1 if is_seed else 2**31
            elif name.startswith("expected_"):
                kind, low, high = "a finite number", -sys.float_info.max, sys.float_info.max
            else:
                kind, low, high = "a positive finite number", 5e-324, sys.float_info.max
            low, high, factor = (
                at_least.get(name, low),
                at_most.get(name, high),
                multiple_of.get(name),
            )
            words = f"{kind} from {low:g} to {high:.4g}"
            require(
                low <= value <= high and (factor is None or int(value) % factor == 0),
                f"{flag} {value}",
                words if factor is None else f"{words}, a multiple of {factor}",
                "correct it",
            )


def band_verdict(
    value: float, interval: tuple[float, float], expected: float | int, tolerance: float | int
) -> Verdict:
    """How a number and its interval stand to ``expected +- tolerance``.

    "consistent": the number lies in the band and its interval reaches at most 1.5 tolerances to
    either side of it; "inconsistent": the interval misses the band; "undecided": neither.
    """
    low, high = interval
    if low > expected + tolerance or high < expected - tolerance:
        return "inconsistent"
    is_sharp = max(high - value, value - low) <= _WIDEST * tolerance
    return "consistent" if abs(value - expected) <= tolerance and is_sharp else "undecided"
