"""Gaussian tokens stay Gaussian under softmax attention: closed equations for mean and covariance.

For ``mu = N(a, S)`` the cumulant generating function is quadratic, so ``m_A[mu](x) = a + S A^T x``
is affine in x and the flow map is affine at every depth. Reconstruction, docs/theory.md 6.1.
"""

from typing import Any, NamedTuple

import numpy as np

from meanfield._checks import DomainError, require, require_finite
from meanfield.exact._heads import integrate, read_depths, read_heads, read_times, require_width
from meanfield.measures import ParameterMeasure

# The flow map G may grow this much before its covariance G S0 G^T counts as blown up.
_LARGEST_GROWTH = 1e7


class GaussianClosure(NamedTuple):
    """``N(a(s), S(s))`` at K depths with the affine flow map ``X_s(x) = a(s) + G(s)(x - a(0))``.

    Attributes: depths ``[K]``; means ``[K, d]``; covariances ``[K, d, d]``; linear_maps G
    ``[K, d, d]``; start_mean a(0) ``[d]``.
    """

    depths: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    linear_maps: np.ndarray
    start_mean: np.ndarray

    def flow_map(self, points: Any) -> np.ndarray:
        """Where points ``[n, d]`` (or ``[d]``) of depth 0 are at every depth, ``[K, n, d]``."""
        points = np.asarray(points, dtype=float)
        centred = np.atleast_2d(points) - self.start_mean
        moved = self.means[:, None] + np.einsum("kab,nb->kna", self.linear_maps, centred)
        return moved if points.ndim == 2 else moved[:, 0]


def _read_gaussian(mean: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean ``[d]`` and positive semidefinite covariance ``[d, d]``; numbers mean d = 1."""
    mean = np.atleast_1d(np.asarray(mean, dtype=float))
    covariance = np.atleast_2d(np.asarray(covariance, dtype=float))
    require(
        mean.ndim == 1 and covariance.shape == (len(mean), len(mean)),
        f"mean has shape {mean.shape} and covariance {covariance.shape}",
        "[d] and [d, d]",
        "pass a vector and a square matrix of its length",
    )
    require_finite("mean", mean)
    require_finite("covariance", covariance)
    size = float(np.max(np.abs(covariance)))
    least = float(np.linalg.eigvalsh((covariance + covariance.T) / 2)[0])
    require(
        np.allclose(covariance, covariance.T, rtol=0, atol=1e-9 * size) and least >= -1e-9 * size,
        f"covariance is not symmetric or has the eigenvalue {least:.3g}",
        "a symmetric positive semidefinite matrix",
        "pass a covariance",
    )
    return mean, (covariance + covariance.T) / 2


def gaussian_closure(
    mean: Any,
    covariance: Any,
    rho: ParameterMeasure,
    *,
    scale: float | int = 1.0,
    depths: Any = None,
) -> GaussianClosure:
    """Mean, covariance and flow map of Gaussian tokens under any piecewise constant heads.

    da/ds = (Vbar + B) a,   dG/ds = B G,   S = G S(0) G^T  (so dS/ds = B S + S B^T),
    Vbar = int V drho(.|s),   B = int V S A^T drho(.|s).

    The solution is smooth inside each depth cell; solved there to about 1e-13 by an ODE of order 8.

    Args:
        mean, covariance: of the tokens at depth 0, ``[d]`` and ``[d, d]`` (it may be singular; its
            rank is conserved).
        rho: heads, `AttentionAV` or `AttentionQKV` particles.
        scale: the field's score scale (``A = scale Q^T K``).
        depths: increasing ``[K]``; None: the nodes of rho's grid.

    Raises: `DomainError` naming the depth where the covariance blows up (possible, as Gaussian
        tokens are not bounded); `MeanfieldError` on wrong shapes or other particles.

    Cost: O(L M d^4) once, then O(d^4) per ODE step. Reference: reconstruction, docs/theory.md 6.1.
    """
    mean, covariance = _read_gaussian(mean, covariance)
    heads = read_heads(rho, scale)
    require_width("mean", len(mean), heads)
    depths = read_depths(depths, heads.nodes)
    couplings = np.einsum("kj,kjac,kjbd->kacbd", heads.weights, heads.values, heads.scores)
    mean_values = heads.mean_values

    def rhs(cell: int, state: np.ndarray) -> np.ndarray:
        here, linear = state[:, 0], state[:, 1:]
        current = linear @ covariance @ linear.T
        drift = np.einsum("acbd,cd->ab", couplings[cell], current)
        return np.column_stack([mean_values[cell] @ here + drift @ here, drift @ linear])

    dim = len(mean)
    start = np.column_stack([mean, np.eye(dim)])
    solved = integrate(
        rhs,
        start,
        heads.nodes,
        depths,
        excess=lambda state: _LARGEST_GROWTH - float(np.max(np.abs(state[:, 1:]))),
        what="the covariance of the tokens",
    )
    means, linear_maps = solved[:, :, 0], solved[:, :, 1:]
    covariances = np.einsum("kab,bc,kdc->kad", linear_maps, covariance, linear_maps)
    return GaussianClosure(depths, means, covariances, linear_maps, mean)


def gaussian_blow_up_depth(covariance: Any, value: float | int, score: float | int) -> float:
    """``s* = 1 / (2 v b lambda_max(S(0)))`` for V = v I, A = b I; infinite where v b <= 0.

    Raises: `MeanfieldError` on a matrix that is no covariance. Reference: docs/theory.md 6.1.
    """
    covariance = np.atleast_2d(np.asarray(covariance, dtype=float))
    _, covariance = _read_gaussian(np.zeros(len(covariance)), covariance)
    rate = 2 * value * score * float(np.linalg.eigvalsh(covariance)[-1])
    return 1 / rate if rate > 0 else float("inf")


def gaussian_isotropic(
    mean: Any, covariance: Any, *, value: float | int, score: float | int, depths: Any
) -> GaussianClosure:
    """The Gaussian closure for ``V = v I, A = b I`` at all depths, in closed form.

    S(s) = S0 (I - 2 v b s S0)^{-1},  G(s) = (I - 2 v b s S0)^{-1/2},  a(s) = e^{v s} G(s) a0.
    v b > 0: blow-up at ``s* = 1 / (2 v b lambda_max(S0))``; v b < 0: collapse like 1 / (2 |v b| s).

    Args: mean ``[d]``, covariance ``[d, d]`` (numbers: d = 1); value v; score b; depths ``[K]``.
    Raises: `DomainError` at or beyond the blow-up depth; `MeanfieldError` on wrong shapes.

    Cost: O(d^3). Reference: reconstruction, docs/theory.md 6.1.
    """
    mean, covariance = _read_gaussian(mean, covariance)
    require(
        np.isfinite(value) and np.isfinite(score),
        f"value={value}, score={score}",
        "finite numbers",
        "pass v and b of V = v I, A = b I",
    )
    depths = read_times("depths", depths)
    blow_up = gaussian_blow_up_depth(covariance, value, score)
    if depths[-1] >= blow_up:
        raise DomainError(
            f"depth s = {depths[-1]:.6g} lies at or beyond the blow-up of the Gaussian closure",
            f"depths below s* = 1 / (2 v b lambda_max(S0)) = {blow_up:.6g}",
            "ask for smaller depths, a smaller covariance or smaller heads",
        )
    eigenvalues, vectors = np.linalg.eigh(covariance)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    shrink = 1 - 2 * value * score * depths[:, None] * eigenvalues
    linear_maps = np.einsum("ab,kb,cb->kac", vectors, shrink**-0.5, vectors)
    covariances = np.einsum("ab,kb,cb->kac", vectors, eigenvalues / shrink, vectors)
    means = np.exp(value * depths)[:, None] * (linear_maps @ mean)
    return GaussianClosure(depths, means, covariances, linear_maps, mean)


def gaussian_l2_attention(
    mean: Any, covariance: Any, query_matrix: Any, key_matrix: Any, points: Any
) -> np.ndarray:
    """Mean of ``N(a, S)`` tilted by L2 attention ``e^{-|Q x - K y|^2}``, at points ``[m, d]``.

    m(x) = (S^{-1} + 2 K^T K)^{-1} (S^{-1} a + 2 K^T Q x), for an invertible S.

    Raises: `MeanfieldError` on wrong shapes or a singular covariance.
    Cost: O(d^3 + m d^2). Reference: reconstruction, docs/theory.md 6.1.
    """
    mean, covariance = _read_gaussian(mean, covariance)
    query_matrix = np.atleast_2d(np.asarray(query_matrix, dtype=float))
    key_matrix = np.atleast_2d(np.asarray(key_matrix, dtype=float))
    points = np.asarray(points, dtype=float)
    dim = len(mean)
    require(
        query_matrix.shape == key_matrix.shape
        and query_matrix.shape[1] == dim
        and points.ndim == 2
        and points.shape[1] == dim,
        f"shapes {query_matrix.shape}, {key_matrix.shape} and {points.shape}",
        f"[k, {dim}], [k, {dim}] and [m, {dim}]",
        "pass Q, K and points of the tokens' width",
    )
    require(
        np.linalg.matrix_rank(covariance) == dim,
        "a singular covariance",
        "an invertible one",
        "restrict the tokens to their span",
    )
    precision = np.linalg.inv(covariance)
    right = precision @ mean + 2 * points @ query_matrix.T @ key_matrix
    return np.linalg.solve(precision + 2 * key_matrix.T @ key_matrix, right.T).T
