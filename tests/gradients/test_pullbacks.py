"""Every field's pullback against `jax.vjp` of its call, and the chunked sums over particles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield.fields import velocity_pullback
from tests.helpers import inner, random_like, random_measure, relative_gap, richardson_slope

DIM, NUM_TOKENS = 3, 5
AV, QKV = mf.SoftmaxAttention("av"), mf.SoftmaxAttention("qkv", head_dim=2, scale=0.7)
FIELDS = {
    "av": AV,
    "av with scale": mf.SoftmaxAttention("av", scale=1.3),
    "qkv": mf.SoftmaxAttention("qkv"),
    "qkv, head_dim < d": QKV,
    "perceptron": mf.Perceptron(),
    "sum": mf.Sum(QKV, mf.Perceptron(jnp.sin), AV),
    "sphere": mf.SphereProjection(AV),
    "layer norm": mf.LayerNorm(QKV),
    "causal": mf.Causal(QKV),
    "causal layer norm": mf.Causal(mf.LayerNorm(AV)),
}


def setting(name: str):
    """A field, one particle, a cloud with a query token, other evaluation points, covectors."""
    field = FIELDS[name]
    rho = random_measure(field, dim=DIM, num_particles=4, nodes=[0.0, 1.0], seed=3)
    particles = jax.tree.map(lambda leaf: leaf[0], rho.particles)
    generator = np.random.default_rng(8)
    weights = np.array([0.4, 0.1, 0.3, 0.2, 0.0])
    labels = np.array([3, 0, 4, 1, 2])
    mu = mf.TokenMeasure.from_weights(generator.normal(size=(NUM_TOKENS, DIM)), weights, labels)
    x = jnp.asarray(generator.normal(size=(4, DIM)))
    q = jnp.asarray(generator.normal(size=(4, DIM)))
    return field, particles, rho.log_weights[0], mu, x, q


@pytest.mark.parametrize("name", FIELDS)
def test_pullback_is_the_transpose_of_the_call(name):
    """At points outside the cloud (no labels, later than all) and at labelled ones."""
    field, particles, _, mu, x, q = setting(name)
    where = (jax.tree.map(lambda leaf: leaf[1], particles), x, mu.points)
    for labels in (None, jnp.array([5, 0, 2, 1])):

        def call(where, labels=labels):
            theta, x, points = where
            return field(theta, x, mu.push_forward(points), labels)

        @jax.jit
        def both(where, call=call, labels=labels):
            value, transpose = jax.vjp(call, where)
            return inner(q, value), transpose(q)[0], field.pullback(*where[:2], mu, q, labels)

        _, expected, found = both(where)
        assert relative_gap(found, expected) < 1e-12
        # Finite differences, which share no derivative rule with either side.
        direction = random_like(where, seed=4)
        along = lambda t: both(jax.tree.map(lambda a, b: a + t * b, where, direction))[0]  # noqa: B023, E731
        assert richardson_slope(along, 3e-4) == pytest.approx(
            float(inner(found, direction)), rel=1e-7
        )


def test_every_field_is_covered():
    covered = {type(field) for field in FIELDS.values()}
    public = {value for value in vars(mf.fields).values() if isinstance(value, type)}
    concrete = {f for f in public if issubclass(f, mf.AbstractField)} - {mf.AbstractField}
    assert covered == concrete


def test_a_wrong_pullback_is_seen():
    field, particles, _, mu, x, q = setting("av")
    theta = jax.tree.map(lambda leaf: leaf[1], particles)
    gradient, x_bar, _ = field.pullback(theta, x, mu, q)
    expected = jax.grad(lambda theta: inner(q, field(theta, x, mu)))(theta)
    transposed = mf.AttentionAV(gradient.A.T, gradient.V)
    assert relative_gap(transposed, expected) > 0.1
    tokens_only = jax.grad(lambda points: inner(q, field(theta, x, mu.push_forward(points))))
    assert np.max(np.abs(tokens_only(mu.points))) > 0.1  # the mean-field part is not small


def test_chunks_of_particles_change_nothing():
    field, particles, log_weights, mu, x, q = setting("sum")

    def all_at_once(particles, x, points):
        each = jax.vmap(lambda theta: field(theta, x, mu.push_forward(points)))(particles)
        return jnp.tensordot(jnp.exp(log_weights), each, 1)

    @jax.jit
    def routes(particles, x, points):
        value, transpose = jax.vjp(all_at_once, particles, x, points)
        found = []
        for held in (1, 3):  # of 4 particles at once: without and with a remainder
            options = {"log_weights": log_weights, "budget": held * x.shape[0] * NUM_TOKENS}
            bars = velocity_pullback(field, particles, x, mu, q, **options)
            found.append((mf.velocity(field, particles, x, mu, **options), *bars))
        return (value, *transpose(q)), found

    (value, by_mass, *bars), found = routes(particles, x, mu.points)
    masses = np.exp(log_weights)
    gradient = jax.tree.map(lambda g: g / masses.reshape(-1, *[1] * (g.ndim - 1)), by_mass)
    for some in found:
        assert relative_gap(some, (value, gradient, *bars)) < 1e-12


def test_a_token_that_sees_no_mass_has_finite_derivatives():
    field, particles, _, mu, x, q = setting("causal")
    theta = jax.tree.map(lambda leaf: leaf[1], particles)
    first = jnp.full(x.shape[0], -1)  # before every token
    assert np.all(np.asarray(field(theta, x, mu, first)) == 0)
    bars = eqx.filter_jit(field.pullback)(theta, x, mu, q, first)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(bars))
