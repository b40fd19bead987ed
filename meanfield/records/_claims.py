"""Claims: a quantity, expected and measured, and the verdict on it."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from meanfield._checks import band_verdict, require
from meanfield.records._words import shown, shown_result

CONSISTENT, INCONSISTENT, UNDECIDED = "consistent", "inconsistent", "undecided"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One sentence that a run can confirm or refute: a quantity, expected and measured.

    Args:
        quantity: what is measured, in words ("slope of the W2 error in M").
        expected: a number, or a sentence such as "below 1e-3".
        measured: the number that came out.
        interval: its stated numerical error ``(low, high)``, or None.
        verdict: "consistent", "inconsistent" or "undecided" (within the stated error).

    Raises: `MeanfieldError` on another verdict.
    """

    quantity: str
    expected: float | str
    measured: float | str
    interval: tuple[float, float] | None = None
    verdict: str = UNDECIDED

    def __post_init__(self) -> None:
        require(
            self.verdict in (CONSISTENT, INCONSISTENT, UNDECIDED),
            f"verdict is {self.verdict!r}",
            f"'{CONSISTENT}', '{INCONSISTENT}' or '{UNDECIDED}'",
            "pass one of them",
        )

    @classmethod
    def bound(cls, quantity: str, relation: str, limit: float | int, measured: Any) -> "Claim":
        """A number against a limit, to which nothing is added for errors; NaN refutes it.

        Args: relation, "exactly", "below", "at most", "at least" or "above".
        Raises: `MeanfieldError` on another relation.
        """
        value = float(measured)
        holds = {
            "exactly": value == limit,
            "below": value < limit,
            "at most": value <= limit,
            "at least": value >= limit,
            "above": value > limit,
        }
        require(
            relation in holds,
            f"the relation {relation!r}",
            ", ".join(holds),
            "pass one of them",
        )
        expected = float(limit) if relation == "exactly" else f"{relation} {limit:g}"
        return cls(quantity, expected, value, None, CONSISTENT if holds[relation] else INCONSISTENT)

    @classmethod
    def mean(
        cls, quantity: str, expected: float | int, draws: Any, tolerance: float | int
    ) -> "Claim":
        """The mean of independent draws in a band, with Student's 95% interval.

        Judged as by `within`; fewer than two draws are undecided.
        """
        measured, low, high = _student(draws)
        return cls.within(quantity, expected, measured, (low, high), tolerance)

    @classmethod
    def within(
        cls,
        quantity: str,
        expected: float | int,
        measured: float,
        interval: tuple[float, float],
        tolerance: float | int,
    ) -> "Claim":
        """A number with its interval in a band.

        Consistent if it lies within ``tolerance`` of ``expected`` and its interval reaches at most
        1.5 tolerances to either side; inconsistent if the interval misses the band; else undecided.
        """
        verdict = band_verdict(measured, interval, expected, tolerance)
        return cls(quantity, float(expected), measured, interval, verdict)

    @classmethod
    def above(cls, quantity: str, limit: float | int, draws: Any) -> "Claim":
        """The mean of independent draws is above a limit: Student's 95% interval decides.

        Consistent if it lies above, inconsistent if it lies below, undecided if it holds the limit.
        """
        measured, low, high = _student(draws)
        verdict = CONSISTENT if low > limit else INCONSISTENT if high < limit else UNDECIDED
        return cls(quantity, f"above {limit:g}", measured, (low, high), verdict)

    def sentence(self) -> str:
        """``slope -0.502 [-0.53, -0.47], expected -0.5: consistent``."""
        quantity, expected, measured, interval, _ = row(self)
        words = " ".join(word for word in (quantity, measured, interval) if word)
        return f"{words}, expected {expected}: {self.verdict}"


class Row(NamedTuple):
    """A claim as words; the interval is "" where none is stated."""

    quantity: str
    expected: str
    measured: str
    interval: str
    verdict: str


def row(claim: Claim) -> Row:
    """A claim as a row of a table, every number rounded by one rule.

    A control that is consistent did what it has to do: it fails.
    """
    result = shown_result(claim.measured, claim.interval, claim.expected)
    is_control = claim.quantity.startswith("control") and claim.verdict == CONSISTENT
    verdict = "fails, as it should" if is_control else claim.verdict
    return Row(claim.quantity, shown(claim.expected), *result, verdict)


def _student(draws: Any) -> tuple[float, float, float]:
    """Mean and Student's 95% interval; with fewer than two draws it is infinite."""
    draws = np.asarray(draws, dtype=float)
    if len(draws) < 2:
        return float(draws.mean()) if len(draws) else math.nan, -math.inf, math.inf
    mean = float(draws.mean())
    half = float(stats.t.ppf(0.975, len(draws) - 1) * stats.sem(draws))
    return mean, mean - half, mean + half


def overall_verdict(claims: Iterable[Claim]) -> str:
    """The worst verdict; a run without claims has decided nothing."""
    return worst_verdict(claim.verdict for claim in claims)


def worst_verdict(verdicts: Iterable[str]) -> str:
    """Inconsistent before undecided before consistent; undecided if there is none."""
    found = set(verdicts) or {UNDECIDED}
    return next((v for v in (INCONSISTENT, UNDECIDED) if v in found), CONSISTENT)
