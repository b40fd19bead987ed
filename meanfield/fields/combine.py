"""Fields made of fields: sums, sphere projection, layer norm, causal order.

All but `Sum` lie outside the theorems of arXiv 2605.17660 as we know them (a non-causal encoder,
tokens in R^d); they are here because finite transformers have them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from meanfield._checks import require
from meanfield._typing import Array, EvaluationPoints, Int, Particle, PyTree
from meanfield.fields.base import AbstractField, require_field
from meanfield.measures import TokenMeasure


class Sum(AbstractField):
    """``phi_theta = sum_i phi^i_{theta_i}``: for instance attention and perceptron side by side.

    Args: the summands; ``theta`` is the tuple of their particles.
    Reference: our choice, docs/theory.md 1.3.
    """

    summands: tuple[AbstractField, ...]

    def __init__(self, *summands: AbstractField):
        require(summands, "Sum() of nothing", "at least one field", "pass some fields")
        for field in summands:
            require_field("a summand", field)
        self.summands = summands

    def particle_shapes(self, dim: int) -> PyTree:
        """The tuple of the summands' shapes."""
        return tuple(field.particle_shapes(dim) for field in self.summands)

    def __call__(
        self,
        theta: Particle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """Sum of the summands' velocities."""
        parts = [f(t, x, mu, labels) for f, t in zip(self.summands, theta, strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves), *parts)

    def pullback(
        self,
        theta: Particle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        q: EvaluationPoints,
        labels: Int[Array, " m"] | None = None,
    ) -> tuple[Particle, EvaluationPoints, PyTree]:
        """Each summand's own pullback, so that explicit formulas stay in use."""
        parts = [f.pullback(t, x, mu, q, labels) for f, t in zip(self.summands, theta, strict=True)]
        thetas, xs, points = zip(*parts, strict=True)
        add = lambda *leaves: sum(leaves)  # noqa: E731
        return thetas, jax.tree.map(add, *xs), jax.tree.map(add, *points)


class SphereProjection(AbstractField):
    """``(I - x x^T / |x|^2) phi_theta[mu](x)``: velocities tangent to spheres round the origin.

    The continuous flow keeps every ``|x_a|`` (Euler steps drift off at first order).
    Reference: reconstruction, docs/theory.md 6.7; outside the theorems of arXiv 2605.17660.
    """

    field: AbstractField

    def __check_init__(self):
        require_field("the inner field", self.field)

    def particle_shapes(self, dim: int) -> PyTree:
        """Those of the inner field."""
        return self.field.particle_shapes(dim)

    def __call__(
        self,
        theta: Particle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """Tangential part of the inner velocity; a token at the origin does not move."""
        inner = self.field(theta, x, mu, labels)
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        radial = jnp.sum(x * inner, axis=-1, keepdims=True) / jnp.where(square > 0, square, 1.0)
        return jnp.where(square > 0, inner - radial * x, 0.0)


class LayerNorm(AbstractField):
    """``phi_theta[N_# mu](N(x))`` with ``N(x) = (x - mean x) / sqrt(var x + epsilon)`` per token.

    The pre-norm of transformers, without gain and bias (they can be absorbed in theta).
    Reference: our choice, docs/theory.md 1.3; outside the theorems of arXiv 2605.17660.
    """

    field: AbstractField
    epsilon: float = eqx.field(static=True, default=1e-5)

    def __check_init__(self):
        require_field("the inner field", self.field)

    def particle_shapes(self, dim: int) -> PyTree:
        """Those of the inner field."""
        return self.field.particle_shapes(dim)

    def _normalise(self, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)

    def __call__(
        self,
        theta: Particle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """The inner velocity among normalised tokens."""
        pushed = mu.push_forward(self._normalise(mu.points))
        return self.field(theta, self._normalise(x), pushed, labels)


class Causal(AbstractField):
    """``phi_theta[mu( . | label <= label(x))](x)``: a token sees itself and its predecessors.

    The order is that of ``mu.labels``; evaluation points without labels come after every token. A
    point that sees no mass gets what the inner field makes of a measure without mass (attention:
    zero velocity). Reference: our choice, docs/theory.md 1.3; outside the theorems of arXiv
    2605.17660, which are for the non-causal encoder. Cost: m inner evaluations at one point
    each, so O(m n d) for attention.
    """

    field: AbstractField

    def __check_init__(self):
        require_field("the inner field", self.field)

    def particle_shapes(self, dim: int) -> PyTree:
        """Those of the inner field."""
        return self.field.particle_shapes(dim)

    def __call__(
        self,
        theta: Particle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """The inner velocity of every point among its predecessors."""
        if labels is None:
            labels = jnp.full(x.shape[0], jnp.max(mu.labels) + 1)

        def at(point: Array, label: Array) -> Array:
            seen = jnp.where(mu.labels <= label, mu.log_weights, -jnp.inf)
            total = jax.nn.logsumexp(seen)
            seen = seen - jnp.where(jnp.isfinite(total), total, 0.0)
            past = eqx.tree_at(lambda measure: measure.log_weights, mu, seen)
            return self.field(theta, point[None], past, label[None])[0]

        return jax.vmap(at)(x, labels)
