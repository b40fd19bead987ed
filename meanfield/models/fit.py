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
from meanfield._typing import Array, Float, Key, Scalar
from meanfield.models.transformer import Transformer
from meanfield.objectives import Batch


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
    """``(1/N) sum_i sum_a lw_ia |x_ia(1) - y_ia|^2 / 2``, contexts side by side."""
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

    def step(number: Array, carry: Any) -> Any:
        model, memory = carry
        chosen = batch
        if minibatch is not None:
            draw = jax.random.fold_in(key, number)
            index = jax.random.choice(draw, batch.num_contexts, (minibatch,), replace=False)
            chosen = batch.take(index)
        updates, memory = transform.update(jax.grad(loss)(model, chosen), memory, model)
        return optax.apply_updates(model, updates), memory

    def record(carry: Any, number: Array) -> Any:
        done = jnp.maximum(number - 1, 0) * steps  # the first record is the start
        carry = jax.lax.fori_loop(done, number * steps, step, carry)
        return carry, (loss(carry[0], batch), carry[0])

    weights: Any = model
    start = (model, transform.init(weights))
    (last, _), (losses, models) = jax.lax.scan(record, start, jnp.arange(num_records + 1))
    return losses, models, last


def fit(
    model: Transformer,
    batch: Batch,
    num_steps: int,
    *,
    learning_rate: Any,
    optimiser: Callable[[Any], optax.GradientTransformation] = optax.sgd,
    loss: Callable[[Any, Batch], Scalar] = squared_loss,
    minibatch: int | None = None,
    key: Key | None = None,
    num_records: int = 1,
) -> Fit:
    """Plain training: ``theta <- theta - rate dloss/dtheta`` with the default optimiser.

    Args:
        learning_rate: ``model.learning_rate(dt)`` makes each step of SGD one of length dt in
            training time, which is what has a limit in L and M.
        optimiser: ``rate -> optax.GradientTransformation``; others than `optax.sgd` follow other
            flows.
        loss: ``(model, batch) -> scalar``.
        minibatch: contexts per step, drawn without replacement within a step and anew in each
            (no epochs, whose noise would cancel to a higher order); None: all.
        key: randomness of the minibatches (needed with them).
        num_records: K, a divisor of ``num_steps``.

    Returns: `Fit`. It may be vmapped over models and keys.
    Raises: `MeanfieldError` on numbers that do not fit; `NonFiniteError` if the loss blows up.
    Cost: one gradient of the loss per step, and K + 1 copies of the weights.
    """
    require_positive_integer("num_steps", num_steps)
    require_positive_integer("num_records", num_records)
    require(
        num_steps % num_records == 0,
        f"num_records={num_records} of {num_steps} steps",
        "a divisor of num_steps",
        "pass num_records=1, or a multiple as num_steps",
    )
    if minibatch is not None:
        require_positive_integer("minibatch", minibatch)
        require(
            minibatch <= batch.num_contexts,
            f"minibatch={minibatch} of {batch.num_contexts} contexts",
            f"at most {batch.num_contexts}",
            "pass minibatch=None for all",
        )
        require(key is not None, "no key", "a key for minibatches", "pass key=jax.random.key(0)")
    per_record = num_steps // num_records
    rate = jnp.asarray(learning_rate, model.query.dtype)
    losses, models, last = _fit(
        model, batch, loss, optimiser, rate, jnp.asarray(per_record), num_records, minibatch, key
    )
    if is_concrete(losses) and not np.isfinite(losses).all():
        first = int(np.argmin(np.isfinite(losses))) * per_record
        raise NonFiniteError(
            f"the loss is not finite after {first} steps of SGD",
            "a loss that stays finite",
            "pass a smaller learning_rate",
        )
    return Fit(np.arange(num_records + 1) * per_record, losses, models, last)
