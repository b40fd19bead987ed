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

    As a network, ``net(tokens)``; as a flow, by `as_field` and `as_parameter_measure`. Plain SGD
    (`fit`) at the rate L M dt takes the steps of `EulerStep(dt)` in `init_training`, if the losses
    are the same: `squared_loss` is the risk of `SquaredLoss`, half the squared distance of each
    token times its loss weight, summed over tokens (not averaged), averaged over contexts::

        net = mf.models.Transformer(Q, K, V)
        field, rho = net.as_field(), net.as_parameter_measure()
        final = mf.solve_flow(field, rho, mf.TokenMeasure(tokens)).final.points  # net(tokens)
        trained = mf.models.fit(net, batch, 10, learning_rate=net.learning_rate(dt)).model
        flow = mf.init_training(field, rho, mf.SquaredLoss(), batch, stepper=mf.EulerStep(dt))
        heads = mf.run_training(flow, 10).state.rho.particles  # trained.query, .key, .value

    Args:
        query, key: ``Q, K [L, M, k, d]``; value: ``V [L, M, d, d]``; all in the widest of their
            precisions.
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
        scale: Any = None,
        heads_at_once: Any = None,
    ):
        query, key, value = (as_float(leaf) for leaf in (query, key, value))
        dtype = jnp.result_type(query, key, value, 0.0)
        query, key, value = (leaf.astype(dtype) for leaf in (query, key, value))
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
        is_number = is_concrete(scale) and np.ndim(scale) == 0
        is_number = is_number and np.asarray(scale).dtype.kind in "iuf" and np.isfinite(scale)
        require(
            scale is None or is_number,
            f"scale={scale!r:.60}",
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

    def __call__(self, tokens: Any, log_masses: Any = None) -> Float[Array, "n d"]:
        """The tokens after L layers, in the weights' precision.

        Args:
            tokens: ``[n, d]``; contexts side by side: ``jax.vmap(net)(points, log_masses)``.
            log_masses: ``log w [n]``, -inf for query tokens; None: equal masses. Not a mask.

        Raises: `MeanfieldError` on other shapes, also under `jax.jit`; where numbers are known, on
            tokens that are not finite, on masses that are NaN or infinite or none at all.
        """
        self._require_one()
        dtype, dim = self.query.dtype, self.query.shape[-1]
        tokens = _real("tokens", tokens)
        require(
            tokens.ndim == 2 and tokens.shape[0] > 0 and tokens.shape[1] == dim,
            f"tokens has shape {tuple(tokens.shape)}",
            f"[n, {dim}], one context",
            "pass contexts side by side through jax.vmap(net)",
        )
        tokens = tokens.astype(dtype)
        if is_concrete(tokens):
            require_finite("tokens", tokens)
        bias = jnp.zeros(tokens.shape[0], dtype)
        if log_masses is not None:
            bias = _real("log_masses", log_masses)
            require(
                bias.shape == tokens.shape[:1],
                f"log_masses has shape {tuple(bias.shape)} for tokens {tuple(tokens.shape)}",
                f"shape {tuple(tokens.shape[:1])}, one logarithm of a mass for each token",
                "pass mu.log_weights, or None for equal masses (a mask is not supported)",
            )
            bias = bias.astype(dtype)
            values = np.asarray(bias, float) if is_concrete(bias) else np.zeros(1)
            require(
                np.isfinite(values).any() and (values < np.inf).all(),
                f"log_masses holds {values.max()}",
                "numbers below infinity, and one above -inf (which marks a query token)",
                "pass the logarithms of masses, or None for equal masses",
            )
        multiplier = 1.0 / (self.num_layers * self.num_heads)

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

    def _require_one(self) -> None:
        """Raise on what `jax.vmap` and `Fit.models` stack."""
        require(
            self.query.ndim == 4,
            f"weights of several models, query of shape {tuple(self.query.shape)}",
            "one model, [L, M, k, d]",
            "pass one, jax.tree.map(lambda leaf: leaf[-1], models), or use jax.vmap",
        )

    def learning_rate(self, dt: Any) -> Any:
        """``L M dt``: the rate at which a step of plain SGD is a step dt of training time."""
        return self.num_layers * self.num_heads * dt

    def as_field(self) -> SoftmaxAttention:
        """The velocity field of one head."""
        return SoftmaxAttention("qkv", head_dim=self.query.shape[-2], scale=self.scale)

    def as_parameter_measure(self) -> ParameterMeasure:
        """The heads as equal particles in L equal cells of [0, 1]."""
        self._require_one()
        grid = DepthGrid.uniform(self.num_layers, dtype=self.query.dtype)
        return ParameterMeasure(AttentionQKV(self.query, self.key, self.value), grid)

    @classmethod
    def from_parameter_measure(
        cls,
        rho: Any,
        *,
        scale: Any = None,
        heads_at_once: Any = None,
    ) -> "Transformer":
        """The stack whose heads are the particles of ``rho``.

        Raises: `MeanfieldError` unless the particles are (Q, K, V), of equal masses and constant in
        the equal cells of a grid of [0, 1].
        """
        require(
            isinstance(rho, ParameterMeasure),
            f"rho is a {type(rho).__name__}",
            "a ParameterMeasure",
            "pass ParameterMeasure(AttentionQKV(Q, K, V), DepthGrid.uniform(L))",
        )
        require(
            isinstance(rho.particles, AttentionQKV),
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
            nodes, masses = np.asarray(rho.grid.nodes, float), np.asarray(rho.weights, float)
            steps, even = np.diff(nodes), np.linspace(0, 1, len(nodes))
            off, eps = np.abs(nodes - even).max(), float(jnp.finfo(rho.grid.nodes.dtype).eps)
            # nodes, not their differences, whose rounding is L times theirs
            require(
                off <= max(4 * eps, 1e-6 / len(steps)),
                f"nodes up to {off:.2g} from k/L, depth cells of lengths {steps.min():.4g} to"
                f" {steps.max():.4g}, {len(steps)} of them up to {nodes[-1]:.4g}",
                "equal cells of [0, 1]: every layer has the multiplier 1/(L M)",
                "use DepthGrid.uniform(L)",
            )
            eps = float(jnp.finfo(rho.log_weights.dtype).eps)
            require(
                np.allclose(masses * masses.shape[1], 1, rtol=1e-5 + 8 * eps),
                f"masses from {masses.min():.4g} to {masses.max():.4g}",
                "equal masses: every head has the multiplier 1/(L M)",
                "draw equal heads with subsample(rho, M, key=...)",
            )
        return cls(*rho.particles, scale=scale, heads_at_once=heads_at_once)


def _real(name: str, values: Any) -> Array:
    """Real numbers as a jax array, also while they are traced; the error says whose they are."""
    try:
        values = as_float(values)
    except MeanfieldError as error:
        raise MeanfieldError(f"{name}: {error.given}", error.expected, error.mend) from None
    require(
        any(jnp.issubdtype(values.dtype, kind) for kind in (jnp.floating, jnp.integer)),
        f"{name} of type {values.dtype}",
        "real numbers",
        f"convert {name} to floats",
    )
    return values
