"""Softmax attention as a velocity field: the gradient of the tokens' cumulant generating function.

``m_A[mu](x) = int y e^{<x, A y>} dmu(y) / int e^{<x, A z>} dmu(z) = grad Lambda_mu(A^T x)`` with
``Lambda_mu(z) = log int e^{<z, y>} dmu(y)``; one head moves x by ``V m_A[mu](x)``.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np

from meanfield._checks import require, require_positive_integer
from meanfield._numerics import softmax_weights
from meanfield._typing import Array, EvaluationPoints, Float, Int, Points
from meanfield.fields.base import AbstractField
from meanfield.measures import TokenMeasure


class AttentionAV(NamedTuple):
    """One head by its score matrix ``A [d, d]`` and value matrix ``V [d, d]``."""

    A: Array
    V: Array


class AttentionQKV(NamedTuple):
    """One head by queries ``Q [k, d]``, keys ``K [k, d]`` and values ``V [d, d]``; A = Q^T K."""

    Q: Array
    K: Array
    V: Array


class SoftmaxAttention(AbstractField):
    """Softmax attention ``V int e^{<Qx, Ky>} y dmu(y) / int e^{<Qx, Kz>} dmu(z)``.

    Args:
        parametrization: "qkv": theta = `AttentionQKV` (Q, K, V), score ``<Qx, Ky> scale``;
            "av": theta = `AttentionAV` (A, V), score ``<x, A y> scale``.
        head_dim: k, rows of Q and K; None: the tokens' width d. Only for "qkv".
        scale: factor of the score; None means 1 (1/sqrt(k) may be absorbed in Q or K).

    Raises: `MeanfieldError` on an unknown parametrization or a scale that is not finite.
    Reference: arXiv 2605.17660 (the velocity field); derivatives: reconstruction, docs/theory.md
    2.1. Cost: O(m n d) time and O(m n) memory for one head.
    """

    parametrization: Literal["qkv", "av"] = eqx.field(static=True)
    head_dim: int | None = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        parametrization: Literal["qkv", "av"] = "qkv",
        head_dim: int | None = None,
        scale: float | None = None,
    ):
        require(
            parametrization in ("qkv", "av"),
            f"parametrization is {parametrization!r}",
            "'qkv' or 'av'",
            "pass one of them",
        )
        if head_dim is not None:
            require_positive_integer("head_dim", head_dim)
            require(
                parametrization == "qkv",
                f"head_dim={head_dim} with parametrization 'av'",
                "head_dim for 'qkv' only",
                "drop it, or use 'qkv'",
            )
        require(
            scale is None
            or (
                isinstance(scale, (int, float, np.number))
                and np.isfinite(scale)
                and np.isreal(scale)
            ),
            f"scale is {scale!r}",
            "a finite number or None",
            "pass scale=None for 1",
        )
        self.parametrization = parametrization
        self.head_dim = head_dim
        self.scale = 1.0 if scale is None else float(scale)

    def particle_shapes(self, dim: int) -> AttentionAV | AttentionQKV:
        """``A [d, d], V [d, d]`` or ``Q [k, d], K [k, d], V [d, d]``."""
        if self.parametrization == "av":
            return AttentionAV(A=(dim, dim), V=(dim, dim))  # type: ignore[arg-type]
        k = self.head_dim or dim
        return AttentionQKV(Q=(k, dim), K=(k, dim), V=(dim, dim))  # type: ignore[arg-type]

    def tilts(self, theta: AttentionAV | AttentionQKV, x: EvaluationPoints) -> Array:
        """Rows ``z_a = scale A^T x_a``: where the CGF is evaluated."""
        if isinstance(theta, AttentionAV):
            return self.scale * (x @ theta.A)
        return self.scale * ((x @ theta.Q.T) @ theta.K)

    def __call__(
        self,
        theta: AttentionAV | AttentionQKV,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """``V m_A[mu](x)`` at the rows of ``x``; labels play no part."""
        weights = softmax_weights(self.tilts(theta, x) @ mu.points.T + mu.log_weights)
        return (weights @ mu.points) @ theta.V.T

    def pullback(
        self,
        theta: AttentionAV | AttentionQKV,
        x: EvaluationPoints,
        mu: TokenMeasure,
        q: EvaluationPoints,
        labels: Int[Array, " m"] | None = None,
    ) -> tuple[AttentionAV | AttentionQKV, EvaluationPoints, Points]:
        """Explicit transposes, reconstruction, docs/theory.md 2.3 and 2.4.

        With ``u_a = V^T q_a``, ``D_ab = <y_b - m_a, u_a>`` and ``(C u)_a = sum_b P_ab D_ab
        (y_b - m_a)``: ``x_bar_a = A C u_a``, ``y_bar_b = sum_a P_ab (u_a + D_ab A^T x_a)``,
        ``V_bar = sum_a q_a m_a^T``, ``A_bar = sum_a x_a (C u)_a^T``; for A = scale Q^T K:
        ``Q_bar = scale K A_bar^T``, ``K_bar = scale Q A_bar``.
        """
        y = mu.points
        tilts = self.tilts(theta, x)
        weights = softmax_weights(tilts @ y.T + mu.log_weights)
        means = weights @ y
        u = q @ theta.V
        weighted_gaps = weights * (u @ y.T - (means * u).sum(axis=-1, keepdims=True))
        covariance_u: Float[Array, "m d"] = weighted_gaps @ y - means * weighted_gaps.sum(
            axis=-1, keepdims=True
        )
        points_bar = weights.T @ u + weighted_gaps.T @ tilts
        value_bar = q.T @ means
        if isinstance(theta, AttentionAV):
            x_bar = self.scale * (covariance_u @ theta.A.T)
            return AttentionAV(self.scale * (x.T @ covariance_u), value_bar), x_bar, points_bar
        keyed = self.scale * (covariance_u @ theta.K.T)  # [m, k]
        queried = x @ theta.Q.T
        x_bar = keyed @ theta.Q
        key_bar = self.scale * (queried.T @ covariance_u)
        return AttentionQKV(keyed.T @ x, key_bar, value_bar), x_bar, points_bar
