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
        interval: 95% Monte-Carlo interval of lambda_min of infinitely many heads of the same law.
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
        return self.gap >= LEAST_GAP

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
        return float("inf") if self.nullity else self.lambda_max / self.lambda_min

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
    the smallest kept one is at least 1e3 times the largest dropped one. The interval is a delete-a-
    group jackknife of ``log lambda`` over 16 groups of heads (bias-corrected, Student t): the
    smallest eigenvalue of few heads is biased low by O(1/M).

    Args:
        factor: from `factor`.
        weights: Om, positive, ``[P]``: the spectrum of ``Om^{1/2} K Om^{1/2}``; None: 1.
        interval: False saves the 16 further factorizations.

    Raises: `MeanfieldError` on weights that are negative, not finite, or of another number.
    Cost: O(rows P^2). Reference: reconstruction, docs/theory.md 3.1.
    """
    matrix, noise = factor.matrix, factor.noise
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        num_pairs = matrix.shape[1] // factor.copies
        require(
            weights.shape == (num_pairs,),
            f"weights has shape {weights.shape}",
            f"({num_pairs},)",
            "give one weight to each pair",
        )
        require_finite("weights", weights)
        require(
            weights.min() >= 0,
            f"weights holds the negative entry {weights.min()}",
            "weights of at least 0",
            "pass loss weights over N",
        )
        matrix = matrix * np.sqrt(np.repeat(weights, factor.copies))
        noise *= float(np.sqrt(weights.max()))
    num_columns = matrix.shape[1]
    reduced = matrix if len(matrix) <= num_columns else np.linalg.qr(matrix, mode="r")
    _, values, vectors = np.linalg.svd(reduced, full_matrices=True)
    values = np.pad(values, (0, num_columns - len(values)))
    nullity, gap = decide_rank(values, noise)
    intervals = None
    if interval and num_columns <= _LARGEST_RESAMPLED:
        intervals = _jackknife(matrix, factor.weights, values**2, noise)
    return Spectrum(values, vectors, nullity, noise, gap, factor.copies, intervals)


def decide_rank(values: np.ndarray, noise: float) -> tuple[int, float]:
    """Nullity and gap of descending singular values with rounding errors of size ``noise``."""
    floor = max(noise, float(np.finfo(float).tiny))
    kept = values > DROPPED * floor
    nullity = int((~kept).sum())
    dropped = float(values[~kept].max(initial=0.0))
    if not kept.any():
        # All zero: the gap is that between the rounding level and the threshold it stays under.
        return nullity, DROPPED * floor / max(dropped, floor) * (LEAST_GAP / DROPPED)
    return nullity, float(values[kept].min() / max(dropped, floor))


def _jackknife(
    matrix: np.ndarray, weights: np.ndarray, eigenvalues: np.ndarray, noise: float
) -> np.ndarray:
    """Delete-a-group jackknife of the log-eigenvalues, ``[columns, 2]``."""
    num_heads, num_columns = len(weights), matrix.shape[1]
    floor = max((DROPPED * noise) ** 2, float(np.finfo(float).tiny))
    bounds = np.array([np.zeros(num_columns), np.full(num_columns, np.sum(eigenvalues))]).T
    groups = min(NUM_GROUPS, num_heads)
    if groups < 4:
        return bounds  # too few heads to say more than 0 <= lambda <= trace
    rows = len(matrix) // num_heads
    edges = np.linspace(0, num_heads, groups + 1).astype(int)
    parts = [matrix[low * rows : high * rows] for low, high in zip(edges, edges[1:], strict=False)]
    triangles = [np.linalg.qr(part, mode="r") for part in parts]
    before, after = [np.zeros((0, num_columns))], [np.zeros((0, num_columns))]
    for one in triangles:
        before.append(np.linalg.qr(np.concatenate([before[-1], one]), mode="r"))
    for one in reversed(triangles):
        after.append(np.linalg.qr(np.concatenate([after[-1], one]), mode="r"))
    logs = np.empty((groups, num_columns))
    for number in range(groups):
        without = np.concatenate([before[number], after[groups - 1 - number]])
        values = np.linalg.svd(without, compute_uv=False)
        values = np.pad(values, (0, max(0, num_columns - len(values))))
        share = 1 - weights[edges[number] : edges[number + 1]].sum()
        logs[number] = np.log(np.maximum(values**2 / share, floor))
    whole = np.log(np.maximum(eigenvalues, floor))
    pseudo = groups * whole - (groups - 1) * logs
    centre, error = pseudo.mean(axis=0), pseudo.std(axis=0, ddof=1) / np.sqrt(groups)
    reach = float(stats.t.ppf(0.975, groups - 1)) * error
    with np.errstate(over="ignore"):
        low, high = np.exp(centre - reach), np.exp(centre + reach)
    is_zero = eigenvalues <= floor
    low[is_zero] = 0.0
    high = np.where(is_zero, floor, np.minimum(high, np.sum(eigenvalues)))
    return np.stack([np.minimum(low, high), high], axis=1)
