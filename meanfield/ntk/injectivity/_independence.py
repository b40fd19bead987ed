"""Linear independence of log-sum-exp functions modulo affine ones, by singular values."""

import dataclasses
from typing import Any, Literal

import numpy as np
from scipy.linalg import qr

from meanfield._checks import require, require_positive_integer
from meanfield._runtime import require_double
from meanfield.ntk.injectivity._functions import (
    Functions,
    candidate_points,
    facts_of,
    modulo_functions,
    values_at,
)
from meanfield.ntk.pairs import EPS, as_laws, power_of_two
from meanfield.ntk.spectra import LEAST_GAP, decide_rank

Modulo = Literal["constants", "affine", "quadratic"]

_FEWEST_CANDIDATES = 256
_CANDIDATES_EACH = 8  # per function, at least
_MOVE = 2.0**-26
_ROUNDS = 3  # of pivoted QR: so many times as many points as functions
_LEAST_PIVOT = 1e-7  # a function with a smaller share in a relation is not solved for
DOUBT = 64.0  # roundings over the smallest kept singular value: the errors of coefficients
_SNAP_WITHIN = 1e-6
_SNAP = 12  # coefficients this close to k/12 are k/12: most relations have integers


@dataclasses.dataclass(frozen=True)
class Relation:
    """One dependence: ``sum_j (c_j / t_j) Lam_j(t_j z) = <linear, z> + z^T Q z / 2``.

    Equivalently ``sum_j c_j m_j(t_j z) = linear + Q z`` of the gradients. Multiples t_j are 1
    unless queries on one line bring others.

    Attributes:
        coefficients: c ``[J]``; 1 at the last function that takes part (the dependent one).
        uncertainty: of each coefficient, ``[J]``; 0 where it is 0, or near enough to a simple
            fraction to be that.
        linear, quadratic: ``[d]``, ``[d, d]`` (0 unless worked modulo quadratic functions).
        residual: largest misfit of the gradients at the points over the largest term.
    """

    coefficients: np.ndarray
    uncertainty: np.ndarray
    linear: np.ndarray
    quadratic: np.ndarray
    residual: float


@dataclasses.dataclass(frozen=True)
class Independence:
    """Whether some log-sum-exp functions are linearly independent.

    Attributes:
        num_functions: J. nullity: dimension of their relations.
        singular_values: of the values of the gradients, columns scaled to one level of rounding
            errors, constants and so on projected out, ``[J]`` descending.
        noise: that level, in the same units: an absolute one, so that the zero function of a
            single point is no direction.
        gap: smallest kept over largest dropped singular value (or the noise, if larger).
        points: where the functions were compared, ``[Q, d]``.
        relations: a basis of them, one `Relation` for each dependent function.
    """

    num_functions: int
    nullity: int
    singular_values: np.ndarray
    noise: float
    gap: float
    points: np.ndarray
    modulo: Modulo
    relations: tuple[Relation, ...]

    @property
    def decided(self) -> bool:
        """Whether the gap is wide enough (1e3) to call the nullity a number."""
        return bool(self.gap >= LEAST_GAP)

    @property
    def holds(self) -> bool:
        """Whether they are independent to the stated gap."""
        return self.decided and self.nullity == 0


def independence(contexts: Any, *, modulo: Modulo = "affine", seed: int = 0) -> Independence:
    """Dimension of ``{c : sum_j c_j Lam_j is affine}`` (or constant, or quadratic).

    The gradients of the centred functions are compared: modulo their constants this is the same
    question, and their rounding errors do not grow with z. Points come from many scales inside all
    domains and are chosen by pivoted QR. Nothing is squared: singular values of the values
    themselves decide.

    Args:
        contexts: laws and clouds, see `as_laws`.
        modulo: "affine" for shared queries; "constants" for one common query; "quadratic" where
            Gaussian parts are to be ignored.
        seed: of the candidate points.

    Raises: `MeanfieldError` on other contexts or another modulo.
    Reference: reconstruction, docs/theory.md 3.2 and 3.3.
    Cost: O(Q J n d) for clouds of n tokens, Q = max(256, 8 J) points.
    """
    require_double("independence")
    _check_modulo(modulo)
    laws = as_laws(contexts)
    functions = Functions(facts_of(laws), np.arange(len(laws)), np.ones(len(laws)))
    return solve(functions, modulo, seed=seed)


def evaluation_points(
    contexts: Any, num: int, *, modulo: Modulo = "affine", seed: int = 0
) -> np.ndarray:
    """Points ``[num, d]`` where ``Lam_1, ..., Lam_J`` and the modulo functions differ most.

    The first pivots of a QR of their values at many candidates; with ``num = J +`` the number of
    modulo functions (1, 1 + d, or 1 + d + d(d+1)/2) the square matrix of values is invertible
    wherever the functions are visibly independent.

    Raises: `MeanfieldError` on other contexts, another modulo, num < 1.
    """
    require_double("independence")
    _check_modulo(modulo)
    require_positive_integer("num", num)
    laws = as_laws(contexts)
    functions = Functions(facts_of(laws), np.arange(len(laws)), np.ones(len(laws)))
    points = _candidates(functions, seed, at_least=4 * num)
    table = values_at(functions, points, 0)
    if modulo == "constants":
        table = table + points @ functions.each("mean").T
    table = _balanced(np.concatenate([modulo_functions(points, modulo, 0), table], axis=1))
    return points[_pivots(table, num)]


def _check_modulo(modulo: str) -> None:
    require(
        modulo in ("constants", "affine", "quadratic"),
        f"modulo is {modulo!r}",
        "'constants', 'affine' or 'quadratic'",
        "pass one of them",
    )


def _candidates(functions: Functions, seed: int, at_least: int = 0) -> np.ndarray:
    wanted = max(_FEWEST_CANDIDATES, _CANDIDATES_EACH * len(functions.index), at_least)
    return candidate_points(functions, power_of_two(wanted), seed=seed)


def _balanced(table: np.ndarray) -> np.ndarray:
    """Rows and columns scaled to comparable sizes, so that a pivot is a matter of direction."""
    for _ in range(2):
        for axis in (0, 1):
            size = np.abs(table).max(axis=axis, keepdims=True)
            table = table / np.where(size > 0, size, 1.0)
    return table


def _pivots(table: np.ndarray, num: int) -> np.ndarray:
    """``num`` rows of a table by pivoted QR, in rounds over those that are left."""
    left, chosen = np.arange(len(table)), np.zeros(0, dtype=int)
    while len(chosen) < num:
        order = qr(table[left].T, mode="r", pivoting=True)[-1]
        chosen = np.concatenate([chosen, left[order[: min(table.shape[1], num - len(chosen))]]])
        left = np.setdiff1d(left, chosen)
    return chosen


def solve(functions: Functions, modulo: Modulo, *, seed: int) -> Independence:
    """`independence` of functions ``m_i(t z)``: see there."""
    points = _candidates(functions, seed)
    table, growth = _values_and_growth(functions, points, seed)
    rounding, sizes = functions.each("rounding"), functions.each("spread")
    if modulo == "constants":
        mean = functions.each("mean")
        table = table + mean.T
        sizes = sizes + np.linalg.norm(mean, axis=1)
    divided = modulo_functions(points, modulo, 1)
    is_zero = sizes == 0
    some = np.flatnonzero(~is_zero)
    num = len(functions.index)
    relations = [_point_mass(functions, j) for j in np.flatnonzero(is_zero).tolist()]
    if not len(some):
        return Independence(
            num, num, np.zeros(num), EPS, 1 / EPS, points[:1], modulo, tuple(relations)
        )
    rows = 1 / (1 + growth[:, some].max(axis=1))[:, None, None]
    # Now all entries of a column carry errors of about its rounding.
    scaled = rows * table[..., some] / rounding[some]
    divided = rows * divided
    unit = 1 / np.linalg.norm(scaled, axis=(0, 1)).max()  # largest column: 1
    chosen = _chosen_points(scaled * unit, divided)
    matrix = scaled[chosen].reshape(-1, len(some))
    divided = divided[chosen].reshape(len(matrix), -1)
    unit = 1 / np.linalg.norm(matrix, axis=0).max()
    matrix, noise = unit * matrix, unit * np.sqrt(len(matrix))
    projected = _without(divided, matrix)
    _, values, vectors = np.linalg.svd(projected, full_matrices=True)
    values = np.pad(values[: len(some)], (0, max(0, len(some) - len(values))))
    nullity, gap = decide(values, float(noise), np.linalg.norm(matrix, axis=0).min())
    if nullity:
        null = vectors[len(some) - nullity :].T / rounding[some][:, None]
        kept = values[: len(some) - nullity]
        error = DOUBT * max(noise, EPS) / (kept[-1] if len(kept) else 1.0)
        weights = sizes[some]
        reduced = echelon(null * weights[:, None])
        for c in (reduced / weights[:, None]).T:
            full = np.zeros(num)
            full[some] = c
            relations.append(_relation(functions, full, error, points[chosen], modulo))
    relations.sort(key=lambda relation: int(np.flatnonzero(relation.coefficients)[-1]))
    return Independence(
        num,
        nullity + int(is_zero.sum()),
        np.pad(values, (0, num - len(some))),
        float(noise),
        gap,
        points[chosen],
        modulo,
        tuple(relations),
    )


def _values_and_growth(
    functions: Functions, points: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients ``[Q, d, J]`` and what rounding errors in the scores add to theirs, ``[Q, J]``.

    The second in units of the functions' roundings, measured by a change of all coordinates of z
    of relative size 2^-26: it is large where a law grows (Gaussian, Laplace), and where <z, y> is a
    difference of large terms (z across a flat cloud); small where one token takes all the mass.
    """
    moves = np.random.default_rng([seed, 1]).uniform(-_MOVE, _MOVE, size=points.shape)
    table = values_at(functions, points, 1)
    moved = values_at(functions, points * (1 + moves), 1)
    spread = functions.each("spread")
    change = np.linalg.norm(moved - table, axis=1) / _MOVE
    return table, change / np.where(spread > 0, spread, 1.0)


def decide(values: np.ndarray, noise: float, size: float) -> tuple[int, float]:
    """`decide_rank`; where nothing is kept the gap is that below the ``size`` things could have."""
    nullity, gap = decide_rank(values, noise)
    if nullity == len(values):
        gap = float(size / max(values.max(initial=0.0), noise))
    return nullity, gap


def _chosen_points(scaled: np.ndarray, divided: np.ndarray) -> np.ndarray:
    """Points that have a pivot row in one of the rounds."""
    both = np.concatenate([_unit_columns(divided), _unit_columns(scaled)], axis=2)
    num, dim, width = both.shape
    count = min(_ROUNDS * width, num * dim)
    return np.unique(_pivots(both.reshape(num * dim, width), count) // dim)


def _unit_columns(table: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(table, axis=(0, 1))
    return table / np.where(size > 0, size, 1.0)


def _without(divided: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """``matrix`` minus its part in the span of the columns of ``divided``."""
    if not divided.shape[1]:
        return matrix
    basis, triangle = np.linalg.qr(divided / np.linalg.norm(divided, axis=0))
    del triangle
    for _ in range(2):
        matrix = matrix - basis @ (basis.T @ matrix)
    return matrix


def _point_mass(functions: Functions, j: int) -> Relation:
    """A single point: ``Lam_j = <mean_j, z>`` on its own."""
    num, dim = len(functions.index), functions.dim
    mean = functions.each("mean")[j]
    return Relation(np.eye(num)[j], np.zeros(num), mean, np.zeros((dim, dim)), 0.0)


def echelon(null: np.ndarray) -> np.ndarray:
    """The basis of a space ``[J, k]`` in which each vector ends in its own 1: late ones depend.

    Gauss-Jordan from the last row up, so that a relation solves for a late function by early ones.
    """
    work = null.T.copy()
    done = 0
    for least in (_LEAST_PIVOT, 0.0):
        taken: list[int] = []
        for j in reversed(range(work.shape[1])):
            if done == len(work):
                break
            best = done + int(np.argmax(np.abs(work[done:, j])))
            if abs(work[best, j]) <= least * np.abs(work[best]).max(initial=0.0):
                continue
            work[[done, best]] = work[[best, done]]
            work[done] /= work[done, j]
            others = np.arange(len(work)) != done
            work[others] -= work[others, j][:, None] * work[done]
            work[others, j] = 0.0
            taken.append(j)
            done += 1
    return work.T


def simplified(values: np.ndarray, doubt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers replaced by k/12 where they differ from it by no more than their doubt, then 0."""
    nearest = np.round(_SNAP * values) / _SNAP
    is_simple = np.abs(values - nearest) <= np.minimum(doubt, _SNAP_WITHIN)
    return np.where(is_simple, nearest, values), np.where(is_simple, 0.0, doubt)


def _relation(
    functions: Functions, c: np.ndarray, error: float, points: np.ndarray, modulo: Modulo
) -> Relation:
    """Coefficients freed of rounding, with the affine or quadratic part they leave.

    At z = 0 the relation reads ``linear = sum c_j mean_j`` and its slope ``Q = sum c_j t_j Cov_j``.
    """
    sizes, t = functions.each("spread"), functions.multiples
    if modulo == "constants":
        sizes = sizes + np.linalg.norm(functions.each("mean"), axis=1)
    shares = np.abs(c) * sizes
    last = int(np.flatnonzero(shares > _LEAST_PIVOT * shares.max())[-1])
    simple = c / c[last] / t * t[last]  # the coefficients of the CGFs
    doubt = error * shares.max() / np.where(sizes > 0, sizes, 1.0) / np.abs(c[last] * t / t[last])
    simple, doubt = simplified(simple, doubt)
    c = simple * t / t[last] + 0.0  # no negative zeros
    uncertainty = doubt * np.abs(t / t[last])
    mean = functions.each("mean")
    linear = c @ mean
    lengths = np.linalg.norm(mean, axis=1)
    if (
        np.linalg.norm(linear)
        <= DOUBT * np.abs(c) @ functions.each("rounding") + uncertainty @ lengths
    ):
        linear = np.zeros_like(linear)
    quadratic = np.einsum("j,jpq->pq", c * t, functions.each("covariance"))
    if modulo != "quadratic":
        quadratic = np.zeros_like(quadratic)
    terms = c * values_at(functions, points, 1)
    misfit = terms.sum(axis=-1) - points @ quadratic
    if modulo == "constants":
        misfit = misfit + linear
        linear = np.zeros_like(linear)
    largest = max(float(np.abs(terms).max()), float(np.finfo(float).tiny))
    residual = float(np.abs(misfit).max()) / largest
    return Relation(c, uncertainty, linear, quadratic, residual)
