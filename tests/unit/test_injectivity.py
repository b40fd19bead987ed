"""Injectivity: relations of log-sum-exp functions, predicted nullity, separation, reasons."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import meanfield as mf
from meanfield.ntk.injectivity import (
    evaluation_points,
    independence,
    predicted_nullity,
    reasons,
    separation,
)
from meanfield.ntk.pairs import Pairs, evaluate, pairs_of
from tests.checklist import cloud, corners, covariance, gaussians, points, queries
from tests.planted import choices, plant

SHIFT = np.array([0.3, -0.2])
SIZES = (1e-6, 1.0, 1e6)


def features(pairs: Pairs, num_heads: int = 40, size: float = 1.0, seed: int = 5) -> np.ndarray:
    """``m_a(A^T x_a)`` of random heads, ``[M d, P]``."""
    heads = size * np.random.default_rng(seed).normal(size=(num_heads, pairs.dim, pairs.dim))
    z = np.einsum("pi,mij->pmj", pairs.queries, heads)
    columns = [
        evaluate(pairs.laws[i], one, 1).ravel() for i, one in zip(pairs.index, z, strict=True)
    ]
    return np.stack(columns, axis=1)


# ---------------------------------------------------------------------------------------------
# independence


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_translates_are_found_at_any_size_and_place(size: float, offset: float):
    first = size * (points(0, 5, 2) + offset)
    result = independence(
        [cloud(first), cloud(first + size * SHIFT), cloud(size * points(1, 5, 2))]
    )
    assert (result.nullity, result.decided, result.holds) == (1, True, False)
    relation = result.relations[0]
    np.testing.assert_array_equal(relation.coefficients, [-1.0, 1.0, 0.0])
    np.testing.assert_allclose(relation.linear, size * SHIFT, rtol=1e-9 + 1e-14 * offset)
    assert relation.residual < 1e-14 * (1 + offset)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_cubes_of_three_radii_are_clearly_independent(size: float, offset: float):
    laws = [mf.Cube(r * size, 2, np.full(2, offset * size)) for r in (1.0, 1.5, 2.0)]
    result = independence(laws)
    assert result.holds
    assert result.gap > 1e8


def test_a_translate_that_is_none_counts_as_independent():
    first = points(0, 5, 2)
    moved = first + SHIFT
    moved[0, 0] += 1e-8
    result = independence([cloud(first), cloud(moved)])
    assert result.holds
    assert 1e4 < result.gap < 1e9


def test_many_clouds_of_many_sizes_are_independent():
    laws = [cloud(points(number, 64 - number, 4)) for number in range(20)]
    assert independence(laws).gap > 1e12
    assert independence([cloud(s * points(1, 5, 2)) for s in (1e-6, 1.0, 1e6)]).gap > 1e12


def test_too_many_functions_for_float64_are_undecided():
    laws = [cloud(points(number, 2, 1)) for number in range(20)]
    result = independence(laws)
    assert not result.decided
    assert not result.holds


def test_a_point_is_a_zero_function_not_a_direction():
    """Its values are rounding errors: scaled to length 1 they would look independent."""
    far = np.full((3, 2), 1e3 / 3)
    result = independence([cloud(points(0, 4, 2)), cloud(far), cloud(points(1, 1, 2))])
    assert (result.nullity, result.decided) == (2, True)
    np.testing.assert_array_equal([r.coefficients for r in result.relations], np.eye(3)[1:])
    np.testing.assert_allclose(result.relations[0].linear, far[0])


def test_convolutions_leave_simple_coefficients():
    first, second = cloud(points(0, 4, 2)), cloud(points(1, 3, 2))
    both = mf.Convolution([first, second, second])
    relation = independence([first, second, both]).relations[0]
    np.testing.assert_array_equal(relation.coefficients, [-1.0, -2.0, 1.0])
    np.testing.assert_array_equal(relation.linear, np.zeros(2))


def test_modulo_constants_affine_and_quadratic():
    first = points(0, 4, 2)
    translates = [cloud(first), cloud(first + SHIFT)]
    assert independence(translates, modulo="constants").nullity == 0
    assert independence(translates, modulo="affine").nullity == 1
    assert independence([translates[0]] * 2, modulo="constants").nullity == 1
    # three points of R^2 have dependent means, and only these
    dots = [cloud(points(number, 1, 2)) for number in range(3)]
    relation = independence(dots, modulo="constants").relations[0]
    means = np.array([points(number, 1, 2)[0] for number in range(3)])
    np.testing.assert_allclose(relation.coefficients @ means, 0, atol=1e-12)
    assert independence(gaussians(2, 2), modulo="affine").nullity == 0
    # three covariances span Sym(2), a fourth is dependent
    assert independence(gaussians(4, 2), modulo="affine").nullity == 1
    result = independence(gaussians(2, 2), modulo="quadratic")
    assert (result.nullity, result.decided) == (2, True)
    np.testing.assert_allclose(result.relations[1].quadratic, covariance(1, 2), rtol=1e-12)
    blurred = mf.Convolution([mf.Cube(1.0, 2), *gaussians(1, 2)])
    assert independence([mf.Cube(1.0, 2), blurred]).nullity == 0
    assert independence([mf.Cube(1.0, 2), blurred], modulo="quadratic").nullity == 1


def test_laws_of_bounded_domain_are_asked_inside_it():
    laws = [mf.Laplace(s * covariance(0, 2)) for s in (0.1, 1.0, 100.0)]
    result = independence(laws, modulo="quadratic")
    assert result.holds
    assert all(bool(np.all(law.in_domain(result.points))) for law in laws)


def test_the_seed_changes_points_not_answers():
    laws = [cloud(points(number, 4, 2)) for number in range(3)]
    one, again, other = (independence(laws, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.points, again.points)
    assert not np.array_equal(one.points, other.points)
    assert one.nullity == other.nullity == 0


@pytest.mark.parametrize("modulo", ["constants", "affine", "quadratic"])
def test_evaluation_points_make_the_square_matrix_invertible(modulo: Any):
    laws = [mf.Cube(1.0, 2), mf.Laplace(0.3 * covariance(0, 2)), cloud(points(0, 4, 2))]
    extra = {"constants": 1, "affine": 3, "quadratic": 6}[modulo]
    z = evaluation_points(laws, 3 + extra, modulo=modulo)
    assert z.shape == (3 + extra, 2)
    columns = [evaluate(law, z, 0) for law in laws] + [np.ones(len(z))]
    columns += [z[:, 0], z[:, 1]] if extra > 1 else []
    columns += [z[:, 0] ** 2, z[:, 0] * z[:, 1], z[:, 1] ** 2] if extra > 3 else []
    matrix = np.stack(columns, axis=1)
    matrix /= np.abs(matrix).max(axis=1, keepdims=True)
    matrix /= np.abs(matrix).max(axis=0)
    assert np.linalg.cond(matrix) < 1e5


# ---------------------------------------------------------------------------------------------
# prediction


@settings(max_examples=60, deadline=None, derandomize=True)
@given(choices())
def test_prediction_is_what_was_planted(chosen: dict[str, Any]):
    problem = plant(**chosen)
    prediction = predicted_nullity(problem.pairs)
    assert prediction.decided
    assert (prediction.nullity, prediction.score_nullity) == (
        problem.nullity,
        problem.score_nullity,
    )
    null = prediction.null_vectors
    assert null.shape == (problem.pairs.num_pairs, problem.nullity)
    if problem.nullity:
        values = features(problem.pairs)
        assert np.abs(values @ null).max() < 1e-12 * (np.abs(values) @ np.abs(null)).max() + 1e-15


def test_planted_problems_are_no_trivial_ones():
    """The generator's own numbers, from the recipes of a duplicate, a translate, a point."""

    def nullities(*kinds: str) -> set[tuple[int, int]]:
        drawn = [
            plant(
                kinds=kinds,
                dim=2,
                num_queries=1,
                num_lines=3,
                are_shared=True,
                as_cloud=True,
                seed=seed,
            )
            for seed in range(40)
        ]
        return {(one.nullity, one.score_nullity) for one in drawn if one.pairs.queries.all()}

    assert nullities("base", "base") == {(0, 0)}
    assert nullities("base", "duplicate") == {(1, 1)}
    assert nullities("base", "translate") == {(0, 1)}
    assert nullities("dirac") == {(0, 1)}
    assert nullities("base", "base", "convolution") >= {(1, 1)}


def test_prediction_does_not_depend_on_the_order_of_pairs():
    pairs = pairs_of(
        [cloud(points(0, 4, 2)), cloud(points(0, 4, 2) + SHIFT), *gaussians(1, 2)], "shared:3"
    )
    straight = predicted_nullity(pairs)
    order = np.random.default_rng(0).permutation(pairs.num_pairs)
    shuffled = predicted_nullity(Pairs(pairs.laws, pairs.index[order], pairs.queries[order]))
    assert straight.nullity == shuffled.nullity == 2 + 1
    assert straight.score_nullity == shuffled.score_nullity == 3 + 1


@pytest.mark.parametrize("size", SIZES)
def test_prediction_is_free_of_scales(size: float):
    """Tokens B y and queries B^-T x have the same features up to B."""
    flat = size * np.array([[1.0, 0.5], [0.0, 1e-3]])
    first = points(0, 4, 2)
    both = [first @ flat.T, (first + 1e3 * SHIFT) @ flat.T, -2 * first @ flat.T]
    x = queries(3, 2) @ np.linalg.inv(flat)
    prediction = predicted_nullity([cloud(one) for one in both], [x, x, -x / 2])
    assert prediction.decided
    # lines: W = span of (-1, 1, 0) with b = shift and (2, 0, 1) with b = 0
    assert (prediction.nullity, prediction.score_nullity) == (3 + 2, 6)


def test_nearly_collinear_queries_are_undecided_or_different():
    laws = [cloud(points(0, 4, 2)), cloud(-points(0, 4, 2))]
    x = np.array([[0.6, 0.8]])
    for angle, nullity in ((0.0, 1), (1e-9, 0)):
        turned = -x + angle * np.array([[0.8, -0.6]])
        prediction = predicted_nullity(laws, [x, turned])
        assert prediction.nullity == nullity
        assert prediction.decided
    turned = -x + 1e-13 * np.array([[0.8, -0.6]])
    assert not predicted_nullity(laws, [x, turned]).decided


def test_heads_too_few():
    laws = [mf.AffineImage(cloud(points(number, 4, 1)), [[1.0], [2.0]]) for number in range(2)]
    prediction = predicted_nullity(laws, "shared:3")
    assert (prediction.nullity, prediction.span_dim) == (0, 1)
    assert [prediction.for_heads(m) for m in (1, 5, 6, 7)] == [5, 1, 0, 0]
    values = features(prediction.pairs, num_heads=4)
    assert np.linalg.matrix_rank(values, tol=1e-9) == 4  # not M d = 8, nor P = 6
    assert reasons(prediction.pairs, prediction, num_heads=4) == [
        "too few heads: M times the dimension 1 of all tokens = 4 < P = 6"
    ]


# ---------------------------------------------------------------------------------------------
# reasons


def told(contexts: Any, x: Any, num_heads: int | None = None) -> list[str]:
    prediction = predicted_nullity(contexts, x)
    return reasons(prediction.pairs, prediction, num_heads=num_heads)


def test_reasons_in_words():
    first, second = points(0, 4, 2), points(1, 3, 2)
    x, three = queries(1, 2), queries(3, 2)
    one, two = cloud(first), cloud(second)
    assert told([one, two], three) == []
    assert told([one, cloud(first + SHIFT)], three) == [
        "context 2 is context 1 shifted by (0.3, -0.2)"
    ]
    assert told([one, cloud(first + SHIFT)], x) == []
    assert told([one, two, one], three) == ["context 3 is a duplicate of context 1 (to rounding)"]
    opposite = np.concatenate([x, -x])
    both = "along the line of queries 1 and 2"
    assert told([one, cloud(-first)], opposite) == [
        f"context 2 is the reflection of context 1 {both}"
    ]
    assert told([one, cloud(SHIFT - first)], opposite) == [
        f"context 2 is the reflection of context 1, shifted by (0.3, -0.2) {both}"
    ]
    assert told([one, cloud(2 * first)], np.concatenate([x, x / 2])) == [
        f"context 2 is context 1 dilated by 2 {both}"
    ]
    assert told([one, cloud(1.7 * first)], [1.7 * x, x]) == [
        "context 2 is context 1 dilated by 1.7 along the line of query 1 of context 1 and query 1 "
        "of context 2"
    ]
    assert told([cloud(first[:1]), one], three) == [
        "context 1 is a single point (Dirac): whatever the query, heads see the atom, and what "
        "they see spans 1 dimension only"
    ]
    assert told([cloud(np.zeros((1, 2))), one], three[:1]) == [
        "context 1 is a single point (Dirac): whatever the query, heads see the atom, and the atom "
        "is 0"
    ]
    assert told([cloud(row[None]) for row in first], [three[:1]] * 4) == [
        "contexts 1, 2, 3 and 4 are single points (Diracs): whatever the query, heads see the "
        "atom, and what they see spans 2 dimensions only"
    ]
    assert told(gaussians(2, 2), three) == [
        "contexts 1 and 2 are Gaussian: a quadratic cumulant generating function shows heads no "
        "more than mean and covariance times query, and those are dependent here (covariances span "
        "at most d(d+1)/2 = 3 dimensions, queries at most d = 2)"
    ]
    assert told([one, two, mf.Convolution([one, two])], three) == [
        "context 3 is the convolution of contexts 1 and 2"
    ]
    moved = mf.AffineImage(mf.Convolution([one, two]), np.eye(2), SHIFT)
    assert told([one, two, moved], three) == [
        "context 3 is the convolution of contexts 1 and 2, shifted by (0.3, -0.2)"
    ]
    assert told([one, mf.Convolution([one, one])], three) == [
        "context 2 is the convolution of context 1 with itself"
    ]
    assert told([mf.Cube(2.0, 2), mf.Cube(1.0, 2), cloud(corners(2))], three) == [
        "context 1 is the convolution of contexts 2 and 3"
    ]
    assert told([one, two], three, 2) == ["too few heads: M d = 4 < P = 6"]
    assert told([mf.Cube(1.0, 2)], np.concatenate([three, 0 * x])) == [
        "context 1 is centred and query 4 is 0"
    ]
    assert told([one, two, cloud(first + 1)], 0 * x) == [
        "the queries at 0 of contexts 1, 2 and 3 see only the means, which are dependent"
    ]
    symmetric = cloud(np.concatenate([first, -first]))
    assert told([two, symmetric], [x, opposite]) == [
        "context 2 is symmetric about its mean and queries 1 and 2 of context 2 are opposite"
    ]
    assert told([one, two], [x, np.concatenate([x, x, x])]) == [
        "queries 1, 2 and 3 of context 2 are the same"
    ]
    blurred = mf.Convolution([mf.Cube(1.0, 2), *gaussians(1, 2)])
    assert told([mf.Cube(1.0, 2), blurred], three) == [
        "context 2 is context 1 up to a Gaussian part"
    ]


def test_a_relation_without_a_name_is_printed():
    first, second = cloud(points(0, 4, 2)), cloud(points(1, 3, 2))
    left = mf.Convolution([first, first, second])
    right = mf.Convolution([first, second, second])
    third = mf.AffineImage(mf.Convolution([first, second]), np.eye(2), SHIFT)
    what = "the log-sum-exp functions of contexts 1, 2 and 3 are dependent: "
    assert told([left, right, third], "shared:2") == [
        what + "-0.3333 Lam_1(z) - 0.3333 Lam_2(z) + Lam_3(z) = <(0.3, -0.2), z>"
    ]
    x = queries(1, 2)
    assert told([left, right, mf.AffineImage(third, 2 * np.eye(2), -2 * SHIFT)], [x, x, x / 2]) == [
        what + "-0.3333 Lam_1(2 z) - 0.3333 Lam_2(2 z) + Lam_3(z) = 0"
    ]


# ---------------------------------------------------------------------------------------------
# separation


def test_separation_finds_the_best_direction():
    clouds = [points(number, 5, 2) for number in range(3)]
    found = separation([cloud(one) for one in clouds])
    angles = np.linspace(0, 2 * np.pi, 20001)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    heights = [np.sort(directions @ one.T, axis=1) for one in clouds]
    gaps = np.stack([one[:, -1] - one[:, -2] for one in heights], axis=1)
    ordered = np.sort(gaps, axis=1)
    best = np.minimum(ordered[:, 0], np.diff(ordered, axis=1).min(axis=1)).max()
    assert best * (1 - 1e-6) < found.smallest_difference < best * (1 + 1e-3)
    assert found.holds
    heights = [np.sort(one @ found.direction) for one in clouds]
    np.testing.assert_allclose(found.gaps, [one[-1] - one[-2] for one in heights], rtol=1e-12)
    assert np.linalg.norm(found.direction) == pytest.approx(1)


@pytest.mark.parametrize("size", SIZES)
def test_separation_fails_for_translates_and_points(size: float):
    first = size * points(0, 5, 3)
    assert not separation([cloud(first), cloud(first + 0.3 * size)]).holds
    alone = separation([cloud(first), cloud(first[:1])])
    assert not alone.holds
    assert alone.gaps[1] == 0
    assert separation([cloud(first), cloud(size * points(1, 5, 3))]).holds


def test_separation_ignores_tokens_of_no_mass_and_repeated_ones():
    first = points(0, 4, 2)
    plain = separation([cloud(first), cloud(points(1, 4, 2))])
    more = cloud(np.concatenate([first, first[:2], 9 * first]), np.array([1.0] * 6 + [0.0] * 4))
    assert separation([more, cloud(points(1, 4, 2))]).smallest_difference == pytest.approx(
        plain.smallest_difference, rel=1e-3
    )


def test_separation_on_the_line():
    """In d = 1 there are two directions: gaps 1 and 2 upwards, 1 and 1 downwards."""
    found = separation(
        [cloud(np.array([[0.0], [1.0], [2.0]])), cloud(np.array([[0.0], [1.0], [3.0]]))]
    )
    np.testing.assert_array_equal(found.direction, [1.0])
    np.testing.assert_allclose(found.gaps, [1.0, 2.0])
    assert found.smallest_difference == pytest.approx(1.0)


# ---------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: separation([mf.Cube(1.0, 2)]), "context 1, a Cube law"),
        (lambda: independence([mf.Cube(1e200, 2)]), "moments that are not finite"),
        (lambda: independence([mf.Cube(1.0, 2), mf.Cube(1.0, 3)]), "widths"),
        (lambda: evaluation_points([mf.Cube(1.0, 2)], 0), "an integer of at least 1"),
        (
            lambda: predicted_nullity([mf.Cube(1.0, 1)], np.arange(1.0, 2000)[:, None]),
            "on one line through 0",
        ),
        (lambda: predicted_nullity([mf.Cube(1.0, 1)], "shared:1").for_heads(0), "num_heads"),
    ],
)
def test_refusals_name_the_mend(act: Any, message: str):
    with pytest.raises(mf.MeanfieldError, match=message):
        act()
