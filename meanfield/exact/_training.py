"""Closed forms in training time: one Dirac context, and the lazy limit.

Reconstruction, docs/theory.md 4.4, 6.10 and 6.11.
"""

from typing import Any

import numpy as np
from scipy.linalg import expm
from scipy.special import lambertw, wrightomega

from meanfield._checks import require, require_finite
from meanfield.exact._heads import integrate, read_times

# Below this |target / output| Lambert's W sits on its branch point and loses digits there.
_NEAR_BRANCH = 0.1


def dirac_training(output: float | int, target: float | int, times: Any) -> np.ndarray:
    """Output of a scalar Dirac context under the conditional gradient flow, square loss.

    A token x(0) with value particles v has ``x_1 = x(0) e^{int v}`` and conditional gradient
    ``(x_1 - y) x_1`` at every depth and particle, so

    dx_1/dt = - x_1^2 (x_1 - y),   x_1(t) = y / (1 + W( p e^{p - y^2 t} )),   p = y / x_1(0) - 1,

    with Lambert's W on its principal branch for ``y / x_1(0) > 0`` and its lower branch otherwise
    (the output then tends to 0, which it cannot cross); for ``y = 0`` it is
    ``x_1(0) (1 + 2 x_1(0)^2 t)^{-1/2}``.
    Depth is continuous, the loss ``|x_1 - y|^2 / 2``, and the initial v is the same everywhere.

    Args: output x_1(0) at training time 0, not 0; target y; times ``[K]``.
    Returns: ``[K]``, accurate to about 1e-13 relative.
    Raises: `MeanfieldError` on an output of 0 (a fixed point) or numbers that are not finite.

    Cost: O(K). Reference: reconstruction, docs/theory.md 6.10.
    """
    require(
        np.isfinite(output) and np.isfinite(target) and output != 0,
        f"output={output}, target={target}",
        "finite numbers with output != 0",
        "start from an output other than 0, where the flow rests",
    )
    times = read_times("times", times)
    if target == 0:
        return output / np.sqrt(1 + 2 * output**2 * times)
    ratio = target / output
    if abs(ratio) < _NEAR_BRANCH:
        return _dirac_by_steps(output, target, times)
    start = ratio - 1
    decay = target**2 * times
    if start > 0:
        branch = wrightomega(np.log(start) + start - decay).real
    else:
        argument = start * np.exp(start - decay)
        branch = lambertw(argument, 0 if ratio > 0 else -1).real
        # beyond the range of exp: w = W_{-1}(-e^l) solves w = l - log(-w), a strong contraction
        far = (start - decay < -700) & (ratio < 0)
        if far.any():
            logarithm = np.log(-start) + start - decay[far]
            value = logarithm
            for _ in range(20):
                value = logarithm - np.log(-value)
            branch[far] = value
    return target / (1 + branch)


def _dirac_by_steps(output: float | int, target: float | int, times: np.ndarray) -> np.ndarray:
    """The same equation by an ODE of order 8, for x_1 in units of x_1(0)."""
    ratio = target / output
    units = output**2 * times

    def rhs(cell: int, x: np.ndarray) -> np.ndarray:
        del cell
        return -(x**2) * (x - ratio)

    return output * integrate(rhs, np.ones(1), np.array([0.0, np.inf]), units)[:, 0]


def lazy_residual(gram: Any, weights: Any, residual: Any, times: Any) -> np.ndarray:
    """Residuals in the lazy limit, where the tangent kernel does not move.

    dr/dt = - K Om r,   r(t) = exp(-K Om t) r(0),   Om = diag(weights).

    Exact for V = 0 at the start and targets ``x(0) + eps delta`` up to O(eps^2), with K the V-part
    of the kernel integrated over depth.

    Args:
        gram: ``[P, P]``, the scalar Gram matrix of the P context-token pairs (a matrix-valued
            kernel: pass ``[P d, P d]`` with each weight d times and residuals ``[P d, 1]``).
        weights: ``[P]``, loss weights over N (sum 1 for R1).
        residual: ``x(1) - y`` at training time 0, ``[P, d]``.
        times: ``[K]``.

    Returns: ``[K, P, d]``.
    Raises: `MeanfieldError` on other shapes, a Gram matrix that is not symmetric, bad weights.
    Cost: O(K P^3). Reference: reconstruction, docs/theory.md 4.4 and 6.11.
    """
    gram, weights, residual = (np.asarray(a, dtype=float) for a in (gram, weights, residual))
    num_pairs = len(weights) if weights.ndim == 1 else 0
    require(
        num_pairs > 0
        and gram.shape == (num_pairs, num_pairs)
        and residual.ndim == 2
        and len(residual) == num_pairs,
        f"gram has shape {gram.shape}, weights {weights.shape}, residual {residual.shape}",
        "[P, P], [P] and [P, d]",
        "flatten contexts and tokens to one axis of pairs",
    )
    for name, array in (("gram", gram), ("weights", weights), ("residual", residual)):
        require_finite(name, array)
    require(
        np.allclose(gram, gram.T, rtol=1e-8, atol=1e-12 * np.max(np.abs(gram))),
        "gram is not symmetric",
        "a Gram matrix",
        "pass F^T F",
    )
    require(
        (weights >= 0).all(),
        f"weights holds {weights.min():.4g}",
        "weights of at least 0",
        "pass loss weights over N",
    )
    times = read_times("times", times)
    return np.stack([expm(-t * gram * weights) @ residual for t in times])


def lazy_risk(gram: Any, weights: Any, residual: Any, times: Any) -> np.ndarray:
    """Square-loss risk ``sum_a om_a |r_a(t)|^2 / 2`` along `lazy_residual`, ``[K]``.

    Raises and Reference: as there; it decays at twice the least eigenvalue of
    ``Om^{1/2} K Om^{1/2}`` at late times.
    """
    residuals = lazy_residual(gram, weights, residual, times)
    return np.einsum("a,kad->k", np.asarray(weights, dtype=float), residuals**2) / 2
