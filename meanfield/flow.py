"""The forward continuity equation ``d mu/ds + div(mu Phi_rho[mu]) = 0`` by characteristics.

Tokens move along ``dx_a/ds = Phi_{rho(.|s)}[mu(s)](x_a)``; Euler's scheme on the depth grid *is* a
transformer with residual connections. The flow map is followed at free probe points as well.
"""

from typing import Any, ClassVar, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from meanfield._checks import NonFiniteError, is_concrete, require, require_positive_integer
from meanfield._numerics import PAIR_BUDGET, chunk_size, in_chunks
from meanfield._runtime import guard_runtime
from meanfield._typing import Array, Int, Particles, PyTree
from meanfield.fields.base import AbstractField, require_fitting, velocity
from meanfield.measures import DepthGrid, ParameterMeasure, TokenMeasure, as_float

Tableau = tuple[tuple[float, ...], ...]


class AbstractScheme(eqx.Module):
    """How one depth cell is crossed."""

    order: eqx.AbstractClassVar[int]


class ExplicitRungeKutta(AbstractScheme):
    """One explicit Runge-Kutta step per depth cell, given by its tableau (a, b, c).

    ``k_i = Phi_{rho(s_k + c_i ds)}[mu_i](y_i)``, ``y_i = x^k + ds sum_{j<i} a_ij k_j``,
    ``x^{k+1} = x^k + ds sum_i b_i k_i``. Reference: reconstruction, docs/theory.md 1.4 and 2.7.
    """

    a: eqx.AbstractClassVar[Tableau]
    b: eqx.AbstractClassVar[tuple[float, ...]]
    c: eqx.AbstractClassVar[tuple[float, ...]]


class Euler(ExplicitRungeKutta):
    """Order 1; each cell is one transformer layer ``x + ds Phi(x)``."""

    order: ClassVar[int] = 1
    a: ClassVar[Tableau] = ((),)
    b: ClassVar[tuple[float, ...]] = (1.0,)
    c: ClassVar[tuple[float, ...]] = (0.0,)


class Heun(ExplicitRungeKutta):
    """Order 2 (explicit trapezoid)."""

    order: ClassVar[int] = 2
    a: ClassVar[Tableau] = ((), (1.0,))
    b: ClassVar[tuple[float, ...]] = (0.5, 0.5)
    c: ClassVar[tuple[float, ...]] = (0.0, 1.0)


class RungeKutta4(ExplicitRungeKutta):
    """Order 4 (the classical scheme)."""

    order: ClassVar[int] = 4
    a: ClassVar[Tableau] = ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    b: ClassVar[tuple[float, ...]] = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
    c: ClassVar[tuple[float, ...]] = (0.0, 0.5, 0.5, 1.0)


class Adaptive(AbstractScheme):
    """Error-controlled steps (Dormand-Prince 5(4) of diffrax) that land on the cells' edges.

    Args: rtol, atol: tolerances per step; max_steps: steps allowed in one cell.
    """

    order: ClassVar[int] = 5
    rtol: float = eqx.field(static=True, default=1e-8)
    atol: float = eqx.field(static=True, default=1e-10)
    max_steps: int = eqx.field(static=True, default=4096)

    def __check_init__(self):
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            require(
                isinstance(value, (int, float)) and np.isfinite(value) and value >= 0,
                f"{name} is {value!r}",
                "a finite number of at least 0",
                f"pass {name}=1e-8",
            )
        require(self.rtol + self.atol > 0, "rtol = atol = 0", "one above 0", "pass rtol=1e-8")
        require_positive_integer("max_steps", self.max_steps)

    def integrate(self, rate: Any, start: Any, length: Array) -> tuple[Any, Array]:
        """Integrate ``dy/dt = rate(t, y)`` over t in [0, length]; returns y(length) and success."""
        # One flat vector: diffrax's loop buffers refuse some nested states (NamedTuples, None).
        flat, unravel = ravel_pytree(start)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: ravel_pytree(rate(t, unravel(y)))[0]),
            diffrax.Dopri5(),
            jnp.zeros_like(length),
            length,
            length,
            flat,
            stepsize_controller=diffrax.PIDController(self.rtol, self.atol),
            max_steps=self.max_steps,
            throw=False,
        )
        assert solution.ys is not None  # SaveAt(t1=True), the default, always stores the end
        return unravel(solution.ys[0]), diffrax.is_okay(solution.result)


class FlowSolution(eqx.Module):
    """What `solve_flow` returns; all leading axes ``[N]`` are absent for a single measure.

    Attributes:
        path: tokens at the nodes ``[N, L+1, n, d]``, or at the end ``[N, n, d]`` (keep="final").
        probe_path: the same for the probes, or None.
        grid: the `DepthGrid` of the nodes.
        status: -1, or the first depth cell after which something is not finite.
        initial: the measure that was pushed (its masses and labels never change).
    """

    path: PyTree
    probe_path: PyTree
    grid: DepthGrid
    status: Int[Array, ""]
    initial: TokenMeasure
    keep: Literal["path", "final"] = eqx.field(static=True)

    @property
    def final(self) -> TokenMeasure:
        """``mu(S)``, the push-forward by the whole flow map."""
        return self.measure(-1)

    def measure(self, node: int) -> TokenMeasure:
        """``mu(s_node)``; only the last node with keep="final"."""
        if self.keep == "final":
            require(
                node in (-1, self.grid.num_cells),
                f"node {node} of a solution with keep='final'",
                "the last node",
                "solve with keep='path'",
            )
            return self.initial.push_forward(self.path)
        last = self.grid.num_cells
        require(
            -last - 1 <= node <= last,
            f"node {node} of a path with nodes 0 to {last}",
            "a node of the grid",
            f"pass a number from 0 to {last}, or -1 for the end",
        )
        axis = 0 if self.initial.num_contexts is None else 1
        points = jax.tree.map(lambda leaf: jnp.take(leaf, node, axis=axis), self.path)
        return self.initial.push_forward(points)


State = tuple[Any, Any]  # tokens [N, n, d] and probes [N, m, d] (None without probes)


def cell_data(rho: ParameterMeasure) -> tuple[Particles, Particles, Array, Array]:
    """Per cell: its particles, those of the node after it, log-masses and length ``ds``.

    With constant interpolation the second item is the first: nothing is copied.
    """
    particles = rho.particles
    if rho.interpolation == "linear":
        following = jax.tree.map(lambda leaf: jnp.concatenate([leaf[1:], leaf[-1:]]), particles)
    else:
        following = ()
    dtype = jax.tree.leaves(particles)[0].dtype
    return particles, following, rho.log_weights, rho.grid.steps.astype(dtype)


def particles_at(particles: Particles, following: Particles, part: Any) -> Particles:
    """Particles a fraction ``part`` into the cell; ``following`` is () where rho is constant."""
    if following == ():
        return particles
    return jax.tree.map(lambda a, b: (1 - part) * a + part * b, particles, following)


def contexts_velocity(
    field: AbstractField,
    particles: Particles,
    log_weights: Array,
    mu: TokenMeasure,
    state: State,
    budget: int,
) -> State:
    """``Phi`` at tokens and probes of each context in a batch, ``([N, n, d], [N, m, d])``."""

    def one(mu: TokenMeasure, points: PyTree, probes: PyTree) -> State:
        x, labels, split = evaluation_points(mu, points, probes)
        out = velocity(
            field,
            particles,
            x,
            mu.push_forward(points),
            log_weights=log_weights,
            labels=labels,
            budget=budget,
        )
        return split(out)

    return jax.vmap(one)(mu, *state)


def evaluation_points(mu: TokenMeasure, points: PyTree, probes: PyTree) -> tuple[Any, Array, Any]:
    """Join tokens and probes in one array of evaluation points; probes come after all tokens."""
    if probes is None:
        return points, mu.labels, lambda tree: (tree, None)
    num = mu.num_tokens
    x = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), points, probes)
    num_probes = jax.tree.leaves(probes)[0].shape[0]
    later = jnp.full(num_probes, jnp.max(mu.labels) + 1, mu.labels.dtype)

    def split(tree: PyTree) -> State:
        return jax.tree.map(lambda a: a[:num], tree), jax.tree.map(lambda a: a[num:], tree)

    return x, jnp.concatenate([mu.labels, later]), split


def axpy(coefficient: Any, increments: PyTree, start: PyTree) -> PyTree:
    """``start + coefficient * increments`` on pytrees."""
    return jax.tree.map(lambda y, k: y + coefficient * k, start, increments)


def runge_kutta_stages(
    scheme: ExplicitRungeKutta, rate: Any, start: PyTree, step: Array
) -> tuple[list[PyTree], PyTree]:
    """The stage states ``y_i`` and the end ``y + ds sum b_i k_i`` of one explicit step."""
    states, slopes = [], []
    for row, part in zip(scheme.a, scheme.c, strict=True):
        state = start
        for coefficient, slope in zip(row, slopes, strict=True):
            if coefficient:
                state = axpy(coefficient * step, slope, state)
        states.append(state)
        slopes.append(rate(part, state))
    end = start
    for coefficient, slope in zip(scheme.b, slopes, strict=True):
        end = axpy(coefficient * step, slope, end)
    return states, end


def cross_cell(
    scheme: AbstractScheme, rate: Any, start: PyTree, step: Array
) -> tuple[PyTree, Array]:
    """Cross one cell with ``rate(part of the cell, state)``: the end state and success."""
    if isinstance(scheme, ExplicitRungeKutta):
        return runge_kutta_stages(scheme, rate, start, step)[1], jnp.array(True)
    require(
        isinstance(scheme, Adaptive),
        f"scheme is {scheme!r}",
        "Euler(), Heun(), RungeKutta4() or Adaptive()",
        "pass an instance of one of them",
    )
    return scheme.integrate(lambda t, y: rate(t / step, y), start, step)  # type: ignore[attr-defined]


def contexts_budget(mu: TokenMeasure, rho: ParameterMeasure, num_probes: int) -> tuple[int, int]:
    """How many contexts are solved side by side, and the array entries left to each of them."""
    pairs = mu.num_tokens * (mu.num_tokens + num_probes)
    num = chunk_size(mu.log_weights.shape[0], pairs * rho.num_particles)
    return num, max(PAIR_BUDGET // num, pairs)


def forward(
    field: AbstractField,
    rho: ParameterMeasure,
    mu: TokenMeasure,
    probes: PyTree,
    scheme: AbstractScheme,
    *,
    keep: Literal["path", "final"],
    budget: int,
) -> tuple[State, Array]:
    """Traced core: push a batch of contexts through all cells.

    Returns ``(tokens, probes)`` with the node axis first when the path is kept (``[L+1, N, n, d]``)
    and, per cell, whether all is finite.
    """

    def cross(state: State, cell: Any) -> tuple[State, Any]:
        particles, following, log_weights, step = cell

        def rate(part: Any, inner: State) -> State:
            here = particles_at(particles, following, part)
            return contexts_velocity(field, here, log_weights, mu, inner, budget)

        end, okay = cross_cell(scheme, rate, state, step)
        leaves = jax.tree.leaves(end)
        okay = okay & jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        return end, (end if keep == "path" else None, okay)

    start = (mu.points, probes)
    end, (path, okay) = jax.lax.scan(cross, start, cell_data(rho))
    if keep == "final":
        return end, okay
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start, path)
    return joined, okay


def first_failure(failures: Array) -> Array:
    """Index of the first cell with a failure, or -1."""
    return jnp.where(jnp.any(failures > 0), jnp.argmax(failures > 0), -1).astype(jnp.int32)


def as_batch(tree: PyTree) -> PyTree:
    """Add the context axis to a single measure or to shared probes."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


@eqx.filter_jit
def _solve(
    field: AbstractField,
    rho: ParameterMeasure,
    mu: TokenMeasure,
    probes: PyTree,
    scheme: AbstractScheme,
    keep: Literal["path", "final"],
) -> tuple[PyTree, PyTree, Array]:
    num_probes = 0 if probes is None else jax.tree.leaves(probes)[0].shape[1]
    chunk, budget = contexts_budget(mu, rho, num_probes)

    def on_chunk(items: Any) -> Any:
        some, some_probes = items
        state, okay = forward(field, rho, some, some_probes, scheme, keep=keep, budget=budget)
        if keep == "path":
            state = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), state)
        return jnp.where(okay, 0, 1), state

    failures, (path, probe_path) = in_chunks(on_chunk, (mu, probes), chunk)
    return path, probe_path, first_failure(failures)


def raise_failure(
    status: Any, grid: DepthGrid, scheme: AbstractScheme, *, what: str = "tokens"
) -> None:
    """Turn a concrete status into a `NonFiniteError` that names the depth cell."""
    if not is_concrete(status) or int(status) < 0:
        return
    cell = int(status)
    nodes = np.asarray(grid.nodes)
    fault, more = "are not finite", ""
    if isinstance(scheme, Adaptive):
        fault += f", or take more than {scheme.max_steps} steps,"
        more = ", a larger max_steps"
    raise NonFiniteError(
        f"{what} {fault} in depth cell {cell} (s in [{nodes[cell]:.4g}, {nodes[cell + 1]:.4g}])"
        f" under {type(scheme).__name__}",
        "a flow that stays finite",
        f"use smaller values V, more depth cells (refine_depth){more}, or a shorter horizon:"
        " unbounded token laws may blow up at finite depth",
    )


def validate(
    field: AbstractField, rho: ParameterMeasure, mu: TokenMeasure, scheme: AbstractScheme
) -> None:
    """Checks shared by every public solve: runtime, types, shapes, precision."""
    guard_runtime()
    for name, value, kind in (
        ("field", field, AbstractField),
        ("rho", rho, ParameterMeasure),
        ("mu0", mu, TokenMeasure),
        ("scheme", scheme, AbstractScheme),
    ):
        require(
            isinstance(value, kind),
            f"{name} is a {type(value).__name__}",
            f"an instance of {kind.__name__}",
            f"build one (an instance, not the class) and pass it as {name}",
        )
    require_fitting(field, rho, mu)


def solve_flow(
    field: AbstractField,
    rho: ParameterMeasure,
    mu0: TokenMeasure,
    *,
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
    probes: Any = None,
    keep: Literal["path", "final"] = "path",
) -> FlowSolution:
    """Solve ``d mu/ds + div(mu Phi_{rho(.|s)}[mu]) = 0`` from ``mu0`` over the grid of ``rho``.

    Args:
        field: the velocity field of one particle.
        rho: the parameter measure; its particles are averaged cell by cell.
        mu0: one token measure ``[n, d]`` or a batch ``[N, n, d]`` (each moves by itself).
        scheme: `Euler` (transformer layers), `Heun`, `RungeKutta4`, `Adaptive`.
        probes: points ``[m, d]`` (or ``[N, m, d]``) that carry no mass: the flow map is followed
            there as well.
        keep: "path" stores every node, "final" only the end.

    Returns: `FlowSolution`.
    Raises: `NonFiniteError` naming the depth cell; `MeanfieldError` on shapes that do not fit.
    Reference: arXiv 2605.17660 (the equation); scheme: reconstruction, docs/theory.md 1.4.
    Cost: O(N L M n (n + m) d) time, O(N L (n + m) d) memory for a path.
    """
    validate(field, rho, mu0, scheme)
    require(keep in ("path", "final"), f"keep is {keep!r}", "'path' or 'final'", "pass one of them")
    single = mu0.num_contexts is None
    batch = as_batch(mu0) if single else mu0
    if probes is not None:
        if isinstance(probes, (list, tuple)):
            probes = np.asarray(probes)
        probes = jax.tree.map(as_float, probes)
        num = batch.log_weights.shape[0]
        if single or jax.tree.leaves(probes)[0].ndim == 2:
            probes = jax.tree.map(lambda p: jnp.broadcast_to(p, (num, *p.shape)), probes)
        shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(probes)]
        require(
            all(len(s) == 3 and s[0] == num and s[1] > 0 and s[2] == mu0.dim for s in shapes),
            f"probes has shapes {shapes}",
            f"[m, {mu0.dim}] or [{num}, m, {mu0.dim}] with m >= 1",
            "pass one row per probe point",
        )
        dtype = jax.tree.leaves(mu0.points)[0].dtype
        probes = jax.tree.map(lambda leaf: leaf.astype(dtype), probes)
    path, probe_path, status = _solve(field, rho, batch, probes, scheme, keep)
    raise_failure(status, rho.grid, scheme)
    if single:
        path, probe_path = jax.tree.map(lambda leaf: leaf[0], (path, probe_path))
    return FlowSolution(path, probe_path, rho.grid, status, mu0, keep)


__all__ = [
    "AbstractScheme",
    "Adaptive",
    "Euler",
    "ExplicitRungeKutta",
    "FlowSolution",
    "Heun",
    "RungeKutta4",
    "solve_flow",
]
