"""The ordinary transformer against the flow's own engine: values, gradients, steps of training."""

import inspect
import re
from typing import Any

import equinox as eqx
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
    twice = models.Transformer.from_parameter_measure(again, scale=SCALE, heads_at_once=2)
    assert relative_gap(twice, net) == 0
    assert (twice.scale, twice.heads_at_once) == (SCALE, 2)
    assert (net.num_layers, net.num_heads, net.scale) == (L, M, SCALE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_round_trip_of_deep_stacks_in_both_precisions(dtype):
    for num_layers in (1, 3, 200, 300, 500, 1000):  # nodes k/L are rounded
        weights = np.zeros((num_layers, 1, 1, 1), dtype)
        rho = models.Transformer(weights, weights, weights).as_parameter_measure()
        again = models.Transformer.from_parameter_measure(rho)
        assert (again.num_layers, again.value.dtype) == (num_layers, dtype)
        nodes = np.arange(num_layers + 1) / num_layers
        nodes[-1] += 1e-2 / num_layers
        rho = mf.ParameterMeasure(rho.particles, mf.DepthGrid(nodes.astype(dtype)))
        with pytest.raises(mf.MeanfieldError, match="nodes up to .* from k/L"):
            models.Transformer.from_parameter_measure(rho)


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


def test_the_example_of_the_docstring(net, batch):
    (block,) = re.findall(r"::\n\n(.*?)\n\n", inspect.getdoc(models.Transformer) or "", re.DOTALL)
    names = {"mf": mf, "batch": batch, "tokens": batch.contexts.points[0], "dt": 0.1}
    names |= dict(zip("QKV", heads(net), strict=True))
    exec(inspect.cleandoc(block), names)
    assert block.count("\n") == 5
    assert relative_gap(names["net"](names["tokens"]), names["final"]) < 1e-13
    assert relative_gap(heads(names["trained"]), names["heads"]) < 1e-12


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


def momentum(rate):
    return optax.sgd(rate, momentum=0.9)


@pytest.mark.parametrize("optimiser", [momentum, optax.adam])
def test_an_optimiser_remembers_from_step_to_step_and_across_records(net, batch, optimiser):
    fit = models.fit(net, batch, 4, learning_rate=0.3, optimiser=optimiser, num_records=2)
    transform, weights = optimiser(0.3), net
    slope, memory = jax.jit(jax.grad(models.squared_loss)), transform.init(net)
    for _ in range(4):
        updates, memory = transform.update(slope(weights, batch), memory, weights)
        weights = optax.apply_updates(weights, updates)
    assert relative_gap(fit.model, weights) < 1e-11


def test_runs_side_by_side_over_models_rates_and_keys(net, batch):
    def one(net, rate, key):
        fit = models.fit(net, batch, 2, learning_rate=rate, minibatch=2, key=key)
        return fit.loss, fit.model

    nets, rates = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), net), jnp.array([0.1, 3])
    keys = jax.random.split(jax.random.key(0))
    together = jax.vmap(one)(nets, rates, keys)
    for i in (0, 1):
        alone = one(jax.tree.map(lambda leaf: leaf[i], nets), rates[i], keys[i])  # noqa: B023
        assert relative_gap(jax.tree.map(lambda leaf: leaf[i], together), alone) < 1e-12  # noqa: B023


def test_all_is_computed_in_the_precision_of_the_weights(net, batch):
    points = np.asarray(batch.contexts.points[0])
    expected = net(points)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), net)
    for model, tokens, gap in (
        (net, points.astype(np.float32), 1e-6),
        (net, points.tolist(), 1e-14),
        (single, points, 1e-6),
    ):
        found = model(tokens, np.zeros(len(points), np.float32))
        assert found.dtype == model.query.dtype
        assert relative_gap(found, expected) < gap
    assert relative_gap(net(np.ones((2, D), int)), net(np.ones((2, D)))) == 0
    mixed = models.Transformer(single.query, net.key, single.value)
    assert {leaf.dtype for leaf in jax.tree.leaves(mixed)} == {np.dtype(float)}
    small = jax.tree.map(
        lambda x: x.astype(np.float32) if x.dtype == float else x, batch, is_leaf=eqx.is_array
    )
    for model, data in ((net, small), (single, batch)):
        fit = models.fit(model, data, 2, learning_rate=0.1)
        assert fit.model.value.dtype == model.value.dtype
        assert fit.loss[0] == pytest.approx(float(models.squared_loss(net, batch)), rel=1e-5)


@pytest.mark.parametrize(
    ("tokens", "masses", "words"),
    [
        (np.ones((4, 2)), None, r"tokens has shape \(4, 2\); expected \[n, 3\]"),
        (np.ones(3), None, r"tokens has shape \(3,\)"),
        (np.ones((1, 4, 3)), None, r"jax.vmap\(net\)"),
        (np.ones((0, 3)), None, r"tokens has shape \(0, 3\)"),
        (np.ones((4, 3)) + 1j, None, "tokens.*complex"),
        (np.ones((4, 3)), np.zeros((4, 1)), r"log_masses has shape \(4, 1\) for tokens \(4, 3\)"),
        (np.ones((4, 3)), np.zeros((4, 4)), "a mask is not supported"),
        (np.ones((4, 3)), np.zeros(()), r"expected shape \(4,\)"),
        (np.ones((4, 3)), np.zeros(1), r"log_masses has shape \(1,\)"),
        (np.ones((4, 3)), np.zeros(4) + 1j, "log_masses.*complex"),
    ],
)
def test_unfit_tokens_and_masses_are_refused_traced_or_not(net, tokens, masses, words):
    traced = jax.jit(lambda tokens, masses: net(tokens, masses))
    for call in (net, traced):
        with pytest.raises(mf.MeanfieldError, match=words) as error:
            call(tokens, masses)
        assert "\n" not in str(error.value)


def test_unfit_numbers_are_refused_where_they_are_known(net, batch):
    points = np.ones((3, D))
    for masses, words in (
        ([-np.inf] * 3, "holds -inf; expected .* one above -inf"),
        ([0, np.nan, 0], "holds nan"),
        ([0, np.inf, 0], "holds inf; expected numbers below infinity"),
        ("abc", "log_masses: got str"),
        (batch.contexts, "log_masses: got TokenMeasure"),
    ):
        with pytest.raises(mf.MeanfieldError, match=words):
            net(points, masses)
    with pytest.raises(mf.MeanfieldError, match=r"tokens holds nan at index \[0, 0\]"):
        net(points * np.nan)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * L), net)
    for use in (lambda: several(points), several.as_parameter_measure):
        with pytest.raises(mf.MeanfieldError, match="weights of several models.*jax.vmap"):
            use()


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
    for scale in (np.inf, "x", np.ones(2), [1.0], 1j, True):
        with pytest.raises(mf.MeanfieldError, match="scale=.*; expected a finite number") as error:
            models.Transformer(query, key, value, scale=scale)
        assert "\n" not in str(error.value)
    with pytest.raises(mf.MeanfieldError, match="scale=.*; expected a finite number"):
        jax.jit(lambda scale: models.Transformer(query, key, value, scale=scale).value)(1.0)
    assert models.Transformer(query, key, value, scale=1 / jnp.sqrt(4)).scale == 0.5
    with pytest.raises(mf.MeanfieldError, match="heads_at_once is 0"):
        models.Transformer(query, key, value, heads_at_once=0)


def test_measures_that_are_no_stack_are_refused(rho):
    theta, grid = rho.particles, rho.grid
    av = mf.AttentionAV(theta.V, theta.V)
    uneven = mf.DepthGrid([0.0, 0.2, 0.5, 1.0])
    weights = np.log(np.broadcast_to([0.4, 0.3, 0.1, 0.1, 0.1], (L, M)))
    for wrong, words in (
        (None, "rho is a NoneType; expected a ParameterMeasure"),
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
    key = jax.random.key(0)
    squared = models.squared_loss
    wide = mf.Batch(mf.TokenMeasure(np.ones((3, 2, D + 1))), np.ones((3, 2, D + 1)))
    flat = mf.Batch(mf.TokenMeasure(np.ones((3, D, D))), np.ones((3, D)))  # would be broadcast
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_records": 2}, "num_records=2 of 3 steps"),
        ({"num_records": 0}, "num_records is 0"),
        ({"num_steps": 2**31}, "num_steps is 2147483648; expected at most 2147483647"),
        ({"minibatch": 4, "key": key}, "minibatch=4 of 3 contexts"),
        ({"minibatch": 2}, "no key"),
        ({"minibatch": 2, "key": 0}, "key=0; expected one key"),
        ({"minibatch": 2, "key": jax.random.split(key)}, r"key of shape \(2,\)"),
        ({"learning_rate": np.nan}, "learning_rate=nan; expected one positive finite number"),
        ({"learning_rate": np.inf}, "learning_rate=inf"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1"),
        ({"learning_rate": np.ones(3)}, "many rates through jax.vmap"),
        ({"learning_rate": "x"}, "learning_rate='x'"),
        ({"learning_rate": optax.constant_schedule(0.1)}, "a function;.*sgd.schedule."),
        ({"optimiser": optax.sgd(0.1)}, "optimiser is an instance; expected a function"),
        ({"optimiser": 0.1}, "optimiser=0.1"),
        ({"optimiser": lambda rate: rate}, r"optimiser\(rate\) is a"),
        ({"loss": mf.SquaredLoss()}, r"loss=SquaredLoss\(\); expected a function"),
        ({"loss": lambda m, b: jax.vmap(m)(b.contexts.points)}, "a loss of type float64 and shape"),
        ({"loss": lambda m, b: (squared(m, b), 0.0)}, "a loss of type tuple"),
        ({"loss": lambda m, b: squared(m, b) + 1j}, "a loss of type complex"),
        ({"model": heads(net)}, "model is a AttentionQKV"),
        ({"model": jax.tree.map(lambda leaf: leaf[None], net)}, "weights of several models"),
        ({"batch": batch.contexts}, "batch is a TokenMeasure"),
        ({"batch": wide}, r"tokens has shape \(2, 4\); expected \[n, 3\]"),
        ({"batch": flat}, "one target point in R.d per token"),
    ]
    good = {"model": net, "batch": batch, "num_steps": 3, "learning_rate": 0.1}
    for flags, words in cases:
        with pytest.raises(mf.MeanfieldError, match=words) as error:
            models.fit(**{**good, **flags})
        assert "\n" not in str(error.value)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), net)
    for rate in (1e40, 1e-60):  # beyond the precision
        with pytest.raises(mf.MeanfieldError, match="number, in float32"):
            models.fit(single, batch, 3, learning_rate=rate)


def test_divergence_is_told_in_one_line_whatever_the_optimiser(net, batch):
    for optimiser in (optax.sgd, optax.adam):
        with pytest.raises(mf.NonFiniteError, match="not finite after 6 steps; .*smaller") as error:
            models.fit(net, batch, 6, learning_rate=1e200, optimiser=optimiser)
        assert "SGD" not in str(error.value)
        assert "\n" not in str(error.value)

    def infinite(model, batch):
        return models.squared_loss(model, batch) + jnp.inf

    with pytest.raises(mf.NonFiniteError, match="not finite at the start; .*correct the loss"):
        models.fit(net, batch, 2, learning_rate=0.1, loss=infinite)
