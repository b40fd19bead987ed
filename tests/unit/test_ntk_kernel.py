"""Factors, spectra and streamed products against jacobians, closed forms and dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import meanfield as mf
from meanfield import ntk
from meanfield.ntk.spectra import decide_rank
from tests.helpers import attention_heads, perceptron_neurons

FIELDS = {
    "av": mf.SoftmaxAttention("av", scale=0.7),
    "qkv": mf.SoftmaxAttention("qkv", scale=1.3),
    "rank 1": mf.SoftmaxAttention("qkv", head_dim=1),
}


def heads_of(field, *, num=7, dim=2, seed=0, scale=1.0):
    generator = np.random.default_rng(seed)
    shapes = field.particle_shapes(dim)
    return type(shapes)(*[scale * generator.normal(size=(num, *shape)) for shape in shapes])


def clouds(*sizes, dim=2, seed=1, zero_mass=False):
    generator = np.random.default_rng(seed)
    made = []
    for size in sizes:
        weights = generator.uniform(0.2, 1.0, size=size)
        if zero_mass:
            weights[-1] = 0.0
        made.append(mf.TokenMeasure.from_weights(generator.normal(size=(size, dim)), weights))
    return made


def gram_by_jacobian(field, heads, contexts, pairs, leaves):
    """``K`` from jax.jacobian of the velocity itself, pair by pair."""
    heads = jax.tree.map(jnp.asarray, heads)
    num = jax.tree.leaves(heads)[0].shape[0]

    @jax.jit
    def jacobian(theta, x, points, log_weights):
        def velocity(one):
            return field(one, x[None], mf.TokenMeasure(points, log_weights))[0]

        return jax.jacobian(velocity)(theta)

    columns = []
    for i, x in zip(pairs.index, pairs.queries, strict=True):
        mu = contexts[i]
        found = jax.vmap(jacobian, (0, None, None, None))(heads, x, mu.points, mu.log_weights)
        rows = [
            np.moveaxis(np.asarray(getattr(found, name)).reshape(num, pairs.dim, -1), 1, 2)
            for name in leaves
        ]
        columns.append(np.concatenate(rows, axis=1).reshape(-1, pairs.dim) / np.sqrt(num))
    features = np.concatenate(columns, axis=1)
    return features.T @ features


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("part", ["V", "A", "full"])
def test_kernel_is_the_gram_of_jacobian_features(name, part):
    field = FIELDS[name]
    heads = heads_of(field)
    contexts = clouds(5, 5, zero_mass=True)
    queries = [np.array([[0.3, -1.0], [0.0, 0.0]]), np.array([[1.0, 2.0]])]
    pairs = ntk.pairs_of(contexts, queries)
    scores = [leaf for leaf in heads._fields if leaf != "V"]
    leaves = {"V": ["V"], "A": scores, "full": ["V", *scores]}[part]
    expected = gram_by_jacobian(field, heads, contexts, pairs, leaves)
    kernel = ntk.gram(ntk.factor(field, heads, pairs, part=part))
    if part == "V":
        kernel = np.kron(kernel, np.eye(2))
    assert np.max(np.abs(kernel - expected)) <= 1e-12 * np.max(np.abs(expected))
    assert np.linalg.eigvalsh(kernel)[0] >= -1e-14 * np.max(np.abs(kernel))


@pytest.mark.parametrize("part", ["full", "w"])
def test_another_field_gets_its_factor_by_jacobians(part):
    field, heads = mf.Perceptron(), perceptron_neurons(6, 2, seed=3)
    generator = np.random.default_rng(4)
    contexts = clouds(4, 4)
    pairs = ntk.Pairs(ntk.as_laws(contexts), np.array([1, 0, 1]), generator.normal(size=(3, 2)))
    leaves = list(heads._fields) if part == "full" else [part]
    expected = gram_by_jacobian(field, heads, contexts, pairs, leaves)
    found = ntk.gram(ntk.factor(field, heads, pairs, part=part))
    assert np.max(np.abs(found - expected)) <= 1e-12 * np.max(np.abs(expected))
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1]]), heads)
    masses = np.log([2.0, 1.0, 1.0, 1.0, 1.0, 1.0]) - 1000  # normalised by factor
    weighted = ntk.factor(field, heads, pairs, part=part, log_weights=masses)
    repeated = ntk.gram(ntk.factor(field, twice, pairs, part=part))
    np.testing.assert_allclose(ntk.gram(weighted), repeated, rtol=1e-12, atol=1e-15)


def test_unequal_masses_of_heads_weigh_their_features():
    field, heads = FIELDS["av"], heads_of(FIELDS["av"], num=3)
    pairs = ntk.pairs_of(clouds(5), np.eye(2))
    twice = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[:1]]), heads)
    weighted = ntk.factor(field, heads, pairs, log_weights=np.log([2.0, 1.0, 1.0]) - 1000)
    repeated = ntk.factor(field, twice, pairs)
    np.testing.assert_allclose(ntk.gram(weighted), ntk.gram(repeated), rtol=1e-13)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            ntk.gram(ntk.factor(field, heads, pairs)), ntk.gram(repeated), rtol=1e-3
        )


def test_a_law_and_its_cloud_have_one_kernel():
    """A cube by Gauss-Legendre tokens: the closed form of the law meets the sum over tokens."""
    field, heads = FIELDS["av"], heads_of(FIELDS["av"], num=20)
    law = mf.Cube(0.8, 2, [0.1, -0.3])
    queries = np.array([[1.0, 0.5], [-0.4, 0.9]])
    for part in ("V", "A", "full"):
        exact = ntk.factor(field, heads, ntk.pairs_of([law], queries), part=part).matrix
        nodes = ntk.pairs_of([law.tokens(24, rule="legendre")], queries)
        np.testing.assert_allclose(
            ntk.factor(field, heads, nodes, part=part).matrix, exact, rtol=0, atol=1e-13
        )


def test_gaussian_heads_have_a_closed_form():
    """Monte Carlo over heads meets section 3.5, within four standard errors on both sides."""
    generator = np.random.default_rng(5)
    root = generator.normal(size=(2, 2, 2))
    laws = [
        mf.Gaussian(generator.normal(size=2), root[i] @ root[i].T + 0.1 * np.eye(2))
        for i in range(2)
    ]
    pairs = ntk.pairs_of(laws, generator.normal(size=(2, 2)))
    num, scale, value = 4000, 0.6, 0.5
    heads = attention_heads(
        scale * generator.normal(size=(num, 2, 2)), value * generator.normal(size=(num, 2, 2))
    )
    field = mf.SoftmaxAttention("av")
    for part in ("V", "A"):
        factor = ntk.factor(field, heads, pairs, part=part)
        rows = factor.matrix.reshape(num, -1, factor.matrix.shape[1])
        each = num * np.einsum("jra,jrb->jab", rows, rows)
        expected = ntk.gaussian_kernel(
            pairs, scale=scale, value_scale=value if part == "A" else None
        )
        if part == "A":
            expected = np.kron(expected, np.eye(2))
        error = each.std(axis=0, ddof=1) / np.sqrt(num) + 1e-15
        score = (each.mean(axis=0) - expected) / error
        assert np.max(np.abs(score)) <= 4.5
        wrong = (each.mean(axis=0) - 1.3 * expected) / error
        assert np.max(np.abs(wrong)) > 8


def test_small_heads_tend_to_the_gaussian_kernel_of_any_law():
    """The leading order of 3.5 has error O(s^4): slope 4, two-sided."""
    pairs = ntk.pairs_of([mf.Cube(1.0, 1), mf.Cube(1.7, 1)], [[1.0], [0.6]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    scales, gaps = np.array([0.05, 0.1, 0.2]), []
    for scale in scales:
        heads = attention_heads((scale * nodes)[:, None, None])
        factor = ntk.factor(mf.SoftmaxAttention("av"), heads, pairs, log_weights=np.log(weights))
        gap = ntk.gram(factor) - ntk.gaussian_kernel(pairs, scale=scale)
        gaps.append(np.linalg.norm(gap))
    slope = np.polyfit(np.log(scales), np.log(gaps), 1)[0]
    assert 3.8 <= slope <= 4.1


def test_ranks_are_decided_by_the_gap():
    assert decide_rank(np.array([1.0, 1e-3, 1e-16]), 1e-16) == (1, pytest.approx(1e13))
    nullity, gap = decide_rank(np.array([1.0, 1e-6, 1e-13]), 1e-16)
    assert nullity == 0
    assert gap == pytest.approx(1e3)
    assert decide_rank(np.array([1.0, 5e-14, 2e-14]), 1e-16)[1] < 1e3
    assert decide_rank(np.array([1.0, 2e-14]), 1e-16) == (1, pytest.approx(5e13))
    assert decide_rank(np.array([1.0, 3e-14]), 1e-16)[0] == 0
    zeros, gap = decide_rank(np.array([1e-17, 0.0]), 1e-16)
    assert zeros == 2
    assert gap >= 1e3


def test_a_gap_of_a_thousand_decides_and_no_less():
    factor = ntk.factor(FIELDS["av"], heads_of(FIELDS["av"], num=30), ntk.pairs_of(clouds(4)))
    for dropped, decided in ((1e-4, True), (1e-2, False)):
        values = np.array([1.0, 1.0, 1.0, dropped])
        level = np.full(4, dropped / 256)  # dropped: less than 256 times the joint level
        found = ntk.spectrum(factor._replace(matrix=np.diag(values), noise=level), interval=False)
        assert found.nullity == 1
        assert found.decided == decided


def test_rounding_level_follows_what_errors_are_made_of():
    """Scores, units and the field's scale enter as derived in 3.8."""
    pairs = ntk.pairs_of(clouds(5), np.eye(2))
    heads = heads_of(FIELDS["av"], num=40)

    def level(part, *, scale=1.0, a=1.0):
        field = mf.SoftmaxAttention("av", scale=scale)
        factor = ntk.factor(field, heads._replace(A=a * heads.A), pairs, part=part)
        return np.linalg.norm(factor.noise)

    assert level("V", a=100.0) > 30 * level("V")  # errors of scores grow with them
    assert level("A", scale=3.0) == pytest.approx(3 * level("A", a=3.0), rel=1e-12)


@pytest.mark.parametrize("kind", ["clouds", "white"])
def test_the_interval_is_what_its_description_says(kind):
    """By explicit Gram matrices of 16 groups of unequal masses, on the interval's own terms.

    Of white features in many directions the largest eigenvalue lies far above its limit: there
    unseen heads set the lower end.
    """
    pairs = ntk.pairs_of(clouds(5, 4), "shared:2")
    num, groups = 64, 16
    generator = np.random.default_rng(6)
    weights = generator.dirichlet(np.full(num, 4.0))
    heads = heads_of(FIELDS["av"], num=num)
    factor = ntk.factor(FIELDS["av"], heads, pairs, log_weights=np.log(weights))
    if kind == "white":
        rows = np.sqrt(np.repeat(weights, 2))[:, None] * generator.normal(size=(2 * num, 60))
        factor = factor._replace(matrix=rows, noise=np.full(60, 1e-16))
    found = ntk.spectrum(factor).intervals
    rows = factor.matrix.reshape(groups, -1, factor.matrix.shape[1])
    grams = np.einsum("gra,grb->gab", rows, rows)
    shares = weights.reshape(groups, -1).sum(axis=1)
    logs, fresh = [], []
    for gram, share in zip(grams, shares, strict=True):
        values, vectors = np.linalg.eigh((grams.sum(axis=0) - gram) / (1 - share))
        logs.append(np.log(values))
        fresh.append(np.einsum("ak,ab,bk->k", vectors, gram, vectors) / share)
    reach = stats.t.ppf(0.975, groups - 1)
    error = np.sqrt((groups - 1) * np.var(logs, axis=0))
    unseen, spread = np.mean(fresh, axis=0), np.std(fresh, axis=0, ddof=1) / np.sqrt(groups)
    whole = np.log(np.linalg.eigvalsh(grams.sum(axis=0)))
    low = np.minimum(np.exp(whole - reach * error), unseen)
    high = np.maximum(np.exp(whole + reach * error), unseen + reach * spread)
    assert found is not None
    np.testing.assert_allclose(found[::-1, 0], low, rtol=1e-6)
    np.testing.assert_allclose(found[::-1, 1], high, rtol=1e-6)
    if kind == "white":
        assert low[-1] == unseen[-1] < 0.9 * np.exp(whole[-1] - reach * error[-1])


def test_one_head_with_most_of_the_mass_says_nothing_about_many():
    pairs, num = ntk.pairs_of(clouds(5, 4), "shared:2"), 64
    one_counts = np.where(np.arange(num) == 0, 0.0, -10.0)
    heavy = ntk.factor(FIELDS["av"], heads_of(FIELDS["av"], num=num), pairs, log_weights=one_counts)
    assert ntk.spectrum(heavy).interval == (0.0, np.inf)


def test_weights_scale_the_spectrum():
    factor = ntk.factor(FIELDS["av"], heads_of(FIELDS["av"], num=30), ntk.pairs_of(clouds(6, 4)))
    generator = np.random.default_rng(0)
    weights = generator.uniform(0.1, 2.0, size=factor.matrix.shape[1])
    found = ntk.spectrum(factor, weights=weights)
    uneven = np.where(np.arange(len(weights)) == 0, 1e-24, 1.0)
    assert ntk.spectrum(factor, weights=uneven).nullity == 0  # a rank that weights do not change
    roots = np.sqrt(weights)
    expected = np.linalg.eigvalsh(roots[:, None] * ntk.gram(factor) * roots)[::-1]
    np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-9, atol=1e-15)
    residual = ntk.gram(factor) @ (roots * found.vectors[-1]) * roots
    np.testing.assert_allclose(residual, found.lambda_min * found.vectors[-1], atol=1e-13)


def test_the_interval_over_heads_covers_the_limit():
    """Gaussian contexts: lambda_min of infinitely many heads is known; coverage on both sides."""
    laws = [mf.Gaussian([0.3, -0.2], [[1.0, 0.3], [0.3, 0.5]]), mf.Gaussian([0.0, 1.0], np.eye(2))]
    pairs = ntk.pairs_of(laws, np.array([[1.0, 0.2], [-0.3, 1.0]]))
    exact = np.linalg.eigvalsh(ntk.gaussian_kernel(pairs, scale=1.0))[0]
    field, inside, halves = mf.SoftmaxAttention("av"), 0, []
    for seed in range(60):
        heads = attention_heads(np.random.default_rng(seed).normal(size=(64, 2, 2)))
        low, high = ntk.spectrum(ntk.factor(field, heads, pairs)).interval
        inside += low <= exact <= high
        halves.append((high - low) / exact)
    assert inside >= 50  # 95% nominal; 83% is three standard errors below
    assert np.median(halves) <= 1.0  # and not by being wide
    few = attention_heads(np.ones((2, 2, 2)))
    assert ntk.spectrum(ntk.factor(field, few, pairs)).interval == (0.0, np.inf)


def test_every_eigenvalue_has_an_interval_that_is_not_cut_by_its_own_trace():
    """One pair: lambda is a mean over heads, and half of all samples lie below its limit."""
    law = mf.Gaussian([0.0, 0.0], [[1.0, 0.3], [0.3, 0.5]])
    pairs = ntk.pairs_of([law], np.array([[1.0, 0.2]]))
    exact = ntk.gaussian_kernel(pairs, scale=1.0)[0, 0]
    field, inside, above = mf.SoftmaxAttention("av"), 0, 0
    for seed in range(60):
        heads = attention_heads(np.random.default_rng(seed).normal(size=(64, 2, 2)))
        low, high = ntk.spectrum(ntk.factor(field, heads, pairs)).interval
        inside += low <= exact <= high
        above += high < exact
    assert inside >= 50
    assert above <= 8


def test_null_directions_of_few_heads_say_nothing_about_many():
    contexts = clouds(4, 5, 6)
    pairs = ntk.pairs_of(contexts, "shared:3")
    few = ntk.check(pairs, num_heads=4)
    assert few.spectrum.nullity == 1
    assert few.interval == (0.0, np.inf)
    doubled = ntk.pairs_of([contexts[0], contexts[0]], "one")
    assert ntk.check(doubled).interval[1] < 1e-20  # null for any heads


@pytest.mark.parametrize("far", [0.0, 1e3, 1e6])
def test_far_clouds_are_told_apart(far):
    contexts = [mf.TokenMeasure(one.points + far) for one in clouds(5, 5, 5)]
    report = ntk.check(contexts, "shared:3", interval=False)
    assert (report.verdict, report.nullity) == ("positive", 0)


def test_what_cancels_in_a_composed_law_counts_as_rounding():
    """The same cloud, as itself and as the image of a cloud of size B: never called independent."""
    points = np.array([[0.5, -1.0], [1.25, 0.25], [-0.75, 1.0], [0.0, -0.125]])
    matrix = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    for exponent in (10, 14, 20, 24):
        large = np.array([3.0, -5.0, 7.0, 16.0]) * 2.0 ** (exponent - 4)
        inner = np.stack([points[:, 0] + large, points[:, 1] + large, large], axis=1)
        image = mf.AffineImage(mf.Empirical(mf.TokenMeasure(inner)), matrix)
        report = ntk.check([mf.TokenMeasure(points), image], "shared:3", interval=False)
        assert report.verdict == ("not positive" if exponent < 16 else "undecided")
        assert report.predicted_nullity == 3


def test_heads_that_nearly_annihilate_a_query_leave_larger_errors():
    """z = A^T x cancels: its error is that of |A| |x|, and a dilation stays a dilation."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(64, 2, 2))
    scores += 1e8 * np.array([-0.5, 1.0])[None, :, None] * generator.normal(size=(64, 1, 2))
    x = np.array([[1.0, 0.5]])
    pairs = ntk.pairs_of([mf.Cube(0.5, 2), mf.Cube(1.5, 2)], [x, x / 3])
    report = ntk.check(pairs, particles=attention_heads(scores))
    assert (report.verdict, report.nullity) == ("not positive", 1)


@pytest.fixture(scope="module")
def mixed():
    """Laws of several kinds, clouds of several sizes, unequal numbers of queries."""
    generator = np.random.default_rng(2)
    contexts = [
        *clouds(5, 6, 3),
        mf.Cube(1.0, 2),
        mf.Cube(2.0, 2),
        mf.Gaussian(np.ones(2), np.eye(2)),
    ]
    queries = [generator.normal(size=(k, 2)) for k in (3, 2, 4, 1, 2, 2)]
    return ntk.pairs_of(contexts, queries)


@pytest.mark.parametrize("name", ["av", "rank 1"])
def test_streamed_products_equal_the_factor(mixed, name):
    field, generator = FIELDS[name], np.random.default_rng(4)
    heads = heads_of(field, num=301)
    log_weights = generator.normal(size=301)
    matrix = ntk.factor(field, heads, mixed, log_weights=log_weights).matrix
    streamed = ntk.streamed_kernel(field, heads, mixed, log_weights=log_weights)
    v, u = generator.normal(size=mixed.num_pairs), generator.normal(size=602)
    for found, expected in (
        (streamed.apply(v), matrix @ v),
        (streamed.apply_transpose(u), matrix.T @ u),
        (streamed.product(v), matrix.T @ (matrix @ v)),
    ):
        assert np.max(np.abs(np.asarray(found) - expected)) <= 1e-13 * np.max(np.abs(expected)) * 10


def test_chunks_of_heads_do_not_change_the_products(mixed, monkeypatch):
    import meanfield.ntk.streamed as room

    heads, v = heads_of(FIELDS["av"], num=37), np.ones(mixed.num_pairs)
    whole = ntk.streamed_kernel(FIELDS["av"], heads, mixed).product(v)
    monkeypatch.setattr(room, "_SCORES", 64)
    streamed = ntk.streamed_kernel(FIELDS["av"], heads, mixed)
    assert streamed.roots.shape[0] > 3
    np.testing.assert_allclose(np.asarray(streamed.product(v)), np.asarray(whole), rtol=1e-12)


def test_smallest_eigenvalue_equals_the_dense_one(mixed):
    heads = heads_of(FIELDS["av"], num=60)
    found = ntk.smallest_eigenvalue(FIELDS["av"], heads, mixed)
    dense = ntk.spectrum(ntk.factor(FIELDS["av"], heads, mixed))
    assert abs(found.value / dense.lambda_min - 1) <= 1e-6
    assert abs(abs(found.vector @ dense.vectors[-1]) - 1) <= 1e-6
    assert found.decided
    assert found.residual <= 1e-6
    rows = ntk.factor(FIELDS["av"], heads, mixed).matrix @ found.vector
    shares = 60 * np.sum(rows.reshape(60, -1) ** 2, axis=1)
    assert found.standard_error == pytest.approx(shares.std(ddof=1) / np.sqrt(60))


def test_an_eigenpair_that_products_do_not_confirm_is_undecided(mixed, monkeypatch):
    import meanfield.ntk.streamed as room

    right = room._apply
    monkeypatch.setattr(room, "_apply", lambda kernel, v: 1.01 * right(kernel, v))
    found = ntk.smallest_eigenvalue(FIELDS["av"], heads_of(FIELDS["av"], num=60), mixed)
    assert found.residual > 1e-3
    assert not found.decided


def test_smallest_eigenvalue_of_a_singular_kernel_is_not_a_number_above_zero(mixed):
    doubled = ntk.Pairs(
        mixed.laws,
        np.concatenate([mixed.index, mixed.index[:1]]),
        np.concatenate([mixed.queries, mixed.queries[:1]]),
    )
    found = ntk.smallest_eigenvalue(FIELDS["av"], heads_of(FIELDS["av"], num=60), doubled)
    assert not found.decided
    few = ntk.smallest_eigenvalue(FIELDS["av"], heads_of(FIELDS["av"], num=5), mixed)
    assert few.value == 0.0
    assert few.decided


@pytest.mark.parametrize(
    ("contexts", "queries", "word"),
    [
        ([mf.Cube(1.0, 2)], "own", "clouds"),
        ([mf.Cube(1.0, 2)], "shared:0", "shared"),
        ([mf.Cube(1.0, 2)], "mine", "own, one"),
        ([mf.Cube(1.0, 2)], np.ones((2, 3)), "[K, 2]"),
        ([mf.Cube(1.0, 2)], [[np.nan, 1.0]], "finite"),
        ([mf.Cube(1.0, 2)], "shared:99999999999", "shared"),
        ([mf.Cube(1.0, 2), mf.Cube(1.0, 3)], "one", "one width"),
        ([], "one", "at least one"),
        ([mf.Cube(1.0, 2)], [np.ones((1, 2)), np.ones((1, 2))], "for each context"),
        (["cube"], "one", "token law"),
    ],
)
def test_bad_pairs_are_refused_in_one_line(contexts, queries, word):
    with pytest.raises(mf.MeanfieldError, match="expected") as caught:
        ntk.pairs_of(contexts, queries)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_factors_are_refused():
    pairs = ntk.pairs_of(clouds(3), np.eye(2))
    heads = heads_of(FIELDS["av"])
    with pytest.raises(mf.MeanfieldError, match="part"):
        ntk.factor(FIELDS["av"], heads, pairs, part="B")
    with pytest.raises(mf.MeanfieldError, match="shapes"):
        ntk.factor(FIELDS["av"], heads_of(FIELDS["av"], dim=3), pairs)
    with pytest.raises(mf.MeanfieldError, match="finite"):
        ntk.factor(FIELDS["av"], heads._replace(A=np.full((7, 2, 2), np.nan)), pairs)
    for logs in (np.full(7, np.nan), np.full(7, -np.inf), np.full(7, np.inf)):
        with pytest.raises(mf.MeanfieldError, match="log_weights"):
            ntk.factor(FIELDS["av"], heads, pairs, log_weights=logs)
    huge = ntk.pairs_of([mf.TokenMeasure(np.array([[1e200, 0.0], [0.0, 1e200]]))], np.eye(2))
    with pytest.raises(mf.NonFiniteError):
        ntk.factor(FIELDS["av"], heads, huge, part="A")
    laplace = ntk.pairs_of([mf.Laplace(np.eye(2))], np.eye(2))
    with pytest.raises(mf.DomainError):
        ntk.factor(FIELDS["av"], heads_of(FIELDS["av"], scale=3.0), laplace)
    neurons = perceptron_neurons(2, 2, seed=0)
    with pytest.raises(mf.MeanfieldError, match="cloud"):
        ntk.factor(mf.Perceptron(), neurons, laplace, part="full")


def test_shared_queries_are_far_from_collinear():
    for dim in (2, 3, 8):
        queries = ntk.shared_queries(4, dim, seed=3)
        cosines = np.abs(queries @ queries.T) - np.eye(4)
        assert np.max(cosines) <= 0.95
        np.testing.assert_array_equal(queries, ntk.shared_queries(4, dim, seed=3))
        assert np.max(np.abs(queries - ntk.shared_queries(4, dim, seed=4))) > 0.1
