"""Each field's values against loops in plain numpy, and what a wrong field or particle is told."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from tests.helpers import random_batch, random_measure, relative_gap

DIM = 3
GENERATOR = np.random.default_rng(11)
POINTS = GENERATOR.normal(size=(5, DIM))
MASSES = np.array([0.4, 0.1, 0.0, 0.3, 0.2])
LABELS = np.array([3, 0, 4, 1, 2])
MU = mf.TokenMeasure.from_weights(POINTS, MASSES, LABELS)
ELSEWHERE = GENERATOR.normal(size=(4, DIM))
A, V = GENERATOR.normal(size=(2, DIM, DIM))
Q, K = GENERATOR.normal(size=(2, 2, DIM))
HEAD = mf.AttentionAV(jnp.asarray(A), jnp.asarray(V))
AV = mf.SoftmaxAttention("av")


def attention(score, values, x, points, masses) -> np.ndarray:
    """``V sum_b w_b e^{<x, A y_b>} y_b / sum_c w_c e^{<x, A y_c>}``, one query at a time."""
    rows = []
    for query in x:
        tilted = np.array(
            [w * np.exp(query @ score @ y) for w, y in zip(masses, points, strict=True)]
        )
        rows.append(values @ sum(t * y for t, y in zip(tilted, points, strict=True)) / tilted.sum())
    return np.stack(rows)


def normalise(x, epsilon=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)


def test_attention_in_both_parametrizations():
    expected = attention(0.7 * A, V, ELSEWHERE, POINTS, MASSES)
    found = mf.SoftmaxAttention("av", scale=0.7)(HEAD, jnp.asarray(ELSEWHERE), MU)
    assert relative_gap(found, expected) < 1e-13
    theta = mf.AttentionQKV(*(jnp.asarray(a) for a in (Q, K, V)))
    expected = attention(0.7 * Q.T @ K, V, ELSEWHERE, POINTS, MASSES)
    field = mf.SoftmaxAttention("qkv", head_dim=2, scale=0.7)
    assert relative_gap(field(theta, jnp.asarray(ELSEWHERE), MU), expected) < 1e-13


def test_perceptron_and_sum():
    u, w = GENERATOR.normal(size=(2, DIM))
    neuron = mf.PerceptronParticle(jnp.asarray(u), jnp.asarray(w), jnp.asarray(0.3))
    expected = np.stack([u * np.tanh(w @ x + 0.3) for x in ELSEWHERE])
    assert relative_gap(mf.Perceptron()(neuron, jnp.asarray(ELSEWHERE), MU), expected) < 1e-13
    both = mf.Sum(AV, mf.Perceptron())((HEAD, neuron), jnp.asarray(ELSEWHERE), MU)
    expected = expected + attention(A, V, ELSEWHERE, POINTS, MASSES)
    assert relative_gap(both, expected) < 1e-13


def test_sphere_projection():
    found = mf.SphereProjection(AV)(HEAD, jnp.asarray(ELSEWHERE), MU)
    plain = attention(A, V, ELSEWHERE, POINTS, MASSES)
    units = ELSEWHERE / np.linalg.norm(ELSEWHERE, axis=1, keepdims=True)
    assert relative_gap(found, plain - (plain * units).sum(axis=1, keepdims=True) * units) < 1e-13
    at_origin = mf.SphereProjection(AV)(HEAD, jnp.zeros((1, DIM)), MU)
    np.testing.assert_array_equal(at_origin, np.zeros((1, DIM)))


def test_layer_norm():
    found = mf.LayerNorm(AV)(HEAD, jnp.asarray(ELSEWHERE), MU)
    expected = attention(A, V, normalise(ELSEWHERE), normalise(POINTS), MASSES)
    assert relative_gap(found, expected) < 1e-13


def test_causal_tokens_see_themselves_and_their_predecessors():
    found = np.asarray(mf.Causal(AV)(HEAD, MU.points, MU, MU.labels))
    for a, label in enumerate(LABELS):
        seen = label >= LABELS
        expected = attention(A, V, POINTS[a : a + 1], POINTS[seen], MASSES[seen])
        assert relative_gap(found[a : a + 1], expected) < 1e-13
    first = int(np.argmin(LABELS))
    assert relative_gap(found[first], V @ POINTS[first]) < 1e-13
    outside = mf.Causal(AV)(HEAD, jnp.asarray(ELSEWHERE), MU)  # later than every token
    assert relative_gap(outside, attention(A, V, ELSEWHERE, POINTS, MASSES)) < 1e-13


def test_probes_come_after_every_token_in_causal_order():
    """One layer: a probe moves as without causality, by tokens of every label."""
    heads = jax.tree.map(lambda leaf: leaf[None, None], HEAD)
    rho = mf.ParameterMeasure(heads, mf.DepthGrid([0.0, 0.5]))
    flow = mf.solve_flow(mf.Causal(AV), rho, MU, probes=ELSEWHERE)
    expected = ELSEWHERE + 0.5 * attention(A, V, ELSEWHERE, POINTS, MASSES)
    assert relative_gap(flow.probe_path[1], expected) < 1e-13
    causal = np.asarray(mf.Causal(AV)(HEAD, MU.points, MU, MU.labels))
    assert relative_gap(flow.path[1], POINTS + 0.5 * causal) < 1e-13
    first = int(np.argmin(LABELS))
    alone = ELSEWHERE + 0.5 * V @ POINTS[first]  # what a probe among the first would do
    assert relative_gap(flow.probe_path[1], alone) > 1e-2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_in_the_thousands_neither_overflow_nor_vanish(sign):
    """All scores below -1000 or above 1000; they differ by a few units."""
    points = 1.0 + 1e-3 * POINTS
    mu = mf.TokenMeasure.from_weights(points, MASSES)
    head = mf.AttentionAV(sign * 500.0 * jnp.eye(DIM), jnp.asarray(V))
    x = np.ones((2, DIM))
    scores = sign * 500.0 * x @ points.T
    assert (np.abs(scores) > 1000).all()
    tilted = MASSES * np.exp(scores - scores[:, [0]])
    weights = tilted / tilted.sum(axis=1, keepdims=True)
    q = jnp.ones((2, DIM))
    keyed = mf.AttentionQKV(head.A, jnp.eye(DIM), head.V)
    for field, theta in ((AV, head), (mf.SoftmaxAttention("qkv"), keyed)):
        found = field(theta, jnp.asarray(x), mu)
        assert relative_gap(found, weights @ points @ V.T) < 1e-10
        explicit = field.pullback(theta, jnp.asarray(x), mu, q)
        automatic = mf.AbstractField.pullback(field, theta, jnp.asarray(x), mu, q)
        assert relative_gap(explicit, automatic) < 1e-8
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(explicit))


def test_velocity_is_the_weighted_mean_over_particles():
    rho = random_measure(AV, dim=DIM, num_particles=4, nodes=[0.0, 1.0], seed=2)
    heads = jax.tree.map(lambda leaf: leaf[0], rho.particles)
    each = [attention(a, v, ELSEWHERE, POINTS, MASSES) for a, v in zip(*heads, strict=True)]
    x = jnp.asarray(ELSEWHERE)
    assert relative_gap(mf.velocity(AV, heads, x, MU), np.mean(each, axis=0)) < 1e-13
    weighted = mf.velocity(AV, heads, x, MU, log_weights=rho.log_weights[0])
    assert relative_gap(weighted, np.tensordot(rho.weights[0], each, 1)) < 1e-13


class TestRefusals:
    def test_arguments_of_fields(self):
        cases: list[tuple[dict[str, Any], str]] = [
            ({"parametrization": "av", "head_dim": 2}, "head_dim"),
            ({"head_dim": 0}, "at least 1"),
            ({"scale": float("nan")}, "finite"),
        ]
        for arguments, words in cases:
            with pytest.raises(mf.MeanfieldError, match=words):
                mf.SoftmaxAttention(**arguments)
        with pytest.raises(mf.MeanfieldError, match="at least one field"):
            mf.Sum()

    def test_particles_that_do_not_fit_the_field_or_the_tokens(self):
        batch = random_batch(dim=2, num_contexts=1)
        options = {"num_particles": 2, "nodes": [0.0, 1.0], "seed": 0}
        wide = random_measure(AV, dim=3, **options)
        with pytest.raises(mf.MeanfieldError, match="width d = 2"):
            mf.solve_flow(AV, wide, batch.contexts)
        other = random_measure(mf.Perceptron(), dim=2, **options)
        with pytest.raises(mf.MeanfieldError, match="structure"):
            mf.solve_flow(AV, other, batch.contexts)
        single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), batch.contexts)
        fitting = random_measure(AV, dim=2, **options)
        with pytest.raises(mf.MeanfieldError, match="precision"):
            mf.solve_flow(AV, fitting, single)

    def test_methods_and_probes_that_do_not_fit(self):
        rho = random_measure(AV, dim=2, num_particles=2, nodes=[0.0, 1.0], seed=0)
        batch = random_batch(dim=2, num_contexts=1)
        loss = mf.SquaredLoss()
        with pytest.raises(mf.MeanfieldError, match="fixed-step"):
            mf.conditional_gradient(
                AV, rho, loss, batch, scheme=mf.Adaptive(), method=mf.DiscreteAdjoint()
            )
        with pytest.raises(mf.MeanfieldError, match="probe"):
            mf.solve_flow(AV, rho, batch.contexts, probes=np.zeros((2, 5)))


def test_log_weights_are_normalised():
    generator = np.random.default_rng(11)
    heads = mf.AttentionAV(*(jnp.asarray(a) for a in generator.normal(size=(2, 4, 3, 3))))
    mu = mf.TokenMeasure(generator.normal(size=(5, 3)))
    field = mf.SoftmaxAttention("av")
    equal = mf.velocity(field, heads, mu.points, mu)
    np.testing.assert_allclose(
        mf.velocity(field, heads, mu.points, mu, log_weights=jnp.full(4, 7.0)), equal, rtol=1e-14
    )


STRANGERS = """
import meanfield as mf
for make in (
    lambda: mf.Causal(mf.SoftmaxAttention),
    lambda: mf.Sum(mf.SoftmaxAttention("av"), mf.Perceptron),
    lambda: mf.Perceptron("tanh"),
    lambda: mf.SoftmaxAttention("av", scale=1j),
    lambda: mf.Adaptive(rtol=-1.0),
    lambda: mf.sample_parameters(
        mf.SoftmaxAttention, mf.EntrywiseGaussian(1.0), mf.DepthGrid.uniform(1), 1, dim=1, key=None
    ),
):
    try:
        print("accepted", make())
    except mf.MeanfieldError as error:
        print(error)
"""


def test_classes_and_other_strangers_are_refused():
    """In a process of its own: the suite's type checker would refuse them before the code does."""
    done = subprocess.run([sys.executable, "-c", STRANGERS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all("; expected " in line and "accepted" not in line for line in lines), lines


def test_nodes_beyond_the_grid_are_refused():
    field = mf.SoftmaxAttention("av")
    zeros = jnp.zeros((2, 1, 2, 2))
    rho = mf.ParameterMeasure(mf.AttentionAV(zeros, zeros), mf.DepthGrid.uniform(2))
    mu = mf.TokenMeasure(np.ones((3, 2)), labels=np.array([0, 255, 3], np.uint8))
    solution = mf.solve_flow(field, rho, mu)
    for node in (3, -4):
        with pytest.raises(mf.MeanfieldError, match="a node of the grid"):
            solution.measure(node)
    assert int(mu.with_queries(np.ones((1, 2))).labels[-1]) == 256, "narrow labels do not wrap"
    with pytest.raises(mf.MeanfieldError, match="m >= 1"):
        mf.solve_flow(field, rho, mu, probes=np.zeros((0, 2)))
