"""Spectrum of a kernel by the SVD of its factor: rank with its gap, lambda_min with an interval."""

import dataclasses
from typing import Any

import numpy as np
from scipy import stats

from meanfield._checks import require, require_finite
from meanfield.ntk.kernel import Factor

DROPPED = 256.0  # singular values up to this many times the rounding level count as zero
LEAST_GAP = 1e3  # kept over dropped: below it a rank is undecided
NUM_GROUPS = 16
_ALL_ZERO = 16.0
_LARGEST_RESAMPLED = 800


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of ``Om^{1/2} K Om^{1/2}``, K = F^T F, from the singular values of F.

    Attributes:
        singular_values, eigenvalues: descending, one for each column of F (zeros where F has fewer
            rows than columns); eigenvalue = singular value squared.
        vectors: right singular vectors, one per row, in the same order.
        rank, nullity: of all columns; per coordinate: `nullity_per_coordinate`.
        noise: rounding level of the singular values.
        gap: smallest kept over largest dropped singular value (over the noise, where that is
            larger or none is dropped).
        interval: 95% Monte-Carlo interval of lambda_min of infinitely many heads of the same law;
            its upper end is infinite where there are too few heads to say.
        intervals: the same for every eigenvalue, ``[columns, 2]``, or None where none was computed.
    """

    singular_values: np.ndarray
    vectors: np.ndarray
    nullity: int
    noise: float
    gap: float
    copies: int
    intervals: np.ndarray | None

    @property
    def eigenvalues(self) -> np.ndarray:
        """Of the kernel, descending."""
        return self.singular_values**2

    @property
    def rank(self) -> int:
        """Number of singular values above the rounding level."""
        return len(self.singular_values) - self.nullity

    @property
    def decided(self) -> bool:
        """Whether the gap is wide enough (1e3) to call the rank a number."""
        return bool(self.gap >= LEAST_GAP)

    @property
    def nullity_per_coordinate(self) -> int | float:
        """Nullity over d for kernels with d columns for each pair."""
        whole, rest = divmod(self.nullity, self.copies)
        return whole if rest == 0 else self.nullity / self.copies

    @property
    def lambda_min(self) -> float:
        """Smallest eigenvalue of this ensemble's kernel (rounding included where it is zero)."""
        return float(self.eigenvalues[-1])

    @property
    def lambda_max(self) -> float:
        """Largest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def condition(self) -> float:
        """lambda_max / lambda_min; infinite where the kernel is singular to rounding."""
        if self.nullity:
            return float("inf")
        return float((self.singular_values[0] / self.singular_values[-1]) ** 2)

    @property
    def interval(self) -> tuple[float, float]:
        """95% Monte-Carlo interval of lambda_min; NaN where it was not asked for."""
        if self.intervals is None:
            return float("nan"), float("nan")
        return float(self.intervals[-1, 0]), float(self.intervals[-1, 1])

    @property
    def null_vectors(self) -> np.ndarray:
        """Orthonormal null directions, ``[columns, nullity]``."""
        return self.vectors[len(self.singular_values) - self.nullity :].T


def spectrum(factor: Factor, *, weights: Any = None, interval: bool = True) -> Spectrum:
    """SVD of F, rank with its gap, and Monte-Carlo intervals over heads.

    A singular value counts as zero up to 256 times the rounding level; the rank is decided where
    the smallest kept one is at least 1e3 times the largest dropped one.

    The interval of an eigenvalue of infinitely many heads has two sources over 16 groups of heads:
    the delete-a-group jackknife of ``log lambda``, and, since the smallest eigenvalue of few heads
    is biased low by O(1/M), the form ``|F_g v|^2`` of each group on the eigenvector v of all other
    groups, whose mean is never below lambda_min. It covers both with Student's t for 95%. Measured
    coverage of lambda_min: 95% for clouds; 80% (all misses too low, so on the safe side) for cubes
    with condition number 1e6, where rare large heads carry the smallest eigenvalue.

    Args:
        factor: from `factor`.
        weights: Om, positive, ``[P]``: the spectrum of ``Om^{1/2} K Om^{1/2}``; None: 1.
        interval: False saves the 16 further factorizations.

    Raises: `MeanfieldError` on weights that are negative, not finite, or of another number.
    Cost: O(rows P^2). Reference: our choice, docs/theory.md 3.8.
    """
    matrix, roots = factor.matrix, None
    num_columns = matrix.shape[1]
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        num_pairs = num_columns // factor.copies
        require(
            weights.shape == (num_pairs,),
            f"weights has shape {weights.shape}",
            f"({num_pairs},)",
            "give one weight to each pair",
        )
        require_finite("weights", weights)
        require(
            weights.min() > 0,
            f"weights holds the entry {weights.min()}",
            "positive weights",
            "leave pairs without weight out of the factor",
        )
        roots = np.sqrt(np.repeat(weights, factor.copies))
    reduced: Any = matrix if len(matrix) <= num_columns else np.linalg.qr(matrix, mode="r")
    _, values, vectors = np.linalg.svd(reduced, full_matrices=True)
    values, noise = _padded(values, num_columns), float(np.linalg.norm(factor.noise))
    nullity, gap = decide_rank(values, noise)
    if roots is not None:  # the rank is that of F: positive weights do not change it
        _, values, vectors = np.linalg.svd(reduced * roots, full_matrices=True)
        values = _padded(values, num_columns)
        noise = float(np.linalg.norm(factor.noise * roots))
    intervals = None
    if interval and num_columns <= _LARGEST_RESAMPLED:
        whole = matrix if roots is None else matrix * roots
        intervals = _jackknife(whole, factor.weights, values**2, noise, nullity)
    return Spectrum(values, vectors, nullity, noise, gap, factor.copies, intervals)


def _padded(values: np.ndarray, num: int) -> np.ndarray:
    return np.pad(values, (0, num - len(values)))


def decide_rank(values: np.ndarray, noise: float) -> tuple[int, float]:
    """Nullity and gap of descending singular values with rounding errors of size ``noise``."""
    floor = max(noise, float(np.finfo(float).tiny))
    kept = values > DROPPED * floor
    nullity = int((~kept).sum())
    dropped = float(values[~kept].max(initial=0.0))
    if not kept.any():
        # Nothing to divide: all zero is decided where all stay near the rounding level itself.
        return nullity, float(LEAST_GAP * _ALL_ZERO * floor / max(dropped, floor))
    return nullity, float(values[kept].min() / max(dropped, floor))


def _jackknife(
    matrix: np.ndarray, weights: np.ndarray, eigenvalues: np.ndarray, noise: float, nullity: int
) -> np.ndarray:
    """Intervals of all eigenvalues by groups of heads, ``[columns, 2]``; see `spectrum`."""
    num_heads, num_columns = len(weights), matrix.shape[1]
    floor = max((DROPPED * noise) ** 2, float(np.finfo(float).tiny))
    bounds = np.array([np.zeros(num_columns), np.full(num_columns, np.inf)]).T
    groups = min(NUM_GROUPS, num_heads)
    edges = np.linspace(0, num_heads, groups + 1).astype(int)
    shares = np.array([weights[a:b].sum() for a, b in zip(edges, edges[1:], strict=False)])
    if groups < 4 or shares.max() > 0.5 or shares.min() <= 0:
        return bounds  # too few heads to say anything
    rows = len(matrix) // num_heads
    parts = [matrix[low * rows : high * rows] for low, high in zip(edges, edges[1:], strict=False)]
    triangle: Any = lambda rows: np.linalg.qr(rows, mode="r")  # noqa: E731
    triangles = [triangle(part) for part in parts]
    before, after = [np.zeros((0, num_columns))], [np.zeros((0, num_columns))]
    for one in triangles:
        before.append(triangle(np.concatenate([before[-1], one])))
    for one in reversed(triangles):
        after.append(triangle(np.concatenate([after[-1], one])))
    logs, fresh = np.empty((groups, num_columns)), np.empty((groups, num_columns))
    for number, part in enumerate(parts):
        without = np.concatenate([before[number], after[groups - 1 - number]])
        _, values, vectors = np.linalg.svd(without, full_matrices=True)
        values = _padded(values, num_columns)
        logs[number] = np.log(np.maximum(values**2 / (1 - shares[number]), floor))
        fresh[number] = np.sum((part @ vectors.T) ** 2, axis=0) / shares[number]
    whole = np.log(np.maximum(eigenvalues, floor))
    reach = float(stats.t.ppf(0.975, groups - 1))
    # Delete-a-group jackknife: (G - 1)/G sum (log_g - mean)^2.
    error = np.sqrt((groups - 1) * logs.var(axis=0))
    unseen, spread = fresh.mean(axis=0), fresh.std(axis=0, ddof=1) / np.sqrt(groups)
    with np.errstate(over="ignore"):
        low = np.minimum(np.exp(whole - reach * error), unseen)
        high = np.maximum(np.exp(whole + reach * error), unseen + reach * spread)
    # What is null for as many heads as the rank is null for all (docs/theory.md 3.2); what is null
    # for fewer may only lack heads.
    is_null = np.arange(num_columns) >= num_columns - nullity
    low = np.where(is_null, 0.0, low)
    high = np.where(is_null, floor if num_heads >= num_columns - nullity else np.inf, high)
    return np.stack([np.minimum(low, high), high], axis=1)
