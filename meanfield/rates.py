"""Convergence rates: log-log slopes with intervals, self-convergence, Richardson. Free of jax.

An error ``e(K) ~ C K^slope`` is a line in log-log coordinates. Replicates (seeds) give the slope's
interval by a bootstrap over whole replicates; a single deterministic curve gives it by the scatter
around the line. Definitions: reconstruction, docs/theory.md 7.1.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from meanfield._checks import (
    MeanfieldError,
    Verdict,
    band_verdict,
    require,
    require_positive_integer,
)


@dataclasses.dataclass(frozen=True)
class Rate:
    """A fitted rate ``error = constant * size^slope``.

    Attributes:
        slope: least-squares slope of log error against log size.
        interval: its (lower, upper) confidence bounds.
        constant: C, the error that the line predicts at size 1.
        r_squared: share of the variance of log error that the line explains (0 for flat errors).
        sizes, errors: the fitted points ``[K]``, replicates aggregated.
        level: confidence level of the interval.

    Reference: reconstruction, docs/theory.md 7.1.
    """

    slope: float
    interval: tuple[float, float]
    constant: float
    r_squared: float
    sizes: np.ndarray
    errors: np.ndarray
    level: float

    def predict(self, sizes: Any) -> np.ndarray:
        """``C size^slope``: the fitted line, for a figure."""
        return self.constant * np.asarray(sizes, dtype=float) ** self.slope

    def verdict(
        self, expected: float | int, tolerance: float | int, *, min_r_squared: float | int = 0.0
    ) -> Verdict:
        """Two-sided verdict on ``slope = expected`` within ``tolerance``.

        "consistent": the slope lies in the band expected +- tolerance, the line explains at least
        ``min_r_squared`` of the variance, and the interval reaches at most 1.5 tolerances to
        either side of the slope. "inconsistent": slope and interval both miss the band, or the
        points lie on no line. "undecided": the numbers cannot tell.

        Raises: `MeanfieldError` if the tolerance is not positive.
        """
        require(
            np.isfinite(expected) and np.isfinite(tolerance) and tolerance > 0,
            f"expected={expected}, tolerance={tolerance}",
            "a finite slope and a positive tolerance",
            "pass for instance expected=-0.5, tolerance=0.06",
        )
        if self.r_squared < min_r_squared:
            return "inconsistent"
        return band_verdict(self.slope, self.interval, expected, tolerance)

    def consistent_with(
        self, expected: float | int, tolerance: float | int, *, min_r_squared: float | int = 0.0
    ) -> bool:
        """True if `verdict` says "consistent".

        Raises: `MeanfieldError` if the tolerance is not positive.
        """
        return self.verdict(expected, tolerance, min_r_squared=min_r_squared) == "consistent"

    def __str__(self) -> str:
        lower, upper = self.interval
        return f"slope {self.slope:.3f} [{lower:.3f}, {upper:.3f}]"


def _line(log_sizes: np.ndarray, log_errors: np.ndarray) -> tuple[Any, Any]:
    """Least-squares slopes and intercepts of ``[..., K]`` curves."""
    centred = log_sizes - log_sizes.mean()
    slope = np.asarray(log_errors @ centred / (centred @ centred))
    return slope, np.asarray(log_errors.mean(axis=-1) - slope * log_sizes.mean())


def _positive(name: str, values: Any, mend: str) -> np.ndarray:
    """A float array of positive, finite numbers; raises `MeanfieldError`."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise MeanfieldError(f"{name}: {error}", "an array of numbers", mend) from None
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        index = [int(i) for i in np.argwhere(bad)[0]]
        raise MeanfieldError(
            f"{name} holds {array[tuple(index)]} at index {index}",
            "positive, finite numbers (their logarithms are fitted)",
            mend,
        )
    return array


def _aggregate(errors: np.ndarray, kind: str) -> np.ndarray:
    """Join replicates ``[..., R, K] -> [..., K]``."""
    if kind == "rms":
        return np.sqrt(np.mean(errors**2, axis=-2))
    if kind == "mean":
        return np.mean(errors, axis=-2)
    return np.exp(np.mean(np.log(errors), axis=-2))


def fit_rate(
    sizes: Any,
    errors: Any,
    *,
    aggregate: Literal["rms", "mean", "geometric"] = "rms",
    level: float | int = 0.95,
    num_bootstrap: int = 2000,
    min_sizes: int = 4,
    seed: int = 0,
) -> Rate:
    """Fit ``log error = log C + slope log size`` by least squares.

    Args:
        sizes: ``[K]``, distinct and positive: M, L, n or a step.
        errors: ``[K]``, one deterministic curve, or ``[R, K]``, a row per replicate (seed).
        aggregate: how replicates join before the fit: root mean square, mean or geometric mean.
        level: confidence level. Rows: ``slope +- t s``, with s the bootstrap standard error over
            whole replicates (which keeps what the sizes of one replicate have in common), freed of
            its bias by ``sqrt(R/(R-1))``, and t Student's quantile with R - 1 degrees of freedom:
            percentiles cover too little for few replicates. One row: Student's interval from the
            scatter around the line; for a deterministic curve that scatter is curvature, and the
            interval tells how straight the line is, not where the true order lies.
        num_bootstrap: resamples.
        min_sizes: fewest sizes that count as a fit, at least 3; two points fit any slope.
        seed: of the resamples.

    Returns: `Rate`.
    Raises: `MeanfieldError` on too few or repeated sizes, wrong shapes, errors that are zero,
        negative or not finite.

    Cost: O(num_bootstrap R K). Reference: reconstruction, docs/theory.md 7.1.
    """
    require_positive_integer("num_bootstrap", num_bootstrap)
    require(
        isinstance(min_sizes, int) and min_sizes >= 3,
        f"min_sizes={min_sizes}",
        "an integer of at least 3",
        "two points lie on every line: use three sizes or more",
    )
    require(0 < level < 1, f"level={level}", "a number in (0, 1)", "pass level=0.95")
    require(
        aggregate in ("rms", "mean", "geometric"),
        f"aggregate is {aggregate!r}",
        "'rms', 'mean' or 'geometric'",
        "pass one of them",
    )
    sizes = _positive("sizes", sizes, "pass positive sizes")
    errors = _positive("errors", errors, "leave out sizes whose error is at rounding or failed")
    require(
        sizes.ndim == 1 and errors.ndim in (1, 2) and errors.shape[-1:] == sizes.shape,
        f"sizes has shape {sizes.shape} and errors {errors.shape}",
        "[K] and [K] or [R, K]",
        "give each size one column of errors",
    )
    num_distinct = len(np.unique(sizes))
    require(
        num_distinct == len(sizes) and num_distinct >= min_sizes,
        f"{len(sizes)} sizes, {num_distinct} of them distinct",
        f"at least {min_sizes} distinct sizes",
        "add refinements: too few points fit any slope",
    )
    replicates = np.atleast_2d(errors)
    log_sizes = np.log(sizes)
    joined = _aggregate(replicates, aggregate)
    slope, intercept = _line(log_sizes, np.log(joined))
    residuals = np.log(joined) - intercept - slope * log_sizes
    scatter = float(np.sum((np.log(joined) - np.log(joined).mean()) ** 2))
    unexplained = float(residuals @ residuals)
    r_squared = max(0.0, 1.0 - unexplained / scatter) if scatter > 0 else 0.0
    if len(replicates) > 1:
        generator = np.random.default_rng(seed)
        draws = generator.integers(len(replicates), size=(num_bootstrap, len(replicates)))
        resampled = np.stack([_aggregate(replicates[draw], aggregate) for draw in draws])
        slopes, _ = _line(log_sizes, np.log(resampled))
        freedom = len(replicates) - 1
        deviation = np.std(slopes) * np.sqrt(len(replicates) / freedom)
    else:
        freedom = len(sizes) - 2
        spread = np.sum((log_sizes - log_sizes.mean()) ** 2)
        deviation = np.sqrt(unexplained / freedom / spread)
    half = float(stats.t.ppf((1 + level) / 2, freedom) * deviation)
    lower, upper = float(slope) - half, float(slope) + half
    return Rate(
        slope=float(slope),
        interval=(lower, upper),
        constant=float(np.exp(intercept)),
        r_squared=r_squared,
        sizes=sizes,
        errors=joined,
        level=level,
    )


class SelfConvergence(NamedTuple):
    """Orders observed without an exact solution.

    Attributes: order, the finest one; orders ``[K-2]``, coarse to fine; differences ``[K-1]``,
    norms of the changes between successive refinements.
    """

    order: float | int
    orders: np.ndarray
    differences: np.ndarray


def _refinements(values: Any, least: int) -> np.ndarray:
    """Solutions ``[K, ...]`` on K refinements, flattened to ``[K, p]``; raises `MeanfieldError`."""
    array = np.asarray(values, dtype=float)
    require(
        array.ndim >= 1 and len(array) >= least,
        f"values of shape {array.shape}",
        f"at least {least} refinements along the first axis",
        "solve on finer grids too",
    )
    require(
        np.isfinite(array).all(), "values that are not finite", "finite ones", "check the solves"
    )
    return array.reshape(len(array), -1)


def _require_ratio(ratio: float | int) -> None:
    require(
        np.isfinite(ratio) and ratio > 1,
        f"ratio={ratio}",
        "a refinement ratio above 1",
        "pass ratio=2.0 and values from coarse to fine",
    )


def self_convergence_order(values: Any, *, ratio: float | int = 2.0) -> SelfConvergence:
    """Orders ``p_k = log_ratio( |u_k - u_{k+1}| / |u_{k+1} - u_{k+2}| )``.

    Args: values ``[K, ...]``, the same quantity on K >= 3 grids, each ``ratio`` times finer than
        the one before it.
    Raises: `MeanfieldError` on fewer grids, non-finite values, or two grids that agree exactly.

    Cost: O(K p). Reference: reconstruction, docs/theory.md 7.1.
    """
    _require_ratio(ratio)
    flat = _refinements(values, 3)
    differences = np.linalg.norm(np.diff(flat, axis=0), axis=1)
    _positive("differences", differences, "leave out grids that agree to rounding")
    orders = np.log(differences[:-1] / differences[1:]) / np.log(ratio)
    return SelfConvergence(float(orders[-1]), orders, differences)


class Extrapolated(NamedTuple):
    """Richardson's extrapolated value ``[...]`` and an estimate of its error (a norm)."""

    value: np.ndarray
    error: float


def richardson(
    values: Any, *, order: float | int, ratio: float | int = 2.0, increment: float | int = 1.0
) -> Extrapolated:
    """Remove the leading error terms of ``u(h) = u + c_0 h^p + c_1 h^(p + increment) + ...``.

    Two grids give ``u = u_fine + (u_fine - u_coarse) / (ratio^p - 1)``; K grids remove K - 1 terms.

    Args: values ``[K, ...]``, K >= 2, coarse to fine by ``ratio``; order p > 0; increment > 0
        between the exponents (2 for symmetric schemes).
    Returns: the value of the last column, and the norm of its difference from the best value one
        column earlier, a cautious estimate of the error.
    Raises: `MeanfieldError` on fewer grids, non-finite values, exponents that are not positive.

    Cost: O(K^2 p). Reference: reconstruction, docs/theory.md 7.1.
    """
    _require_ratio(ratio)
    require(
        np.isfinite(order) and order > 0 and np.isfinite(increment) and increment > 0,
        f"order={order}, increment={increment}",
        "positive numbers",
        "pass the scheme's order, for instance order=1 for Euler",
    )
    column = _refinements(values, 2)
    previous = column[-1]
    for level in range(len(column) - 1):
        previous = column[-1]
        factor = ratio ** (order + level * increment) - 1
        column = column[1:] + np.diff(column, axis=0) / factor
    shape = np.shape(values)[1:]
    return Extrapolated(column[-1].reshape(shape), float(np.linalg.norm(column[-1] - previous)))


__all__ = [
    "Extrapolated",
    "Rate",
    "SelfConvergence",
    "Verdict",
    "fit_rate",
    "richardson",
    "self_convergence_order",
]
