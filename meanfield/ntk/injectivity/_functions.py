"""Families of functions ``z -> grad Lam_i(t z)``: moments, points where they are asked, values."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from meanfield._checks import NonFiniteError
from meanfield._typing import Array, Bool
from meanfield.laws import AbstractLaw, Empirical
from meanfield.ntk.pairs import EPS, evaluate, power_of_two, sizes_of, with_tokens

# Distance of the points from 0 in units of one over the standard deviation: below, every CGF is
# its quadratic part; above, bounded laws show no more than their extreme points.
_NEAREST, _FARTHEST = 0.5, 32.0
_FLATTEST = 1e-6  # axes of less standard deviation, over the largest, get no scale of their own
_POINT_MASS = 64.0  # a spread of so many roundings of the mean is none
_MARGIN = 1.05  # points stay inside the domain when they are stretched by this
_BITS = 10  # of the points' coordinates: short numbers in certificates


class LawFacts(NamedTuple):
    """A law without its mean, and the moments that scale the decisions.

    ``rounding`` is the size of the rounding errors in its tokens: far from the origin those of
    the mean count, not those of the spread, and in composed laws those of the parts.
    """

    centred: AbstractLaw
    mean: np.ndarray
    covariance: np.ndarray
    spread: float
    rounding: float
    is_bounded: bool
    is_entire: bool


class Functions(NamedTuple):
    """The functions ``m_j(z) = grad Lam_{i_j}(t_j z)``: ``index [J]``, ``multiples [J]``."""

    facts: tuple[LawFacts, ...]
    index: np.ndarray
    multiples: np.ndarray

    @property
    def dim(self) -> int:
        """d."""
        return len(self.facts[0].mean)

    def each(self, name: str) -> np.ndarray:
        """A fact of the law of every function, ``[J, ...]``."""
        return np.array([getattr(self.facts[i], name) for i in self.index])


@eqx.filter_jit
def _moments(law: AbstractLaw) -> tuple[Array, Array, AbstractLaw]:
    """Mean and covariance of a law, and the law without its mean."""
    centred = law.centred()
    return law.mean(), centred.covariance(), centred


def law_facts(law: AbstractLaw) -> LawFacts:
    """Mean, covariance and rounding level of one law; a point mass has spread 0.

    Raises: `NonFiniteError` where moments overflow.
    """
    if isinstance(law, Empirical):
        law = with_tokens(law, power_of_two(law.points.shape[0]))  # padded once, not at each call
    mean, covariance, centred = _moments(law)
    mean, covariance = np.asarray(mean), np.asarray(covariance)
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise NonFiniteError(
            f"the {type(law).__name__} law has moments that are not finite",
            "a mean and a covariance that float64 can hold",
            "take smaller tokens",
        )
    spread = float(np.sqrt(max(np.trace(covariance), 0.0)))
    rounding = EPS * sizes_of(law).reach
    if spread <= _POINT_MASS * rounding:
        spread, covariance = 0.0, np.zeros_like(covariance)
    return LawFacts(
        centred,
        mean,
        covariance,
        spread,
        rounding,
        spread == 0 or law.has_bounded_support,
        law.domain_radius() == float("inf"),
    )


def facts_of(laws: Sequence[AbstractLaw]) -> tuple[LawFacts, ...]:
    """`law_facts` of every law, one computation for each object."""
    known: dict[int, LawFacts] = {}
    return tuple(known.setdefault(id(law), known.get(id(law)) or law_facts(law)) for law in laws)


@eqx.filter_jit
def _in_domain(law: AbstractLaw, z: Array) -> Bool[Array, "..."]:
    return law.in_domain(z)


def candidate_points(functions: Functions, num: int, *, seed: int) -> np.ndarray:
    """Points ``[num, d]`` at the scales and along the axes of every function, in all domains.

    Each function has its turn: directions uniform in the coordinates where its law has covariance
    I (or, at every second turn, in the given ones), distances log-uniform between 0.5 and 32
    standard deviations. Points outside a domain are halved until they are inside.
    """
    dim = functions.dim
    generator = np.random.default_rng([seed, dim, num])
    directions = generator.normal(size=(num, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distances = np.exp(generator.uniform(np.log(_NEAREST), np.log(_FARTHEST), num))
    points = distances[:, None] * directions
    spread = functions.each("spread")
    active = [j for j in range(len(spread)) if spread[j] > 0]
    if active:
        maps = np.empty((2 * len(active), dim, dim))
        for turn, j in enumerate(active):
            values, vectors = np.linalg.eigh(functions.facts[functions.index[j]].covariance)
            is_flat = values < _FLATTEST**2 * values[-1]
            deviations = np.sqrt(np.where(is_flat, values[-1], values))
            stretch = abs(functions.multiples[j])
            maps[2 * turn] = (vectors / deviations) @ vectors.T / stretch
            maps[2 * turn + 1] = np.eye(dim) / (deviations[-1] * stretch)
        points = np.einsum("qij,qj->qi", maps[np.arange(num) % len(maps)], points)
    points = _shortened(points)
    limited = [j for j in range(len(spread)) if not functions.facts[functions.index[j]].is_entire]
    outside = np.arange(num) if limited else np.arange(0)
    while len(outside):
        inside = np.ones(len(outside), dtype=bool)
        for j in limited:
            law = functions.facts[functions.index[j]].centred
            padded = np.zeros((num, dim))  # one shape: one compilation
            padded[: len(outside)] = _MARGIN * functions.multiples[j] * points[outside]
            inside &= np.asarray(_in_domain(law, jnp.asarray(padded)))[: len(outside)]
        outside = outside[~inside]
        points[outside] /= 2
    return points


def _shortened(points: np.ndarray) -> np.ndarray:
    """Coordinates rounded to a few bits of the longest one."""
    _, exponents = np.frexp(np.abs(points).max(axis=1, keepdims=True))
    return np.ldexp(np.round(np.ldexp(points, _BITS - exponents)), exponents - _BITS)


def values_at(functions: Functions, points: np.ndarray, order: int) -> np.ndarray:
    """Centred CGFs ``Lam_i(t z)`` (order 0) ``[Q, J]`` or gradients ``m_i(t z)`` ``[Q, d, J]``."""
    shape = (len(points), *[functions.dim] * order, len(functions.index))
    table = np.zeros(shape)
    for i in np.unique(functions.index):
        facts = functions.facts[i]
        if facts.spread == 0:
            continue
        mine = np.flatnonzero(functions.index == i)
        for t in np.unique(functions.multiples[mine]):  # one at a time: one compiled size
            values = evaluate(facts.centred, t * points, order)
            table[..., mine[functions.multiples[mine] == t]] = values[..., None]
    return table


def modulo_functions(points: np.ndarray, modulo: str, order: int) -> np.ndarray:
    """The functions that are divided out: constants, affine or quadratic ones.

    Order 0: ``1, z_i, z_i z_j`` at the points, ``[Q, .]``. Order 1: their gradients without that
    of 1, ``[Q, d, .]``: constants ``e_i`` and ``E_ij z`` with the basis E_ij of Sym(d).
    """
    num, dim = points.shape
    rows, columns = np.triu_indices(dim)
    if order == 0:
        parts = [np.ones((num, 1))]
        if modulo != "constants":
            parts.append(points)
        if modulo == "quadratic":
            parts.append(points[:, rows] * points[:, columns])
        return np.concatenate(parts, axis=1)
    parts = [np.zeros((num, dim, 0))]
    if modulo != "constants":
        parts.append(np.broadcast_to(np.eye(dim), (num, dim, dim)))
    if modulo == "quadratic":
        parts.append(np.einsum("ijk,qj->qik", symmetric_basis(dim), points))
    return np.concatenate(parts, axis=2)


def symmetric_basis(dim: int) -> np.ndarray:
    """Basis of Sym(d): ones at (i, j) and (j, i), ``[d, d, d(d+1)/2]``."""
    rows, columns = np.triu_indices(dim)
    basis = np.zeros((dim, dim, len(rows)))
    basis[rows, columns, np.arange(len(rows))] = 1
    basis[columns, rows, np.arange(len(rows))] = 1
    return basis
