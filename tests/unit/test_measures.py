"""Measures, grids, parameter measures: normalisation, files, refinement, subsampling, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf

AV = mf.SoftmaxAttention("av")


def cloud(seed: int, num: int = 5, dim: int = 3) -> mf.TokenMeasure:
    generator = np.random.default_rng(seed)
    return mf.TokenMeasure.from_weights(
        generator.normal(size=(num, dim)), generator.uniform(0.1, 3.0, num)
    )


def test_weights_are_normalised_and_moments_follow():
    points, weights = np.array([[0.0, 2.0], [4.0, 2.0]]), np.array([3.0, 1.0])
    mu = mf.TokenMeasure.from_weights(points, weights)
    np.testing.assert_allclose(mu.weights, [0.75, 0.25], rtol=1e-15)
    np.testing.assert_allclose(mu.mean(), [1.0, 2.0])
    np.testing.assert_allclose(mu.covariance(), [[3.0, 0.0], [0.0, 0.0]], atol=1e-15)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_weighted_clouds_survive_a_file(tmp_path, suffix):
    mu = cloud(0).with_queries(np.ones((1, 3)))
    path = tmp_path / f"cloud.{suffix}"
    mu.save(path)
    again = mf.TokenMeasure.load(path)
    np.testing.assert_array_equal(again.points, mu.points)
    np.testing.assert_allclose(again.weights, mu.weights, rtol=1e-15)
    assert again.weights[-1] == 0
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "no temporary file stays"


def test_equal_weights_go_to_npy_and_unequal_ones_are_refused(tmp_path):
    mf.TokenMeasure(np.ones((2, 4, 3))).save(tmp_path / "a.npy")
    assert mf.TokenMeasure.load(tmp_path / "a.npy").num_contexts == 2
    with pytest.raises(mf.MeanfieldError, match=r"save to \.npz"):
        cloud(1).save(tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


def test_csv_header_decides_what_the_last_column_is(tmp_path):
    (tmp_path / "a.csv").write_text("x,weight\n1,2\n3,2\n")
    (tmp_path / "b.csv").write_text("1,2\n3,2\n")
    assert mf.TokenMeasure.load(tmp_path / "a.csv").dim == 1
    assert mf.TokenMeasure.load(tmp_path / "b.csv").dim == 2


@pytest.mark.parametrize("head", ["", "x, y, weight\n", '"x","y","weight"\r\n'])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_a_spreadsheet_keeps_every_token(tmp_path, head, mark):
    path = tmp_path / "cloud.CSV"
    path.write_text(f"{mark}{head}1,2.5,1\n-.5,+3.,1e0\n\n", encoding="utf-8")
    mu = mf.TokenMeasure.load(path)
    expected = [[1, 2.5, 1], [-0.5, 3, 1]]
    np.testing.assert_array_equal(mu.points, np.array(expected)[:, : 2 if head else 3])
    mu.save(path)
    np.testing.assert_array_equal(mf.TokenMeasure.load(path).points, mu.points)


def test_arrays_of_other_types_are_converted_or_refused():
    points = np.array([[1.5, 2.0], [3.0, 4.0]])
    for kind in (">f8", "<f8", ">f4", ">i4", ">f2", jnp.bfloat16):
        mu = mf.TokenMeasure(points.astype(kind))
        np.testing.assert_array_equal(mu.points, points.astype(kind).astype(float))
    weights = np.array([1.0, 3.0], ">f8")
    np.testing.assert_allclose(mf.TokenMeasure.from_weights(points, weights).weights, [0.25, 0.75])
    for kind in (np.longdouble, complex, bool, object, "M8[s]"):
        with pytest.raises(mf.MeanfieldError, match="real numbers"):
            mf.TokenMeasure(points.astype(int).astype(kind))


def test_stacked_contexts_move_as_they_do_alone():
    contexts = [cloud(2, num=3), cloud(3, num=6)]
    rho = mf.sample_parameters(
        AV, mf.EntrywiseGaussian(0.5), mf.DepthGrid.uniform(3), 4, dim=3, key=jax.random.key(0)
    )
    together = mf.solve_flow(AV, rho, mf.stack_contexts(contexts))
    for i, mu in enumerate(contexts):
        alone = mf.solve_flow(AV, rho, mu)
        np.testing.assert_allclose(
            together.path[i, :, : mu.num_tokens], alone.path, rtol=1e-13, atol=1e-14
        )


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
def test_refinement_changes_the_grid_but_not_the_measure(interpolation):
    generator = np.random.default_rng(4)
    rho = mf.ParameterMeasure(
        mf.AttentionAV(*generator.normal(size=(2, 3, 2, 2, 2)) * 0.5),
        mf.DepthGrid([0.0, 0.3, 0.5, 1.0]),
        np.tile(generator.normal(size=2), (3, 1)),
        interpolation=interpolation,
    )
    mu = cloud(5, dim=2)
    coarse = mf.solve_flow(AV, rho, mu, scheme=mf.Adaptive(rtol=1e-11, atol=1e-12))
    fine = mf.refine_depth(rho, 3)
    assert fine.num_cells == 9
    np.testing.assert_allclose(fine.grid.nodes[::3], rho.grid.nodes, atol=1e-15)
    solved = mf.solve_flow(AV, fine, mu, scheme=mf.Adaptive(rtol=1e-11, atol=1e-12))
    np.testing.assert_allclose(solved.path[::3], coarse.path, rtol=1e-9, atol=1e-10)


def test_subsampling_follows_the_masses_and_can_keep_labels():
    particles = mf.AttentionAV(
        jnp.broadcast_to(jnp.arange(4.0).reshape(1, 4, 1, 1), (3, 4, 1, 1)), jnp.ones((3, 4, 1, 1))
    )
    weights = np.array([0.5, 0.25, 0.25, 0.0])
    with np.errstate(divide="ignore"):
        rho = mf.ParameterMeasure(
            particles, mf.DepthGrid.uniform(3), np.tile(np.log(weights), (3, 1))
        )
    drawn = mf.subsample(rho, 8000, key=jax.random.key(1)).particles.A[:, :, 0, 0]
    counts = np.stack([np.mean(np.asarray(drawn) == j, axis=1) for j in range(4)])
    assert np.abs(counts - weights[:, None]).max() < 5 * np.sqrt(0.25 / 8000)
    labelled = mf.subsample(rho, 5, key=jax.random.key(1), labelled=True).particles.A
    np.testing.assert_array_equal(labelled[0], labelled[2])
    assert not np.array_equal(drawn[0], drawn[2]), "independent draws differ across depth"
    equal = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(3))
    without = mf.subsample(equal, 4, key=jax.random.key(2), replace=False).particles.A[0, :, 0, 0]
    assert sorted(np.asarray(without)) == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(mf.MeanfieldError, match="replace=True"):
        mf.subsample(rho, 2, key=jax.random.key(2), replace=False)


def test_labelled_particles_keep_their_mass():
    masses = np.log([[0.7, 0.3], [0.3, 0.7]])
    build = lambda interpolation: mf.ParameterMeasure(  # noqa: E731
        jnp.ones((2, 2, 1)), mf.DepthGrid.uniform(2), masses, interpolation=interpolation
    )
    with pytest.raises(mf.MeanfieldError, match="same log_weights in every cell"):
        build("linear")
    with pytest.raises(mf.MeanfieldError, match="same log_weights in every cell"):
        mf.subsample(build("constant"), 2, key=jax.random.key(0), labelled=True)


def test_parameters_across_depth():
    def sample(across_depth):
        return mf.sample_parameters(
            AV,
            mf.EntrywiseGaussian(1.0),
            mf.DepthGrid.uniform(8),
            500,
            dim=2,
            key=jax.random.key(3),
            across_depth=across_depth,
        )

    constant, smooth, independent = (sample(s) for s in ("constant", "smooth", "independent"))
    np.testing.assert_array_equal(constant.particles.A[0], constant.particles.A[-1])
    assert smooth.interpolation == "linear"
    for rho in (constant, smooth, independent):
        assert np.abs(np.asarray(rho.particles.A).std(axis=(1, 2, 3)) - 1).max() < 0.1
    step = lambda rho: float(np.abs(np.diff(np.asarray(rho.particles.A), axis=0)).mean())  # noqa: E731
    assert step(smooth) < 0.3 < step(independent)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mf.TokenMeasure(np.zeros((0, 2))), "empty cloud"),
        (lambda: mf.TokenMeasure(np.zeros(3)), "add the missing axis"),
        (lambda: mf.TokenMeasure(np.array([[1.0, np.nan]])), "index [0, 1]"),
        (lambda: mf.TokenMeasure(np.array([["a", "b"]])), "real numbers"),
        (lambda: mf.TokenMeasure(np.ones((2, 2)), np.zeros(3)), "log_weights has shape (3,)"),
        (lambda: mf.TokenMeasure(np.ones((2, 2)), [-np.inf, -np.inf]), "-inf everywhere"),
        (lambda: mf.TokenMeasure.from_weights(np.ones((2, 2)), [1.0, -1.0]), "negative"),
        (lambda: mf.TokenMeasure.from_weights(np.ones((2, 2)), [0.0, 0.0]), "sum to 0"),
        (lambda: mf.TokenMeasure.from_weights(np.ones((2, 2)), [1.0, np.inf]), "index [1]"),
        (lambda: mf.stack_contexts([]), "at least one"),
        (lambda: mf.stack_contexts([cloud(0), cloud(0, dim=2)]), "widths [2, 3]"),
        (lambda: mf.DepthGrid([0.0, 0.5, 0.5]), "smallest step 0.0"),
        (lambda: mf.DepthGrid([0.1, 1.0]), "starts at 0.1"),
        (lambda: mf.DepthGrid.uniform(0), "num_cells is 0"),
        (
            lambda: mf.ParameterMeasure(jnp.zeros((32, 2, 3)), mf.DepthGrid.uniform(16)),
            "32 depth cells but grid has 16",
        ),
        (lambda: mf.ParameterMeasure(jnp.zeros((2, 0, 3)), mf.DepthGrid.uniform(2)), "M = 0"),
        (
            lambda: mf.refine_depth(
                mf.ParameterMeasure(jnp.zeros((1, 1)), mf.DepthGrid.uniform(1)), 0
            ),
            "factor is 0",
        ),
    ],
)
def test_bad_input_is_one_line(make, words):
    with pytest.raises(mf.MeanfieldError) as caught:
        make()
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert text.count(";") >= 2, "given; expected; mend"
