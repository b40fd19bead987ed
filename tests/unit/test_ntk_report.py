"""Reports, default heads and suggestions: what they say, and that they say no more than is so."""

import json

import numpy as np
import pytest

import meanfield as mf
from meanfield import ntk
from meanfield.ntk.kernel import tilts
from tests.helpers import attention_heads, perceptron_neurons

CLOUD = np.array([[0.5, -1.0], [1.25, 0.25], [-0.75, 1.0], [0.0, -0.125]])
CUBES = [mf.Cube(1.0, 2), mf.Cube(1.5, 2), mf.Cube(2.0, 2)]


def cloud(points):
    return mf.TokenMeasure(np.asarray(points, dtype=float))


def test_translated_clouds_are_named():
    report = ntk.check([cloud(CLOUD), cloud(CLOUD + [0.25, -0.5])], "shared:3")
    assert (report.verdict, report.nullity, report.predicted_nullity) == ("not positive", 2, 2)
    assert report.reasons == ["context 2 is context 1 shifted by (0.25, -0.5)"]
    said = report.text()
    assert said.startswith("not positive")
    assert "nullity     2 by numbers, 2 by theory" in said
    assert "context 2 is context 1 shifted by (0.25, -0.5)" in said


def test_json_is_plain_and_finite_everywhere():
    for queries in ("one", "shared:3"):
        report = ntk.check([cloud(CLOUD), cloud(CLOUD + 1.0)], queries)
        text = json.dumps(report.as_json(), allow_nan=False)
        read = json.loads(text)
        assert read["verdict"] == report.verdict
        assert read["num_pairs"] == report.num_pairs
        needed = {"nullity", "predicted_nullity", "lambda_min", "lambda_max", "gap", "reasons"}
        assert needed <= set(read)
    assert read["condition"] is None  # infinite: the kernel is singular


def test_default_heads_follow_the_problem():
    pairs = ntk.pairs_of(CUBES, 2.0 * np.eye(2))
    heads = ntk.draw_heads(pairs)
    assert heads.num_heads == 64
    spread = np.sqrt(2 / 3) * 3 ** (1 / 3)  # geometric mean of r sqrt(2/3), r = 1, 1.5, 2
    assert heads.scale == pytest.approx(2.0 / (spread * 2.0), rel=1e-12)
    assert heads.particles.A.std() == pytest.approx(heads.scale, rel=0.2)
    many = ntk.draw_heads(ntk.pairs_of(CUBES, np.random.default_rng(0).normal(size=(50, 2))))
    assert many.num_heads == 150
    thin = ntk.draw_heads(pairs, num_heads=4000, head_dim=1)
    scores = np.einsum("mrp,mrq->mpq", thin.particles.Q, thin.particles.K)
    assert scores.std() == pytest.approx(heads.scale, rel=0.05)
    assert np.all(np.linalg.matrix_rank(scores[:50]) == 1)
    wide = ntk.draw_heads(pairs, num_heads=4000, head_dim=4)
    scores = np.einsum("mrp,mrq->mpq", wide.particles.Q, wide.particles.K)
    assert scores.std() == pytest.approx(heads.scale, rel=0.05)
    with pytest.raises(mf.MeanfieldError, match="at most"):
        ntk.draw_heads(pairs, head_dim=10**8)


def test_default_heads_do_not_depend_on_the_units():
    """Tokens and queries in other units: the same scores, hence the same verdict and gap."""
    for unit in (1e-6, 1e6):
        report = ntk.check([cloud(unit * CLOUD), cloud(unit * CLOUD**2)], "shared:2")
        assert report.verdict == "positive"
        plain = ntk.check([cloud(CLOUD), cloud(CLOUD**2)], "shared:2")
        assert report.lambda_min / unit**2 == pytest.approx(plain.lambda_min, rel=1e-6)


@pytest.mark.parametrize("head_dim", [None, 1, 2])
def test_heads_stay_inside_a_bounded_domain(head_dim):
    laws = [mf.Laplace(np.diag([1.0, 4.0])), mf.Laplace(np.eye(2))]
    pairs = ntk.pairs_of(laws, np.array([[3.0, 0.0], [1.0, 1.0]]))
    heads = ntk.draw_heads(pairs, num_heads=2000, head_dim=head_dim)
    assert isinstance(heads.field, mf.SoftmaxAttention)
    z = tilts(heads.field, heads.particles, pairs.queries)
    assert all(bool(np.all(law.in_domain(z))) for law in laws)
    assert np.linalg.norm(z, axis=-1).max() > 0.5 * laws[0].domain_radius()  # and use it
    with pytest.raises(mf.DomainError):
        ntk.check(laws, 3.0 * np.eye(2), scale=5.0)


def test_kernels_beyond_float64_are_undecided_not_guessed():
    small = ntk.check(CUBES, "shared:3", scale=0.01)
    assert small.verdict == "undecided"
    assert "certificate" in small.reasons[-1]
    assert ntk.check(CUBES, "shared:3", scale=0.1).verdict == "positive"
    assert ntk.check(CUBES, "shared:3", scale=0.1).lambda_min < 1e-16


def test_too_few_heads_are_named_for_every_part():
    for part, dim in (("V", None), ("A", None), ("full", 1)):
        report = ntk.check(CUBES, "shared:3", num_heads=2, head_dim=dim, part=part)
        assert report.verdict == "not positive"
        assert report.nullity == report.predicted_nullity
        assert report.nullity > 0
        assert any("too few heads" in reason for reason in report.reasons), part


def test_few_heads_of_structured_laws_are_not_called_positive():
    """Contexts mu_i x nu share a coordinate of m: M heads have rank M + 1, below M d = P."""
    contexts = [mf.Product([mf.Cube(float(r), 1), mf.Cube(1.0, 1)]) for r in range(1, 9)]
    few = ntk.check(contexts, "one", num_heads=4, scale=1.0, interval=False)
    assert (few.nullity, few.predicted_nullity, few.verdict) == (3, 0, "undecided")
    assert "take as many as pairs" in few.reasons[-1]
    fewer = ntk.check(contexts, "one", num_heads=3, scale=1.0, interval=False)
    assert (fewer.nullity, fewer.predicted_nullity, fewer.verdict) == (4, 2, "not positive")


def test_own_particles_and_other_fields():
    generator = np.random.default_rng(0)
    heads = attention_heads(generator.normal(size=(64, 2, 2)))
    report = ntk.check([cloud(CLOUD)], np.eye(2), particles=heads)
    assert report.verdict == "positive"
    assert report.heads.law == "given particles"
    neurons = perceptron_neurons(64, 2, seed=0)
    same = ntk.check(
        [cloud(CLOUD), cloud(-CLOUD)],
        np.eye(2),
        field=mf.Perceptron(),
        particles=neurons,
        part="full",
    )
    assert same.predicted_nullity is None
    assert (same.verdict, same.nullity) == ("not positive", 2)
    assert "query 1 of context 2 has the features of query 1 of context 1" in same.reasons
    verdicts = []
    for gap in 10.0 ** np.arange(-14.0, -9.0, 0.25):  # of two queries: rounding, doubt, difference
        close = np.array([[1.0, 0.5], [1.0, 0.5 + gap]])
        verdicts.append(
            ntk.check(
                [cloud(CLOUD)],
                close,
                field=mf.Perceptron(),
                particles=neurons,
                part="full",
                interval=False,
            ).verdict
        )
    assert list(dict.fromkeys(verdicts)) == ["not positive", "undecided", "positive"]
    angle = ntk.check([cloud(CLOUD), cloud(CLOUD + 0.5)], [[1.0, 0.5], [2.0, 1.0 + 1e-13]])
    assert angle.verdict == "undecided"  # on one line or not? theory cannot tell
    assert angle.gap < 1e3
    with pytest.raises(mf.MeanfieldError, match="particles"):
        ntk.check([cloud(CLOUD)], np.eye(2), field=mf.Perceptron())
    with pytest.raises(mf.MeanfieldError, match="drop one"):
        ntk.check([cloud(CLOUD)], np.eye(2), particles=heads, num_heads=3)


def test_suggestion_is_the_maximum_of_its_own_table():
    found = ntk.suggest(CUBES, "shared:2", max_heads=128, num_scales=5)
    table = found.lambda_min
    assert table.shape == (5, len(found.head_counts))
    row = int(np.nanargmax(table[:, -1]))
    assert found.best_scale == found.scales[row]
    assert 0 < row < 4  # inside: both smaller and larger scales are worse
    column = list(found.head_counts).index(found.best_heads)
    assert table[row, column] >= 0.9 * table[row, -1]
    assert not np.any(table[row, :column] >= 0.9 * table[row, -1])
    again = ntk.check(CUBES, "shared:2", num_heads=128, scale=found.best_scale)
    assert again.lambda_min == pytest.approx(table[row, -1], rel=1e-9)
    assert f"{found.best_scale:.4g}" in found.text()
    json.dumps(found.as_json(), allow_nan=False)
    with pytest.raises(mf.MeanfieldError, match="singular"):
        ntk.suggest([cloud(CLOUD), cloud(CLOUD)], "one", max_heads=64, num_scales=3)


@pytest.mark.parametrize("unit", [1e200, 1e-200])
def test_sizes_that_leave_float64_are_refused(unit):
    for law, queries in (
        (cloud(unit * CLOUD), np.eye(2)),
        (mf.Cube(unit, 2), np.eye(2)),
        (cloud(CLOUD), unit * np.eye(2)),
    ):
        with pytest.raises(mf.MeanfieldError, match="other units"):
            ntk.check([law], queries)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_heads": 0},
        {"scale": -1.0},
        {"scale": float("nan")},
        {"seed": -1},
        {"part": "B"},
        {"head_dim": 0},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(mf.MeanfieldError) as caught:
        ntk.check([cloud(CLOUD)], np.eye(2), **arguments)
    assert "expected" in str(caught.value)
