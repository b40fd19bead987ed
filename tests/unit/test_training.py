"""Training: the factor M/ds, descent, the adaptive step, minibatches, resume, the kernel."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import meanfield as mf
from meanfield.ntk import terminal_factor
from tests.helpers import assert_order, random_batch, random_measure

QKV = mf.SoftmaxAttention("qkv", head_dim=2)
AV = mf.SoftmaxAttention("av")
LOSS = mf.SquaredLoss()
NODES = [0.0, 0.2, 0.6, 1.0]


def problem(field: mf.AbstractField = QKV, **flags):
    rho = random_measure(field, dim=3, num_particles=4, nodes=NODES, seed=1, **flags)
    return field, rho, LOSS, random_batch(dim=3)


def falls(history: mf.History) -> bool:
    return bool((np.diff(history.risk) <= 0).all() and history.risk[-1] < history.risk[0])


def test_particles_move_by_the_partial_derivative_over_the_metric():
    field, rho, loss, batch = problem()
    state = mf.init_training(field, rho, loss, batch, stepper=mf.EulerStep(0.01))
    moved, info = mf.training_step(state)
    partial = jax.grad(lambda p: mf.risk(field, rho.with_particles(p), loss, batch))(rho.particles)
    metric = rho.grid.steps[:, None] * rho.weights
    for new, old, slope in zip(
        *map(jax.tree.leaves, (moved.rho.particles, rho.particles, partial)), strict=True
    ):
        expected = old - 0.01 * slope / metric.reshape(*metric.shape, *[1] * (slope.ndim - 2))
        np.testing.assert_allclose(new, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(moved.rho.log_weights, rho.log_weights)
    np.testing.assert_array_equal(moved.rho.grid.nodes, rho.grid.nodes)
    assert bool(info.accepted)


def test_a_dirac_trains_along_its_closed_form():
    """x1' = -x1^2 (x1 - y) in continuous depth; Euler layers and steps are off at first order."""
    start, value, target, until = 0.8, 0.2, 1.7, 2.0
    exact = solve_ivp(
        lambda t, x: -(x**2) * (x - target),
        (0, until),
        [start * np.exp(value)],
        rtol=1e-11,
        atol=1e-12,
    ).y[0, -1]
    assert abs(exact - 1.6919369) < 1e-7
    errors, cells = [], [12, 24, 48, 96, 192]
    for num_cells in cells:
        shape = (num_cells, 2, 1, 1)
        rho = mf.ParameterMeasure(
            mf.AttentionAV(jnp.zeros(shape), jnp.full(shape, value)),
            mf.DepthGrid.uniform(num_cells),
        )
        batch = mf.Batch(mf.TokenMeasure(np.full((1, 1, 1), start)), np.full((1, 1, 1), target))
        steps = 10 * num_cells
        state = mf.init_training(AV, rho, LOSS, batch, stepper=mf.EulerStep(until / steps))
        history = mf.run_training(state, steps, record_every=steps)
        end = mf.solve_flow(AV, history.state.rho, batch.contexts).path[0, -1, 0, 0]
        errors.append(abs(float(end) - exact))
    assert_order(1 / np.array(cells), errors, 1.0)


def test_dissipation_identity_holds_at_the_order_of_euler_steps():
    field, rho, loss, batch = problem()
    steps, defects = [4e-3, 2e-3, 1e-3, 5e-4, 2.5e-4], []
    for dt in steps:
        _, info = mf.training_step(
            mf.init_training(field, rho, loss, batch, stepper=mf.EulerStep(dt))
        )
        defects.append(abs(float(info.dissipation_defect)))
    assert_order(steps, defects, 1.0)


def test_history_tells_what_happened_and_a_flipped_sign_is_noticed():
    field, rho, loss, batch = problem()
    state = mf.init_training(field, rho, loss, batch, stepper=mf.EulerStep(0.02))
    history = mf.run_training(state, 12, record_every=4, observers={"twice": lambda s: 2 * s.time})
    np.testing.assert_allclose(history.time, [0, 0.08, 0.16, 0.24])
    np.testing.assert_allclose(history.observed["twice"], 2 * history.time)
    end = history.state.rho
    np.testing.assert_allclose(history.risk[-1], mf.risk(field, end, loss, batch), rtol=1e-13)
    np.testing.assert_allclose(
        history.squared_norm[-1], mf.conditional_gradient(field, end, loss, batch).norm ** 2
    )
    np.testing.assert_allclose(history.distance[-1], mf.conditional_wasserstein2(rho, end))
    leaves = [np.abs(leaf).max() for leaf in jax.tree.leaves(end.particles)]
    np.testing.assert_allclose(history.largest[-1], max(leaves))
    # int |grad L| dt bounds the distance travelled.
    length = np.trapezoid(np.sqrt(history.squared_norm), history.time)
    assert history.distance[-1] <= 1.02 * length
    assert falls(history)
    state = eqx.tree_at(lambda s: s.dt, state, -state.dt)
    assert not falls(mf.run_training(state, 12, record_every=4))


def test_adaptive_step_never_lets_the_risk_rise_and_refuses_blow_ups():
    field, rho, loss, batch = problem()
    stepper = mf.AdaptiveStep(initial=1e3, tolerance=0.2)  # a first step that explodes
    state = mf.init_training(field, rho, loss, batch, stepper=stepper)
    accepted, risks = [], []
    for _ in range(60):
        state, info = mf.training_step(state)
        accepted.append(bool(info.accepted))
        risks.append(float(info.risk))
    assert not accepted[0]
    assert sum(accepted) > 30
    assert (np.diff(risks) <= 0).all()
    assert risks[-1] < 0.2 * risks[0]
    # A tighter tolerance follows the same flow: compare at equal risk the distance from the start.
    assert np.isfinite(float(state.time))


def test_adaptive_step_converges_to_the_flow_as_its_tolerance_falls():
    field, rho, loss, batch = problem()

    def risk_at(tolerance: float, until: float = 0.5) -> float:
        stepper = mf.AdaptiveStep(initial=1e-3, tolerance=tolerance)
        state = mf.init_training(field, rho, loss, batch, stepper=stepper)
        while float(state.time) < until:
            left = until - state.time
            state = eqx.tree_at(lambda s: s.dt, state, jnp.minimum(state.dt, left))
            state, _ = mf.training_step(state)
        return float(state.value)

    coarse, middle, fine = (risk_at(t) for t in (0.08, 0.04, 0.02))
    assert 1.5 < (coarse - middle) / (middle - fine) < 2.7, "first order in the tolerance"


def test_minibatches_are_reproducible_and_average_to_the_full_gradient():
    field, rho, loss, batch = problem()
    batch = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), batch, random_batch(dim=3, seed=5))

    def run(minibatch, seed):
        state = mf.init_training(
            field,
            rho,
            loss,
            batch,
            stepper=mf.EulerStep(0.05),
            minibatch=minibatch,
            key=jax.random.key(seed),
        )
        return mf.run_training(state, 6, record_every=3)

    np.testing.assert_array_equal(run(2, 0).risk, run(2, 0).risk)
    assert not np.array_equal(run(2, 0).risk, run(2, 1).risk)
    np.testing.assert_allclose(run(4, 0).risk, run(None, 0).risk, rtol=1e-12)
    assert np.isnan(run(2, 0).squared_norm).all()


def test_an_interrupted_run_ends_bit_for_bit_like_a_whole_one(tmp_path):
    field, rho, loss, batch = problem()
    for minibatch, stepper in ((None, mf.AdaptiveStep()), (1, mf.EulerStep(0.05))):
        start = mf.init_training(
            field, rho, loss, batch, stepper=stepper, minibatch=minibatch, key=jax.random.key(7)
        )
        whole = mf.run_training(start, 9, record_every=2)
        directory = mf.RunDirectory.create(
            tmp_path / str(minibatch), name="x", configuration={}, seeds={}
        )
        calls = []

        def interrupt(state, calls=calls):
            calls.append(int(state.step))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return state.time

        observers = {"time": interrupt}
        with pytest.raises(KeyboardInterrupt):
            mf.run_training(start, 9, record_every=2, directory=directory, observers=observers)
        resumed = mf.run_training(
            start, 9, record_every=2, directory=directory, observers=observers
        )
        for name in ("time", "step", "risk", "squared_norm", "distance", "largest"):
            np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
        for a, b in zip(
            *(jax.tree.leaves(h.state.rho.particles) for h in (resumed, whole)), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        other = random_measure(field, dim=3, num_particles=5, nodes=NODES, seed=1)
        stranger = mf.init_training(field, other, loss, batch)
        with pytest.raises(mf.MeanfieldError, match="another problem"):
            mf.run_training(stranger, 9, directory=directory)


def test_terminal_factor_gives_decay_and_velocity_of_the_outputs():
    field, rho, loss, batch = problem(interpolation="linear")
    tokens = tuple(range(batch.contexts.num_tokens))
    factor = np.asarray(terminal_factor(field, rho, batch.contexts, tokens=tokens))
    solution = mf.conditional_gradient(field, rho, loss, batch)
    q = np.asarray(solution.momenta[:, -1]).ravel()
    np.testing.assert_allclose(np.sum((factor @ q) ** 2), solution.norm**2, rtol=1e-12)
    # d x(S)/dt = -K q along the flow: central difference in training time, an independent route.
    ends = []
    for dt in (1e-5, -1e-5):
        moved = jax.tree.map(lambda x, g, dt=dt: x - dt * g, rho.particles, solution.gradient)
        ends.append(mf.solve_flow(field, rho.with_particles(moved), batch.contexts).path[:, -1])
    speed = np.asarray(ends[0] - ends[1]).ravel() / 2e-5
    np.testing.assert_allclose(speed, -factor.T @ (factor @ q), rtol=1e-6, atol=1e-7)


def test_terminal_factor_at_zero_values_is_the_gram_of_the_heads_read_outs():
    rho = random_measure(AV, dim=3, num_particles=6, nodes=NODES, seed=2)
    rho = rho.with_particles(rho.particles._replace(V=jnp.zeros_like(rho.particles.V)))
    batch = random_batch(dim=3)
    factor = np.asarray(terminal_factor(AV, rho, batch.contexts, tokens=(-1,)))
    gram = np.zeros((2, 2))
    metric = np.asarray(rho.grid.steps[:, None] * rho.weights)
    points, weights = np.asarray(batch.contexts.points), np.asarray(batch.contexts.weights)
    for k, j in np.ndindex(*metric.shape):
        means = []
        for i in range(2):
            tilted = weights[i] * np.exp(
                points[i, -1] @ np.asarray(rho.particles.A[k, j]) @ points[i].T
            )
            means.append(tilted @ points[i] / tilted.sum())
        gram += metric[k, j] * np.array(means) @ np.array(means).T
    np.testing.assert_allclose(factor.T @ factor, np.kron(gram, np.eye(3)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"stepper": mf.AdaptiveStep(), "minibatch": 1, "key": jax.random.key(0)}, "EulerStep"),
        ({"minibatch": 1}, "pass key="),
        ({"minibatch": 9, "key": jax.random.key(0)}, "9 of 2 contexts"),
        ({"scheme": mf.Adaptive(), "method": mf.DiscreteAdjoint()}, "ContinuousAdjoint()"),
    ],
)
def test_unfit_flags_are_refused_in_one_line(flags, words):
    with pytest.raises(mf.MeanfieldError) as caught:
        mf.init_training(*problem(), **flags)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_that_is_no_step_is_refused():
    for make in (lambda: mf.EulerStep(-1.0), lambda: mf.AdaptiveStep(tolerance=float("nan"))):
        with pytest.raises(mf.MeanfieldError, match="positive finite"):
            make()


def test_an_exploding_training_names_step_and_mend():
    field, rho, loss, batch = problem()
    state = mf.init_training(field, rho, loss, batch, stepper=mf.EulerStep(1e4))
    with pytest.raises(mf.NonFiniteError, match=r"training step \d+ .*AdaptiveStep"):
        mf.run_training(state, 40)


def test_a_backward_solve_that_fails_is_named_and_not_returned():
    field, rho, loss, batch = problem()
    few = mf.ContinuousAdjoint(mf.Adaptive(max_steps=2))
    with pytest.raises(mf.NonFiniteError, match=r"momenta .* 2 steps, in depth cell 2"):
        mf.conditional_gradient(field, rho, loss, batch, scheme=mf.RungeKutta4(), method=few)
    blown = rho.with_particles(rho.particles._replace(V=1e200 * rho.particles.V))
    with pytest.raises(mf.NonFiniteError, match="tokens are not finite in depth cell"):
        terminal_factor(field, blown, batch.contexts, tokens=(0,))


def test_a_refused_attempt_leaves_no_defect():
    field, rho, loss, batch = problem()
    stepper = mf.AdaptiveStep(initial=1e3)
    state = mf.init_training(field, rho, loss, batch, stepper=stepper)
    _, info = mf.training_step(state)
    assert not bool(info.accepted)
    assert np.isnan(float(info.dissipation_defect))
    history = mf.run_training(state, 40, record_every=20)
    assert np.abs(history.dissipation_defect[1:]).max() < history.squared_norm[0]


def backward(max_steps: int) -> mf.ContinuousAdjoint:
    """An error-controlled backward solve that gives up after some steps in a cell."""
    return mf.ContinuousAdjoint(mf.Adaptive(max_steps=max_steps))


@pytest.mark.parametrize("minibatch", [None, 1])
def test_a_solve_that_fails_within_training_is_never_a_step(minibatch):
    field, rho, loss, batch = problem()
    state = mf.init_training(
        field, rho, loss, batch, minibatch=minibatch, key=jax.random.key(0), method=backward(4096)
    )
    whole = mf.run_training(state, 2)
    assert np.isfinite(whole.risk).all()
    failing = state.problem._replace(method=backward(2))
    with pytest.raises(mf.NonFiniteError, match="the risk is nan|not finite"):
        mf.run_training(eqx.tree_at(lambda s: s.problem, state, failing), 2)
