"""Numerical helpers that several rooms share: stable log-sum-exp weights and chunked maps.

Chunks bound memory: a sum over M particles and N contexts is scanned a chunk at a time, so that no
``[n, n, M]`` tensor ever exists.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meanfield._typing import Array

# Entries of one [chunk, n, n] array: 1 MiB in float64. A pullback holds about five such arrays.
PAIR_BUDGET = 2**17


def softmax_weights(scores: Array) -> Array:
    """Row-wise ``P_ab = e^{s_ab} / sum_c e^{s_ac}``, max-shifted, for scores with -inf entries.

    A row without any mass (all entries -inf) gets zero weights instead of NaN: a token that sees
    nothing does not move.
    """
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    exponentials = jnp.exp(scores - largest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials / jnp.where(total > 0, total, 1.0)


def chunk_size(num_items: int, entries_per_item: int, budget: int = PAIR_BUDGET) -> int:
    """How many items fit in ``budget`` array entries at once: between 1 and ``num_items``."""
    return max(1, min(num_items, budget // max(entries_per_item, 1)))


def _split(tree: Any, chunk: int) -> tuple[Any, Any, int]:
    """Cut the leading axis in equal chunks ``[c, chunk, ...]`` and a remainder ``[r, ...]``."""
    num_items = jax.tree.leaves(tree)[0].shape[0]
    cut = num_items // chunk * chunk
    body = jax.tree.map(lambda leaf: leaf[:cut].reshape(-1, chunk, *leaf.shape[1:]), tree)
    rest = jax.tree.map(lambda leaf: leaf[cut:], tree)
    return body, rest, num_items - cut


def in_chunks(on_chunk: Callable[[Any], tuple[Any, Any]], items: Any, chunk: int) -> Any:
    """``(sum of firsts, joined seconds)`` for ``first, second = on_chunk(some items)``.

    The items run along the leading axis of the pytree ``items``; ``on_chunk`` gets ``chunk`` of
    them at a time (fewer the last time) and is scanned over the chunks. ``second`` keeps the item
    axis in front. Either part of the result may be an empty tuple.
    """
    body, rest, num_rest = _split(items, chunk)
    num_chunks = jax.tree.leaves(body)[0].shape[0]
    if num_chunks == 1 and num_rest == 0:
        return on_chunk(items)

    def step(total: Any, some: Any) -> tuple[Any, Any]:
        first, second = on_chunk(some)
        return jax.tree.map(jnp.add, total, first), second

    shapes = jax.eval_shape(lambda some: on_chunk(some)[0], jax.tree.map(lambda b: b[0], body))
    start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, mapped = jax.lax.scan(step, start, body)
    mapped = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), mapped)
    if num_rest:
        first, second = on_chunk(rest)
        total = jax.tree.map(jnp.add, total, first)
        mapped = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), mapped, second)
    return total, mapped


def chunked_sum_and_map(function: Callable[[Any], tuple[Any, Any]], items: Any, chunk: int) -> Any:
    """``(sum_j first_j, [second_j])`` for ``first_j, second_j = function(items_j)``, in chunks."""

    def on_chunk(some: Any) -> tuple[Any, Any]:
        first, second = jax.vmap(function)(some)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), first), second

    return in_chunks(on_chunk, items, chunk)
