"""Single training steps of one head whose risk is a parabola: every number is known by hand.

One token x, one layer, A = 0: the output is x (1 + V), the residual r = x (1 + V) - y. At x = 1 a
step dt multiplies r by 1 - dt: |grad L| = |r|, L = r^2 / 2, and Heun's estimate is dt / 2.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf

AV = mf.SoftmaxAttention("av")
LOSS = mf.SquaredLoss()


def parabola(stepper: object, *, residual: float = -2.0) -> mf.TrainingState:
    head = mf.AttentionAV(jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 1, 1, 1)))
    rho = mf.ParameterMeasure(head, mf.DepthGrid.uniform(1))
    batch = mf.Batch(mf.TokenMeasure(np.ones((1, 1, 1))), np.full((1, 1, 1), 1.0 - residual))
    return mf.init_training(AV, rho, LOSS, batch, stepper=stepper)  # type: ignore[arg-type]


def value_matrix(state: mf.TrainingState) -> float:
    return float(state.rho.particles.V[0, 0, 0, 0])


class TestMonotone:
    """dt = 3 doubles the residual with the other sign; tolerance 1e6 lets the error pass."""

    def test_a_rising_risk_is_refused_whatever_the_error(self):
        state = parabola(mf.AdaptiveStep(initial=3.0, tolerance=1e6))
        state, info = mf.training_step(state)
        assert not bool(info.accepted)
        assert value_matrix(state) == 0.0
        assert float(state.time) == 0.0, "time stands still while an attempt is refused"
        assert float(state.value) == pytest.approx(2.0)
        assert float(state.dt) == pytest.approx(1.5), "a rising risk halves the step"
        assert int(state.step) == 1
        # dt = 1.5 turns r = -2 into 1: the risk falls to a quarter.
        state, info = mf.training_step(state)
        assert bool(info.accepted)
        assert float(info.dt) == pytest.approx(1.5)
        assert float(state.time) == pytest.approx(1.5)
        assert value_matrix(state) == pytest.approx(3.0)
        assert float(state.value) == pytest.approx(0.5)

    def test_it_passes_where_monotone_is_off(self):
        state = parabola(mf.AdaptiveStep(initial=3.0, tolerance=1e6, monotone=False))
        state, info = mf.training_step(state)
        assert bool(info.accepted)
        assert float(state.time) == pytest.approx(3.0)
        assert value_matrix(state) == pytest.approx(6.0)
        assert float(state.value) == pytest.approx(8.0)

    def test_the_error_alone_refuses_where_the_risk_falls(self):
        """dt = 1: the risk falls to 0, the error is 1/2."""
        for tolerance, accepted in ((0.49, False), (0.51, True)):
            state = parabola(mf.AdaptiveStep(initial=1.0, tolerance=tolerance))
            state, info = mf.training_step(state)
            assert bool(info.accepted) == accepted
            assert float(state.time) == (1.0 if accepted else 0.0)


def test_time_is_the_sum_of_the_steps_that_were_taken():
    state = parabola(mf.AdaptiveStep(initial=1e3, tolerance=0.2))
    taken, refused = 0.0, 0
    for _ in range(20):
        state, info = mf.training_step(state)
        taken += float(info.dt) * bool(info.accepted)
        refused += not bool(info.accepted)
    assert 3 <= refused <= 12
    assert float(state.time) == pytest.approx(taken, rel=1e-12)
    assert float(state.time) < 20.0


@pytest.mark.parametrize("dt", [0.5, 1.0, 3.0])
def test_the_defect_takes_the_mean_of_both_slopes(dt):
    """(L_new - L)/dt + (|G|^2 + |G_new|^2)/2 = dt r^2 / 2 (dt - 1), by two solves and by hand."""
    state = parabola(mf.EulerStep(dt))
    old = mf.conditional_gradient(AV, state.rho, LOSS, state.problem.batch)
    moved, info = mf.training_step(state)
    new = mf.conditional_gradient(AV, moved.rho, LOSS, state.problem.batch)
    slope = (float(new.value) - float(old.value)) / dt
    squares = float(old.norm) ** 2, float(new.norm) ** 2
    found = float(info.dissipation_defect)
    assert found == pytest.approx(slope + sum(squares) / 2, abs=1e-12)
    quotient = ((1 - dt) ** 2 - 1) / (2 * dt)
    assert found == pytest.approx(4 * (quotient + (1 + (1 - dt) ** 2) / 2), abs=1e-12)
    assert found != pytest.approx(slope + squares[0], abs=0.1)


@pytest.mark.parametrize(
    ("stop_risk", "record_every", "risks"),
    [
        (None, 1, [2.0, 0.5, 0.125, 0.03125, 0.0078125]),
        (0.2, 1, [2.0, 0.5, 0.125]),
        (0.125, 1, [2.0, 0.5, 0.125]),  # "not above it": equality stops
        (0.2, 3, [2.0, 0.03125]),  # looked at in the records only
        (2.5, 1, [2.0]),
        (0.01, 3, [2.0, 0.03125, 0.0078125]),
    ],
)
def test_training_stops_at_the_first_record_below_stop_risk(stop_risk, record_every, risks):
    state = parabola(mf.EulerStep(0.5))
    history = mf.run_training(state, 4, record_every=record_every, stop_risk=stop_risk)
    np.testing.assert_allclose(history.risk, risks, rtol=1e-13)
    assert float(history.state.value) == pytest.approx(risks[-1])


def test_each_step_draws_its_own_minibatch_without_replacement():
    """Risks 1, 10, 100, 1000 of four contexts: the mean over a minibatch tells who was drawn."""
    head = mf.AttentionAV(jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 1, 1, 1)))
    rho = mf.ParameterMeasure(head, mf.DepthGrid.uniform(1))
    risks = 10.0 ** np.arange(4)
    targets = 1.0 + np.sqrt(2 * risks)[:, None, None]
    batch = mf.Batch(mf.TokenMeasure(np.ones((4, 1, 1))), targets)
    stepper = mf.EulerStep(1e-30)  # nothing moves
    state = mf.init_training(
        AV, rho, LOSS, batch, stepper=stepper, minibatch=2, key=jax.random.key(3)
    )
    drawn = []
    for _ in range(24):
        state, info = mf.training_step(state)
        drawn.append(round(2 * float(info.risk)))
    pairs = {int(a + b) for i, a in enumerate(risks) for b in risks[:i]}
    assert set(drawn) <= pairs, "two different contexts, divided by two"
    assert len(set(drawn)) >= 4, "24 draws of 6 pairs"
    assert max(drawn.count(pair) for pair in pairs) <= 12
