"""Distances between measures: Wasserstein, conditional Wasserstein, coupled, energy.

Which distance measures convergence is a choice that a figure's caption states. Between
*independent* clouds of n points the empirical W2 is biased, by about ``n^(-1/d)`` for d > 4
(between two equal laws in d = 8 it is still 1.6 at n = 1024): for d >= 4 it says little, from
d = 8 on it is blind, and `wasserstein2` warns. Use coupled particles, observables, closed forms or
the energy distance there; W2 only for d <= 3. Clouds that share their randomness lack that floor.
Definitions: reconstruction, docs/theory.md 4.1 and 7.2.
"""

import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from meanfield._checks import MeanfieldError, is_concrete, require, require_finite
from meanfield._numerics import PAIR_BUDGET, chunk_size
from meanfield._typing import Array, Float
from meanfield.measures import ParameterMeasure, TokenMeasure

# From this width on, W2 between independent clouds of any affordable size is mostly bias.
BLIND_DIM = 8

_MAX_ITERATIONS = 10_000_000


class TransportBiasWarning(UserWarning):
    """The empirical W2 of independent clouds is mostly bias in this width."""


def _flatten(tree: Any, num_axes: int) -> np.ndarray:
    """All leaves side by side, ``[..., p]``: a particle as one vector, in float64."""
    leaves = [np.asarray(leaf, dtype=float) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in leaves], axis=-1)


def _cloud(name: str, measure: TokenMeasure) -> tuple[np.ndarray, np.ndarray]:
    """Points ``[n, p]`` that carry mass, and their weights; zero-mass tokens are dropped."""
    require(
        isinstance(measure, TokenMeasure) and measure.num_contexts is None,
        f"{name} is a batch or a {type(measure).__name__}",
        "one TokenMeasure [n, d]",
        "compare context by context, or wrap the array as TokenMeasure(points)",
    )
    points = _flatten(measure.points, 1)
    require_finite(name, points)
    weights = np.asarray(measure.weights, dtype=float)
    has_mass = weights > 0
    return points[has_mass], weights[has_mass] / weights[has_mass].sum()


def _require_same_width(first: np.ndarray, second: np.ndarray) -> None:
    require(
        first.shape[-1] == second.shape[-1],
        f"points of widths {first.shape[-1]} and {second.shape[-1]}",
        "one width",
        "compare measures on the same space",
    )


def _is_uniform(weights: np.ndarray) -> bool:
    """Equal masses up to the rounding of a normalised log-weight."""
    return bool(np.allclose(weights, 1 / len(weights), rtol=1e-9, atol=0))


def _sorted_cost(x: np.ndarray, v: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """On the line the monotone coupling is optimal: join the quantile functions."""
    order_x, order_y = np.argsort(x), np.argsort(y)
    x, y = x[order_x], y[order_y]
    ends_x, ends_y = np.cumsum(v[order_x]), np.cumsum(w[order_y])
    ends_x[-1] = ends_y[-1] = 1.0
    ends = np.union1d(ends_x, ends_y)
    pieces = np.diff(ends, prepend=0.0)
    of_x = np.minimum(np.searchsorted(ends_x, ends), len(x) - 1)
    of_y = np.minimum(np.searchsorted(ends_y, ends), len(y) - 1)
    return float(pieces @ (x[of_x] - y[of_y]) ** 2)


def _squared_cost(x: np.ndarray, v: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """``W2^2`` of two weighted clouds ``[n, p]``, ``[m, p]``: the exact linear programme."""
    if np.array_equal(x, y) and np.array_equal(v, w):
        return 0.0
    if x.shape[1] == 1 and not (_is_uniform(v) and _is_uniform(w) and len(x) == len(y)):
        return _sorted_cost(x[:, 0], v, y[:, 0], w)
    if _is_uniform(v) and _is_uniform(w) and len(x) == len(y):
        if x.shape[1] == 1:
            return float(np.mean((np.sort(x[:, 0]) - np.sort(y[:, 0])) ** 2))
        costs = cdist(x, y, "sqeuclidean")
        rows, columns = linear_sum_assignment(costs)
        return float(costs[rows, columns].mean())
    import ot  # two seconds to import, and only weighted clouds need it

    costs = cdist(x, y, "sqeuclidean")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, log = ot.emd2(v, w, costs, numItermax=_MAX_ITERATIONS, log=True, return_matrix=True)
    if log["warning"]:
        raise MeanfieldError(
            f"transport between {len(x)} and {len(y)} weighted points ended with: {log['warning']}",
            "an optimal plan",
            "use fewer points or equal weights",
        )
    return float(np.sum(log["G"] * costs))


def wasserstein2(mu: TokenMeasure, nu: TokenMeasure) -> float:
    """Wasserstein distance of order 2 between two token measures.

    W2(mu, nu)^2 = min over couplings gamma of  int |x - y|^2 dgamma(x, y), solved exactly:
    sorting in d = 1, an assignment for equal masses and sizes, a linear programme otherwise.
    Zero-mass tokens do not count. Square roots carry rounding: identical clouds give exactly 0,
    the same cloud in another order at most about 1e-8 |x|.

    Bias between independent clouds: docs/theory.md 7.2; `TransportBiasWarning` from d = 8 on.

    Raises: `MeanfieldError` on batches or different widths.
    Cost: O(n^3) time, O(n^2) memory (d = 1: O(n log n)).
    Reference: reconstruction, docs/theory.md 4.1 and 7.2.
    """
    (x, v), (y, w) = _cloud("mu", mu), _cloud("nu", nu)
    _require_same_width(x, y)
    if x.shape[1] >= BLIND_DIM and len(x) > 1 and len(y) > 1:
        warnings.warn(
            f"W2 of clouds in d = {x.shape[1]}: between independent clouds it is mostly bias "
            f"(about n^(-1/{x.shape[1]})); use coupled_distance, observables or energy_distance",
            TransportBiasWarning,
            stacklevel=2,
        )
    return float(np.sqrt(_squared_cost(x, v, y, w)))


def _require_same_grid(rho0: ParameterMeasure, rho1: ParameterMeasure) -> np.ndarray:
    """The common cell lengths ``ds_k``; raises where the depth marginals are cut differently."""
    nodes = [np.asarray(rho.grid.nodes, dtype=float) for rho in (rho0, rho1)]
    require(
        nodes[0].shape == nodes[1].shape and np.allclose(nodes[0], nodes[1], rtol=1e-6, atol=1e-12),
        f"depth grids of {len(nodes[0]) - 1} and {len(nodes[1]) - 1} cells that differ",
        "the same depth grid in both parameter measures",
        "refine the coarser one: refine_depth(rho, factor)",
    )
    return np.diff(nodes[0])


def _require_same_particles(rho0: ParameterMeasure, rho1: ParameterMeasure) -> None:
    """Raise unless both hold particles of one kind."""
    shapes = [
        [tuple(leaf.shape[2:]) for leaf in jax.tree.leaves(rho.particles)] for rho in (rho0, rho1)
    ]
    same_tree = jax.tree.structure(rho0.particles) == jax.tree.structure(rho1.particles)
    require(
        same_tree and shapes[0] == shapes[1],
        f"particles with leaves of shapes {shapes[0]} and {shapes[1]}",
        "particles of the same structure",
        "compare parameter measures of the same field",
    )


def conditional_wasserstein2(rho0: ParameterMeasure, rho1: ParameterMeasure) -> float:
    """Conditional Wasserstein distance: transport inside each depth cell, none across depth.

    d(rho0, rho1)^2 = int_0^S W2^2(rho0(.|s), rho1(.|s)) ds = sum_k ds_k W2^2(cell k).

    A particle is the vector of all its leaves; each cell's particles stand for the whole cell (with
    linear interpolation too). M may differ between the two. It dominates W2 of
    the joint measures and is dominated by `labelled_distance`. The bias of W2 between independent
    ensembles in high dimension applies here too; between an ensemble and itself after training
    there is none, which is the use the training history makes of it.

    Raises: `MeanfieldError` on different depth grids or kinds of particles.
    Cost: O(L M^3) time, O(M^2) memory. Reference: reconstruction, docs/theory.md 4.1.
    """
    steps = _require_same_grid(rho0, rho1)
    _require_same_particles(rho0, rho1)
    x, y = _flatten(rho0.particles, 2), _flatten(rho1.particles, 2)
    require_finite("particles", x)
    require_finite("particles", y)
    v, w = np.asarray(rho0.weights, dtype=float), np.asarray(rho1.weights, dtype=float)
    total = 0.0
    for k, step in enumerate(steps):
        here, there = v[k] > 0, w[k] > 0
        total += step * _squared_cost(
            x[k, here], v[k, here] / v[k, here].sum(), y[k, there], w[k, there] / w[k, there].sum()
        )
    return float(np.sqrt(total))


def labelled_distance(rho0: ParameterMeasure, rho1: ParameterMeasure) -> Float[Array, ""]:
    """Distance that keeps labels: particle j of cell k is compared with particle j of cell k.

    ( sum_k ds_k sum_j w_kj |theta_kj - theta'_kj|^2 )^{1/2}  >=  `conditional_wasserstein2`.

    The length of the straight path in parameter space; works under ``jit``.

    Raises: `MeanfieldError` on different grids, kinds of particles, M or masses.
    Cost: O(L M p). Reference: reconstruction, docs/theory.md 4.1.
    """
    if is_concrete(*jax.tree.leaves((rho0, rho1))):
        _require_same_grid(rho0, rho1)
    _require_same_particles(rho0, rho1)
    same_masses = rho0.log_weights.shape == rho1.log_weights.shape
    if same_masses and is_concrete(rho0.log_weights, rho1.log_weights):
        same_masses = np.allclose(rho0.weights, rho1.weights, rtol=1e-6, atol=1e-12)
    require(
        same_masses,
        f"{rho0.num_particles} and {rho1.num_particles} particles or different masses",
        "the same labels and masses in both",
        "use conditional_wasserstein2, which needs no labels",
    )
    masses = rho0.grid.steps[:, None] * rho0.weights

    def leaf_cost(a: Array, b: Array) -> Array:
        squares = jnp.sum((a - b).reshape(*a.shape[:2], -1) ** 2, axis=-1)
        return jnp.sum(masses * squares)

    costs = jax.tree.map(leaf_cost, rho0.particles, rho1.particles)
    return jnp.sqrt(sum(jax.tree.leaves(costs)))


def coupled_distance(path_a: Any, path_b: Any, weights: Any = None) -> Float[Array, ""]:
    """Largest distance along depth between two clouds with the same labels.

    max_k ( sum_a w_a |x_a(s_k) - x'_a(s_k)|^2 )^{1/2}  >=  max_k W2(mu(s_k), mu'(s_k)).

    Token a of one path is token a of the other (the same start, another rho, L or scheme), so
    there is no bias in high dimension; works under ``jit``.

    Args: path_a, path_b, ``[L+1, n, d]`` on the same depths (or one depth, ``[n, d]``); weights
        ``[n]``, not negative, normalised here; None: equal. Zero weights (query tokens) drop out.
    Raises: `MeanfieldError` on different shapes or bad weights.

    Cost: O(L n d). Reference: reconstruction, docs/theory.md 7.2.
    """
    path_a, path_b = jnp.asarray(path_a), jnp.asarray(path_b)
    require(
        path_a.shape == path_b.shape and path_a.ndim in (2, 3),
        f"paths of shapes {tuple(path_a.shape)} and {tuple(path_b.shape)}",
        "two paths [L+1, n, d] on the same depths and labels",
        "read the finer path at the coarser one's depths, for instance path[::2]",
    )
    squares = jnp.sum((path_a - path_b) ** 2, axis=-1)
    if weights is None:
        return jnp.sqrt(jnp.max(jnp.mean(squares, axis=-1)))
    weights = jnp.asarray(weights, dtype=squares.dtype)
    require(
        weights.shape == squares.shape[-1:],
        f"weights has shape {tuple(weights.shape)}",
        f"({squares.shape[-1]},)",
        "pass one weight for each token",
    )
    if is_concrete(weights):
        require_finite("weights", weights)
        values = np.asarray(weights)
        require(
            (values >= 0).all() and values.sum() > 0,
            f"weights from {values.min():.4g} with sum {values.sum():.4g}",
            "weights of at least 0 with a positive sum",
            "pass mu.weights",
        )
    return jnp.sqrt(jnp.max(squares @ weights) / jnp.sum(weights))


def _mean_distance(x: np.ndarray, v: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """``sum_ab v_a w_b |x_a - y_b|``, a block of rows at a time."""
    rows = chunk_size(len(x), len(y), 8 * PAIR_BUDGET)
    cuts = itertools.pairwise([*range(0, len(x), rows), len(x)])
    return float(sum(v[a:b] @ (cdist(x[a:b], y) @ w) for a, b in cuts))


def energy_distance(mu: TokenMeasure, nu: TokenMeasure) -> float:
    """Energy distance, a metric between laws whose empirical error is ``O(n^-1/2)`` in any width.

    D(mu, nu)^2 = 2 E|X - Y| - E|X - X'| - E|Y - Y'|,   X, X' ~ mu,  Y, Y' ~ nu independent.

    Zero-mass tokens do not count. Rounding: distances below about 1e-8 |x| are noise.

    Raises: `MeanfieldError` on batches or different widths.
    Cost: O(n^2 d) time, O(n) memory beyond one block of pairs.
    Reference: reconstruction, docs/theory.md 7.2.
    """
    (x, v), (y, w) = _cloud("mu", mu), _cloud("nu", nu)
    _require_same_width(x, y)
    if np.array_equal(x, y) and np.array_equal(v, w):
        return 0.0
    across = _mean_distance(x, v, y, w)
    within = _mean_distance(x, v, x, v) + _mean_distance(y, w, y, w)
    return float(np.sqrt(max(2 * across - within, 0.0)))


__all__ = [
    "BLIND_DIM",
    "TransportBiasWarning",
    "conditional_wasserstein2",
    "coupled_distance",
    "energy_distance",
    "labelled_distance",
    "wasserstein2",
]
