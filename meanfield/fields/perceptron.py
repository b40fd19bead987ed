"""The single-hidden-layer perceptron as a velocity field: a ResNet without tokens' interaction."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from meanfield._checks import require
from meanfield._typing import Array, EvaluationPoints, Int
from meanfield.fields.base import AbstractField
from meanfield.measures import TokenMeasure


class PerceptronParticle(NamedTuple):
    """One neuron: output weights ``u [d]``, input weights ``w [d]``, bias ``b []``."""

    u: Array
    w: Array
    b: Array


class Perceptron(AbstractField):
    """``psi_theta(x) = u sigma(<w, x> + b)``: the mean-field ResNet; it ignores ``mu``.

    Args:
        activation: sigma, a jax function of one array; smooth ones (default tanh) keep the orders
            of the depth schemes and of the adjoint.

    Reference: arXiv 2403.12887 (Barboni, Peyre, Vialard: mean-field ResNets); bias: our choice.
    Cost: O(m d) for one neuron.
    """

    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, activation: Callable[[Array], Array] = jnp.tanh):
        require(
            callable(activation),
            f"activation is {activation!r}",
            "a jax function of one array",
            "pass jax.numpy.tanh",
        )
        self.activation = activation

    def particle_shapes(self, dim: int) -> PerceptronParticle:
        """``u [d]``, ``w [d]``, ``b []``."""
        return PerceptronParticle(u=(dim,), w=(dim,), b=())  # type: ignore[arg-type]

    def __call__(
        self,
        theta: PerceptronParticle,
        x: EvaluationPoints,
        mu: TokenMeasure,
        labels: Int[Array, " m"] | None = None,
    ) -> EvaluationPoints:
        """``u sigma(<w, x> + b)`` at the rows of ``x``."""
        return self.activation(x @ theta.w + theta.b)[:, None] * theta.u
