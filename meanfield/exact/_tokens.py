"""Closed forms for special clouds and special heads: reconstruction, docs/theory.md 6.2-6.9."""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from meanfield._checks import DomainError, require, require_finite, require_positive_integer
from meanfield._typing import Array
from meanfield.exact._heads import (
    integrate,
    read_depths,
    read_heads,
    read_times,
    require_width,
    value_propagator,
)
from meanfield.laws import AbstractLaw
from meanfield.measures import ParameterMeasure, TokenMeasure


def two_tokens(
    points: Any,
    rho: ParameterMeasure,
    *,
    weights: Any = (0.5, 0.5),
    scale: float | int = 1.0,
    depths: Any = None,
) -> np.ndarray:
    """Two tokens ``c + u`` and ``c - u`` of masses ``w_1, w_2``: softmax becomes a tanh.

    m_A(x) = c + u tanh( <x, A u> + (1/2) log(w_1/w_2) ),
    dc/ds = int V (c + u (t_1 + t_2)/2) drho,   du/ds = int V u (t_1 - t_2)/2 drho,  t_i at token i.

    Solved to about 1e-13 in (c, u). A mass of 0 makes that token a query.

    Args: points ``[2, d]``; rho of attention heads; weights ``[2]``; scale of the score; depths
        ``[K]``, None: the grid's nodes.
    Returns: both tokens at each depth, ``[K, 2, d]``.
    Raises: `MeanfieldError` on other shapes, weights or particles.

    Cost: O(M d^2) per ODE step. Reference: reconstruction, docs/theory.md 6.2.
    """
    points = np.asarray(points, dtype=float)
    require(
        points.ndim == 2 and len(points) == 2,
        f"points has shape {points.shape}",
        "[2, d]",
        "pass two tokens",
    )
    require_finite("points", points)
    masses = np.asarray(weights, dtype=float)
    require(
        masses.shape == (2,) and np.isfinite(masses).all() and (masses >= 0).all() and masses.sum(),
        f"weights={masses.tolist()}",
        "two numbers of at least 0, not both 0",
        "pass weights=(0.5, 0.5)",
    )
    heads = read_heads(rho, scale)
    require_width("points", points.shape[1], heads)
    depths = read_depths(depths, heads.nodes)
    with np.errstate(divide="ignore"):
        bias = 0.5 * (np.log(masses[0]) - np.log(masses[1]))

    def rhs(cell: int, state: np.ndarray) -> np.ndarray:
        centre, half = state
        images = heads.scores[cell] @ half
        first = np.tanh(images @ (centre + half) + bias)
        second = np.tanh(images @ (centre - half) + bias)
        mass = heads.weights[cell]
        mean = np.einsum("j,jab->ab", mass, heads.values[cell]) @ centre
        sums = np.einsum("j,jab->ab", mass * (first + second) / 2, heads.values[cell]) @ half
        gaps = np.einsum("j,jab->ab", mass * (first - second) / 2, heads.values[cell]) @ half
        return np.stack([mean + sums, gaps])

    start = np.stack([points.mean(axis=0), (points[0] - points[1]) / 2])
    solved = integrate(rhs, start, heads.nodes, depths)
    return np.stack([solved[:, 0] + solved[:, 1], solved[:, 0] - solved[:, 1]], axis=1)


def zero_score(
    measure: TokenMeasure, rho: ParameterMeasure, *, scale: float | int = 1.0, depths: Any = None
) -> np.ndarray:
    """Heads with ``A = 0`` see the mean only: all tokens are carried by the same vector.

    x(s) = x(0) + (E(s) - I) mean(0),   dE/ds = Vbar E   (one V: ``E = e^{s V}``).

    Args: measure ``[n, d]``; rho with A = 0 (or Q^T K = 0); depths ``[K]``, None: the nodes.
    Returns: ``[K, n, d]``.
    Raises: `MeanfieldError` if a score is not 0 or the widths differ.

    Cost: O(L d^3 + K n d). Reference: reconstruction, docs/theory.md 6.3.
    """
    heads = read_heads(rho, scale)
    largest = float(np.max(np.abs(heads.scores)))
    require(
        largest == 0, f"scores up to {largest:.3g}", "heads with A = 0", "set A (or Q, K) to zero"
    )
    points = np.asarray(measure.points, dtype=float)
    require_width("measure", points.shape[-1], heads)
    propagators = value_propagator(heads, read_depths(depths, heads.nodes))
    mean = np.asarray(measure.weights, dtype=float) @ points
    return points + (propagators @ mean - mean)[:, None, :]


def identical_tokens(point: Any, rho: ParameterMeasure, *, depths: Any = None) -> np.ndarray:
    """A Dirac: ``m_A(x) = x`` for every A, so ``dx/ds = Vbar x`` whatever the scores.

    Args: point ``[d]``, where all mass sits; rho; depths ``[K]``, None: the nodes.
    Returns: ``[K, d]``. Raises: `MeanfieldError` on another width or other particles.

    Cost: O(L d^3). Reference: reconstruction, docs/theory.md 6.5.
    """
    heads = read_heads(rho, 1.0)
    point = np.atleast_1d(np.asarray(point, dtype=float))
    require(point.ndim == 1, f"point has shape {point.shape}", "[d]", "pass one token")
    require_finite("point", point)
    require_width("point", len(point), heads)
    return value_propagator(heads, read_depths(depths, heads.nodes)) @ point


@dataclasses.dataclass(frozen=True)
class Hardmax:
    """The limit of attention with score ``beta <x, A y>`` as beta grows, and how far it is.

    Attributes: values ``[m, d]``, the maximisers ``y*(x)``; gaps ``[m]``, largest minus second
    largest score; the arrays that the bound needs, ``[m, n]``.
    """

    values: np.ndarray
    gaps: np.ndarray
    all_gaps: np.ndarray
    lengths: np.ndarray
    mass_ratios: np.ndarray

    def error_bound(self, inverse_temperature: float | int) -> np.ndarray:
        """``|m - y*| <= sum_b (w_b / w_*) e^{-beta gap_b} |y_b - y*|``, ``[m]``."""
        decay = np.exp(-inverse_temperature * self.all_gaps)
        return np.sum(self.mass_ratios * decay * self.lengths, axis=1)


def hardmax_attention(measure: TokenMeasure, score: Any, points: Any) -> Hardmax:
    """Where attention points at infinite inverse temperature: ``argmax_y <x, A y>``.

    Args: measure, one cloud (zero-mass tokens do not count; equal tokens are one atom); score A
        ``[d, d]``; points x ``[m, d]``.
    Raises: `DomainError` where two different tokens tie; `MeanfieldError` on wrong shapes.

    Cost: O(m n d). Reference: reconstruction, docs/theory.md 6.4.
    """
    weights = np.asarray(measure.weights, dtype=float)
    require(weights.ndim == 1, "a batch of measures", "one measure", "loop over contexts")
    tokens = np.asarray(measure.points, dtype=float)[weights > 0]
    tokens, index = np.unique(tokens, axis=0, return_inverse=True)
    weights = np.bincount(index.ravel(), weights[weights > 0])
    score, points = np.asarray(score, dtype=float), np.asarray(points, dtype=float)
    dim = tokens.shape[1]
    require(
        score.shape == (dim, dim) and points.ndim == 2 and points.shape[1] == dim,
        f"score has shape {score.shape} and points {points.shape}",
        f"({dim}, {dim}) and [m, {dim}]",
        "pass arrays of the tokens' width",
    )
    scores = points @ score @ tokens.T
    best = np.argmax(scores, axis=1)
    rows = np.arange(len(points))
    all_gaps = scores[rows, best][:, None] - scores
    others = np.where(np.arange(len(tokens)) == best[:, None], np.inf, all_gaps)
    gaps = others.min(axis=1)
    rounding = 1e-13 * np.max(np.abs(scores), axis=1)
    if len(tokens) > 1 and (gaps <= rounding).any():
        tied = int(np.flatnonzero(gaps <= rounding)[0])
        raise DomainError(
            f"two tokens tie at points[{tied}] (gap {gaps[tied]:.3g})",
            "a unique maximiser of <x, A y>",
            "move that point off the tie",
        )
    values = tokens[best]
    lengths = np.linalg.norm(tokens[None] - values[:, None], axis=2)
    return Hardmax(values, gaps, all_gaps, lengths, weights / weights[best][:, None])


def first_order_attention(law: AbstractLaw, score: Any, points: Any) -> np.ndarray:
    """Attention for small scores, ``m_A(x) = mean + C A^T x + O(|A|^2)``, at points ``[m, d]``.

    Args: law with mean and covariance C; score A ``[d, d]``.
    Raises: `MeanfieldError` on wrong shapes. Cost: O(m d^2).
    Reference: reconstruction, docs/theory.md 6.3 (the cumulant expansion).
    """
    score, points = np.asarray(score, dtype=float), np.asarray(points, dtype=float)
    dim = law.dim
    require(
        score.shape == (dim, dim) and points.shape[-1:] == (dim,),
        f"score has shape {score.shape} and points {points.shape}",
        f"({dim}, {dim}) and [m, {dim}]",
        "pass arrays of the law's width",
    )
    return np.asarray(law.mean()) + points @ score @ np.asarray(law.covariance())


def attention_potential(law: AbstractLaw, score: Any, points: Any) -> Array:
    """``log Z_A(x) = log int e^{<x, A y>} dmu(y)``, whose gradient in x is ``A m_A(x)``, ``[m]``.

    With V = A the velocity is this gradient, its Jacobian ``A C_A(x) A^T`` symmetric and positive
    semidefinite. Differentiable by jax. Raises: as `AbstractLaw.cgf`.
    Reference: reconstruction, docs/theory.md 6.9.
    """
    return law.cgf(points @ score)


class Equiangular(NamedTuple):
    """Squared norm ``q`` and inner product ``p`` of equiangular tokens, ``[K]`` each."""

    depths: np.ndarray
    norms_squared: np.ndarray
    inner_products: np.ndarray


def equiangular_tokens(
    num_tokens: int, norm_squared: float | int, inner_product: float | int
) -> np.ndarray:
    """Tokens ``[n, n]`` with ``|x_i|^2 = q`` and ``<x_i, x_j> = p``: the root of their Gram matrix.

    Raises: `MeanfieldError` unless ``-q/(n-1) <= p <= q``. Reference: docs/theory.md 6.6.
    """
    _check_equiangular(num_tokens, norm_squared, inner_product)
    side = np.sqrt(max(norm_squared - inner_product, 0.0))
    along = np.sqrt(max(norm_squared + (num_tokens - 1) * inner_product, 0.0))
    ones = np.full((num_tokens, num_tokens), 1 / num_tokens)
    return side * (np.eye(num_tokens) - ones) + along * ones


def _check_equiangular(
    num_tokens: int, norm_squared: float | int, inner_product: float | int
) -> None:
    require_positive_integer("num_tokens", num_tokens)
    require(num_tokens >= 2, "one token", "at least 2", "pass num_tokens=2 or more")
    slack = 1e-12 * abs(norm_squared)
    lowest = -norm_squared / (num_tokens - 1) - slack
    require(
        norm_squared > 0 and lowest <= inner_product <= norm_squared + slack,
        f"norm_squared={norm_squared}, inner_product={inner_product}",
        f"q > 0 and -q/{num_tokens - 1} <= p <= q, a Gram matrix",
        "choose an inner product in that interval",
    )


def equiangular(
    num_tokens: int,
    *,
    norm_squared: float | int,
    inner_product: float | int,
    value: float | int,
    score: float | int,
    depths: Any,
) -> Equiangular:
    """Tokens at equal mutual angles stay equiangular under ``V = v I, A = b I``.

    For n tokens:  pi = e^{b(q-p)} / (e^{b(q-p)} + n - 1),   dq/ds = 2 v (pi q + (1 - pi) p),
    dp/ds = 2 v ( pi p + (1 - pi) (q + (n-2) p)/(n-1) ).   Solved to about 1e-13.

    Args: q and p at depth 0; v; b; depths ``[K]``.
    Raises: `MeanfieldError` unless ``-q/(n-1) <= p <= q``.
    Cost: O(1) per ODE step. Reference: reconstruction, docs/theory.md 6.6.
    """
    _check_equiangular(num_tokens, norm_squared, inner_product)
    depths = read_times("depths", depths)
    others = num_tokens - 1

    def rhs(cell: int, state: np.ndarray) -> np.ndarray:
        del cell
        q, p = state
        own = 1 / (1 + others * np.exp(-score * (q - p)))
        across = own * p + (1 - own) * (q + (num_tokens - 2) * p) / others
        return 2 * value * np.array([own * q + (1 - own) * p, across])

    solved = _solve_from_zero(rhs, np.array([norm_squared, inner_product], dtype=float), depths)
    return Equiangular(depths, solved[:, 0], solved[:, 1])


def sphere_equiangular(
    num_tokens: int,
    *,
    correlation: float | int,
    score: float | int,
    times: Any,
    attention: Literal["softmax", "unnormalised"] = "softmax",
) -> np.ndarray:
    """Correlation ``r(t)`` of n equiangular unit tokens kept on the sphere by projection.

    softmax:       dr/dt = 2 e^{b r} (1 - r) ((n-1) r + 1) / (e^b + (n-1) e^{b r}),
    unnormalised:  dr/dt = (2/n) e^{b r} (1 - r) ((n-1) r + 1).   Solved to about 1e-13.

    Needs the tangential projection (`fields.SphereProjection`), which is not part of the model of
    docs/theory.md 1.3.

    Args: r(0); b of A = b I (V = I); times ``[K]``.
    Returns: ``[K]``. Raises: `MeanfieldError` unless ``-1/(n-1) <= r(0) <= 1``.
    Cost: O(1) per ODE step. Reference: reconstruction, docs/theory.md 6.7.
    """
    _check_equiangular(num_tokens, 1.0, correlation)
    require(
        attention in ("softmax", "unnormalised"),
        f"attention is {attention!r}",
        "'softmax' or 'unnormalised'",
        "pass one of them",
    )
    times = read_times("times", times)
    others = num_tokens - 1

    def rhs(cell: int, r: np.ndarray) -> np.ndarray:
        del cell
        geometry = 2 * (1 - r) * (others * r + 1)
        if attention == "softmax":
            return geometry / (np.exp(score * (1 - r)) + others)
        return geometry * np.exp(score * r) / num_tokens

    return _solve_from_zero(rhs, np.array([correlation], dtype=float), times)[:, 0]


def _solve_from_zero(rhs: Any, start: np.ndarray, times: np.ndarray) -> np.ndarray:
    """An autonomous ODE from time 0, read at ``times``."""
    return integrate(rhs, start, np.array([0.0, np.inf]), times)


def radius_bound(radius: float | int, rho: ParameterMeasure, *, depths: Any = None) -> np.ndarray:
    """``R(s) <= R(0) exp( int_0^s int |V| drho ds' )``: a cloud cannot leave this ball.

    The attention mean lies in the convex hull of the tokens, whatever the scores; ``|V|`` is the
    spectral norm. Query tokens obey it too if they start inside.

    Args: radius R(0); rho of attention heads; depths ``[K]``, None: the nodes. Returns: ``[K]``.
    Raises: `MeanfieldError` on a negative radius or other particles.
    Cost: O(L M d^3). Reference: reconstruction, docs/theory.md 1.6 and 6.12.
    """
    require(
        np.isfinite(radius) and radius >= 0,
        f"radius={radius}",
        "a finite number of at least 0",
        "pass the largest token norm",
    )
    heads = read_heads(rho, 1.0)
    depths = read_depths(depths, heads.nodes)
    norms = np.linalg.norm(heads.values, ord=2, axis=(-2, -1))
    rates = np.sum(heads.weights * norms, axis=1)
    at_nodes = np.concatenate([[0.0], np.cumsum(rates * np.diff(heads.nodes))])
    return radius * np.exp(np.interp(depths, heads.nodes, at_nodes))
