"""Terminal losses, their first variation, and batches of (context, target).

``L(rho) = (1/N) sum_i sum_a lw_ia l(x_ia(S), y_ia)``. Three risks, one array of loss weights:
R1 all tokens by mass (lw = w), R2 any weights, R3 zero-mass query tokens (lw = 1 on them).
Reference: reconstruction, docs/theory.md 1.5.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import is_concrete, require, require_finite, require_positive_integer
from meanfield._typing import Array, Float, Points, PyTree, Scalar
from meanfield.measures import TokenMeasure, as_float, stack_contexts


class AbstractObjective(eqx.Module):
    """A terminal loss ``sum_a lw_a l(x_a, y_a)`` of one context, with its first variation."""

    @abc.abstractmethod
    def pointwise(self, x: Float[Array, " d"], y: Array) -> Scalar:
        """``l(x, y)`` for one token and its target."""

    def require_targets(self, points: PyTree, targets: Array) -> None:  # noqa: B027 - optional
        """Raise unless the targets ``[N, n, ...]`` suit this loss; by default all do."""

    def value(self, points: Points, targets: Array, loss_weights: Float[Array, " n"]) -> Scalar:
        """``sum_a lw_a l(x_a, y_a)``; tokens of loss weight 0 are ignored. Cost: O(n d)."""
        losses = jax.vmap(self.pointwise)(points, targets)
        return jnp.sum(jnp.where(loss_weights == 0, 0.0, loss_weights * losses))

    def first_variation(
        self, points: Points, targets: Array, loss_weights: Float[Array, " n"]
    ) -> Points:
        """Terminal momenta ``q_a(S) = lw_a grad_x l(x_a, y_a)``, ``[n, d]``. Cost: O(n d)."""
        slopes = jax.vmap(jax.grad(self.pointwise))(points, targets)
        column = loss_weights[:, None]
        return jnp.where(column == 0, 0.0, column * slopes)


class SquaredLoss(AbstractObjective):
    """``l(x, y) = |x - y|^2 / 2``; the loss of every convergence statement in docs/theory.md."""

    def require_targets(self, points: PyTree, targets: Array) -> None:
        """Targets are points: anything else would be broadcast to a wrong number in silence."""
        require(
            targets.shape == jnp.shape(points),
            f"targets has shape {tuple(targets.shape)} and tokens {tuple(jnp.shape(points))}",
            "one target point in R^d per token for SquaredLoss",
            "pass targets [N, n, d]",
        )

    def pointwise(self, x: Float[Array, " d"], y: Array) -> Scalar:
        """``|x - y|^2 / 2``."""
        return 0.5 * jnp.sum((x - y) ** 2)


class PointwiseLoss(AbstractObjective):
    """Any differentiable ``l(x, y)`` given as a jax function of one token and its target."""

    function: Callable[[Array, Array], Array] = eqx.field(static=True)

    def pointwise(self, x: Float[Array, " d"], y: Array) -> Scalar:
        """``function(x, y)``."""
        return self.function(x, y)


class Batch(eqx.Module):
    """N contexts with their targets and loss weights.

    Args:
        contexts: a batch ``[N, n, d]`` (`stack_contexts` makes one of single measures).
        targets: ``y [N, n, d]`` (last axes as the loss wants them).
        loss_weights: ``lw [N, n]``; None: the tokens' masses w (risk R1).

    Raises: `MeanfieldError` on shapes that do not fit or non-finite values.
    Reference: reconstruction, docs/theory.md 1.5.
    """

    contexts: TokenMeasure
    targets: Float[Array, "N n ..."]
    loss_weights: Float[Array, "N n"]

    def __init__(self, contexts: TokenMeasure, targets: Any, loss_weights: Any = None):
        require(
            contexts.num_contexts is not None,
            "contexts is one measure",
            "a batch [N, n, d]",
            "pass stack_contexts([mu])",
        )
        shape = tuple(contexts.log_weights.shape)
        dtype = jax.tree.leaves(contexts.points)[0].dtype
        targets = as_float(targets).astype(dtype)
        require(
            targets.shape[:2] == shape,
            f"targets has shape {tuple(targets.shape)}",
            f"leading axes [N, n] = {list(shape)}",
            "give one target per token (any value where the loss weight is 0)",
        )
        if loss_weights is None:
            loss_weights = contexts.weights
        loss_weights = as_float(loss_weights).astype(dtype)
        require(
            loss_weights.shape == shape,
            f"loss_weights has shape {tuple(loss_weights.shape)}",
            f"[N, n] = {list(shape)}",
            "give one weight per token, or None for the tokens' masses",
        )
        for name, values in (("targets", targets), ("loss_weights", loss_weights)):
            if is_concrete(values):
                require_finite(name, values)
        if is_concrete(loss_weights):
            smallest = float(np.min(np.asarray(loss_weights)))
            require(
                smallest >= 0,
                f"loss_weights holds the negative entry {smallest}",
                "loss weights of at least 0",
                "drop those tokens from the loss with weight 0",
            )
        self.contexts, self.targets, self.loss_weights = contexts, targets, loss_weights

    @property
    def num_contexts(self) -> int:
        """N."""
        return self.loss_weights.shape[0]

    @classmethod
    def at_queries(cls, measures: Sequence[TokenMeasure], queries: Any, targets: Any) -> "Batch":
        """Risk R3: zero-mass queries ``[N, K, d]`` join each context, with loss weight 1 on them.

        ``queries [K, d]`` are shared by all contexts. The queries stand first in every padded
        context, so ``points[:, :K]`` are the K read-outs. ``targets [N, K, d]``.
        Raises: `MeanfieldError` if the counts differ.
        """
        measures = list(measures)
        queries, targets = np.asarray(queries), np.asarray(targets)
        if queries.ndim == 2:
            queries = np.broadcast_to(queries, (len(measures), *queries.shape))
        require(
            queries.ndim == 3 and queries.shape[0] == len(measures),
            f"queries of shape {queries.shape} for {len(measures)} contexts",
            "[N, K, d] or shared [K, d]",
            "pass K queries for each context",
        )
        num = queries.shape[1]
        require(
            targets.shape[:2] == queries.shape[:2],
            f"targets of shape {targets.shape} for queries of shape {queries.shape}",
            "one target per query",
            "pass targets [N, K, d]",
        )
        joined = []
        for mu, some in zip(measures, queries, strict=True):
            whole = mu.with_queries(some)
            order = np.r_[mu.num_tokens : mu.num_tokens + num, 0 : mu.num_tokens]
            joined.append(
                TokenMeasure(
                    np.asarray(whole.points)[order],
                    np.asarray(whole.log_weights)[order],
                    np.asarray(whole.labels)[order],
                )
            )
        contexts = stack_contexts(joined)
        extra = contexts.num_tokens - num
        padding = [(0, 0), (0, extra), *[(0, 0)] * (targets.ndim - 2)]
        loss_weights = np.zeros((len(measures), contexts.num_tokens))
        loss_weights[:, :num] = 1.0
        return cls(contexts, np.pad(targets, padding), loss_weights)

    def require_minibatch(self, minibatch: int, key: Any) -> None:
        """Raise `MeanfieldError` unless a minibatch of that size can be drawn, with this key."""
        require_positive_integer("minibatch", minibatch)
        require(
            minibatch <= self.num_contexts,
            f"minibatch={minibatch} of {self.num_contexts} contexts",
            f"at most {self.num_contexts}",
            "pass minibatch=None for all",
        )
        require(key is not None, "no key", "a key for minibatches", "pass key=jax.random.key(0)")

    def take(self, index: Any) -> "Batch":
        """The contexts of an integer index array ``[B]``: a minibatch. Cost: O(|index| n d)."""
        index = jnp.asarray(index)
        require(
            index.ndim == 1 and jnp.issubdtype(index.dtype, jnp.integer),
            f"index has shape {tuple(index.shape)} and type {index.dtype}",
            "integers [B]",
            "pass an array of context numbers",
        )
        if is_concrete(index):
            low, high = int(np.min(np.asarray(index))), int(np.max(np.asarray(index)))
            require(
                low >= 0 and high < self.num_contexts,
                f"index reaches from {low} to {high} in a batch of {self.num_contexts}",
                f"numbers from 0 to {self.num_contexts - 1}",
                "pass contexts that exist",
            )
        return jax.tree.map(lambda leaf: leaf[index], self)
