"""Factors of tangent kernels: K is never formed where only its factor F, K = F^T F, is needed."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from meanfield._checks import require
from meanfield._typing import Array, Float
from meanfield.adjoint import DiscreteAdjoint, transport_momenta
from meanfield.fields.base import AbstractField
from meanfield.flow import (
    AbstractScheme,
    Euler,
    contexts_budget,
    first_failure,
    forward,
    raise_failure,
    validate,
)
from meanfield.measures import ParameterMeasure, TokenMeasure


@eqx.filter_jit
def _factor(
    field: AbstractField,
    rho: ParameterMeasure,
    mu: TokenMeasure,
    tokens: Array,
    scheme: AbstractScheme,
) -> tuple[Array, Array]:
    _, budget = contexts_budget(mu, rho, 0)
    metric = jnp.sqrt(rho.grid.steps[:, None] * rho.weights)
    dim = mu.dim

    def of_context(one: TokenMeasure) -> tuple[Array, Array]:
        batch = jax.tree.map(lambda leaf: leaf[None], one)
        (path, _), okay = forward(field, rho, batch, None, scheme, keep="path", budget=budget)

        def of_output(token: Array, coordinate: Array) -> Array:
            last = path[-1]
            terminal = jnp.zeros_like(last).at[0, token, coordinate].set(1.0)
            gradient, _, _ = transport_momenta(
                field, rho, batch, path, terminal, DiscreteAdjoint(), scheme, budget
            )
            flat = [
                (metric.reshape(*metric.shape, *[1] * (g.ndim - 2)).astype(g.dtype) * g).ravel()
                for g in jax.tree.leaves(gradient)
            ]
            return jnp.concatenate(flat)

        some_tokens = jnp.repeat(tokens, dim)
        coordinates = jnp.tile(jnp.arange(dim), tokens.shape[0])
        rows = jax.lax.map(lambda pair: of_output(*pair), (some_tokens, coordinates))
        return rows, jnp.where(okay, 0, 1)

    rows, failures = jax.lax.map(of_context, mu)
    return rows.reshape(-1, rows.shape[-1]).T, first_failure(failures.sum(axis=0))


def terminal_factor(
    field: AbstractField,
    rho: ParameterMeasure,
    contexts: TokenMeasure,
    *,
    tokens: Sequence[int] = (0,),
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
) -> Float[Array, "features Pd"]:
    """Factor of the kernel of the whole map ``rho -> x(S)``, all depths and momenta included.

    Column (i, a, c) is the conditional Wasserstein gradient of the c-th coordinate of token a of
    context i at depth S, scaled by ``sqrt(ds_k w_kj)``; so ``K = F^T F`` and, along the gradient
    flow of a risk with terminal momenta q, ``d x(S)/dt = -K q``. For the square loss on one token
    of each context with loss weight 1, ``q = (x(S) - y)/N``.

    Args:
        contexts: a batch ``[N, n, d]``.
        tokens: positions on the token axis whose outputs count (the same in every context).

    Returns: ``[features, N len(tokens) d]``, features = all entries of all particles.
    Raises: `MeanfieldError` on a single measure, or a token index out of range; `NonFiniteError`.
    Reference: reconstruction, docs/theory.md 3.1. Cost: N len(tokens) d backward flows.
    """
    require(
        contexts.num_contexts is not None,
        "contexts is one measure",
        "a batch [N, n, d]",
        "pass stack_contexts([mu])",
    )
    validate(field, rho, contexts, scheme)
    index: list[Any] = list(tokens)
    require(
        bool(index) and all(-contexts.num_tokens <= a < contexts.num_tokens for a in index),
        f"tokens is {index} for {contexts.num_tokens} tokens",
        "indices of tokens",
        "pass tokens=(0,) for the first",
    )
    positions = jnp.asarray(index) % contexts.num_tokens
    factor, status = _factor(field, rho, contexts, positions, scheme)
    raise_failure(status, rho.grid, scheme)
    return factor
