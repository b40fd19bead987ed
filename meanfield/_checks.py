"""Validation: error types and the few checks that every public entry shares. Free of jax.

An error is one line that says what was given, what is expected and how to mend it. The command
line prints that line and exits with code 2.
"""

import sys
from typing import Any

import numpy as np


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
