"""An ordinary multi-head attention stack, with the multiplier that gives it a mean-field limit.

Nothing here calls the solvers: the forward pass is einsums over all heads at once, gradients are
`jax.grad`'s. It is the second engine that the flow of `fields`, `flow` and `adjoint` is compared
with, and the way from a network's weights to a parameter measure and back.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import (
    MeanfieldError,
    is_concrete,
    require,
    require_finite,
    require_positive_integer,
)
from meanfield._numerics import in_chunks
from meanfield._typing import Array, Float
from meanfield.fields import AttentionQKV, SoftmaxAttention
from meanfield.measures import DepthGrid, ParameterMeasure, as_float


class Transformer(eqx.Module):
    """L residual layers of M softmax heads, ``x <- x + (1/(L M)) sum_h P_h(x) x V_h^T``.

    ``P_h = softmax(scale (x Q_h^T)(x K_h^T)^T + log w)``, rows over keys, w the tokens' masses.
    Every layer has its own heads; no layer norm, no perceptron, no mask. Two choices are ours: the
    multiplier 1/(L M) (with 1/sqrt(M), or none, there is no such limit), and one matrix V_h for the
    product of output and value matrix (training a factorised W_O W_V is another flow).

    Args:
        query, key: ``Q, K [L, M, k, d]``; value: ``V [L, M, d, d]``.
        scale: factor of the scores; None means 1 (1/sqrt(k) in practice).
        heads_at_once: None: all heads side by side, and automatic differentiation keeps every
            softmax; an integer: groups of so many heads, recomputed on the way back.

    Raises: `MeanfieldError` on shapes that do not fit or entries that are not finite.
    Reference: reconstruction, docs/theory.md 4.5. Cost: O(L M n^2 (k + d)) time for a context;
    memory of a gradient O(L M n^2), with ``heads_at_once = h`` O(L n d + h n^2).
    """

    query: Float[Array, "L M k d"]
    key: Float[Array, "L M k d"]
    value: Float[Array, "L M d d"]
    scale: float = eqx.field(static=True)
    heads_at_once: int | None = eqx.field(static=True)

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        scale: float | int | None = None,
        heads_at_once: int | None = None,
    ):
        query, key, value = (as_float(leaf) for leaf in (query, key, value))
        shapes = [tuple(leaf.shape) for leaf in (query, key, value)]
        fits = len(shapes[0]) == 4 and shapes[1] == shapes[0] and 0 not in shapes[0]
        require(
            fits and shapes[2] == (*shapes[0][:2], shapes[0][3], shapes[0][3]),
            f"query, key, value of shapes {shapes}",
            "[L, M, k, d] twice and [L, M, d, d]",
            "stack the heads of a layer along axis 1 and merge W_O W_V into value",
        )
        for name, leaf in (("query", query), ("key", key), ("value", value)):
            if is_concrete(leaf):
                require_finite(name, leaf)
        require(
            scale is None or np.isfinite(scale),
            f"scale={scale}",
            "a finite number",
            "pass scale=1/sqrt(k), or None for 1",
        )
        if heads_at_once is not None:
            require_positive_integer("heads_at_once", heads_at_once)
        self.query, self.key, self.value = query, key, value
        self.scale = 1.0 if scale is None else float(scale)
        self.heads_at_once = heads_at_once

    @property
    def num_layers(self) -> int:
        """L."""
        return self.query.shape[-4]

    @property
    def num_heads(self) -> int:
        """M, in each layer."""
        return self.query.shape[-3]

    def __call__(
        self, tokens: Float[Array, "n d"], log_masses: Float[Array, " n"] | None = None
    ) -> Float[Array, "n d"]:
        """The tokens after L layers; ``log_masses`` ``log w`` (-inf: query tokens), None: equal."""
        multiplier = 1.0 / (self.num_layers * self.num_heads)
        bias = jnp.zeros(tokens.shape[0], tokens.dtype) if log_masses is None else log_masses

        def heads(weights: tuple[Array, Array, Array], x: Array) -> Array:
            query, key, value = weights
            queries = jnp.einsum("hkd,nd->hnk", query, x)
            keys = jnp.einsum("hkd,nd->hnk", key, x)
            values = jnp.einsum("hed,nd->hne", value, x)
            logits = self.scale * jnp.einsum("hik,hjk->hij", queries, keys) + bias
            return jnp.einsum("hij,hje->ie", jax.nn.softmax(logits, axis=-1), values)

        def layer(x: Array, weights: tuple[Array, Array, Array]) -> tuple[Array, None]:
            group = self.heads_at_once
            if group is None or group >= self.num_heads:
                return x + multiplier * heads(weights, x), None
            some = jax.checkpoint(lambda part: (heads(part, x), ()))
            return x + multiplier * in_chunks(some, weights, group)[0], None

        return jax.lax.scan(layer, tokens, (self.query, self.key, self.value))[0]

    def learning_rate(self, dt: Any) -> Any:
        """``L M dt``: the rate at which a step of plain SGD is a step dt of training time."""
        return self.num_layers * self.num_heads * dt

    def as_field(self) -> SoftmaxAttention:
        """The velocity field of one head."""
        return SoftmaxAttention("qkv", head_dim=self.query.shape[-2], scale=self.scale)

    def as_parameter_measure(self) -> ParameterMeasure:
        """The heads as equal particles in L equal cells of [0, 1]."""
        grid = DepthGrid.uniform(self.num_layers, dtype=self.query.dtype)
        return ParameterMeasure(AttentionQKV(self.query, self.key, self.value), grid)

    @classmethod
    def from_parameter_measure(
        cls,
        rho: ParameterMeasure,
        *,
        scale: float | int | None = None,
        heads_at_once: int | None = None,
    ) -> "Transformer":
        """The stack whose heads are the particles of ``rho``.

        Raises: `MeanfieldError` unless the particles are (Q, K, V), of equal masses and constant in
        the equal cells of a grid of [0, 1].
        """
        if not isinstance(rho.particles, AttentionQKV):
            raise MeanfieldError(
                f"particles of type {type(rho.particles).__name__}",
                "AttentionQKV, the weights of a transformer",
                "draw them with SoftmaxAttention('qkv')",
            )
        require(
            rho.interpolation == "constant",
            "particles joined linearly across depth",
            "the same heads throughout a layer",
            "build the measure with interpolation='constant'",
        )
        if is_concrete(rho.grid.nodes, rho.log_weights):
            steps, masses = np.asarray(rho.grid.steps), np.asarray(rho.weights)
            require(
                np.allclose(steps * len(steps), 1, rtol=1e-5),
                f"depth cells of lengths {steps.min():.4g} to {steps.max():.4g}, {len(steps)} of"
                f" them up to {float(rho.grid.horizon):.4g}",
                "equal cells of [0, 1]: every layer has the multiplier 1/(L M)",
                "use DepthGrid.uniform(L)",
            )
            require(
                np.allclose(masses * masses.shape[1], 1, rtol=1e-5),
                f"masses from {masses.min():.4g} to {masses.max():.4g}",
                "equal masses: every head has the multiplier 1/(L M)",
                "draw equal heads with subsample(rho, M, key=...)",
            )
        return cls(*rho.particles, scale=scale, heads_at_once=heads_at_once)
