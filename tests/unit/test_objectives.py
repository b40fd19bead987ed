"""The three risks through one array of loss weights, and terminal losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf

AV = mf.SoftmaxAttention("av")


def still(dim: int) -> mf.ParameterMeasure:
    """A measure whose flow does nothing (V = 0)."""
    return mf.ParameterMeasure(
        mf.AttentionAV(jnp.ones((2, 3, dim, dim)), jnp.zeros((2, 3, dim, dim))),
        mf.DepthGrid.uniform(2),
    )


def test_three_risks_are_what_they_say():
    generator = np.random.default_rng(0)
    points, targets = generator.normal(size=(2, 2, 4, 3))
    weights = generator.uniform(size=(2, 4))
    contexts = mf.TokenMeasure.from_weights(points, weights)
    squares = 0.5 * ((points - targets) ** 2).sum(-1)
    masses = weights / weights.sum(1, keepdims=True)
    r1 = mf.risk(AV, still(3), mf.SquaredLoss(), mf.Batch(contexts, targets))
    np.testing.assert_allclose(r1, (masses * squares).sum() / 2, rtol=1e-14)
    lw = generator.uniform(size=(2, 4))
    r2 = mf.risk(AV, still(3), mf.SquaredLoss(), mf.Batch(contexts, targets, lw))
    np.testing.assert_allclose(r2, (lw * squares).sum() / 2, rtol=1e-14)

    measures = [mf.TokenMeasure(points[0]), mf.TokenMeasure(points[1, :2])]
    queries, answers = generator.normal(size=(2, 2, 3, 3))
    batch = mf.Batch.at_queries(measures, queries, answers)
    r3 = mf.risk(AV, still(3), mf.SquaredLoss(), batch)
    np.testing.assert_allclose(r3, 0.5 * ((queries - answers) ** 2).sum() / 2, rtol=1e-14)
    assert (np.asarray(batch.contexts.weights[:, :3]) == 0).all(), "queries first, without mass"
    solution = mf.conditional_gradient(AV, still(3), mf.SquaredLoss(), batch)
    assert np.abs(solution.momenta[:, -1, 3:]).max() == 0, "only queries bear loss"


def test_pointwise_loss_agrees_with_the_explicit_one():
    def square(x, y):
        return 0.5 * jnp.sum((x - y) ** 2)

    generator = np.random.default_rng(1)
    x, y = (jnp.asarray(a) for a in generator.normal(size=(2, 5, 3)))
    lw = jnp.asarray([0.0, 1.0, 2.0, 0.5, 0.1])
    for name in ("value", "first_variation"):
        np.testing.assert_allclose(
            getattr(mf.PointwiseLoss(square), name)(x, y, lw),
            getattr(mf.SquaredLoss(), name)(x, y, lw),
            rtol=1e-14,
        )
    slopes = jax.grad(lambda points: mf.SquaredLoss().value(points, y, lw))(x)
    np.testing.assert_allclose(mf.SquaredLoss().first_variation(x, y, lw), slopes, rtol=1e-14)


def test_tokens_without_loss_may_have_any_target():
    x = jnp.ones((2, 2))
    y = jnp.asarray([[0.0, 0.0], [jnp.inf, 0.0]])
    lw = jnp.asarray([1.0, 0.0])
    assert float(mf.SquaredLoss().value(x, y, lw)) == 1.0
    assert np.isfinite(mf.SquaredLoss().first_variation(x, y, lw)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda mu: mf.Batch(mu, np.zeros((2, 3))), "stack_contexts"),
        (lambda mu: mf.Batch(mf.stack_contexts([mu]), np.zeros((1, 3, 2))), "one target per token"),
        (
            lambda mu: mf.Batch(mf.stack_contexts([mu]), np.full((1, 4, 2), np.nan)),
            "targets holds nan",
        ),
        (
            lambda mu: mf.Batch(mf.stack_contexts([mu]), np.zeros((1, 4, 2)), np.zeros((1, 3))),
            "loss_weights has shape (1, 3)",
        ),
        (lambda mu: mf.Batch.at_queries([mu], np.zeros((2, 3, 2)), np.zeros((2, 3, 2))), "1 cont"),
    ],
)
def test_bad_batches_are_refused(make, words):
    with pytest.raises(mf.MeanfieldError, match="expected") as caught:
        make(mf.TokenMeasure(np.zeros((4, 2))))
    assert words in str(caught.value)


def test_targets_that_would_be_broadcast_are_refused():
    mu = mf.stack_contexts([mf.TokenMeasure(np.ones((4, 3)))])
    for shape in ((1, 4, 1), (1, 4)):
        batch = mf.Batch(mu, np.zeros(shape))
        for call in (mf.risk, mf.conditional_gradient):
            with pytest.raises(mf.MeanfieldError, match="one target point"):
                call(AV, still(3), mf.SquaredLoss(), batch)
    classes = mf.Batch(mu, np.zeros((1, 4)))  # a loss of one's own may want any target
    loss = mf.PointwiseLoss(lambda x, y: jnp.sum(x**2) * (1 + y))
    assert float(mf.risk(AV, still(3), loss, classes)) == pytest.approx(3.0)


def test_negative_loss_weights_and_strange_minibatches_are_refused():
    mu = mf.stack_contexts([mf.TokenMeasure(np.ones((2, 3)))])
    with pytest.raises(mf.MeanfieldError, match="negative entry -1"):
        mf.Batch(mu, np.zeros((1, 2, 3)), [[-1.0, 1.0]])
    batch = mf.Batch(mu, np.zeros((1, 2, 3)))
    for index in ([99], 0, [0.5]):
        with pytest.raises(mf.MeanfieldError, match="index"):
            batch.take(np.array(index))


def test_a_number_that_overflows_is_an_error():
    mu = mf.stack_contexts([mf.TokenMeasure(np.ones((2, 3)))])
    batch = mf.Batch(mu, np.full((1, 2, 3), 1e200))
    for call in (mf.risk, mf.conditional_gradient):
        with pytest.raises(mf.NonFiniteError, match="the risk is inf"):
            call(AV, still(3), mf.SquaredLoss(), batch)
