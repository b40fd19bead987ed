"""What closed forms read from a parameter measure of attention heads, and the ODE solve behind."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from meanfield._checks import DomainError, require, require_finite
from meanfield.fields import AttentionAV, AttentionQKV
from meanfield.measures import DepthGrid, ParameterMeasure

# Close to rounding, yet above the smallest tolerance that scipy accepts (100 machine epsilons).
_RELATIVE = 3e-14
_ABSOLUTE = 1e-15


class Heads(NamedTuple):
    """Scores A and values V ``[L, M, d, d]``, masses ``[L, M]``, depth nodes ``[L+1]``."""

    scores: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    nodes: np.ndarray

    @property
    def mean_values(self) -> np.ndarray:
        """``Vbar_k = int V drho(.|s)`` in each cell, ``[L, d, d]``."""
        return np.einsum("kj,kjab->kab", self.weights, self.values)


def constant_head(score: Any, value: Any, *, horizon: float | int = 1.0) -> ParameterMeasure:
    """One head (A, V) at every depth of [0, horizon]: the setting of most closed forms.

    Args: score A ``[d, d]``, value V ``[d, d]``; numbers mean ``d = 1``.
    Raises: `MeanfieldError` on other shapes.
    """
    score = _matrix("score", np.atleast_2d(np.asarray(score, dtype=float)))
    value = _matrix("value", np.atleast_2d(np.asarray(value, dtype=float)), len(score))
    particles = AttentionAV(score[None, None], value[None, None])
    return ParameterMeasure(particles, DepthGrid.uniform(1, horizon))


def _matrix(name: str, values: Any, dim: int | None = None) -> np.ndarray:
    """A finite square matrix ``[d, d]`` in float64; raises `MeanfieldError`."""
    array = np.asarray(values, dtype=float)
    size = len(array) if dim is None and array.ndim else dim
    require(
        array.shape == (size, size) and size,
        f"{name} has shape {array.shape}",
        f"({size or 'd'}, {size or 'd'})",
        "pass a square matrix of the tokens' width",
    )
    require_finite(name, array)
    return array


def read_heads(rho: ParameterMeasure, scale: float | int) -> Heads:
    """The heads of ``rho`` with ``A = scale Q^T K`` or ``scale A``; raises `MeanfieldError`."""
    particles = rho.particles
    require(
        isinstance(particles, (AttentionAV, AttentionQKV)),
        f"particles of type {type(particles).__name__}",
        "attention heads, AttentionAV or AttentionQKV",
        "build rho with one of them, for instance by exact.constant_head",
    )
    require(
        rho.interpolation == "constant",
        f"interpolation={rho.interpolation!r}",
        "heads that are constant in each depth cell",
        "use refine_depth(rho, factor) and interpolation='constant'",
    )
    require(np.isfinite(scale), f"scale={scale}", "a finite number", "pass scale=1.0")
    values = np.asarray(particles.V, dtype=float)
    if isinstance(particles, AttentionQKV):
        queries, keys = (np.asarray(leaf, dtype=float) for leaf in (particles.Q, particles.K))
        scores = scale * np.einsum("kjra,kjrb->kjab", queries, keys)
    else:
        scores = scale * np.asarray(particles.A, dtype=float)
    nodes = np.asarray(rho.grid.nodes, dtype=float)
    return Heads(scores, values, np.asarray(rho.weights, dtype=float), nodes)


def require_width(name: str, width: int, heads: Heads) -> None:
    """Raise unless tokens and heads live in one R^d."""
    dim = heads.values.shape[-1]
    require(
        width == dim,
        f"{name} has width {width} and the heads act on width {dim}",
        "one width d",
        "pass heads of the tokens' width",
    )


def read_depths(depths: Any, nodes: np.ndarray) -> np.ndarray:
    """Depths ``[K]`` inside [0, S], increasing; None means the grid's nodes."""
    if depths is None:
        return nodes
    return read_times("depths", depths, float(nodes[-1]))


def read_times(name: str, times: Any, largest: float = np.inf) -> np.ndarray:
    """An increasing array ``[K]`` of numbers from 0 to ``largest``; raises `MeanfieldError`."""
    array = np.atleast_1d(np.asarray(times, dtype=float))
    require_finite(name, array)
    slack = 1e-12 * max(largest, 1.0) if np.isfinite(largest) else 0.0
    require(
        array.ndim == 1
        and array.size
        and (np.diff(array) >= 0).all()
        and array[0] >= 0
        and array[-1] <= largest + slack,
        f"{name}={array.tolist()}",
        f"increasing numbers from 0 to {largest:g}",
        "sort them and stay inside",
    )
    return np.minimum(array, largest)


def integrate(
    rhs: Callable[[int, np.ndarray], np.ndarray],
    start: np.ndarray,
    nodes: np.ndarray,
    depths: np.ndarray,
    *,
    excess: Callable[[np.ndarray], float] | None = None,
    what: str = "the solution",
) -> np.ndarray:
    """Solve ``dy/ds = rhs(cell, y)`` to about 1e-13 and read it at ``depths``, ``[K, ...]``.

    Dormand-Prince of order 8 that restarts at every cell edge, where the heads jump.

    Args: rhs(cell, y); start y(0); nodes ``[L+1]``; depths ``[K]``; excess(y), positive until y
        counts as blown up; what, the solution's name in the error.
    Raises: `DomainError` naming the depth if ``excess`` falls to 0 or the steps collapse.
    """
    shape, state = start.shape, start.ravel()
    stops = np.union1d(nodes[nodes < depths[-1]], depths)
    found = {0.0: start}

    def blown_up(s: float, y: np.ndarray) -> float:
        return 1.0 if excess is None else excess(y.reshape(shape))

    blown_up.terminal = True  # scipy reads this attribute
    for left, right in zip(stops[:-1], stops[1:], strict=True):
        cell = min(int(np.searchsorted(nodes, left, side="right")) - 1, len(nodes) - 2)
        solved = solve_ivp(
            lambda s, y, cell=cell: rhs(cell, y.reshape(shape)).ravel(),
            (left, right),
            state,
            method="DOP853",
            rtol=_RELATIVE,
            atol=_ABSOLUTE * max(1.0, float(np.max(np.abs(state)))),
            events=blown_up,
        )
        if solved.status != 0 or not np.isfinite(solved.y[:, -1]).all():
            raise DomainError(
                f"{what} blows up, or outgrows what is tracked, near depth s = {solved.t[-1]:.6g},"
                f" before s = {depths[-1]:.6g}",
                "depths below that",
                "ask for smaller depths, a smaller covariance or smaller heads",
            )
        state = solved.y[:, -1]
        found[float(right)] = state.reshape(shape)
    return np.stack([found[float(depth)] for depth in depths])


def value_propagator(heads: Heads, depths: np.ndarray) -> np.ndarray:
    """``dE/ds = Vbar(s) E``, ``E(0) = I``: products of exponentials, ``[K, d, d]``."""
    steps, means = np.diff(heads.nodes), heads.mean_values
    at_nodes = [np.eye(means.shape[-1])]
    for step, mean in zip(steps, means, strict=True):
        at_nodes.append(expm(step * mean) @ at_nodes[-1])
    result = []
    for depth in depths:
        cell = min(int(np.searchsorted(heads.nodes, depth, side="right")) - 1, len(steps) - 1)
        result.append(expm((depth - heads.nodes[cell]) * means[cell]) @ at_nodes[cell])
    return np.stack(result)
