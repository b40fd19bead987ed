"""The risk, its adjoint and the conditional Wasserstein gradient.

``grad_theta dL/drho_s`` is the ordinary partial derivative times ``1 / (ds_k w_kj)`` (M / ds_k for
equal masses): it is the velocity field, up to sign, of the particles under the gradient flow.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import NonFiniteError, is_concrete, require
from meanfield._numerics import in_chunks
from meanfield._typing import Array, Float, Particles, PyTree, Scalar
from meanfield.fields.base import AbstractField, velocity_pullback
from meanfield.flow import (
    AbstractScheme,
    Adaptive,
    Euler,
    ExplicitRungeKutta,
    axpy,
    cell_data,
    contexts_budget,
    contexts_velocity,
    cross_cell,
    evaluation_points,
    first_failure,
    forward,
    particles_at,
    raise_failure,
    runge_kutta_stages,
    validate,
)
from meanfield.measures import ParameterMeasure, TokenMeasure
from meanfield.objectives import AbstractObjective, Batch


class AbstractAdjoint(eqx.Module):
    """How the backward equation is solved."""

    @abc.abstractmethod
    def backward_scheme(self, scheme: AbstractScheme) -> AbstractScheme:
        """The scheme of the backward equation for a forward scheme; raises if there is none."""


class DiscreteAdjoint(AbstractAdjoint):
    """The exact gradient of the *discrete* risk: the scheme's own transposed recursion.

    Equals M/ds times automatic differentiation to rounding. Only for fixed-step schemes.
    Reference: reconstruction, docs/theory.md 2.3, 2.7.
    """

    def backward_scheme(self, scheme: AbstractScheme) -> AbstractScheme:
        """The forward scheme; raises for `Adaptive`."""
        require(
            isinstance(scheme, ExplicitRungeKutta),
            f"DiscreteAdjoint with {type(scheme).__name__}, whose steps depend on the solution",
            "a fixed-step scheme",
            "pass method=ContinuousAdjoint() or scheme=RungeKutta4()",
        )
        return scheme


class ContinuousAdjoint(AbstractAdjoint):
    """The backward ODE ``-dq/ds = (D Phi)^T q``, integrated with tokens and gradient together.

    Args: scheme of the backward ODE; None: that of the forward flow. Each cell starts from the
        stored forward node. The gap to `DiscreteAdjoint` is O(ds^p), p the lower order of the
        two schemes (constant interpolation).
    Reference: reconstruction, docs/theory.md 2.2, 2.8.
    """

    scheme: AbstractScheme | None = None

    def backward_scheme(self, scheme: AbstractScheme) -> AbstractScheme:
        """Its own scheme, or the forward one."""
        return scheme if self.scheme is None else self.scheme


class GradientSolution(eqx.Module):
    """What `conditional_gradient` returns.

    Attributes:
        value: the risk.
        gradient: conditional Wasserstein gradient G, leaves ``[L, M, ...]`` like the particles.
        momenta: ``q = dL/dx`` of every token at every node, ``[N, L+1, n, d]`` (queries included).
        norm: ``|grad L| = sqrt(sum_k ds_k sum_j w_kj |G_kj|^2)``.
        path: the tokens at every node, ``[N, L+1, n, d]``.
    """

    value: Scalar
    gradient: Particles
    momenta: PyTree
    norm: Scalar
    path: PyTree


def contexts_pullback(
    field: AbstractField,
    particles: Particles,
    log_weights: Array,
    mu: TokenMeasure,
    points: PyTree,
    q: PyTree,
    budget: int,
) -> tuple[Particles, PyTree]:
    """Pullback of one cell's velocity: ``G [M, ...]`` summed over contexts, and ``[N, n, d]``."""

    def one(mu: TokenMeasure, points: PyTree, q: PyTree) -> tuple[Particles, PyTree]:
        x, labels, _ = evaluation_points(mu, points, None)
        theta_bar, x_bar, points_bar = velocity_pullback(
            field,
            particles,
            x,
            mu.push_forward(points),
            q,
            log_weights=log_weights,
            labels=labels,
            budget=budget,
        )
        return theta_bar, jax.tree.map(jnp.add, x_bar, points_bar)

    theta_bars, bars = jax.vmap(one)(mu, points, q)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), theta_bars), bars


def _discrete_cell(
    scheme: ExplicitRungeKutta, rate: Any, pullback: Any, start: PyTree, q: PyTree, step: Array
) -> tuple[PyTree, list[Particles]]:
    """Transposed recursion of one Runge-Kutta step, docs/theory.md 2.7.

    Stages backwards: ``l_i = b_i q + ds sum_{j>i} a_ji Y_j``, ``Y_i = (D_y k_i)^T l_i``, and ``q``
    becomes ``q + ds sum_i Y_i``. Returns that and the stage gradients ``(D_theta k_i)^T l_i``.
    """
    num = len(scheme.b)
    states = runge_kutta_stages(scheme, rate, start, step)[0] if num > 1 else [start]
    bars: list[PyTree] = [None] * num
    gradients: list[Particles] = [None] * num
    for i in reversed(range(num)):
        cotangent = jax.tree.map(lambda leaf, b=scheme.b[i]: b * leaf, q)
        for j in range(i + 1, num):
            if scheme.a[j][i]:
                cotangent = axpy(step * scheme.a[j][i], bars[j], cotangent)
        gradients[i], bars[i] = pullback(scheme.c[i], states[i], cotangent)
    for bar in bars:
        q = axpy(step, bar, q)
    return q, gradients


def transport_momenta(
    field: AbstractField,
    rho: ParameterMeasure,
    mu: TokenMeasure,
    path: PyTree,
    terminal: PyTree,
    method: AbstractAdjoint,
    scheme: AbstractScheme,
    budget: int,
) -> tuple[Particles, PyTree, Array]:
    """Traced core: terminal momenta carried back through all cells by a reverse scan.

    Returns the conditional gradient, leaves ``[L, M, ...]`` (summed over contexts), the momenta
    ``[L+1, N, n, d]`` and, per cell, whether the backward solve succeeded; ``path`` are the forward
    nodes, of the momenta's shape.
    """
    backward_scheme = method.backward_scheme(scheme)
    discrete = isinstance(method, DiscreteAdjoint)
    linear = rho.interpolation == "linear"

    def cross(q: PyTree, cell: Any) -> tuple[PyTree, Any]:
        (particles, following, log_weights, step), start, end = cell

        def rate(part: Any, points: PyTree) -> PyTree:
            here = particles_at(particles, following, part)
            state = (points, None)
            return contexts_velocity(field, here, log_weights, mu, state, budget)[0]

        def pullback(part: Any, points: PyTree, q: PyTree) -> tuple[Particles, PyTree]:
            here = particles_at(particles, following, part)
            return contexts_pullback(field, here, log_weights, mu, points, q, budget)

        def shares(part: Any, gradient: Particles) -> tuple[Particles, Particles]:
            # Chain rule of theta(s) = (1 - part) theta_k + part theta_{k+1}.
            if not linear:
                return gradient, ()
            scaled = lambda factor: jax.tree.map(lambda leaf: factor * leaf, gradient)  # noqa: E731
            return scaled(1 - part), scaled(part)

        if discrete:
            assert isinstance(backward_scheme, ExplicitRungeKutta)  # DiscreteAdjoint saw to it
            q, gradients = _discrete_cell(backward_scheme, rate, pullback, start, q, step)
            stages = zip(backward_scheme.c, gradients, strict=True)
            parts = [shares(part, gradient) for part, gradient in stages]
            here, after = jax.tree.map(lambda *leaves: sum(leaves), *parts)
            return q, (here, after, q, jnp.array(True))

        # Continuous: integrate (x, q, int G ds) backwards in tau = s_{k+1} - s over the cell.
        def reversed_rate(tau_part: Any, state: Any) -> Any:
            points, momenta, _ = state
            part = 1 - tau_part
            gradient, bar = pullback(part, points, momenta)
            backwards = jax.tree.map(jnp.negative, rate(part, points))
            return backwards, bar, shares(part, gradient)

        zeros = jax.tree.map(jnp.zeros_like, (particles, particles if linear else ()))
        start_state = (end, q, zeros)
        (_, q, integral), okay = cross_cell(backward_scheme, reversed_rate, start_state, step)
        here, after = jax.tree.map(lambda leaf: leaf / step, integral)
        return q, (here, after, q, okay)

    starts = jax.tree.map(lambda leaf: leaf[:-1], path)
    ends = () if discrete else jax.tree.map(lambda leaf: leaf[1:], path)
    _, (here, after, momenta, okay) = jax.lax.scan(
        cross, terminal, (cell_data(rho), starts, ends), reverse=True
    )
    momenta = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), momenta, terminal)
    okay = okay & finite_cells(momenta)
    if not linear:
        return here, momenta, okay
    # What cell k sends to the node after it belongs to particle (k+1, j), whose metric weight is
    # ds_{k+1} w_j; the last cell reads its own particles at both ends.
    ratio = rho.grid.steps[:-1] / rho.grid.steps[1:]

    def join(g: Array, g_next: Array) -> Array:
        carried = ratio.reshape(-1, *[1] * (g.ndim - 1)).astype(g.dtype) * g_next[:-1]
        return g.at[1:].add(carried).at[-1].add(g_next[-1])

    return jax.tree.map(join, here, after), momenta, okay


def finite_cells(momenta: PyTree) -> Array:
    """Per cell, whether the momenta ``[L+1, ...]`` at its left node are finite."""
    flags = [
        jnp.isfinite(leaf[:-1]).reshape(leaf.shape[0] - 1, -1) for leaf in jax.tree.leaves(momenta)
    ]
    return jnp.all(jnp.concatenate(flags, axis=1), axis=1)


def squared_norm(rho: ParameterMeasure, gradient: Particles) -> Scalar:
    """``|G|^2 = int int |G|^2 drho(theta|s) ds = sum_k ds_k sum_j w_kj |G_kj|^2``. O(L M)."""
    metric = rho.grid.steps[:, None] * rho.weights

    def one(leaf: Array) -> Array:
        squares = jnp.sum(leaf**2, axis=tuple(range(2, leaf.ndim)))
        return jnp.sum(metric.astype(leaf.dtype) * squares)

    return sum(one(leaf) for leaf in jax.tree.leaves(gradient))  # type: ignore[return-value]


def _terminal(objective: AbstractObjective, batch: Batch, points: PyTree, total: int) -> Any:
    """Each context's share of the risk and its terminal momenta, both divided by N = ``total``."""
    value = jax.vmap(objective.value)(points, batch.targets, batch.loss_weights)
    momenta = jax.vmap(objective.first_variation)(points, batch.targets, batch.loss_weights)
    return jnp.sum(value) / total, jax.tree.map(lambda leaf: leaf / total, momenta)


@eqx.filter_jit
def gradient_core(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    batch: Batch,
    scheme: AbstractScheme,
    method: AbstractAdjoint,
) -> tuple[GradientSolution, Array]:
    """Traced core of `conditional_gradient`: the solution, forward and backward status ``[2]``."""
    chunk, budget = contexts_budget(batch.contexts, rho, 0)

    def on_chunk(some: Batch) -> tuple[Any, Any]:
        mu = some.contexts
        (path, _), okay = forward(field, rho, mu, None, scheme, keep="path", budget=budget)
        last = jax.tree.map(lambda leaf: leaf[-1], path)
        value, terminal = _terminal(objective, some, last, batch.num_contexts)
        gradient, momenta, back = transport_momenta(
            field, rho, mu, path, terminal, method, scheme, budget
        )
        moved = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (momenta, path))
        failures = (jnp.where(okay, 0, 1), jnp.where(back, 0, 1))
        return (value, gradient, failures), moved

    (value, gradient, failures), (momenta, path) = in_chunks(on_chunk, batch, chunk)
    norm = jnp.sqrt(squared_norm(rho, gradient))
    solution = GradientSolution(value, gradient, momenta, norm, path)
    # The backward solve meets the last cell first.
    last = first_failure(failures[1][::-1])
    last = jnp.where(last < 0, -1, rho.num_cells - 1 - last)
    return solution, jnp.stack([first_failure(failures[0]), last])


@eqx.filter_jit
def risk_core(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    batch: Batch,
    scheme: AbstractScheme,
) -> tuple[Scalar, Array]:
    """Traced core of `risk`: the value and the status of the forward flow."""
    chunk, budget = contexts_budget(batch.contexts, rho, 0)

    def on_chunk(some: Batch) -> tuple[Any, Any]:
        (last, _), okay = forward(
            field, rho, some.contexts, None, scheme, keep="final", budget=budget
        )
        value = jax.vmap(objective.value)(last, some.targets, some.loss_weights)
        return (jnp.sum(value) / batch.num_contexts, jnp.where(okay, 0, 1)), ()

    (value, failures), _ = in_chunks(on_chunk, batch, chunk)
    return value, first_failure(failures)


def validate_problem(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    batch: Batch,
    scheme: AbstractScheme,
) -> None:
    """Checks shared by every solve of a training problem."""
    require(
        isinstance(objective, AbstractObjective),
        f"objective is a {type(objective).__name__}",
        "SquaredLoss() or PointwiseLoss(function)",
        "pass an instance of one of them",
    )
    require(
        isinstance(batch, Batch),
        f"contexts is a {type(batch).__name__}",
        "a Batch of contexts, targets and loss weights",
        "pass Batch(stack_contexts(measures), targets)",
    )
    validate(field, rho, batch.contexts, scheme)
    objective.require_targets(batch.contexts.points, batch.targets)


def require_finite_result(name: str, value: Array) -> None:
    """Raise if a concrete number overflowed although the tokens did not."""
    if is_concrete(value) and not np.isfinite(value):
        raise NonFiniteError(
            f"{name} is {float(value)}",
            "a finite number",
            "use targets, loss weights and particles of moderate size (their squares are summed)",
        )


def risk(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    contexts: Batch,
    *,
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
) -> Float[Array, ""]:
    """``L(rho) = (1/N) sum_i sum_a lw_ia l(x_ia(S), y_ia)``.

    Raises: `NonFiniteError` naming the depth cell; `MeanfieldError` on inputs that do not fit.
    Reference: reconstruction, docs/theory.md 1.5. Cost: O(N L M n^2 d) time, O(N n d) memory.
    """
    validate_problem(field, rho, objective, contexts, scheme)
    value, status = risk_core(field, rho, objective, contexts, scheme)
    raise_failure(status, rho.grid, scheme)
    require_finite_result("the risk", value)
    return value


def resolve_method(method: AbstractAdjoint | None, scheme: AbstractScheme) -> AbstractAdjoint:
    """None means `DiscreteAdjoint`, except that `Adaptive` takes `ContinuousAdjoint`."""
    if method is None:
        method = ContinuousAdjoint() if isinstance(scheme, Adaptive) else DiscreteAdjoint()
    require(
        isinstance(method, AbstractAdjoint),
        f"method is {method!r}",
        "DiscreteAdjoint() or ContinuousAdjoint()",
        "pass an instance of one of them",
    )
    method.backward_scheme(scheme)
    return method


def conditional_gradient(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    contexts: Batch,
    *,
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
    method: AbstractAdjoint | None = None,
) -> GradientSolution:
    """The conditional Wasserstein gradient of the risk, by one forward and one reverse scan.

    ``G(s_k, theta_kj) = (1/N) sum_i sum_a d/dtheta <q_ia, phi_theta[mu_i](x_ia)>``, equal to
    ``(1 / (ds_k w_kj)) dL/dtheta_kj`` (M/ds_k times the partial derivative for equal masses). With
    linear interpolation in depth the second form is the definition: particle (k, j) is a node of
    the two cells beside it, its metric weight stays ds_k w_j, and so G at the end nodes and on
    uneven grids is *not* the continuous G(s_k, theta) (docs/theory.md 2.7).

    Args:
        contexts: a `Batch` (contexts, targets, loss weights: risks R1, R2, R3).
        method: `DiscreteAdjoint` (default; exact for the discrete risk) or `ContinuousAdjoint`
            (default and only choice with `Adaptive`).

    Returns: `GradientSolution`.
    Raises: `NonFiniteError` naming the depth cell; `MeanfieldError` on inputs that do not fit.
    Reference: reconstruction, docs/theory.md 2.3, 2.4, 2.7.
    Cost: about 4 forward flows; O(N L n d) memory plus the gradient itself, no n x n x M array.
    """
    validate_problem(field, rho, objective, contexts, scheme)
    method = resolve_method(method, scheme)
    solution, status = gradient_core(field, rho, objective, contexts, scheme, method)
    raise_failure(status[0], rho.grid, scheme)
    raise_failure(status[1], rho.grid, method.backward_scheme(scheme), what="momenta")
    require_finite_result("the risk", solution.value)
    require_finite_result("|grad L|", solution.norm)
    return solution
