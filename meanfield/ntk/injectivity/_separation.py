"""A sufficient condition for clouds: distinct gaps between their two extreme tokens."""

import dataclasses
from typing import Any

import numpy as np

from meanfield._checks import MeanfieldError
from meanfield._runtime import require_double
from meanfield.laws import Empirical
from meanfield.ntk.injectivity._functions import EPS
from meanfield.ntk.pairs import as_laws

_DIRECTIONS = 4096
_STARTS = 4
_ROUNDS, _TRIALS, _SHRINK = 60, 64, 0.75
_ROUNDING = 256 * EPS  # of the tokens: differences below are none


@dataclasses.dataclass(frozen=True)
class Separation:
    """The direction along which the gaps of the clouds differ most.

    Attributes:
        direction: unit vector e, ``[d]``.
        gaps: ``g_i``, largest minus second largest of ``<e, y>`` over the tokens of each cloud,
            ``[N]``; 0 for a single point.
        smallest_difference: ``min( min_i g_i, min_{i<j} |g_i - g_j| )``.
        holds: whether it is positive beyond rounding. Then the log-sum-exp functions are linearly
            independent modulo affine ones; the converse is false.
    """

    direction: np.ndarray
    gaps: np.ndarray
    smallest_difference: float
    holds: bool


def separation(contexts: Any, *, seed: int = 0) -> Separation:
    """Maximise ``min( min_i g_i(e), min_{i<j} |g_i(e) - g_j(e)| )`` over unit vectors e.

    If it is positive the clouds are independent: along t e, ``Lam_i = b_i t + log w_i +
    r_i exp(-g_i t) + ...`` with ``r_i > 0`` and distinct rates. Tokens of mass 0 do not count,
    equal tokens are one. The search is random with local improvement, so its value is a lower
    bound of the best one; any positive value proves the same.

    Args: clouds; seed of the search.
    Raises: `MeanfieldError` on a law that is no cloud.
    Reference: reconstruction, docs/theory.md 3.6. Cost: 20,000 directions, O(N n d) each.
    """
    require_double("separation")
    clouds: list[np.ndarray] = []
    for number, law in enumerate(as_laws(contexts), 1):
        if not isinstance(law, Empirical):
            raise MeanfieldError(
                f"context {number}, a {type(law).__name__} law",
                "clouds: the condition is about extreme tokens",
                "pass a cloud, or use independence for laws",
            )
        massive = np.asarray(law.points)[np.asarray(law.log_weights) > -np.inf]
        clouds.append(np.unique(massive, axis=0))
    largest = max(float(np.abs(cloud).max()) for cloud in clouds)
    clouds = [cloud - cloud.mean(axis=0) for cloud in clouds]
    generator = np.random.default_rng(seed)
    dim = clouds[0].shape[1]
    directions = _unit(generator.normal(size=(_DIRECTIONS, dim)))
    values = _objective(_gaps(clouds, directions))
    best = np.argsort(-values)[:_STARTS]
    starts = list(zip(directions[best], values[best], strict=True))
    direction, value = starts[0]
    for start, reached in starts if dim > 1 else []:
        radius = 0.1
        for _ in range(_ROUNDS):
            trials = _unit(start + radius * generator.normal(size=(_TRIALS, dim)))
            tried = _objective(_gaps(clouds, trials))
            if tried.max() > reached:
                start, reached = trials[np.argmax(tried)], tried.max()
            else:
                radius *= _SHRINK
        if reached > value:
            direction, value = start, reached
    gaps = _gaps(clouds, direction[None])[0]
    value = float(_objective(gaps[None])[0])
    return Separation(direction, gaps, value, value > _ROUNDING * largest)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _gaps(clouds: list[np.ndarray], directions: np.ndarray) -> np.ndarray:
    """``g_i`` of each cloud along each direction, ``[directions, N]``."""
    columns = []
    for cloud in clouds:
        if len(cloud) == 1:
            columns.append(np.zeros(len(directions)))
            continue
        heights = directions @ cloud.T
        top = np.partition(heights, -2, axis=1)[:, -2:]
        columns.append(top[:, 1] - top[:, 0])
    return np.stack(columns, axis=1)


def _objective(gaps: np.ndarray) -> np.ndarray:
    """The least gap and difference of gaps, ``[directions]``."""
    ordered = np.sort(gaps, axis=1)
    return np.diff(ordered, axis=1, prepend=0.0).min(axis=1)
