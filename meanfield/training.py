"""Training as a flow: the gradient flow of the risk in the conditional optimal-transport metric.

``d theta_kj/dt = -G(s_k, theta_kj) = -(1 / (ds_k w_kj)) dL/dtheta_kj``: particles move with the
conditional Wasserstein gradient; the depth marginal and the masses never change. Along the exact
flow ``dL/dt = -|grad L|^2``. Reference: arXiv 2605.17660 (the flow); discretisation:
reconstruction, docs/theory.md 4.1.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from meanfield._checks import MeanfieldError, NonFiniteError, require, require_positive_integer
from meanfield._typing import Array, Float, Int, Key, Particles, Scalar
from meanfield.adjoint import (
    AbstractAdjoint,
    conditional_gradient,
    gradient_core,
    resolve_method,
    risk_core,
    squared_norm,
)
from meanfield.fields.base import AbstractField
from meanfield.flow import AbstractScheme, Euler, raise_failure
from meanfield.measures import ParameterMeasure
from meanfield.objectives import AbstractObjective, Batch
from meanfield.records import RunDirectory
from meanfield.transport import conditional_wasserstein2, labelled_distance

# Above this many particles per cell the exact distance (an O(M^3) assignment per cell) gives way
# to its labelled upper bound in `History.distance`.
EXACT_DISTANCE_PARTICLES = 256


class AbstractStep(eqx.Module):
    """How training time is discretised."""

    @property
    @abc.abstractmethod
    def initial_dt(self) -> Float[np.ndarray, ""]:
        """The first step in training time."""


def _as_number(value: Any) -> np.ndarray:
    """A 0-d array: traced, so that another step size does not compile again."""
    try:
        return np.asarray(value, float).reshape(())
    except (TypeError, ValueError):
        raise MeanfieldError(f"a step of {value!r}", "a number", "pass 0.1") from None


class EulerStep(AbstractStep):
    """Explicit Euler, ``theta <- theta - dt G``: gradient descent at rate dt M/ds (order 1)."""

    dt: Float[np.ndarray, ""] = eqx.field(converter=_as_number, default=0.1)

    def __check_init__(self):
        _require_step("dt", self.dt)

    @property
    def initial_dt(self) -> Float[np.ndarray, ""]:
        """dt."""
        return self.dt


class AdaptiveStep(AbstractStep):
    """Explicit Euler with Heun's embedded error estimate: dt follows the flow.

    The local error of a step is ``dt/2 |G_new - G|``; it is accepted if that is at most
    ``tolerance`` times the step's length ``dt |G|`` and (with ``monotone``) the risk did not rise.
    One gradient per attempt: the trial's gradient is the next step's. Full batches only.

    Args: initial: first dt; tolerance: relative error per step; monotone: refuse a rising risk.
    Reference: our choice, docs/theory.md 4.1.
    """

    initial: Float[np.ndarray, ""] = eqx.field(converter=_as_number, default=0.01)
    tolerance: Float[np.ndarray, ""] = eqx.field(converter=_as_number, default=0.1)
    monotone: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        _require_step("initial", self.initial)
        _require_step("tolerance", self.tolerance)

    @property
    def initial_dt(self) -> Float[np.ndarray, ""]:
        """The first attempt."""
        return self.initial


def _require_step(name: str, value: Any) -> None:
    require(
        np.isfinite(value) and value > 0,
        f"{name} is {value}",
        "a positive finite number",
        f"pass {name}=0.1",
    )


class Problem(NamedTuple):
    """What stays fixed while the particles move."""

    field: AbstractField
    objective: AbstractObjective
    batch: Batch
    scheme: AbstractScheme
    method: AbstractAdjoint
    stepper: AbstractStep
    start: Particles


class TrainingState(eqx.Module):
    """What is carried from step to step.

    Attributes:
        rho: the parameter measure at training time `time`.
        step: attempts so far; dt: the next step; key: randomness of the minibatches.
        value, gradient: risk and conditional Wasserstein gradient at `rho` (with minibatches:
            those of the last minibatch).
        problem, minibatch: fixed data; see `init_training`.
    """

    rho: ParameterMeasure
    time: Scalar
    step: Int[Array, ""]
    dt: Scalar
    key: Key
    value: Scalar
    gradient: Particles
    problem: Problem
    minibatch: int | None = eqx.field(static=True)


class TrainingInfo(eqx.Module):
    """What one step tells.

    Risk and |grad L|^2 before it, its dt, whether it was taken, and the dissipation defect
    ``(L_new - L)/dt + (|G|^2 + |G_new|^2)/2`` (NaN with minibatches and refused attempts).
    """

    risk: Scalar
    squared_norm: Scalar
    dt: Scalar
    accepted: Array
    dissipation_defect: Scalar


class History(NamedTuple):
    """Records of a training run, numpy arrays of equal length (the start included).

    time; risk (full batch); squared_norm ``|grad L|^2`` (NaN with minibatches);
    dissipation_defect of the last step taken; distance: conditional W2 from the start (its labelled
    upper bound beyond 256 particles per cell); largest: largest absolute particle entry; observed:
    what the observers returned, stacked; state: the last state.
    """

    time: np.ndarray
    step: np.ndarray
    risk: np.ndarray
    squared_norm: np.ndarray
    dissipation_defect: np.ndarray
    distance: np.ndarray
    largest: np.ndarray
    observed: dict[str, np.ndarray]
    state: TrainingState


def init_training(
    field: AbstractField,
    rho: ParameterMeasure,
    objective: AbstractObjective,
    batch: Batch,
    *,
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
    method: AbstractAdjoint | None = None,
    stepper: AbstractStep = EulerStep(),  # noqa: B008 - immutable
    minibatch: int | None = None,
    key: Key | None = None,
) -> TrainingState:
    """The state at training time 0.

    Args:
        scheme, method: as in `conditional_gradient`.
        stepper: `EulerStep` or `AdaptiveStep`.
        minibatch: contexts per step, drawn without replacement within a step; None: all.
        key: randomness of the minibatches (needed with them).

    Raises: `MeanfieldError` on inputs that do not fit; `NonFiniteError` if the flow blows up.
    Cost: one gradient.
    """
    method = resolve_method(method, scheme)
    require(
        isinstance(stepper, AbstractStep),
        f"stepper is {stepper!r}",
        "EulerStep(dt) or AdaptiveStep()",
        "pass an instance of one of them",
    )
    first = batch
    if minibatch is not None:
        batch.require_minibatch(minibatch, key)
        require(
            isinstance(stepper, EulerStep),
            f"{type(stepper).__name__} with minibatches",
            "EulerStep: an error estimate across minibatches would measure their noise",
            "pass stepper=EulerStep(dt), or minibatch=None",
        )
        first = batch.take(jnp.arange(minibatch))
    solution = conditional_gradient(field, rho, objective, first, scheme=scheme, method=method)
    dtype = solution.value.dtype
    return TrainingState(
        rho=rho,
        time=jnp.zeros((), dtype),
        step=jnp.zeros((), jnp.int32),
        dt=jnp.asarray(stepper.initial_dt, dtype),
        key=jax.random.key(0) if key is None else key,
        value=solution.value,
        gradient=solution.gradient,
        problem=Problem(field, objective, batch, scheme, method, stepper, rho.particles),
        minibatch=minibatch,
    )


def _gradient(state: TrainingState, rho: ParameterMeasure, batch: Batch) -> tuple[Any, Any]:
    problem = state.problem
    solution, status = gradient_core(
        problem.field, rho, problem.objective, batch, problem.scheme, problem.method
    )
    # A solve that failed may look finite (too few adaptive steps): NaN makes every stepper notice.
    failed = jnp.any(status >= 0)
    spoil = lambda leaf: jnp.where(failed, jnp.nan, leaf)  # noqa: E731
    return spoil(solution.value), jax.tree.map(spoil, solution.gradient)


def _descend(rho: ParameterMeasure, gradient: Particles, dt: Array) -> ParameterMeasure:
    moved = jax.tree.map(lambda x, g: x - dt.astype(x.dtype) * g, rho.particles, gradient)
    return rho.with_particles(moved)


def _minibatch_step(state: TrainingState) -> tuple[TrainingState, TrainingInfo]:
    """Draw contexts, descend along their gradient."""
    problem, minibatch = state.problem, state.minibatch
    assert minibatch is not None
    draw = jax.random.fold_in(state.key, state.step)
    index = jax.random.choice(draw, problem.batch.num_contexts, (minibatch,), replace=False)
    value, gradient = _gradient(state, state.rho, problem.batch.take(index))
    info = TrainingInfo(
        risk=value,
        squared_norm=squared_norm(state.rho, gradient),
        dt=state.dt,
        accepted=jnp.array(True),
        dissipation_defect=jnp.full_like(value, jnp.nan),
    )
    new = eqx.tree_at(
        lambda s: (s.rho, s.time, s.step, s.value, s.gradient),
        state,
        (
            _descend(state.rho, gradient, state.dt),
            state.time + state.dt,
            state.step + 1,
            value,
            gradient,
        ),
    )
    return new, info


def _full_step(state: TrainingState) -> tuple[TrainingState, TrainingInfo]:
    """One attempt: descend, evaluate there, and keep the trial if the stepper accepts it."""
    stepper = state.problem.stepper
    trial = _descend(state.rho, state.gradient, state.dt)
    value, gradient = _gradient(state, trial, state.problem.batch)
    old_square = squared_norm(state.rho, state.gradient)
    new_square = squared_norm(state.rho, gradient)
    info = TrainingInfo(
        risk=state.value,
        squared_norm=old_square,
        dt=state.dt,
        accepted=jnp.array(True),
        dissipation_defect=(value - state.value) / state.dt + (old_square + new_square) / 2,
    )
    next_dt = state.dt
    if isinstance(stepper, AdaptiveStep):
        change = jax.tree.map(jnp.subtract, gradient, state.gradient)
        error = 0.5 * jnp.sqrt(squared_norm(state.rho, change))
        error = error / jnp.maximum(jnp.sqrt(old_square), jnp.finfo(error.dtype).tiny)
        error = jnp.where(jnp.isfinite(error) & jnp.isfinite(value), error, jnp.inf)
        tolerance = jnp.asarray(stepper.tolerance, error.dtype)
        accepted = error <= tolerance
        if stepper.monotone:
            accepted = accepted & (value <= state.value)
        # The error is of first order in dt; a rising risk at a small error halves the step.
        factor = jnp.clip(0.9 * tolerance / jnp.maximum(error, 1e-12), 0.2, 1.5)
        factor = jnp.where(accepted, factor, jnp.minimum(factor, 0.5))
        next_dt = state.dt * factor
        defect = jnp.where(accepted, info.dissipation_defect, jnp.nan)
        info = eqx.tree_at(lambda i: (i.accepted, i.dissipation_defect), info, (accepted, defect))
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(info.accepted, a, b), new, old)  # noqa: E731
    new = eqx.tree_at(
        lambda s: (s.rho, s.time, s.step, s.dt, s.value, s.gradient),
        state,
        (
            state.rho.with_particles(keep(trial.particles, state.rho.particles)),
            keep(state.time + state.dt, state.time),
            state.step + 1,
            next_dt,
            keep(value, state.value),
            keep(gradient, state.gradient),
        ),
    )
    return new, info


def _one_step(state: TrainingState) -> tuple[TrainingState, TrainingInfo]:
    return _full_step(state) if state.minibatch is None else _minibatch_step(state)


@eqx.filter_jit
def training_step(state: TrainingState) -> tuple[TrainingState, TrainingInfo]:
    """One explicit step of the conditional gradient flow (one attempt of `AdaptiveStep`).

    Reference: reconstruction, docs/theory.md 4.1. Cost: one conditional gradient.
    """
    return _one_step(state)


def _moving(state: TrainingState) -> tuple[Any, ...]:
    return (
        state.rho.particles,
        state.time,
        state.step,
        state.dt,
        state.value,
        state.gradient,
    )


def _with_moving(state: TrainingState, moving: tuple[Any, ...]) -> TrainingState:
    return eqx.tree_at(_moving, state, moving)


@eqx.filter_jit
def _many_steps(state: TrainingState, count: Array) -> tuple[tuple[Any, ...], TrainingInfo]:
    """``count`` (at least 1) steps in one compiled loop that serves every count."""

    def body(_: Any, carry: Any) -> Any:
        new, info = _one_step(_with_moving(state, carry[0]))
        # The last step that was taken tells the defect; a refused attempt tells nothing.
        last = jax.tree.map(lambda a, b: jnp.where(info.accepted, a, b), info, carry[1])
        return _moving(new), last

    first, info = _one_step(state)
    return jax.lax.fori_loop(1, count, body, (_moving(first), info))


@eqx.filter_jit
def _largest(particles: Particles) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(particles)]))


def _record(
    state: TrainingState,
    info: TrainingInfo | None,
    observers: Mapping[str, Callable[[TrainingState], Any]],
    earlier: dict[str, np.ndarray] | None,
) -> dict[str, np.ndarray]:
    """One row of the history, as plain arrays."""
    problem, rho = state.problem, state.rho
    if state.minibatch is None:
        value, square = state.value, squared_norm(rho, state.gradient)
    else:
        value, status = risk_core(
            problem.field, rho, problem.objective, problem.batch, problem.scheme
        )
        raise_failure(status, rho.grid, problem.scheme)
        square = np.nan
    if not np.isfinite(value):  # said first: such numbers break transport too
        raise NonFiniteError(
            f"the risk is {value} at training step {int(state.step)}"
            f" (time {float(state.time):.4g})",
            "a risk that stays finite",
            "use a smaller dt or stepper=AdaptiveStep()",
        )
    start = rho.with_particles(problem.start)
    exact = rho.num_particles <= EXACT_DISTANCE_PARTICLES
    distance = (conditional_wasserstein2 if exact else labelled_distance)(start, rho)
    row: dict[str, Any] = {
        "time": state.time,
        "step": state.step,
        "risk": value,
        "squared_norm": square,
        "dissipation_defect": np.nan if info is None else info.dissipation_defect,
        "distance": distance,
        "largest": _largest(rho.particles),
    }
    for name, observer in observers.items():
        row[f"observed.{name}"] = observer(state)
    row = {name: np.asarray(value) for name, value in row.items()}
    for name, value in row.items():
        require(
            earlier is None or value.shape == earlier[name].shape,
            f"{name} has shape {value.shape} after {earlier and earlier[name].shape}",
            "the same shape at every record",
            "let the observer return arrays of one shape",
        )
    return row


def run_training(
    state: TrainingState,
    num_steps: int,
    *,
    record_every: int = 1,
    directory: RunDirectory | None = None,
    observers: Mapping[str, Callable[[TrainingState], Any]] | None = None,
    stop_risk: float | None = None,
    progress: bool | None = None,
    label: str = "training",
) -> History:
    """Take ``num_steps`` steps (attempts) and record on the way.

    Args:
        record_every: steps between two records (and two checkpoints).
        directory: a run directory; the run checkpoints itself there at every record, continues
            from that checkpoint when it finds one, and ends bit for bit as if never interrupted.
        observers: functions of the state whose results are recorded under their names.
        stop_risk: stop at the first record whose risk is not above it.
        progress: show a bar; None: only on a terminal.
        label: the bar's name, and the checkpoint's.

    Returns: `History`.
    Raises: `NonFiniteError` if the risk stops being finite; `KeyboardInterrupt` passes through,
        with the last record's checkpoint on disk.
    Cost: one conditional gradient per step; per record an O(L M^3) assignment.
    """
    require_positive_integer("num_steps", num_steps)
    require_positive_integer("record_every", record_every)
    require(
        directory is None or isinstance(directory, RunDirectory),
        f"directory is a {type(directory).__name__}",
        "a RunDirectory",
        "pass RunDirectory.create(path, name=..., configuration={})",
    )
    observers = dict(observers or {})
    last = int(state.step) + num_steps
    rows: list[dict[str, np.ndarray]] = []
    stored = None if directory is None else directory.load_checkpoint(label)
    if stored is not None:
        state, rows = _restore(state, stored)
    else:
        rows.append(_record(state, None, observers, None))

    with tqdm(
        total=last,
        initial=int(state.step),
        desc=label,
        disable=None if progress is None else not progress,
        leave=False,
    ) as bar:
        while int(state.step) < last:
            if stop_risk is not None and rows[-1]["risk"] <= stop_risk:
                break
            count = min(record_every, last - int(state.step))
            moving, info = _many_steps(state, jnp.asarray(count))
            state = _with_moving(state, moving)
            rows.append(_record(state, info, observers, rows[0]))
            if directory is not None:
                directory.save_checkpoint(label, **_store(state, rows))
            bar.update(count)
            bar.set_postfix_str(f"risk {float(rows[-1]['risk']):.3g}")

    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    observed = {n.removeprefix("observed."): c for n, c in columns.items() if "observed." in n}
    plain = {name: c for name, c in columns.items() if "observed." not in name}
    return History(**plain, observed=observed, state=state)


def _store(state: TrainingState, rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The moving part of the state and the records so far, as a flat dict of arrays."""
    leaves = jax.tree.leaves(_moving(state))
    arrays = {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    for name in rows[0]:
        arrays[f"rows.{name}"] = np.stack([row[name] for row in rows])
    return arrays


def _restore(
    state: TrainingState, arrays: Mapping[str, np.ndarray]
) -> tuple[TrainingState, list[dict[str, np.ndarray]]]:
    """Inverse of `_store`; raises if the checkpoint belongs to another problem."""
    leaves, tree = jax.tree.flatten(_moving(state))
    stored = [arrays.get(f"state.{i}") for i in range(len(leaves))]
    fits = all(
        a is not None and a.shape == leaf.shape and a.dtype == leaf.dtype
        for a, leaf in zip(stored, leaves, strict=True)
    )
    require(
        fits,
        "a checkpoint of another problem (shapes or precision differ)",
        "the checkpoint of this run",
        "resume with the same parameters, or start in a new directory",
    )
    moving = jax.tree.unflatten(tree, [jnp.asarray(a) for a in stored])
    names = [name.removeprefix("rows.") for name in arrays if name.startswith("rows.")]
    count = len(arrays[f"rows.{names[0]}"])
    rows = [{n: np.asarray(arrays[f"rows.{n}"][i]) for n in names} for i in range(count)]
    return _with_moving(state, moving), rows


__all__ = [
    "AdaptiveStep",
    "EulerStep",
    "History",
    "TrainingInfo",
    "TrainingState",
    "init_training",
    "run_training",
    "training_step",
]
