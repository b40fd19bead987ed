"""The ordinary transformer against the flow's own engine: values, gradients, steps of training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meanfield as mf
from meanfield import models
from tests.helpers import random_batch, random_measure, relative_gap

L, M, K, D, SCALE = 3, 5, 2, 3, 0.7
FIELD = mf.SoftmaxAttention("qkv", head_dim=K, scale=SCALE)
LOSS = mf.SquaredLoss()


@pytest.fixture(scope="module")
def rho():
    nodes = np.linspace(0, 1, L + 1)
    return random_measure(FIELD, dim=D, num_particles=M, nodes=nodes, seed=3, weighted=False)


@pytest.fixture(scope="module")
def net(rho):
    return models.Transformer.from_parameter_measure(rho, scale=SCALE)


@pytest.fixture(scope="module")
def batch():
    return random_batch(dim=D, num_contexts=3, num_tokens=4)


@pytest.fixture(scope="module")
def gradient(net, batch):
    return jax.jit(jax.value_and_grad(models.squared_loss))(net, batch)


def heads(net) -> mf.AttentionQKV:
    return mf.AttentionQKV(net.query, net.key, net.value)


def flowed(rho, batch) -> list:
    contexts = batch.contexts
    clouds = [
        mf.TokenMeasure(points, masses)
        for points, masses in zip(contexts.points, contexts.log_weights, strict=True)
    ]
    return [mf.solve_flow(FIELD, rho, mu).final.points for mu in clouds]


def test_layers_are_eulers_steps_of_the_flow(rho, net, batch):
    outputs = jax.vmap(net)(batch.contexts.points, batch.contexts.log_weights)
    assert relative_gap(list(outputs), flowed(rho, batch)) < 1e-13
    even = mf.TokenMeasure(batch.contexts.points[0])
    final = mf.solve_flow(FIELD, rho, even).final.points
    assert relative_gap(net(even.points), final) < 1e-13


def test_control_another_multiplier_is_noticed(rho, net, batch, monkeypatch):
    monkeypatch.setattr(models.Transformer, "num_heads", 1)  # 1/L instead of 1/(L M)
    outputs = jax.vmap(net)(batch.contexts.points, batch.contexts.log_weights)
    assert relative_gap(list(outputs), flowed(rho, batch)) > 0.1


def test_partial_derivative_is_the_wasserstein_gradient_over_layers_and_heads(
    rho, net, batch, gradient
):
    value, slope = gradient
    found = mf.conditional_gradient(FIELD, rho, LOSS, batch)
    assert value == pytest.approx(float(found.value), rel=1e-13)
    assert relative_gap(heads(slope), jax.tree.map(lambda g: g / (L * M), found.gradient)) < 1e-12


@pytest.mark.parametrize("minibatch", [None, 2])
def test_sgd_at_rate_l_m_dt_is_the_flow_step_for_step(rho, net, batch, minibatch):
    dt, key = 0.1, jax.random.key(4)
    stepper = mf.EulerStep(dt)
    state = mf.init_training(FIELD, rho, LOSS, batch, stepper=stepper, minibatch=minibatch, key=key)
    history = mf.run_training(state, 6, record_every=3)

    def train(rate):
        return models.fit(
            net, batch, 6, learning_rate=rate, minibatch=minibatch, key=key, num_records=2
        )

    fit = train(net.learning_rate(dt))
    assert relative_gap(heads(fit.model), history.state.rho.particles) < 1e-12
    assert fit.loss == pytest.approx(history.risk, rel=1e-12)
    assert list(fit.step) == list(history.step)
    assert relative_gap(fit.models.value[0], net.value) == 0
    assert relative_gap(fit.models.value[-1], fit.model.value) == 0
    other = train(net.num_layers * dt)  # a rate without M: another training time
    assert relative_gap(heads(other.model), history.state.rho.particles) > 0.01


def test_round_trip(rho, net):
    assert net.as_field() == FIELD
    again = net.as_parameter_measure()
    assert relative_gap(again, rho) < 1e-15
    twice = models.Transformer.from_parameter_measure(again, scale=net.as_field().scale)
    assert relative_gap(twice, net) == 0
    assert (net.num_layers, net.num_heads, net.scale) == (L, M, SCALE)


def test_order_of_heads_and_of_tokens_does_not_matter(net, batch):
    points, masses = batch.contexts.points[0], batch.contexts.log_weights[0]
    forward = jax.jit(lambda net, points, masses: net(points, masses))
    expected = forward(net, points, masses)
    order = jnp.array([4, 2, 0, 3, 1])
    shuffled = jax.tree.map(lambda leaf: leaf[:, order], net)
    assert relative_gap(forward(shuffled, points, masses), expected) < 1e-14
    order = jnp.array([2, 3, 1, 0])
    assert relative_gap(forward(net, points[order], masses[order]), expected[order]) < 1e-14
    layers = jax.tree.map(lambda leaf: leaf[::-1], net)  # but that of the layers does
    assert relative_gap(forward(layers, points, masses), expected) > 1e-3


def test_groups_of_heads_give_the_same_gradient(net, batch, gradient):
    some = models.Transformer(*heads(net), scale=SCALE, heads_at_once=2)  # 2, 2 and 1 left over
    value, slope = jax.jit(jax.value_and_grad(models.squared_loss))(some, batch)
    assert value == pytest.approx(float(gradient[0]), rel=1e-14)
    assert relative_gap(heads(slope), heads(gradient[1])) < 1e-13


def test_groups_of_heads_need_less_memory():
    num_tokens, num_heads, num_layers = 128, 32, 8
    weights = jax.ShapeDtypeStruct((num_layers, num_heads, D, D), jnp.float64)
    points = jax.ShapeDtypeStruct((num_tokens, D), jnp.float64)

    def needed(heads_at_once) -> int:
        def loss(weights, x):
            net = models.Transformer(weights, weights, weights, heads_at_once=heads_at_once)
            return jnp.sum(net(x) ** 2)

        compiled = jax.jit(jax.grad(loss)).lower(weights, points).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)  # type: ignore[union-attr]

    square = 8 * num_tokens**2
    assert needed(4) < 2 * num_heads * square
    assert needed(None) > num_layers * num_heads * square  # every softmax is kept


def test_any_optimiser_and_any_loss(net, batch, gradient):
    def upside_down(model, batch):
        return -models.squared_loss(model, batch)

    fit = models.fit(net, batch, 1, learning_rate=1e-2, optimiser=optax.sign_sgd, loss=upside_down)
    moved = jax.tree.map(jnp.subtract, heads(fit.model), heads(net))
    signs = jax.tree.map(lambda g: 1e-2 * jnp.sign(g), heads(gradient[1]))
    assert relative_gap(moved, signs) < 1e-12
    assert fit.loss[0] == pytest.approx(-float(gradient[0]))


def test_unfit_weights_are_refused_in_one_line(net):
    query, key, value = heads(net)
    for weights, words in (
        ((query, key[:, 1:], value), "expected .L, M, k, d. twice"),
        ((query, key, value[..., :1]), "merge W_O W_V"),
        ((query[0], key[0], value[0]), "stack the heads"),
        ((query, key, value.at[0, 0, 0, 0].set(jnp.nan)), r"value holds nan at index \[0, 0, 0, 0"),
    ):
        with pytest.raises(mf.MeanfieldError, match=words) as error:
            models.Transformer(*weights)
        assert "\n" not in str(error.value)
    with pytest.raises(mf.MeanfieldError, match="scale=inf; expected a finite number"):
        models.Transformer(query, key, value, scale=np.inf)
    with pytest.raises(mf.MeanfieldError, match="heads_at_once is 0"):
        models.Transformer(query, key, value, heads_at_once=0)


def test_measures_that_are_no_stack_are_refused(rho):
    theta, grid = rho.particles, rho.grid
    av = mf.AttentionAV(theta.V, theta.V)
    uneven = mf.DepthGrid([0.0, 0.2, 0.5, 1.0])
    weights = np.log(np.broadcast_to([0.4, 0.3, 0.1, 0.1, 0.1], (L, M)))
    for wrong, words in (
        (mf.ParameterMeasure(av, grid), "AttentionAV; expected AttentionQKV"),
        (mf.ParameterMeasure(theta, uneven), "lengths 0.2 to 0.5.*DepthGrid.uniform"),
        (mf.ParameterMeasure(theta, mf.DepthGrid.uniform(L, 2.0)), "up to 2; expected equal cells"),
        (mf.ParameterMeasure(theta, grid, weights), "masses from 0.1 to 0.4.*subsample"),
        (mf.ParameterMeasure(theta, grid, interpolation="linear"), "joined linearly"),
    ):
        with pytest.raises(mf.MeanfieldError, match=words) as error:
            models.Transformer.from_parameter_measure(wrong)
        assert "\n" not in str(error.value)


def test_unfit_training_is_refused_in_one_line(net, batch):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_records": 2}, "num_records=2 of 3 steps"),
        ({"num_records": 0}, "num_records is 0"),
        ({"minibatch": 4, "key": jax.random.key(0)}, "minibatch=4 of 3 contexts"),
        ({"minibatch": 2}, "no key"),
    ]
    for flags, words in cases:
        with pytest.raises(mf.MeanfieldError, match=words) as error:
            models.fit(net, batch, 3, learning_rate=0.1, **flags)
        assert "\n" not in str(error.value)
    with pytest.raises(mf.NonFiniteError, match="not finite after 6 steps.*smaller"):
        models.fit(net, batch, 6, learning_rate=1e200, num_records=1)
