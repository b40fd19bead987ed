"""The nullity that theory predicts for the kernel of given pairs: lines of queries, relations."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import qr

from meanfield._checks import require, require_positive_integer
from meanfield.ntk.injectivity._functions import (
    Functions,
    LawFacts,
    facts_of,
    symmetric_basis,
)
from meanfield.ntk.injectivity._independence import (
    DOUBT,
    Independence,
    Relation,
    decide,
    echelon,
    simplified,
    solve,
)
from meanfield.ntk.pairs import EPS, Pairs, pairs_of
from meanfield.ntk.spectra import LEAST_GAP, decide_rank

_COLLINEAR = 64 * EPS  # sine of the angle between two queries on one line, rounding included
_NEAR = 1e-10  # angles below are looked at one by one
_LARGEST_LINE = 1024
_LARGEST_BASIS = 512


@dataclasses.dataclass(frozen=True)
class Line:
    """The pairs whose queries lie on one line through 0: ``x_a = t_a e``.

    Attributes:
        direction: e, of length 1, ``[d]``; 0 for the class of the queries at 0.
        pairs: their positions among all pairs. multiples: t_a.
        relations: basis of ``W = {c : sum_a c_a m_a(t_a z) is affine in z}`` (constant, where all
            laws of the line have bounded support); coefficients in the order of ``pairs``.
        active: for each relation, whether a null direction of the whole kernel uses it.
    """

    direction: np.ndarray
    pairs: np.ndarray
    multiples: np.ndarray
    relations: tuple[Relation, ...]
    active: tuple[bool, ...]

    @property
    def nullity(self) -> int:
        """dim W."""
        return len(self.relations)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Nullity of the kernel of infinitely many heads, by theory.

    Attributes:
        pairs: the pairs it speaks of.
        nullity: of the scalar V-kernel; of the full kernel, per coordinate, too.
        score_nullity: of the A-part, per coordinate.
        gap: worst decision inside, kept over dropped.
        lines: groups of collinear queries with their relations.
        null_vectors: a readable basis of the null directions, ``[P, nullity]`` (at most 256 of
            them where very many are null).
        span_dim: dimension of the span of all supports: no ensemble of M heads has a V-kernel of
            rank above ``M span_dim``.
    """

    pairs: Pairs
    nullity: int
    score_nullity: int
    gap: float
    lines: tuple[Line, ...]
    null_vectors: np.ndarray
    span_dim: int

    @property
    def value_nullity(self) -> int:
        """That of the V-part: `nullity`."""
        return self.nullity

    @property
    def decided(self) -> bool:
        """Whether every decision inside has a gap of at least 1e3."""
        return bool(self.gap >= LEAST_GAP)

    def for_heads(self, num_heads: int) -> int:
        """Nullity that M heads cannot go below: ``max(nullity, P - M span)``.

        Heads in general position reach it, unless some contexts span less than all of them do.
        """
        require_positive_integer("num_heads", num_heads)
        return max(self.nullity, self.pairs.num_pairs - num_heads * self.span_dim)


def predicted_nullity(contexts: Any, queries: Any = "own", *, seed: int = 0) -> Prediction:
    """Nullity of the attention kernel of heads with full support, by theory.

    Group the pairs by lines, ``x_a = t_a e_l``. A vector c is null if and only if on each line
    ``f_l(z) = sum_a c_a m_a(t_a z) = b_l + T_l z`` (c lies in ``W_l``) and

        sum_l b_l = 0,    sum_l T_l (x) e_l = 0,

    where ``b_l = sum_a c_a mean_a`` and ``T_l = sum_a c_a t_a Cov_a``. Queries at 0 form one more
    class, with ``W = R^P``, ``T = 0``. Bounded laws have ``T_l = 0``. So the nullity of the V-part
    is ``sum_l dim W_l`` minus a rank; the A-part drops the condition on b.

    Args:
        contexts, queries: see `ntk.pairs_of`, or `Pairs` as the first.
        seed: of the points where functions are compared, and of shared queries.

    Raises: `MeanfieldError` on other contexts or queries, or over 1024 pairs on one line.
    Reference: reconstruction, docs/theory.md 3.2.
    Cost: one `independence` for each different line.
    """
    pairs = pairs_of(contexts, queries, seed=seed)
    facts = facts_of(pairs.laws)
    groups, at_zero, gap = _group(pairs.queries)
    solved: dict[Any, Independence] = {}
    lines: list[Line] = []
    for direction, members, multiples in groups:
        key, functions = _functions(facts, pairs.index[members], multiples)
        if key not in solved:
            is_bounded = all(facts[i].is_bounded for i in functions.index)
            solved[key] = solve(functions, "affine" if is_bounded else "quadratic", seed=seed)
        gap = min(gap, solved[key].gap)
        lines.append(Line(direction, members, multiples, solved[key].relations, ()))
    if len(at_zero):
        lines.append(_zero_line(facts, pairs.index, at_zero))
    basis = _Basis(facts, pairs.index, lines)
    rank, value_gap, null = basis.null_space(with_constants=True)
    score_rank, score_gap, _ = basis.null_space(with_constants=False)
    span_dim, span_gap = _span(facts, np.unique(pairs.index))
    coordinates = basis.vectors(null)
    return Prediction(
        pairs,
        basis.size - rank,
        basis.size - score_rank,
        min(gap, value_gap, score_gap, span_gap),
        tuple(basis.marked(lines, null)),
        coordinates,
        span_dim,
    )


def _group(
    queries: np.ndarray,
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray, float]:
    """Lines through 0 as (direction, members, multiples), the queries at 0, and the gap."""
    lengths = np.linalg.norm(queries, axis=1)
    at_zero = lengths <= EPS * lengths.max(initial=0.0)
    members = np.flatnonzero(~at_zero)
    units = queries[members] / lengths[members, None]
    # Collinear queries have one |<u, w>|: sorted by it, only neighbours are compared.
    weights = np.random.default_rng(0).normal(size=queries.shape[1])
    height = np.abs(units @ (weights / np.linalg.norm(weights)))
    order = np.argsort(height, kind="stable")
    breaks = np.flatnonzero(np.diff(height[order]) > _NEAR) + 1
    label, gap = np.empty(len(members), dtype=int), float("inf")
    for run in np.split(order, breaks):
        leaders: list[int] = []
        for one in np.sort(run):
            cosines = units[leaders] @ units[one]
            sines = np.linalg.norm(units[one] - cosines[:, None] * units[leaders], axis=1)
            near = int(np.argmin(sines)) if leaders else -1
            if leaders and sines[near] <= _COLLINEAR:
                label[one] = leaders[near]
                continue
            gap = min(gap, float(sines.min(initial=np.inf)) / EPS)
            leaders.append(int(one))
            label[one] = one
    groups = []
    order = np.argsort(label, kind="stable")
    for run in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):
        if len(run):
            direction = units[label[run[0]]]
            groups.append((direction, members[run], queries[members[run]] @ direction))
    return groups, np.flatnonzero(at_zero), gap


def _functions(
    facts: tuple[LawFacts, ...], index: np.ndarray, multiples: np.ndarray
) -> tuple[Any, Functions]:
    """The functions of one line in units of its first multiple, and a key for equal lines."""
    require(
        len(index) <= _LARGEST_LINE,
        f"{len(index)} pairs whose queries lie on one line through 0",
        f"at most {_LARGEST_LINE}",
        "pass fewer queries, or in d = 1 fewer tokens",
    )
    ratios = multiples / multiples[0]
    key = tuple(index.tolist()), tuple(f"{ratio:.12e}" for ratio in ratios.tolist())
    return key, Functions(facts, index, ratios)


def _zero_line(facts: tuple[LawFacts, ...], index: np.ndarray, at_zero: np.ndarray) -> Line:
    """Queries at 0: each pair is a constant, its law's mean."""
    num, dim = len(at_zero), len(facts[0].mean)
    relations = []
    for unit, a in zip(np.eye(num), at_zero, strict=True):
        mean, rounding = facts[index[a]].mean, facts[index[a]].rounding
        is_centred = np.linalg.norm(mean) <= DOUBT * rounding
        linear = np.zeros(dim) if is_centred else mean
        relations.append(Relation(unit, np.zeros(num), linear, np.zeros((dim, dim)), 0.0))
    return Line(np.zeros(dim), at_zero, np.zeros(num), tuple(relations), ())


class _Basis:
    """All relations of all lines as columns: what each leaves, ``(b, T (x) e)``, and its errors."""

    def __init__(self, facts: tuple[LawFacts, ...], index: np.ndarray, lines: Sequence[Line]):
        self.index, self.lines = index, lines
        dim = len(facts[0].mean)
        upper = symmetric_basis(dim).reshape(dim * dim, -1)
        mean = np.array([one.mean for one in facts])
        covariance = np.array([one.covariance for one in facts])
        rounding = np.array([one.rounding for one in facts])
        spread = np.array([one.spread for one in facts])
        length = np.linalg.norm(mean, axis=1)
        is_bounded = np.array([one.is_bounded for one in facts])
        columns: list[tuple[np.ndarray, np.ndarray, float, float, float]] = []
        for line in lines:
            laws, t = index[line.pairs], line.multiples
            has_slope = not is_bounded[laws].all()
            for relation in line.relations:
                c, doubt = relation.coefficients, relation.uncertainty
                used = np.flatnonzero((c != 0) | (doubt != 0))
                i, c, doubt, s = laws[used], np.abs(c[used]), doubt[used], np.abs(t[used])
                slope = np.zeros(upper.shape[1] * dim)
                error = 0.0
                if has_slope:
                    matrix = np.tensordot(relation.coefficients[used] * t[used], covariance[i], 1)
                    slope = np.outer(upper.T @ matrix.ravel(), line.direction).ravel()
                    error = s @ (c * rounding[i] * spread[i] + doubt * spread[i] ** 2)
                columns.append(
                    (
                        relation.coefficients[used] @ mean[i],
                        slope,
                        float(c @ rounding[i] + doubt @ length[i]),
                        float(error),
                        float(c @ (length[i] + spread[i])),
                    )
                )
        self.size = len(columns)
        if columns:
            parts = [np.array(part) for part in zip(*columns, strict=True)]
            self.constants, self.slopes, self.errors, self.slope_errors, self.sizes = parts

    def null_space(self, *, with_constants: bool) -> tuple[int, float, np.ndarray]:
        """Rank and gap of the conditions, and a readable basis ``[columns, nullity]``."""
        if not self.size:
            return 0, float("inf"), np.zeros((0, 0))
        blocks = [(self.slopes, self.slope_errors)]
        if with_constants:
            blocks.append((self.constants, self.errors))
        rows, noise = [], np.zeros(self.size)
        for block, error in blocks:
            unit = float(error.max()) or 1.0
            rows.append(block.T / unit)
            noise = np.maximum(noise, error / unit)
        noise[noise == 0] = 1.0
        matrix = np.concatenate(rows) / noise
        largest = float(np.linalg.norm(matrix, axis=0).max())
        if largest == 0:  # no condition at all
            return 0, float("inf"), np.eye(self.size)[:, : _LARGEST_BASIS // 2]
        matrix, level = matrix / largest, float(np.sqrt(len(matrix))) / largest
        values = np.linalg.svd(matrix, compute_uv=False)
        size = float(np.min(self.sizes[self.errors > 0] / self.errors[self.errors > 0]))
        values = np.pad(values, (0, self.size - len(values)))
        nullity, gap = decide(values, level, size * level)
        rank = self.size - nullity
        if not with_constants or not nullity:
            return rank, gap, np.zeros((self.size, 0))
        some = np.arange(self.size)
        if self.size > _LARGEST_BASIS:
            order = qr(matrix, mode="r", pivoting=True)[-1]
            some = np.sort(order[: rank + _LARGEST_BASIS // 2])
        _, values, vectors = np.linalg.svd(matrix[:, some], full_matrices=True)
        weights = np.where(self.sizes > 0, self.sizes, 1.0)[some]
        reduced = echelon(vectors[rank:].T * (weights / noise[some])[:, None]) / weights[:, None]
        error = DOUBT * max(level, EPS) / (values[rank - 1] if rank else 1.0)
        null = np.zeros((self.size, reduced.shape[1]))
        for number, vector in enumerate(reduced.T):
            shares = np.abs(vector) * weights
            last = int(np.flatnonzero(shares > 1e-7 * shares.max())[-1])
            doubt = error * shares.max() / weights / abs(vector[last])
            null[some, number] = simplified(vector / vector[last], doubt)[0]
        return rank, gap, null

    def vectors(self, null: np.ndarray) -> np.ndarray:
        """Null directions over the pairs, ``[P, k]``."""
        vectors = np.zeros((len(self.index), null.shape[1]))
        column = 0
        for line in self.lines:
            for relation in line.relations:
                vectors[line.pairs] += np.outer(relation.coefficients, null[column])
                column += 1
        return vectors

    def marked(self, lines: Sequence[Line], null: np.ndarray) -> list[Line]:
        """The lines with the relations that a null direction uses."""
        used, done, column = np.any(null != 0, axis=1), [], 0
        for line in lines:
            active = tuple(used[column : column + line.nullity].tolist())
            done.append(dataclasses.replace(line, active=active))
            column += line.nullity
        return done


def _span(facts: tuple[LawFacts, ...], used: np.ndarray) -> tuple[int, float]:
    """Dimension of the span of the supports: of all means and covariances."""
    columns = []
    for i in used:
        size = np.linalg.norm(facts[i].mean) + facts[i].spread
        if size > 0:
            columns.append(facts[i].mean[:, None] / size)
            columns.append(facts[i].covariance / (size * (facts[i].spread or 1.0)))
    if not columns:
        return 0, float("inf")
    values = np.linalg.svd(np.concatenate(columns, axis=1), compute_uv=False)
    nullity, gap = decide_rank(values, EPS)
    return len(values) - nullity, gap
