"""Training the ordinary way: a loss, its gradient by `jax.grad`, an optimiser of optax."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from meanfield._checks import (
    NonFiniteError,
    is_concrete,
    require,
    require_positive_integer,
)
from meanfield._typing import Array, Float, Scalar
from meanfield.models.transformer import Transformer
from meanfield.objectives import Batch, SquaredLoss

MOST_STEPS = 2**31 - 1  # what the counter of a loop holds in 32 bits


class Fit(NamedTuple):
    """What `fit` returns: K + 1 records, the start among them.

    step ``[K+1]``; loss ``[K+1]``, of all contexts; models, weights ``[K+1, L, M, ...]`` at the
    records; model, the last of them.
    """

    step: np.ndarray
    loss: Float[Array, " K_plus_1"]
    models: Transformer
    model: Transformer


def squared_loss(model: Transformer, batch: Batch) -> Scalar:
    """``(1/N) sum_i sum_a lw_ia |x_ia(1) - y_ia|^2 / 2``: the risk of `SquaredLoss`.

    A sum over tokens, a mean over contexts, which are taken side by side.
    Raises: `MeanfieldError` unless there is a target point ``[d]`` for each token.
    """
    SquaredLoss().require_targets(batch.contexts.points, batch.targets)
    outputs = jax.vmap(model)(batch.contexts.points, batch.contexts.log_weights)
    losses = 0.5 * jnp.sum((outputs - batch.targets) ** 2, axis=-1)
    return jnp.mean(jnp.sum(batch.loss_weights * losses, axis=-1))


@eqx.filter_jit
def _fit(
    model: Transformer,
    batch: Batch,
    loss: Callable[[Any, Batch], Scalar],
    optimiser: Callable[[Any], optax.GradientTransformation],
    rate: Array,
    steps: Array,
    num_records: int,
    minibatch: int | None,
    key: Any,
) -> tuple[Array, Transformer, Transformer]:
    """``num_records`` times ``steps`` steps; neither rate nor steps compile anew."""
    transform = optimiser(rate)
    require(
        isinstance(transform, optax.GradientTransformation),
        f"optimiser(rate) is a {type(transform).__name__}",
        "an optax.GradientTransformation",
        "pass optimiser=optax.sgd, or a function of the rate that returns one",
    )

    def scalar_loss(model: Any, batch: Batch) -> Any:
        value = loss(model, batch)
        is_array = isinstance(value, (jax.Array, np.ndarray, np.generic, float))
        kind = jnp.result_type(value) if is_array else type(value).__name__
        require(
            is_array and not np.shape(value) and jnp.issubdtype(kind, jnp.floating),
            f"a loss of type {kind}{f' and shape {np.shape(value)}' if is_array else ''}",
            "one real number for a batch",
            "sum or average it over tokens and contexts",
        )
        return value

    def step(number: Array, carry: Any) -> Any:
        model, memory = carry
        chosen = batch
        if minibatch is not None:
            draw = jax.random.fold_in(key, number)
            index = jax.random.choice(draw, batch.num_contexts, (minibatch,), replace=False)
            chosen = batch.take(index)
        updates, memory = transform.update(jax.grad(scalar_loss)(model, chosen), memory, model)
        return optax.apply_updates(model, updates), memory

    def record(carry: Any, number: Array) -> Any:
        done = jnp.maximum(number - 1, 0) * steps  # the first record is the start
        carry = jax.lax.fori_loop(done, number * steps, step, carry)
        return carry, (scalar_loss(carry[0], batch), carry[0])

    weights: Any = model
    start = (model, transform.init(weights))
    (last, _), (losses, models) = jax.lax.scan(record, start, jnp.arange(num_records + 1))
    return losses, models, last


def fit(
    model: Any,
    batch: Any,
    num_steps: int,
    *,
    learning_rate: Any,
    optimiser: Any = optax.sgd,
    loss: Any = squared_loss,
    minibatch: int | None = None,
    key: Any = None,
    num_records: int = 1,
) -> Fit:
    """Plain training: ``theta <- theta - rate dloss/dtheta`` with the default optimiser.

    Args:
        model, batch: `Transformer`, `Batch`; tokens are cast to the weights' precision.
        learning_rate: a number; ``model.learning_rate(dt)`` makes each step of SGD one of length
            dt in training time, which is what has a limit in L and M.
        optimiser: ``rate -> optax.GradientTransformation``, the function and not what it returns;
            others than `optax.sgd` follow other flows. Options and schedules go in by a function:
            ``lambda rate: optax.sgd(rate, momentum=0.9)``.
        loss: ``(model, batch) -> scalar``.
        minibatch: contexts per step, drawn without replacement within a step and anew in each
            (no epochs, whose noise would cancel to a higher order); None: all.
        key: randomness of the minibatches (needed with them), a key of `jax.random.key`.
        num_records: K, a divisor of ``num_steps``.

    Returns: `Fit`. It may be vmapped over models, rates and keys (what diverges is NaN then).
    Raises: `MeanfieldError` on what does not fit; `NonFiniteError` if the loss blows up.
    Cost: one gradient of the loss per step, and K + 1 copies of the weights.
    """
    for name, value, kind in (("model", model, Transformer), ("batch", batch, Batch)):
        require(
            isinstance(value, kind),
            f"{name} is a {type(value).__name__}",
            f"a {kind.__name__}",
            f"build one and pass it as {name}",
        )
    require_positive_integer("num_steps", num_steps)
    require(
        num_steps <= MOST_STEPS,
        f"num_steps is {num_steps}",
        f"at most {MOST_STEPS}",
        "train from the last model again",
    )
    require_positive_integer("num_records", num_records)
    require(
        num_steps % num_records == 0,
        f"num_records={num_records} of {num_steps} steps",
        "a divisor of num_steps",
        "pass num_records=1, or a multiple as num_steps",
    )
    if minibatch is not None:
        batch.require_minibatch(minibatch, key)
    _require_key(key)
    _require_callables(optimiser, loss)
    rate = _as_rate(learning_rate, model.query.dtype)
    per_record = num_steps // num_records
    losses, models, last = _fit(
        model, batch, loss, optimiser, rate, jnp.asarray(per_record), num_records, minibatch, key
    )
    if is_concrete(losses) and not np.isfinite(losses).all():
        first = int(np.argmin(np.isfinite(losses))) * per_record
        raise NonFiniteError(
            f"the loss is not finite {f'after {first} steps' if first else 'at the start'}",
            "a loss that stays finite",
            "pass a smaller learning_rate" if first else "correct the loss, weights or targets",
        )
    return Fit(np.arange(num_records + 1) * per_record, losses, models, last)


def _require_key(key: Any) -> None:
    """One key of jax's, typed or of the older kind; None passes."""
    is_array = isinstance(key, jax.Array)
    is_typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_old = is_array and key.dtype == jnp.uint32 and key.shape == (2,)
    require(
        key is None or is_old or (is_typed and key.shape == ()),
        f"key of shape {key.shape} and type {key.dtype}" if is_array else f"key={key!r:.60}",
        "one key of jax's",
        "pass key=jax.random.key(0); many keys through jax.vmap",
    )


def _require_callables(optimiser: Any, loss: Any) -> None:
    """The optimiser is a function of the rate, not yet an instance; the loss is a function."""
    is_instance = isinstance(optimiser, optax.GradientTransformation)
    require(
        callable(optimiser),
        "optimiser is an instance" if is_instance else f"optimiser={optimiser!r:.60}",
        "a function of the rate, such as optax.sgd",
        "pass optimiser=optax.sgd and learning_rate=0.1, not optimiser=optax.sgd(0.1)",
    )
    require(
        callable(loss),
        f"loss={loss!r:.60}",
        "a function (model, batch) -> scalar, such as squared_loss",
        "leave it out for SquaredLoss, or write that function",
    )


def _as_rate(learning_rate: Any, dtype: Any) -> Array:
    """A positive finite number in the weights' precision, or one that is being traced."""
    is_function = callable(learning_rate)
    mend = "pass model.learning_rate(dt); many rates through jax.vmap"
    if is_function:
        mend = "pass learning_rate=1.0 and optimiser=lambda rate: optax.sgd(schedule)"
    try:
        is_traced = not is_concrete(learning_rate)
        given = learning_rate if is_traced else np.asarray(learning_rate)
        fits = given.shape == () and any(
            jnp.issubdtype(given.dtype, kind) for kind in (jnp.floating, jnp.integer)
        )
        if fits and not is_traced:
            with np.errstate(all="ignore"):  # beyond the precision: infinite or 0, and refused
                given = given.astype(dtype)
            fits = 0 < float(given) < np.inf
    except (TypeError, ValueError):
        fits = False
    require(
        fits and not is_function,
        f"learning_rate={'a function' if is_function else f'{learning_rate!r:.60}'}",
        f"one positive finite number, in {np.dtype(dtype).name}",
        mend,
    )
    return jnp.asarray(given, dtype)
