"""What a velocity field is, and its mean over a parameter measure.

A field gives one particle's velocity ``phi_theta[mu](x)``; the velocity of the flow is the mean
``Phi_rho[mu](x) = int phi_theta[mu](x) drho(theta)``. Its pullback (the transposed derivative) is
all that the adjoint needs to know about it.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import require
from meanfield._numerics import PAIR_BUDGET, chunk_size, chunked_sum_and_map
from meanfield._typing import Array, Float, Int, Particle, Particles, PyTree
from meanfield.laws._parameters import is_shape
from meanfield.measures import ParameterMeasure, TokenMeasure


class AbstractField(eqx.Module):
    """One particle's velocity ``phi_theta[mu](x)``: subclass it, and every solver works with it.

    To add a field write `__call__` (pure, vectorised over the m evaluation points) and
    `particle_shapes`. The pullback comes by automatic differentiation; override it where explicit
    formulas save memory or time. Reference: reconstruction, docs/theory.md 1.3.
    """

    @abc.abstractmethod
    def __call__(
        self, theta: Particle, x: PyTree, mu: TokenMeasure, labels: Int[Array, " m"] | None = None
    ) -> PyTree:
        """``phi_theta[mu](x)``.

        Args:
            theta: one particle, any pytree of arrays.
            x: evaluation points ``[m, d]``; they need not be tokens of ``mu``.
            mu: one token measure (n tokens); query tokens have ``log_weights = -inf``.
            labels: labels ``[m]`` of the evaluation points; None: outside ``mu``, later than all.

        Returns: velocities ``[m, d]``.
        """

    @abc.abstractmethod
    def particle_shapes(self, dim: int) -> PyTree:
        """Shapes of one particle's arrays for tokens of width ``dim``, in a particle's pytree."""

    def pullback(
        self,
        theta: Particle,
        x: PyTree,
        mu: TokenMeasure,
        q: PyTree,
        labels: Int[Array, " m"] | None = None,
    ) -> tuple[Particle, PyTree, PyTree]:
        """Transposed derivative of ``sum_a <q_a, phi_theta[mu](x_a)>``.

        Returns: cotangents of ``theta``, of ``x`` ``[m, d]`` and of ``mu.points`` ``[n, d]``.
        """

        def call(theta: Particle, x: PyTree, points: PyTree) -> PyTree:
            return self(theta, x, mu.push_forward(points), labels)

        return jax.vjp(call, theta, x, mu.points)[1](q)


def _log_masses(particles: Particles, log_weights: Array | None) -> Array:
    """``log w_j`` with ``sum w = 1``; None means equal masses."""
    leaf = jax.tree.leaves(particles)[0]
    if log_weights is None:
        return jnp.full(leaf.shape[0], -np.log(leaf.shape[0]), leaf.dtype)
    return log_weights - jax.nn.logsumexp(log_weights)


def _particle_chunk(particles: Particles, x: PyTree, mu: TokenMeasure, budget: int) -> int:
    num_particles = jax.tree.leaves(particles)[0].shape[0]
    return chunk_size(num_particles, jax.tree.leaves(x)[0].shape[0] * mu.num_tokens, budget)


def velocity(
    field: AbstractField,
    particles: Particles,
    x: PyTree,
    mu: TokenMeasure,
    *,
    log_weights: Float[Array, " M"] | None = None,
    labels: Int[Array, " m"] | None = None,
    budget: int = PAIR_BUDGET,
) -> PyTree:
    """``Phi_rho[mu](x) = sum_j w_j phi_{theta_j}[mu](x)``, the mean over one cell's particles.

    Args:
        particles: leaves ``[M, ...]``; ``log_weights`` ``[M]`` are normalised (None: 1/M each).
        x: evaluation points ``[m, d]``; ``labels`` as in `AbstractField`.
        budget: array entries held at once; particles are scanned in chunks that fit.

    Returns: ``[m, d]``. Cost: O(M m n d) time, O(m n + budget) memory.
    Reference: reconstruction, docs/theory.md 1.3.
    """
    log_weights = _log_masses(particles, log_weights)

    def one(item: Any) -> tuple[Any, Any]:
        log_weight, theta = item
        value = field(theta, x, mu, labels)
        return jax.tree.map(lambda leaf: jnp.exp(log_weight) * leaf, value), ()

    chunk = _particle_chunk(particles, x, mu, budget)
    return chunked_sum_and_map(one, (log_weights, particles), chunk)[0]


def velocity_pullback(
    field: AbstractField,
    particles: Particles,
    x: PyTree,
    mu: TokenMeasure,
    q: PyTree,
    *,
    log_weights: Float[Array, " M"] | None = None,
    labels: Int[Array, " m"] | None = None,
    budget: int = PAIR_BUDGET,
) -> tuple[Particles, PyTree, PyTree]:
    """Transposed derivative of `velocity` against ``q`` ``[m, d]``.

    Returns: ``G_j = d/dtheta_j sum_a <q_a, phi_{theta_j}[mu](x_a)>``, leaves ``[M, ...]`` *without*
    the mass w_j (a Wasserstein gradient divides by it), and the cotangents of ``x`` and of
    ``mu.points`` with all masses. Cost: O(M m n d) time, O(m n + budget) memory beyond the result.
    Reference: reconstruction, docs/theory.md 2.3 and 2.4.
    """
    log_weights = _log_masses(particles, log_weights)

    def one(item: Any) -> tuple[Any, Any]:
        log_weight, theta = item
        theta_bar, x_bar, points_bar = field.pullback(theta, x, mu, q, labels)
        weighted = jax.tree.map(lambda leaf: jnp.exp(log_weight) * leaf, (x_bar, points_bar))
        return weighted, theta_bar

    chunk = _particle_chunk(particles, x, mu, budget)
    (x_bar, points_bar), gradient = chunked_sum_and_map(one, (log_weights, particles), chunk)
    return gradient, x_bar, points_bar


def require_field(name: str, field: object) -> None:
    """Raise unless ``field`` is a field (and not its class)."""
    require(
        isinstance(field, AbstractField),
        f"{name} is {field!r}",
        "an instance of a field",
        "build one, for instance SoftmaxAttention('av')",
    )


def require_fitting(field: AbstractField, rho: ParameterMeasure, mu: TokenMeasure) -> None:
    """Raise unless the particles of ``rho`` have the shapes and the dtype that tokens ask for."""
    wanted, wanted_tree = jax.tree.flatten(field.particle_shapes(mu.dim), is_leaf=is_shape)
    given, given_tree = jax.tree.flatten(rho.particles)
    require(
        given_tree == wanted_tree,
        f"particles is a pytree of structure {given_tree}",
        f"{wanted_tree} for {type(field).__name__}",
        "build the particles with sample_parameters or the field's own particle type",
    )
    shapes = [tuple(leaf.shape[2:]) for leaf in given]
    require(
        shapes == [tuple(shape) for shape in wanted],
        f"particles has shapes [L, M] + {shapes} and tokens have width d = {mu.dim}",
        f"[L, M] + {[tuple(shape) for shape in wanted]} for {type(field).__name__}",
        "give particles of that shape, or tokens of the particles' width",
    )
    dtypes = {str(leaf.dtype) for leaf in [*given, *jax.tree.leaves(mu.points)]}
    require(
        len(dtypes) == 1,
        f"tokens and particles mix the precisions {sorted(dtypes)}",
        "one precision",
        "call meanfield.use_double() before making arrays, or cast one of them",
    )
