"""Control cases of the kernel's nullity, a table: what to build and what theory says.

All follow from the theorem of docs/theory.md 3.2, by the words beside each case: ``W`` is the space
of relations of one line, ``b`` the constants they leave, and the nullity of the V-part is
``sum dim W`` minus the rank of the b (and of the slopes T (x) e of Gaussian parts), that of the
A-part the same without b. In d = 1 all queries share one line, so functions with different
multiples of z meet in one W.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meanfield as mf
from meanfield.ntk.pairs import Pairs, pairs_of, shared_queries


class Case(NamedTuple):
    """One control case.

    ``value``, ``score``: nullity of the V- and of the A-part per coordinate, infinitely many heads
    (that of the full kernel is ``value``). ``num_heads`` and ``few``: so many heads leave the
    V-part ``few`` null directions. ``head_dim``: 1 where heads of rank 1 must do.
    """

    name: str
    dim: int
    build: Callable[[], Pairs]
    value: int
    score: int
    num_heads: int | None = None
    few: int | None = None
    head_dim: int | None = None


def queries(num: int, dim: int) -> np.ndarray:
    """Pairwise non-collinear for d > 1; in d = 1 multiples whose ratios meet no other ratio."""
    if dim == 1:
        return np.array([1.0, 2.7, 7.3, -1.9, -5.1, 0.4])[:num, None]
    return shared_queries(num, dim, seed=3)


def points(seed: int, num: int, dim: int) -> np.ndarray:
    """Independent standard Gaussian tokens around (0.2, ..., 0.2)."""
    return np.random.default_rng([seed, num, dim]).normal(size=(num, dim)) + 0.2


def cloud(values: Any, weights: Any = None) -> mf.Empirical:
    """The law of a cloud."""
    return mf.Empirical(
        mf.TokenMeasure(values)
        if weights is None
        else mf.TokenMeasure.from_weights(values, weights)
    )


def covariance(seed: int, dim: int) -> np.ndarray:
    """A generic covariance of unit size."""
    root = np.random.default_rng([seed, dim]).normal(size=(dim, dim)) / 2 + np.eye(dim)
    return root @ root.T / 2


def shift(dim: int) -> np.ndarray:
    """(0.3, -0.2, 0.3, ...)."""
    return np.resize([0.3, -0.2], dim)


def corners(dim: int) -> np.ndarray:
    """The 2^d points (+-1, ..., +-1): a product of Rademacher laws."""
    return np.stack(np.meshgrid(*[[-1.0, 1.0]] * dim), axis=-1).reshape(-1, dim)


def gaussians(num: int, dim: int) -> list[mf.AbstractLaw]:
    """Centred Gaussians of generic covariances."""
    return [mf.Gaussian(np.zeros(dim), covariance(number, dim)) for number in range(num)]


def _mixtures(dim: int) -> list[mf.AbstractLaw]:
    theta = np.resize([0.6, 0.3], dim)
    return [mf.two_component_mixture(k * theta, covariance(0, dim)) for k in (1, 2)]


def _iid(num: int, tokens: int, dim: int) -> list[mf.AbstractLaw]:
    return [cloud(points(number, tokens, dim)) for number in range(num)]


def _translates(dim: int, tokens: int = 4) -> list[mf.AbstractLaw]:
    first = points(0, tokens, dim)
    return [cloud(first), cloud(first + shift(dim))]


def _cases(dim: int) -> list[Case]:
    """All control cases in one dimension."""
    x = queries(1, dim)

    def of(d1: int, d2: int, d3: int, d5: int) -> int:
        return {1: d1, 2: d2, 3: d3, 5: d5}[dim]

    # V-values and A-values stand in the order d = 1, 2, 3, 5 where they differ.
    cases = [
        # Functions log(sinh(r t z)/(r t z)), d = 1 too, with r t pairwise different: the largest
        # r t owns the zero of the moment generating function nearest to 0, so W = 0 by induction.
        ("P1 two cubes", lambda: ([mf.Cube(r, dim) for r in (1.0, 2.0)], queries(3, dim)), 0, 0),
        (
            "P1 three cubes",
            lambda: ([mf.Cube(r, dim) for r in (1.0, 1.5, 2.0)], queries(2 + (dim > 1), dim)),
            0,
            0,
        ),
        # Poles on {t^2 z^T S z = 2}, pairwise different also in d = 1 (t^2 S = 1, 1.5625, 0.6,
        # 0.9375): W = 0 modulo every analytic function.
        (
            "P2 Laplace",
            lambda: (
                [mf.Laplace(s * covariance(0, dim)) for s in (1.0, 0.6)],
                np.array([[1.0], [1.25]]) if dim == 1 else queries(3, dim),
            ),
            0,
            0,
        ),
        # Zeros of cosh at t <theta, z> = i pi/2, pairwise different multiples of theta: W = 0.
        ("P3 mixtures", lambda: (_mixtures(dim), queries(3, dim)), 0, 0),
        # Gaps between extreme tokens, times t, are pairwise different almost surely: W = 0.
        ("P4 iid clouds", lambda: (_iid(3, 4, dim), queries(of(2, 3, 3, 3), dim)), 0, 0),
        # Lines of one pair each: W = 0, no cloud being a point. In d = 1 one line with clouds of 2
        # tokens: the gaps |x_a| g_i are pairwise different on both sides.
        (
            "P5 own tokens",
            lambda: (_iid(3 if dim > 1 else 2, 4 if dim > 1 else 2, dim), "own"),
            0,
            0,
        ),
        # The same; in d = 1 modulo affine functions one cloud at 2 n different multiples.
        ("P6 translates, own tokens", lambda: (_translates(dim, 4 if dim > 1 else 2), "own"), 0, 0),
        # W = span(1, -1), b = shift: rank 1.
        ("P8 translates, one query", lambda: (_translates(dim), x), 0, 1),
        # W = R, b = a.
        ("P9 a point, one query", lambda: ([cloud(points(0, 1, dim))], x), 0, 1),
        # W = R^2 on each line, T = c_1 S_1 + c_2 S_2: rank dim span S * dim span X = 2 min(2, d),
        # in d = 1 it is 1; A and V agree since b = 0.
        (
            "P10 two Gaussians, K = 2",
            lambda: (gaussians(2, dim), queries(2, dim)),
            of(4 - 1, 0, 0, 0),
            of(4 - 1, 0, 0, 0),
        ),
        # rank 3 * 2; d = 1: 1.
        (
            "P10 three Gaussians, K = 2",
            lambda: (gaussians(3, dim), queries(2, dim)),
            of(6 - 1, 0, 0, 0),
            of(6 - 1, 0, 0, 0),
        ),
        # The same gaps, but other ratios of the extreme masses on the two sides: W = 0.
        (
            "P11 same support, other weights",
            lambda: (
                [cloud(points(0, 4, dim), w) for w in ([1, 2, 3, 4.0], [4, 2, 1, 1.0])],
                queries(2, dim),
            ),
            0,
            0,
        ),
        # dim W = 1 for each query (in d = 1: 3 on the line), all b = c shift: rank 1.
        ("N1 translates, K = 3", lambda: (_translates(dim), queries(3, dim)), 2, 3),
        # The same with b = 0.
        ("N2 duplicate, K = 3", lambda: (_translates(dim)[:1] * 2, queries(3, dim)), 3, 3),
        # W = R for each query, b = c a: rank 1, or 0 for a = 0.
        ("N3 a point, K = 3", lambda: ([cloud(points(0, 1, dim))], queries(3, dim)), 2, 3),
        ("N3 the origin, K = 3", lambda: ([cloud(np.zeros((1, dim)))], queries(3, dim)), 3, 3),
        # q = d + 3 points in general position: rank d.
        (
            "N4 d + 3 points, a query each",
            lambda: (
                [cloud(points(number, 1, dim)) for number in range(dim + 3)],
                [queries(dim + 3, dim)[[k]] for k in range(dim + 3)],
            ),
            3,
            dim + 3,
        ),
        # K = d + 2: K lines (d = 1: one) of W = R, T (x) e = S (x) sum c x: rank d.
        ("N5 a Gaussian, K = d + 2", lambda: (gaussians(1, dim), queries(dim + 2, dim)), 2, 2),
        # One line, r_1 t_1 = r_2 t_2, centred: dim W = 1, b = 0.
        (
            "N6 cubes, queries in the inverse ratio",
            lambda: ([mf.Cube(1.0, dim), mf.Cube(1.5, dim)], [x, x / 1.5]),
            1,
            1,
        ),
        # N K - min(N, d(d+1)/2) min(K, d) with N = 4, K = 4: 16 - 1, 16 - 3 * 2, 16 - 4 * 3,
        # 16 - 4 * 4.
        (
            "N7 four Gaussians, K = 4",
            lambda: (gaussians(4, dim), queries(4, dim)),
            of(15, 10, 4, 0),
            of(15, 10, 4, 0),
        ),
        # 6 - 1, 6 - 2 * 2, 6 - 2 * 3, 6 - 2 * 3.
        (
            "N8 two Gaussians, K = 3",
            lambda: (gaussians(2, dim), queries(3, dim)),
            of(5, 2, 0, 0),
            of(5, 2, 0, 0),
        ),
        # One line, T = (c_1 + 2 c_2) S: rank 1 of 2.
        (
            "N9 a Gaussian, x and 2 x",
            lambda: (gaussians(1, dim), np.concatenate([x, 2 * x])),
            1,
            1,
        ),
        # m(-z) = -m(z): W = span(1, 1), b = 0.
        (
            "N10 symmetric cloud, x and -x",
            lambda: (
                [cloud(np.concatenate([points(0, 3, dim), -points(0, 3, dim)]))],
                np.concatenate([x, -x]),
            ),
            1,
            1,
        ),
        # The same for a cloud and its reflection; b = mean - mean.
        (
            "N11 reflection, x and -x",
            lambda: ([cloud(points(0, 4, dim)), cloud(-points(0, 4, dim))], [x, -x]),
            1,
            1,
        ),
        # sinh(2z)/2z = sinh(z)/z cosh(z): dim W = 1 for each query, b = 0. In d = 1 no two of the
        # multiples 1, 2.7, 7.3 have ratio 2, so 3 as well.
        (
            "N12 cubes and corners, K = 3",
            lambda: (
                [mf.Cube(2.0, dim), mf.Cube(1.0, dim), cloud(corners(dim))],
                queries(of(2, 3, 3, 3), dim),
            ),
            of(2, 3, 3, 3),
            of(2, 3, 3, 3),
        ),
        # 2 Lam_1 - Lam_2 = 0: dim W = 1 for each query, b = 2 mean - 2 mean.
        (
            "N14 a cloud and its square, K = 3",
            lambda: (
                [cloud(points(0, 4, dim)), mf.Convolution([cloud(points(0, 4, dim))] * 2)],
                queries(3, dim),
            ),
            3,
            3,
        ),
        # -log(1 - q) and -2 log(1 - q): the same.
        (
            "N15 Laplace and variance-gamma, K = 3",
            lambda: (
                [
                    mf.Laplace(covariance(0, dim)),
                    mf.Convolution([mf.Laplace(covariance(0, dim))] * 2),
                ],
                np.array([[1.0], [1.5], [0.6]]) if dim == 1 else queries(3, dim),
            ),
            3,
            3,
        ),
        # Class 0: W_0 = R^q, b = sum c mean, T = 0.
        (
            "N16 a centred cube at x and 0",
            lambda: ([mf.Cube(1.0, dim)], np.concatenate([x, 0 * x])),
            1,
            1,
        ),
        ("N16 d + 2 clouds at 0", lambda: (_iid(dim + 2, 4, dim), 0 * x), 2, dim + 2),
        ("a cloud at 0, not centred", lambda: (_iid(1, 4, dim), 0 * x), 0, 1),
        # The table of parts: duplicate K = 2, U_2 = U_1 * corners with K = 2.
        ("duplicate, K = 2", lambda: (_translates(dim)[:1] * 2, queries(2, dim)), 2, 2),
        (
            "cubes and corners, K = 2",
            lambda: (
                [mf.Cube(2.0, dim), mf.Cube(1.0, dim), cloud(corners(dim))],
                queries(2, dim),
            ),
            2,
            2,
        ),
        # A Gaussian added to a cube: W = span(1, -1), b = 0, T = -c S: K - min(K, d).
        (
            "a cube and the same with a Gaussian added, K = 4",
            lambda: (
                [mf.Cube(1.0, dim), mf.Convolution([mf.Cube(1.0, dim), *gaussians(1, dim)])],
                queries(2 if dim == 1 else 4, dim),
            ),
            of(1, 2, 1, 0),
            of(1, 2, 1, 0),
        ),
    ]
    table = [
        Case(name, dim, lambda build=build: pairs_of(*build()), value, score)
        for name, build, value, score in cases
    ]
    # Two heads have rank at most 2 d: 9 - 2 d where that is positive.
    table.append(
        Case(
            "N17 two heads, P = 9",
            dim,
            lambda: pairs_of(_iid(3, 4, dim), queries(3, dim)),
            0,
            0,
            num_heads=2,
            few=max(0, 9 - 2 * dim),
        )
    )
    # Heads of rank 1 see every line of z, so nothing changes.
    rank_one = {"P4 iid clouds", "P10 three Gaussians, K = 2", "N1 translates, K = 3"}
    table += [
        case._replace(name=f"{case.name}, head dimension 1", head_dim=1)
        for case in table
        if case.name in rank_one
    ]
    if dim == 1:
        # sinhc(2 t z) = sinhc(t z) cosh(t z) for t = 1, 2, and sinhc(2 z) comes twice: the 6
        # functions s(2), s(4), s(1), s(2), c(1), c(2) span s(1), s(2), s(4).
        table.append(
            Case(
                "N12 cubes and corners, x and 2 x",
                1,
                lambda: pairs_of(
                    [mf.Cube(2.0, 1), mf.Cube(1.0, 1), cloud(corners(1))],
                    np.array([[1.0], [2.0]]),
                ),
                3,
                3,
            )
        )
    return table


CASES = [case for dim in (2, 1, 3, 5) for case in _cases(dim)]
