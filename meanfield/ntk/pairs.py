"""Context-token pairs: which law's cumulant generating function is asked at which query."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import (
    MeanfieldError,
    NonFiniteError,
    require,
    require_finite,
    require_positive_integer,
)
from meanfield._runtime import guard_runtime, require_double
from meanfield._typing import Array
from meanfield.laws import AbstractLaw, AffineImage, Convolution, Empirical, Product
from meanfield.measures import TokenMeasure

QUERY_SYNTAX = "own, one, shared:K, an array [K, d], or one array [K_i, d] for each context"
EPS = float(np.finfo(np.float64).eps)
_LARGEST_ENTRIES = 2**22  # of one [points, tokens] array of scores: 32 MiB


class Pairs(NamedTuple):
    """Context-token pairs ``a = (i_a, x_a)``, the indices of the tangent kernel.

    ``laws`` are the N contexts, ``index [P]`` the context of each pair (from 0), ``queries [P, d]``
    its point. Reference: reconstruction, docs/theory.md 3.1.
    """

    laws: tuple[AbstractLaw, ...]
    index: np.ndarray
    queries: np.ndarray

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.index)

    @property
    def dim(self) -> int:
        """d, the width of tokens and queries."""
        return self.queries.shape[1]


def as_laws(contexts: Any) -> tuple[AbstractLaw, ...]:
    """The laws of some contexts: laws stay, clouds become `Empirical`.

    Args: contexts, a sequence that may mix laws and token measures, a batch ``[N, n, d]``, or one
        of them.
    Raises: `MeanfieldError` on anything else, no context, or contexts of different widths.
    """
    if isinstance(contexts, TokenMeasure) and contexts.num_contexts is not None:
        contexts = [
            TokenMeasure(points, log_weights)
            for points, log_weights in zip(contexts.points, contexts.log_weights, strict=True)
        ]
    elif isinstance(contexts, AbstractLaw | TokenMeasure):
        contexts = [contexts]
    require(
        isinstance(contexts, Sequence) and len(contexts) > 0,
        f"contexts is {type(contexts).__name__}" + ("" if contexts else " and empty"),
        "token laws or token measures, at least one",
        "pass [mf.Cube(1.0, 2), mf.TokenMeasure(points)] or a batch [N, n, d]",
    )
    laws = []
    for number, context in enumerate(contexts, 1):
        if isinstance(context, TokenMeasure):
            context = Empirical(context)
        require(
            isinstance(context, AbstractLaw),
            f"context {number} is {type(context).__name__}",
            "a token law or a token measure",
            "wrap points [n, d] as mf.TokenMeasure(points)",
        )
        laws.append(context)
    widths = [law.dim for law in laws]
    require(
        len(set(widths)) == 1,
        f"the contexts have widths {widths}",
        "one width d for all contexts",
        "bring them to the same d",
    )
    return tuple(laws)


def pairs_of(contexts: Any, queries: Any = "own", *, seed: int = 0) -> Pairs:
    """All pairs of the contexts with their queries, context by context.

    Args:
        contexts: see `as_laws`.
        queries: "own", each cloud's tokens at their own places (zero-mass tokens included);
            "shared:K", K seeded, pairwise non-collinear queries of length 1 for all contexts;
            "one", the same as "shared:1"; an array ``[K, d]``, shared by all; or one array
            ``[K_i, d]`` for each context.
        seed: of the shared queries.

    Raises: `MeanfieldError` on other queries, wrong shapes, numbers that are not finite, "own" for
        a law without tokens.
    """
    require_double("the tangent kernel")
    if isinstance(contexts, Pairs):
        return contexts
    laws = as_laws(contexts)
    dim = laws[0].dim
    if isinstance(queries, str):
        per_context = _named_queries(laws, queries, dim, seed)
    elif isinstance(queries, list | tuple) and any(np.ndim(one) == 2 for one in queries):
        require(
            len(queries) == len(laws),
            f"{len(queries)} arrays of queries for {len(laws)} contexts",
            "one array [K_i, d] for each context",
            "pass as many, or one array [K, d] that all share",
        )
        per_context = [_as_queries(one, dim) for one in queries]
    else:
        per_context = [_as_queries(queries, dim)] * len(laws)
    index = np.concatenate([np.full(len(one), i) for i, one in enumerate(per_context)])
    return Pairs(laws, index, np.concatenate(per_context))


def shared_queries(num: int, dim: int, *, seed: int = 0) -> np.ndarray:
    """K unit queries ``[K, d]``, pairwise non-collinear for d > 1: seeded and well apart.

    Each is the best of several random directions: the one whose largest ``|cos|`` with those
    before it is least. In d = 1 all queries are collinear; there they are ``1, 2, ..., K``.
    Raises: `MeanfieldError` on K or d below 1.
    """
    require_positive_integer("the number of shared queries", num)
    require_positive_integer("dim", dim)
    if dim == 1:
        return np.arange(1.0, num + 1)[:, None]
    generator = np.random.default_rng([seed, num, dim])
    chosen = np.zeros((0, dim))
    for _ in range(num):
        trials = generator.normal(size=(64, dim))
        trials /= np.linalg.norm(trials, axis=1, keepdims=True)
        worst = np.abs(trials @ chosen.T).max(axis=1, initial=0.0)
        chosen = np.concatenate([chosen, trials[[np.argmin(worst)]]])
    return chosen


def _named_queries(
    laws: tuple[AbstractLaw, ...], name: str, dim: int, seed: int
) -> list[np.ndarray]:
    if name == "own":
        own = []
        for number, law in enumerate(laws, 1):
            if not isinstance(law, Empirical):
                raise MeanfieldError(
                    f"queries 'own' and context {number}, a {type(law).__name__} law",
                    "clouds: a law has no tokens of its own",
                    "pass shared queries, or a cloud such as law.tokens(16, key=key)",
                )
            own.append(np.asarray(law.points, dtype=np.float64))
        return own
    kind, _, count = ("shared:1" if name == "one" else name).partition(":")
    require(
        kind == "shared"
        and count.isascii()
        and count.isdecimal()
        and len(count) < 10
        and int(count) > 0,
        f"queries {name!r}",
        QUERY_SYNTAX,
        "write own, one or shared:3",
    )
    return [shared_queries(int(count), dim, seed=seed)] * len(laws)


def _as_queries(values: Any, dim: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray("?")
    require(
        array.dtype.kind in "biuf",
        f"queries is {type(values).__name__} of {array.dtype}",
        QUERY_SYNTAX,
        "pass an array of real numbers",
    )
    array = array.astype(np.float64)
    require(
        array.ndim == 2 and array.shape[1] == dim and len(array) > 0,
        f"queries has shape {array.shape}",
        f"[K, {dim}] with K >= 1",
        "give each query one coordinate per dimension of the contexts",
    )
    require_finite("queries", array)
    return array


def moderate(pairs: Pairs, largest: float = 1e70) -> Pairs:
    """Refuse sizes whose fourth powers leave float64, before they end as zeros or infinities."""
    _require_moderate("the queries", float(np.max(np.abs(pairs.queries))), largest)
    moderate_laws(pairs.laws, largest)
    return pairs


def moderate_laws(laws: Sequence[AbstractLaw], largest: float) -> None:
    """The same of the numbers that laws are made of: points, radii, covariances, ..."""
    for number, law in enumerate(laws, 1):
        for place, leaf in enumerate(jax.tree.leaves(law), 1):
            values = np.abs(np.asarray(leaf))
            size = float(values[np.isfinite(values)].max(initial=0.0))
            _require_moderate(f"context {number}, array {place} of its law", size, largest)


def _require_moderate(name: str, size: float, largest: float) -> None:
    require(
        size == 0 or 1 / largest <= size <= largest,
        f"{name}: numbers of size {size:.3g}",
        f"sizes from {1 / largest:.0e} to {largest:.0e}",
        "choose other units: the verdict does not depend on them",
    )


def power_of_two(size: int, least: int = 1) -> int:
    """The next power of two from ``least`` on: the padded size."""
    return max(least, 1 << max(0, size - 1).bit_length())


def _padded_rows(size: int) -> int:
    """64, 256, 1024, ...: few sizes, so that most calls find their program compiled."""
    exponent = max(6, (size - 1).bit_length() if size > 1 else 0)
    return 1 << (exponent + exponent % 2)


@eqx.filter_jit
def _values(law: AbstractLaw, z: Array, order: int) -> Array:
    if order == 0:
        return law.cgf(z)
    return law.cgf_gradient(z) if order == 1 else law.cgf_hessian(z)


def evaluate(law: AbstractLaw, z: Any, order: int) -> np.ndarray:
    """The CGF of a law and its derivatives at many points, compiled once for each padded size.

    Args: z ``[..., d]``; order 0: Lam ``[...]``, 1: its gradient ``[..., d]``, 2: its Hessian
        ``[..., d, d]``.
    Raises: `DomainError` where Lam is infinite; `NonFiniteError` if a value is not finite.
    Cost: that of the law at the next power of two of points (and of tokens).
    """
    guard_runtime()
    z = np.asarray(z, dtype=np.float64)
    law.require_domain(z)
    rows = z.reshape(-1, law.dim)
    tokens = 1
    if isinstance(law, Empirical):
        tokens = power_of_two(law.points.shape[0], 8)
        law = with_tokens(law, tokens)
    width = tokens * (law.dim**2 if order == 2 else 1)
    most = max(1, _LARGEST_ENTRIES // width)
    most = 1 << (most.bit_length() - 1)  # what does not fit in one padded piece is cut
    parts = []
    for start in range(0, len(rows), most):
        some = rows[start : start + most]
        padded = np.zeros((min(_padded_rows(len(some)), most), law.dim))
        padded[: len(some)] = some
        parts.append(np.asarray(_values(law, jnp.asarray(padded), order))[: len(some)])
    values = np.concatenate(parts) if parts else np.zeros((0, *[law.dim] * order))
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"the {type(law).__name__} law at |z| up to {np.abs(z).max():.3g} is not finite",
            "numbers that float64 can hold",
            "take smaller tokens, heads or queries",
        )
    return values.reshape(*z.shape[:-1], *[law.dim] * order)


def with_tokens(law: Empirical, num: int) -> Empirical:
    """The same law with zero-mass tokens added up to ``num``: one compilation for many clouds."""
    missing = num - law.points.shape[0]
    if not missing:
        return law
    points = np.concatenate([np.asarray(law.points), np.zeros((missing, law.dim))])
    log_weights = np.concatenate([np.asarray(law.log_weights), np.full(missing, -np.inf)])
    replaced = (jnp.asarray(points), jnp.asarray(log_weights))
    return eqx.tree_at(lambda one: (one.points, one.log_weights), law, replaced)


class Sizes(NamedTuple):
    """What rounding errors of a law's CGF scale with.

    ``reach``: size of the numbers that an evaluation adds up, their means included; ``spread``: of
    their distances from the means. Root mean squares; of composed laws those of the parts, so that
    what cancels between them is not forgotten. Reference: our choice, docs/theory.md 3.8.
    """

    reach: float
    spread: float


def sizes_of(law: AbstractLaw) -> Sizes:
    """`Sizes` of a law, through all its parts."""
    if isinstance(law, AffineImage):
        inner, stretch = sizes_of(law.law), float(np.linalg.norm(np.asarray(law.matrix)))
        shift = float(np.linalg.norm(np.asarray(law.shift)))
        return Sizes(stretch * inner.reach + shift, stretch * inner.spread)
    if isinstance(law, Convolution | Product):
        parts = [sizes_of(one) for one in law.laws]
        spread = float(np.linalg.norm([one.spread for one in parts]))
        return Sizes(sum(one.reach for one in parts), spread)
    zero = np.zeros(law.dim)
    mean, variance = evaluate(law, zero, 1), float(np.trace(evaluate(law, zero, 2)))
    spread = float(np.sqrt(max(variance, 0.0)))
    return Sizes(float(np.hypot(np.linalg.norm(mean), spread)), spread)
