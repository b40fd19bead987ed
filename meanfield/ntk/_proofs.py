"""The two theorems of a certificate: their inputs, what stands in their way, their enclosures."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, ClassVar, Literal

import flint
import jax
import numpy as np

from meanfield._checks import require, require_finite
from meanfield.fields.attention import AttentionAV, AttentionQKV
from meanfield.laws import AbstractLaw
from meanfield.ntk import _balls
from meanfield.ntk.injectivity import independence, predicted_nullity, reasons
from meanfield.ntk.pairs import Pairs, pairs_of

Modulo = Literal["affine", "constants", "quadratic"]

LARGEST_PAIRS = 256
_LARGEST_MATRIX = 1024  # functions of an independence certificate
_LARGEST_WORK = 10**7  # exponentials at one precision: about half a minute
MODULO = {
    "affine": "affine functions",
    "constants": "constants",
    "quadratic": "polynomials of degree 2",
}
_DEGREE = {"constants": 0, "affine": 1, "quadratic": 2}
_CONSEQUENCES = {
    "affine": (
        "; as all of them have bounded support, the V-part of the attention kernel is positive at "
        "any two or more non-zero, pairwise non-collinear queries that the contexts share, for "
        "every law of heads of full support (docs/theory.md 3.2, corollary i)"
    ),
    "constants": (
        "; so the V-part of the attention kernel is positive at any one query that the contexts "
        "share and that is not 0, for every law of heads of full support in the laws' domain with "
        "square integrable means (docs/theory.md 3.2, corollary ii)"
    ),
    "quadratic": (
        "; so the V-part of the attention kernel is positive at any non-zero, pairwise "
        "non-collinear queries that the contexts share, for every law of heads of full support in "
        "the laws' domain with square integrable means (docs/theory.md 3.2, corollary i)"
    ),
}
MEND = "restore the file, or certify again"


def num_functions(modulo: str, num_laws: int, dim: int) -> int:
    """J CGFs and the monomials that they are independent modulo; raises if they are too many."""
    num = num_laws + math.comb(dim + _DEGREE[modulo], dim)
    require(
        num <= _LARGEST_MATRIX,
        f"{num} functions: {num_laws} laws in d = {dim} modulo {MODULO[modulo]}",
        f"at most {_LARGEST_MATRIX} for a certificate of independence",
        "take fewer contexts or a smaller width",
    )
    return num


def _monomials(modulo: str, dim: int) -> list[tuple[int, ...]]:
    """The monomials of degree 0 (and 1, and 2), each by the coordinates it multiplies."""
    return [
        powers
        for order in range(_DEGREE[modulo] + 1)
        for powers in combinations_with_replacement(range(dim), order)
    ]


def _require_work(points: int, laws: Sequence[AbstractLaw]) -> None:
    """Refuse work beyond `_LARGEST_WORK`: each law at that many points."""
    terms = sum(sum(np.size(leaf) for leaf in jax.tree.leaves(law)) // law.dim + 1 for law in laws)
    work = points * (terms + len(laws) * laws[0].dim)
    require(
        work <= _LARGEST_WORK,
        f"a certificate with {work:.3g} exponentials",
        f"at most {_LARGEST_WORK:.0e}",
        "take fewer tokens, pairs or heads",
    )


@dataclass(frozen=True)
class Independence:
    """``det( Lam_1, ..., Lam_J, 1, z_1, ..., z_d at the points ) != 0``."""

    laws: tuple[AbstractLaw, ...]
    modulo: Modulo
    points: np.ndarray

    kind: ClassVar[Literal["independence", "positivity"]] = "independence"
    keys: ClassVar[tuple[str, ...]] = ("laws", "points")

    @classmethod
    def from_data(cls, modulo: Any, inputs: dict[str, Any]) -> "Independence":
        """The problem that `inputs` wrote; raises `MeanfieldError` on anything else."""
        require(modulo in MODULO, f"modulo is {modulo!r}"[:200], f"one of {list(MODULO)}", MEND)
        return cls(_laws_of(inputs["laws"]), modulo, _balls.numbers("points", inputs["points"], 2))

    @property
    def inputs(self) -> dict[str, Any]:
        """Laws and points as exact JSON data."""
        laws = [_balls.law_to_data(law) for law in self.laws]
        return {"laws": laws, "points": self.points.tolist()}

    @property
    def statement(self) -> str:
        """The theorem in words."""
        text = (
            f"the cumulant generating functions of these {len(self.laws)} token laws are linearly "
            f"independent modulo {MODULO[self.modulo]}: together with these, their values at the "
            "stored points have a determinant that is not 0"
        )
        follows = self.modulo != "affine" or all(law.has_bounded_support for law in self.laws)
        silent = (
            "; for the kernel of unbounded laws nothing follows (docs/theory.md 3.2, corollary i)"
        )
        return text + (_CONSEQUENCES[self.modulo] if follows else silent)

    def check(self) -> None:
        """Raise `MeanfieldError` on a wrong number of points or too much work."""
        dim = self.laws[0].dim
        num = num_functions(self.modulo, len(self.laws), dim)
        _require_work(num, self.laws)
        require(
            self.points.shape == (num, dim),
            f"points of shape {self.points.shape} for {len(self.laws)} laws modulo {self.modulo}",
            f"({num}, {dim}): as many points as functions",
            MEND,
        )

    def obstacle(self) -> str:
        """A relation that holds to rounding, in words; empty if there is none."""
        found = independence(self.laws, modulo=self.modulo)
        if not (found.nullity and found.decided):
            return ""
        relation = found.relations[0]
        terms = [
            f"{'-' if value < 0 else '+'} {f'{abs(value):.4g} ' if abs(value) != 1 else ''}Lam_{i}"
            for i, value in enumerate(relation.coefficients, 1)
            if value
        ]
        rest = [f"<({', '.join(f'{v:.4g}' for v in relation.linear)}), z>"]
        parts = rest * bool(relation.linear.any())
        parts += ["a quadratic form"] * bool(relation.quadratic.any())
        # The kernel at queries that all contexts share knows more words: translate, duplicate.
        shared = pairs_of(self.laws, "one" if self.modulo == "constants" else "shared:2")
        told = [""] + reasons(shared, predicted_nullity(shared))
        return (
            f"to rounding, {' '.join(terms).removeprefix('+ ')} = {' + '.join(parts) or '0'}, "
            f"where Lam_i is the cumulant generating function of context i{'; '.join(told)}"
        )

    def enclose(self) -> tuple[flint.arb, dict[str, Any]] | None:
        """The determinant in balls, and the field that states it; None if it is not finite."""
        z = _balls.exact(self.points)
        columns = [_balls.cgf(law, z) for law in self.laws]
        entries = _balls.rows(z)
        for powers in _monomials(self.modulo, self.points.shape[1]):
            columns.append([math.prod((row[i] for i in powers), start=_ONE) for row in entries])
        matrix = flint.arb_mat(columns)
        if not _balls.is_finite(matrix):
            return None
        determinant = matrix.det()
        ends = [_balls.decimal_bound(determinant, up=up) for up in (False, True)]
        return determinant, {"enclosure": None if None in ends else tuple(ends)}


@dataclass(frozen=True)
class Positivity:
    """``lambda_min(K) >= |K^-4|_F^(-1/4)`` for the scalar V-part Gram matrix of pairs and heads.

    ``heads`` are score matrices ``A [M, d, d]``, or ``Q, K [M, k, d]``, by their names.
    """

    pairs: Pairs
    heads: dict[str, np.ndarray]
    scale: float

    kind: ClassVar[Literal["independence", "positivity"]] = "positivity"
    keys: ClassVar[tuple[str, ...]] = ("laws", "index", "queries", "heads", "scale")
    modulo: ClassVar[None] = None

    @classmethod
    def from_data(cls, modulo: Any, inputs: dict[str, Any]) -> "Positivity":
        """The problem that `inputs` wrote; raises `MeanfieldError` on anything else."""
        require(modulo is None, f"modulo is {modulo!r}"[:200], "null for positivity", MEND)
        laws, heads = _laws_of(inputs["laws"]), inputs["heads"]
        index = _balls.numbers("index", inputs["index"], 1)
        queries = _balls.numbers("queries", inputs["queries"], 2)
        require(
            index.shape == (len(queries),)
            and np.isin(index, np.arange(len(laws))).all()
            and queries.shape[1] == laws[0].dim,
            f"{index.size} indices and queries of shape {queries.shape} as stored",
            f"one index from 0 to {len(laws) - 1} for each query of width {laws[0].dim}",
            MEND,
        )
        require(
            isinstance(heads, dict) and sorted(heads) in (["A"], ["K", "Q"]),
            "heads as stored",
            "A, or Q and K",
            MEND,
        )
        arrays = {name: _balls.numbers(name, value, 3) for name, value in heads.items()}
        scale = float(_balls.numbers("scale", inputs["scale"], 0))
        return cls(Pairs(laws, index.astype(int), queries), arrays, scale)

    @property
    def num_heads(self) -> int:
        """M."""
        return len(next(iter(self.heads.values())))

    @property
    def inputs(self) -> dict[str, Any]:
        """Laws, pairs and heads as exact JSON data."""
        return {
            "laws": [_balls.law_to_data(law) for law in self.pairs.laws],
            "index": self.pairs.index.tolist(),
            "queries": self.pairs.queries.tolist(),
            "heads": {name: values.tolist() for name, values in self.heads.items()},
            "scale": float(self.scale),
        }

    @property
    def statement(self) -> str:
        """The theorem in words."""
        return (
            "the V-part Gram matrix K(a, b) = (1/M) sum_j <m_a(A_j), m_b(A_j)> of these "
            f"{self.pairs.num_pairs} pairs and M = {self.num_heads} heads has no eigenvalue below "
            "the stated lower bound; so the V-part of the attention kernel is strictly positive "
            "for every law of heads in the contexts' domain, with square integrable means, whose "
            "support contains these (docs/theory.md 3.7)"
        )

    def check(self) -> None:
        """Raise `MeanfieldError` on heads that do not fit or too much work."""
        require(
            self.pairs.num_pairs <= LARGEST_PAIRS,
            f"{self.pairs.num_pairs} pairs",
            f"at most {LARGEST_PAIRS} for a certificate of positivity",
            "take fewer queries, or certify independence",
        )
        dim, shapes = self.pairs.dim, [values.shape for values in self.heads.values()]
        require(
            len(set(shapes)) == 1
            and shapes[0][2] == dim
            and ("Q" in self.heads or shapes[0][1] == dim),
            f"heads {', '.join(self.heads)} of shapes {shapes}",
            f"A [M, {dim}, {dim}], or Q and K [M, k, {dim}]",
            "give the heads the width of the tokens",
        )
        laws = [self.pairs.laws[i] for i in self.pairs.index]
        _require_work(self.num_heads, laws)

    def obstacle(self) -> str:
        """A null vector that theory or counting predicts, in words; empty if there is none."""
        prediction = predicted_nullity(self.pairs)
        few = self.pairs.num_pairs - self.num_heads * prediction.span_dim
        if few <= 0 and not (prediction.nullity and prediction.decided):
            return ""
        return "; ".join(reasons(self.pairs, prediction, num_heads=self.num_heads))

    def features(self) -> flint.arb_mat:
        """``m_a(A_j)``, all heads of a pair in one row: ``[P, M d]``, enclosed."""
        if "A" in self.heads:
            scores = [_balls.exact(one) for one in self.heads["A"]]
        else:
            both = zip(self.heads["Q"], self.heads["K"], strict=True)
            scores = [_balls.exact(q).transpose() * _balls.exact(k) for q, k in both]
        lines = zip(*map(_balls.rows, scores), strict=True)
        side_by_side = flint.arb_mat([[entry for one in line for entry in one] for line in lines])
        side_by_side = side_by_side * flint.arb(float(self.scale))
        width = self.num_heads * self.pairs.dim
        features: dict[int, list[flint.arb]] = {}
        for number, law in enumerate(self.pairs.laws):
            members = np.flatnonzero(self.pairs.index == number).tolist()
            if members:
                tilts = (_balls.exact(self.pairs.queries[members]) * side_by_side).entries()
                z = flint.arb_mat(len(members) * self.num_heads, self.pairs.dim, tilts)
                means = _balls.gradient(law, z).entries()
                for place, member in enumerate(members):
                    features[member] = means[place * width : (place + 1) * width]
        return flint.arb_mat([features[a] for a in range(self.pairs.num_pairs)])

    def enclose(self) -> tuple[flint.arb, dict[str, Any]] | None:
        """The bound in balls, and the field that states it; None if nothing is finite."""
        features = self.features()
        if not _balls.is_finite(features):
            return None
        gram = features * features.transpose() / flint.arb(self.num_heads)
        try:
            inverse = gram.inv()
        except ZeroDivisionError:  # this precision does not prove that K is invertible
            return None
        # K >= 0 is symmetric, so lambda_max(K^-1)^4 = lambda_max(K^-4) <= |K^-4|_F.
        square = inverse * inverse
        fourth = (square * square).entries()
        bound = 1 / sum((entry**2 for entry in fourth), flint.arb(0)).root(8)
        return bound, {"lower_bound": _float_below(bound)}


Problem = Independence | Positivity
PROBLEMS = {"independence": Independence, "positivity": Positivity}
_ONE = flint.arb(1)


def as_stored(laws: Sequence[AbstractLaw]) -> tuple[AbstractLaw, ...]:
    """The laws as a file brings them back: what is proved now is what is checked later."""
    return tuple(_balls.law_from_data(_balls.law_to_data(law)) for law in laws)


def as_heads(heads: Any) -> dict[str, np.ndarray]:
    """The score part of some heads, exact in float64, by name.

    Raises: `MeanfieldError` on anything but `AttentionAV` or `AttentionQKV` with arrays of 3 axes.
    """
    mend = "pass heads=AttentionAV(A, V) with A [M, d, d], or AttentionQKV(Q, K, V)"
    require(
        isinstance(heads, AttentionAV | AttentionQKV),
        f"heads is {type(heads).__name__}",
        "the attention heads of a certificate of positivity",
        mend,
    )
    names = ("A",) if isinstance(heads, AttentionAV) else ("Q", "K")
    arrays = {name: np.asarray(getattr(heads, name)) for name in names}
    for name, values in arrays.items():
        require(
            values.dtype.kind in "fiu" and values.ndim == 3 and 0 not in values.shape,
            f"{name} of type {values.dtype} and shape {values.shape}",
            "real numbers with leading axis M",
            mend,
        )
        require_finite(name, values)
    return {name: values.astype(np.float64) for name, values in arrays.items()}


def _laws_of(data: Any) -> tuple[AbstractLaw, ...]:
    """Stored laws, of one width."""
    require(isinstance(data, list) and data, "laws as stored", "a list of laws", MEND)
    laws = tuple(_balls.law_from_data(one) for one in data)
    widths = sorted({law.dim for law in laws})
    require(len(widths) == 1, f"stored laws of widths {widths}", "one width", MEND)
    return laws


def _float_below(ball: flint.arb) -> float | None:
    """A positive float64 number that is not above the ball's lower end, or None."""
    text = _balls.decimal_bound(ball, up=False)
    below = 0.0 if text is None else min(float(text), sys.float_info.max)
    if flint.arb(below) > ball.lower():  # the nearest float64 number may lie above the decimals
        below = math.nextafter(below, 0.0)
    return below if below > 0 else None
