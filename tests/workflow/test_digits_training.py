"""The digits at toy size: fit, classification, learning curves, their controls, the figures.

Only two points of the curves are trained, the fewest images and the control; the others are planted
read-outs whose law is known, so that what is said of them can be told beforehand.
"""

import jax
import numpy as np
import pytest

import meanfield as mf
from meanfield.data import class_anchors, load_digits
from tests.workflow.small_runs import SmallRuns

NAME = "digits_training"
LAYERS = "curves, read-outs of L and 2L layers: log2(first gap / last)"
SMALL = {
    NAME: {
        "source": "sklearn",
        "pool": 2,
        "dim": 5,
        "num_cells": 2,
        "num_heads": 12,
        "num_fit": 4,
        "fit_steps": 80,
        "fit_record_every": 4,
        "num_train": 40,
        "num_test": 40,
        "minibatch": 20,
        "num_steps": 30,
        "record_every": 15,
        "expected_accuracy": 0.15,
        "num_paths": 3,
        "curve_images": (5, 30),
        "curve_pools": (4, 2),
        "curve_heads": (4, 8, 16, 32),
        "curve_layers": (1, 2, 4),
        "base_pool": 2,
        "base_heads": 8,
        "base_layers": 1,
        "curve_seeds": 4,
        "curve_test": 100,
        "curve_minibatch": 5,
        "curve_steps": 20,
        "accuracy_tolerance": 0.1,
    }
}


def plant(name, module, directory) -> None:
    """Read-outs that are anchors plus noise of size pool / (2 M^(1/2) L^2)."""
    parameters = module.Parameters(**SMALL[name])
    anchors = class_anchors(10, parameters.dim)
    swept = module.lessons(parameters)
    real = {*swept["control"], swept["images"][0]}
    shape = (parameters.curve_seeds, parameters.curve_test)
    labels = np.broadcast_to(np.arange(parameters.curve_test) % 10, shape)
    rng = np.random.default_rng(0)
    # M heads are the first of 2M: sums of the same independent terms
    terms = rng.normal(size=(max(parameters.curve_heads), *shape, parameters.dim))
    for lesson in {one for sweep in swept.values() for one in sweep} - real:
        noise = lesson.pool / 2 * terms[: lesson.heads].mean(axis=0) / lesson.layers**2
        cell = {"read_out": anchors[labels] + noise, "labels": labels, "tokens": 3.0}
        directory.cached(str(lesson), lambda cell=cell: cell)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return SmallRuns(tmp_path_factory.mktemp("digits"), SMALL, plant)


def test_the_fit_reaches_its_target_without_a_rise(small):
    _, directory, claims = small(NAME)
    fit = directory.load("fit")
    assert (np.diff(fit["risk"]) <= 0).all()
    assert fit["risk"][-1] < 0.1 * fit["risk"][0]
    assert claims["fit: steps tried until risk / initial risk is 0.1"].verdict == "consistent"
    assert (
        claims["fit: largest rise of the risk (steps that raise it are refused)"].verdict
        == "consistent"
    )


def test_the_kernel_along_the_flow_predicts_the_decay_and_the_frozen_one_does_worse(small):
    module, directory, claims = small(NAME)
    assert claims["fit: gap of log-risk, kernel along the flow"].verdict == "consistent"
    fit = directory.load("fit")
    along, frozen = (module.log_gap(fit[name], fit["risk"]) for name in ("along", "frozen"))
    assert along < frozen
    np.testing.assert_allclose(fit["along"][0], fit["risk"][0], rtol=1e-12)


def test_classification_beats_chance_and_stores_what_the_figure_needs(small):
    _, directory, claims = small(NAME)
    assert (
        claims["classify: test accuracy (one net; interval over test images)"].verdict
        == "consistent"
    )
    assert directory.load("classify")["risk"].dtype == np.float32


def test_baselines_know_their_trade(small):
    _, directory, _ = small(NAME)
    accuracies = {k: float(v) for k, v in directory.load("baselines").items()}
    assert set(accuracies) == {"nearest_class_mean", "logistic_regression", "kernel_ridge"}
    assert all(0.3 < value <= 1 for value in accuracies.values())


def test_the_brightest_pixels_are_kept(small):
    module, _, _ = small(NAME)
    images = np.random.default_rng(0).random((3, 4, 4))
    kept = module.brightest(images, 5)
    assert ((kept > 0).sum(axis=(1, 2)) == 5).all()
    assert (kept.max(axis=(1, 2)) == images.max(axis=(1, 2))).all()
    assert (np.sort(kept.reshape(3, -1))[:, -5:] == np.sort(images.reshape(3, -1))[:, -5:]).all()
    np.testing.assert_array_equal(module.brightest(images, 16), images)


def attention(mu, query, scores):
    """Weights ``[N, M, n]`` and means ``[N, M, d]`` of a query, by numpy alone."""
    points, log_weights = np.asarray(mu.points), np.asarray(mu.log_weights)
    logits = np.einsum("d,mde,ine->imn", query, scores, points) + log_weights[:, None]
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights, weights @ points


def test_a_point_of_the_curves_is_gradient_descent_written_out(small):
    """One layer, five images in batches of five: the read-out and its gradient are formulas."""
    module, directory, _ = small(NAME)
    parameters = module.Parameters(**SMALL[NAME])
    lesson = module.lessons(parameters)["images"][0]
    split = module.digits(parameters, 30, num_test=parameters.curve_test, pool=2, turn=1)
    batch = module.task(split.train_images[:5], split.train_labels[:5], parameters)
    most = mf.sample_parameters(
        module.FIELD,
        mf.EntrywiseGaussian(A=parameters.score_scale, V=0.0),
        mf.DepthGrid.uniform(1),
        max(parameters.curve_heads),
        dim=parameters.dim,
        key=jax.random.key(parameters.seed + 1),
        across_depth="constant",
    )
    scores, values = (np.array(leaf[0, : lesson.heads]) for leaf in most.particles)
    points, goals = np.asarray(batch.contexts.points), np.asarray(batch.targets[:, 0])
    query = points[0, 0]
    for _ in range(parameters.curve_steps):
        weights, means = attention(batch.contexts, query, scores)
        ends = query + np.einsum("mde,ime->id", values, means) / len(values)
        momenta = (ends - goals) / len(goals)
        pulled = np.einsum("mde,id->ime", values, momenta)
        gaps = points[:, None] - means[:, :, None]
        along = np.einsum("imn,imnd,imd,imne->me", weights, gaps, pulled, gaps)
        scores = scores - parameters.dt * query[:, None] * along[:, None]
        values = values - parameters.dt * np.einsum("id,ime->mde", momenta, means)
    tests = module.task(split.test_images, split.test_labels, parameters).contexts
    ends = query + np.einsum("mde,ime->id", values, attention(tests, query, scores)[1]) / len(
        values
    )
    cell = directory.cached(str(lesson), dict)
    np.testing.assert_array_equal(cell["labels"][1], split.test_labels)
    np.testing.assert_allclose(cell["read_out"][1], ends, atol=1e-4)


def test_the_curves_say_what_was_planted(small):
    module, directory, claims = small(NAME)
    curves = directory.load("curves")
    verdicts = {name: claim.verdict for name, claim in claims.items() if "curves" in name}
    assert set(verdicts.values()) == {"consistent"}, verdicts
    # means of M and of 2M terms of variance 1 in five coordinates: 5 (1/M - 1/2M)
    expected = np.sqrt(5 / (2 * np.array([4, 8, 16])))
    np.testing.assert_allclose(curves["heads_gap"].mean(axis=0), expected, rtol=0.1)
    cell = directory.cached(
        str(module.lessons(module.Parameters(**SMALL[NAME]))["heads"][-1]), dict
    )
    nearest = np.linalg.norm(
        cell["read_out"][:, :, None] - class_anchors(10, 5)[None, None], axis=-1
    ).argmin(axis=-1)
    share = (nearest == cell["labels"]).mean(axis=1)
    np.testing.assert_array_equal(curves["heads_accuracy"][:, -1], share)
    # noise falls as 1/L^2: gaps 1 - 1/4 and 1/4 - 1/16
    assert claims[LAYERS].measured == pytest.approx(2)


def test_controls_fail_where_nothing_is_shuffled_and_gaps_do_not_fall(small, tmp_path):
    module, _, claims = small(NAME)
    base = module.lessons(module.Parameters(**SMALL[NAME]))["base"][0]
    control = "control (shuffled training labels): test accuracy"
    assert claims[control].verdict == "consistent"
    _, directory, _ = small(NAME)
    honest = directory.cached(str(base), dict)

    def spoil(key, arrays):
        if key == str(base._replace(is_shuffled=True)):
            return honest
        if key == str(base._replace(heads=32)):  # as far from 16 heads as 4 are
            return {**arrays, "read_out": arrays["read_out"] + 1.5}
        return arrays

    found = {
        claim.quantity: claim.verdict
        for claim in small.again(NAME, tmp_path, spoil, expected_accuracy=1.01, fit_target=1e-9)
    }
    assert found[control] != "consistent"
    assert found["curves, read-outs of M and 2M heads: slope in M"] == "inconsistent"
    assert found["classify: test accuracy (one net; interval over test images)"] == "inconsistent"
    assert found["fit: steps tried until risk / initial risk is 1e-09"] == "inconsistent"


def test_claims_about_curves_fail_where_more_is_worse(small, tmp_path):
    """The base, which is the most of three sweeps, misses every anchor; more layers go astray."""
    module, _, claims = small(NAME)
    parameters = module.Parameters(**SMALL[NAME])
    swept = module.lessons(parameters)
    worst = {swept["base"][0], swept["heads"][-1]}
    anchors = class_anchors(10, parameters.dim)

    def spoil(key, arrays):
        if key in map(str, worst):  # the next digit's anchor
            return {**arrays, "read_out": anchors[(arrays["labels"] + 1) % 10]}
        if key == str(swept["layers"][-1]):
            return {**arrays, "read_out": anchors[(arrays["labels"] + 2) % 10] * 100}
        return arrays

    found = {claim.quantity: claim.verdict for claim in small.again(NAME, tmp_path, spoil)}
    above = [name for name, claim in claims.items() if str(claim.expected).startswith("above")]
    above = [name for name in above if name.startswith("curves")]
    assert len(above) == 5
    assert {found[name] for name in above} == {"inconsistent"}, found


def test_claims_about_curves_are_undecided_where_seeds_disagree(small):
    module, directory, _ = small(NAME)
    parameters = module.Parameters(**SMALL[NAME])
    curves = directory.load("curves")
    signs = np.resize([1.0, -1.0], parameters.curve_seeds)[:, None]
    for name in ("images", "pools", "heads"):
        curves[f"{name}_accuracy"] = 0.5 + 0.1 * signs * np.array([0, 1])
    curves["base_accuracy"] = 0.1 + 0.05 * signs
    curves["layers_gap"] = 2.0 ** (signs * np.array([0, 1]))
    claims = module.curve_claims(parameters, curves)
    undecided = [c.quantity for c in claims if c.verdict == "undecided"]
    assert len(undecided) == 5, claims


def test_the_rarest_digit_is_counted(small):
    module, _, _ = small(NAME)
    counts = np.bincount(load_digits("sklearn").train_labels)
    assert {"mnist": 500, "sklearn": counts.min()} == module.RAREST  # tests/unit/test_data.py


@pytest.mark.parametrize(
    ("flag", "change"),
    [
        ("curve-heads", {"curve_heads": (4, 8, 16, 24)}),
        ("curve-layers", {"curve_layers": (1, 2)}),
        ("curve-pools", {"curve_pools": (3, 2)}),
        ("base-pool", {"base_pool": 1}),
        ("base-heads", {"base_heads": 3}),
        ("base-layers", {"base_layers": 8}),
        ("curve-minibatch", {"curve_minibatch": 6}),
        ("curve-images", {"curve_images": (30, 10, 5)}),
        ("curve-pools", {"curve_pools": (2, 4)}),
        ("num-fit", {"num_fit": 1701}),  # beside 40, of 1740
        ("num-train", {"num_train": 1701}),
        ("num-train", {"num_train": 1, "minibatch": 1}),
        ("num-test", {"num_test": 1740}),
        ("curve-test", {"curve_test": 1740}),
        ("curve-images", {"curve_images": (5, 1641)}),  # beside 100
    ],
)
def test_what_makes_no_curve_is_refused(small, flag, change):
    module, _, _ = small(NAME)
    with pytest.raises(mf.MeanfieldError, match=f"--{flag} "):
        module.Parameters(**{**SMALL[NAME], **change})


def test_the_figures_show_the_stored_numbers(small):
    from meanfield._commands import catalogue
    from meanfield.records import shown

    _, directory, _ = small(NAME)
    runs = {NAME: mf.RunDirectory.open(directory.path)}
    first = catalogue.load(catalogue.locate("figures", NAME), ("draw", "caption"))
    ratio = directory.load("fit")["risk"] / directory.load("fit")["risk"][0]
    np.testing.assert_array_equal(first.draw(runs).axes[0].lines[0].get_ydata(), ratio)
    assert f"risk ratio {shown(ratio[-1])} at" in first.caption(runs)
    second = catalogue.load(catalogue.locate("figures", "digits_curves"), ("draw", "caption"))
    axes = second.draw(runs).axes
    means = directory.load("curves")["images_accuracy"].mean(axis=0)
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), means)
    assert f"{means[-1]:.3f}" in second.caption(runs)
