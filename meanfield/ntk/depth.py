"""Tangent kernels of whole flows: at every depth, along training, and the rate they guarantee."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import require
from meanfield._typing import Array, Float
from meanfield.adjoint import DiscreteAdjoint, transport_momenta
from meanfield.fields import AttentionAV, SoftmaxAttention
from meanfield.fields.base import AbstractField
from meanfield.flow import (
    AbstractScheme,
    Euler,
    contexts_budget,
    first_failure,
    forward,
    raise_failure,
    solve_flow,
    validate,
)
from meanfield.measures import ParameterMeasure, TokenMeasure
from meanfield.ntk.kernel import Factor, factor
from meanfield.ntk.pairs import Pairs, as_laws
from meanfield.ntk.spectra import Spectrum, spectrum
from meanfield.objectives import Batch

_LARGEST_TRANSPORT = 2048  # n d of one context: its transport is a matrix of that size


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


def layer_pairs(mu: TokenMeasure) -> Pairs:
    """All tokens of a batch ``[N, n, d]`` as pairs at their own places, padding included."""
    points = np.asarray(mu.points, dtype=np.float64)
    num_contexts, num_tokens, dim = points.shape
    index = np.repeat(np.arange(num_contexts), num_tokens)
    return Pairs(as_laws(mu), index, points.reshape(-1, dim))


def depth_factors(
    field: AbstractField,
    rho: ParameterMeasure,
    contexts: TokenMeasure,
    *,
    part: str = "V",
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
) -> list[Factor]:
    """Factors of the layers' kernels along the flow: cell k's heads at the tokens of node k.

    All tokens of the contexts are pairs at their own places, zero-mass queries included, in the
    order (context, token). For the Euler scheme these are exactly the kernels of the discrete
    risk: with the momenta q of node k+1,

        |grad R|^2 = sum_k ds_k |F_k q_{k+1}|^2        (part "full"),

    and part "V" alone gives the norm of the gradient in V (its scalar factor acts on each
    coordinate of q). For other schemes they are a quadrature with error O(ds).

    Args: contexts, a batch ``[N, n, d]``.
    Raises: `MeanfieldError`, `NonFiniteError` as the forward flow; linear interpolation in depth
        is refused: a cell has no heads of its own there.
    Reference: reconstruction, docs/theory.md 3.1. Cost: L factors, the forward flow.
    """
    path = _path(field, rho, contexts, scheme)
    factors = []
    for cell in range(rho.num_cells):
        here = contexts.push_forward(path[:, cell])
        particles = jax.tree.map(lambda leaf: leaf[cell], rho.particles)  # noqa: B023 - used now
        factors.append(
            factor(
                field,
                particles,
                layer_pairs(here),
                part=part,
                log_weights=rho.log_weights[cell],
            )
        )
    return factors


def _path(
    field: AbstractField, rho: ParameterMeasure, contexts: TokenMeasure, scheme: AbstractScheme
) -> Array:
    require(
        contexts.num_contexts is not None,
        "contexts is one measure",
        "a batch [N, n, d]",
        "pass stack_contexts([mu])",
    )
    require(
        rho.interpolation == "constant",
        f"parameters with {rho.interpolation} interpolation in depth",
        "heads that are constant in each cell",
        "build the ParameterMeasure with interpolation='constant'",
    )
    return solve_flow(field, rho, contexts, scheme=scheme).path


def depth_spectra(
    field: AbstractField,
    rho: ParameterMeasure,
    contexts: TokenMeasure,
    *,
    part: str = "V",
    weights: Any = None,
    scheme: AbstractScheme = Euler(),  # noqa: B008 - immutable
    interval: bool = False,
) -> list[Spectrum]:
    """Spectrum of ``Om^{1/2} K_s Om^{1/2}`` at every depth cell of a flow.

    Args:
        weights: Om ``[N, n]``; None: 1 for every token. Tokens of weight 0 are left out.
        interval: Monte-Carlo intervals over heads (16 further factorizations for each cell).
        field, rho, contexts, part, scheme: as in `depth_factors`, and what is raised.

    Reference: reconstruction, docs/theory.md 3.1 and 4.2. Cost: L factors and their SVD.
    """
    factors = depth_factors(field, rho, contexts, part=part, scheme=scheme)
    shape = tuple(contexts.log_weights.shape)
    flat = np.ones(shape) if weights is None else np.asarray(weights, dtype=np.float64)
    require(
        flat.shape == shape,
        f"weights has shape {flat.shape}",
        f"[N, n] = {list(shape)}",
        "give one weight to each token, or None",
    )
    used = flat.ravel() > 0
    require(used.any(), "weights without a positive entry", "some positive weight", "mend them")
    return [
        spectrum(_columns(one, used), weights=flat.ravel()[used], interval=interval)
        for one in factors
    ]


def _columns(one: Factor, used: np.ndarray) -> Factor:
    columns = np.repeat(used, one.copies)
    return one._replace(matrix=one.matrix[:, columns], noise=one.noise[columns])


@dataclasses.dataclass(frozen=True)
class ConvergenceConstant:
    """``|grad R|^2 >= 2 kappa R`` with the parts that kappa is made of, per depth cell.

    Attributes:
        kappa: ``sum_k ds_k lambda_k tau_k``.
        lambda_min: ``lambda_min(Om^{1/2} K_V Om^{1/2})`` at the tokens of node k, ``[L]``.
        transported: tau_k, the smallest factor by which the adjoint of the flow itself shrinks
            ``sum_a om_a |p_a|^2`` between the end and node k+1, ``[L]``.
        crude_transported: a lower bound of tau_k from norms alone; NaN unless the loss weights are
            the tokens' masses, which that bound needs.
        crude_kappa: kappa with these.
        steps: ds_k.
    """

    kappa: float
    lambda_min: np.ndarray
    transported: np.ndarray
    crude_kappa: float
    crude_transported: np.ndarray
    steps: np.ndarray


def convergence_constant(
    field: AbstractField,
    rho: ParameterMeasure,
    batch: Batch,
) -> ConvergenceConstant:
    """The constant of the lower bound ``|grad R|^2 >= |grad_V R|^2 >= 2 kappa R`` (square loss).

        kappa = sum_k ds_k lambda_k tau_k,   lambda_k = lambda_min(Om^{1/2} K_V(s_k) Om^{1/2}),
        tau_k = min_i sigma_min(T_{k+1,i})^2,   T = Om^{-1/2} J^T Om^{1/2},

    J the Jacobian of context i's tokens at depth S by those at node k+1; T acts on the terminal
    momenta of the tokens that bear loss. Om are the loss weights over N (tokens that move others
    but bear no loss: their mass over N; tokens with neither do not count). Exact for the discrete
    risk of the Euler scheme, which is the one used. Beside it the crude bound by norms,
    ``c = int |V|(|A|R^2 + (1 + 2|A|R^2) e^{|A|R^2}) drho``, which is far smaller.

    Args: a `SoftmaxAttention` field (tokens of any mass), rho, batch with `SquaredLoss` in mind.
    Raises: `MeanfieldError` for other fields, linear interpolation, or ``n d > 2048``.
    Cost: N n d backward flows, L SVDs of ``[M d, N n]``.
    Reference: reconstruction, docs/theory.md 4.2.
    """
    require(
        isinstance(field, SoftmaxAttention),
        f"the field {type(field).__name__}",
        "softmax attention, whose V-part the bound rests on",
        "use terminal_factor for other fields",
    )
    assert isinstance(field, SoftmaxAttention)
    contexts = batch.contexts
    path = np.asarray(_path(field, rho, contexts, Euler()))
    num_contexts, num_tokens = contexts.log_weights.shape
    dim = contexts.dim
    require(
        num_tokens * dim <= _LARGEST_TRANSPORT,
        f"contexts of {num_tokens} tokens in d = {dim}",
        f"n d of at most {_LARGEST_TRANSPORT}",
        "take fewer tokens",
    )
    bears_loss = np.asarray(batch.loss_weights) > 0
    weights = np.where(bears_loss, batch.loss_weights, contexts.weights) / num_contexts
    spectra = depth_spectra(field, rho, contexts, weights=weights)
    # A rank-deficient kernel's smallest eigenvalue is rounding, and no bound: it counts as zero.
    known = [max(float(one.singular_values[-1]) - one.noise, 0.0) for one in spectra]
    smallest = np.array(
        [0.0 if one.nullity else value**2 for one, value in zip(spectra, known, strict=True)]
    )
    steps = np.asarray(rho.grid.steps)
    transported = np.min(
        [
            _transported(field, rho, contexts, number, path[number], weights, bears_loss)
            for number in range(num_contexts)
        ],
        axis=0,
    )
    is_mass = np.allclose(batch.loss_weights, contexts.weights, rtol=1e-12, atol=0)
    crude = _crude_transported(field, rho, path) if is_mass else np.full(len(steps), np.nan)
    return ConvergenceConstant(
        float(np.sum(steps * smallest * transported)),
        smallest,
        transported,
        float(np.sum(steps * smallest * crude)),
        crude,
        steps,
    )


@eqx.filter_jit
def _transport(field: AbstractField, rho: ParameterMeasure, mu: TokenMeasure, path: Array) -> Array:
    """Momenta ``[n d, L+1, n d]`` of unit terminal momenta: row e is that of ``q(S) = e``."""
    _, budget = contexts_budget(mu, rho, 0)
    units = jnp.eye(path.shape[-2] * path.shape[-1]).reshape(-1, *path.shape[-2:])

    def one(terminal: Array) -> Array:
        _, momenta, _ = transport_momenta(
            field, rho, mu, path[:, None], terminal[None], DiscreteAdjoint(), Euler(), budget
        )
        return momenta.reshape(momenta.shape[0], -1)

    return jax.lax.map(one, units)


def _transported(
    field: AbstractField,
    rho: ParameterMeasure,
    contexts: TokenMeasure,
    number: int,
    path: np.ndarray,
    weights: np.ndarray,
    bears_loss: np.ndarray,
) -> np.ndarray:
    """``sigma_min(T_{k+1})^2`` of one context for every cell k, ``[L]``; inf without any loss."""
    if not bears_loss[number].any():
        return np.full(rho.num_cells, np.inf)
    dim = contexts.dim
    one = jax.tree.map(lambda leaf: leaf[number][None], contexts)
    momenta = np.asarray(_transport(field, rho, one, jnp.asarray(path)))
    used = np.repeat(weights[number] > 0, dim)
    loaded = np.repeat(bears_loss[number], dim)
    roots = np.sqrt(np.repeat(weights[number], dim))
    scaled = momenta[loaded][:, 1:, used] * roots[loaded][:, None, None] / roots[used]
    return np.array(
        [np.linalg.svd(scaled[:, k], compute_uv=False)[-1] ** 2 for k in range(rho.num_cells)]
    )


def _crude_transported(
    field: SoftmaxAttention, rho: ParameterMeasure, path: np.ndarray
) -> np.ndarray:
    """``prod_{later cells} max(0, 1 - ds c)^2`` with c from norms and the largest token, ``[L]``.

    One Euler layer's adjoint is p + ds B p with ``|B| <= c`` in L^2(mu); e^{-2 int c} as ds -> 0.
    """
    heads = rho.particles
    if isinstance(heads, AttentionAV):
        scores = np.asarray(heads.A)
    else:
        scores = np.einsum("lmrp,lmrq->lmpq", np.asarray(heads.Q), np.asarray(heads.K))
    a = abs(field.scale) * np.linalg.norm(scores, ord=2, axis=(-2, -1))
    v = np.linalg.norm(np.asarray(heads.V), ord=2, axis=(-2, -1))
    radius = np.linalg.norm(path, axis=-1).max(axis=(0, 2))  # of all tokens, [L+1]
    exponent = a * radius[:-1, None] ** 2
    with np.errstate(over="ignore"):
        rate = v * (exponent + (1 + 2 * exponent) * np.exp(exponent))
        c = np.sum(np.asarray(rho.weights) * rate, axis=1)
    layers = np.maximum(0.0, 1 - np.asarray(rho.grid.steps) * c) ** 2
    return np.append(np.cumprod(layers[:0:-1])[::-1], 1.0)
