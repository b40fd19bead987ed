"""The solvers against closed forms (docs/theory.md 6), and both against numbers from elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield import exact
from tests.helpers import random_measure, relative_gap

AV = mf.SoftmaxAttention("av")
RK4 = mf.RungeKutta4()


def fine(rho: mf.ParameterMeasure, factor: int) -> mf.ParameterMeasure:
    return mf.refine_depth(rho, factor)


def heads(*pairs, weights=None, nodes=(0.0, 1.0)) -> mf.ParameterMeasure:
    """The heads (A, V) at every depth, with masses."""
    cells = len(nodes) - 1
    A, V = (np.stack([np.atleast_2d(p[i]).astype(float) for p in pairs]) for i in (0, 1))
    log_weights = None if weights is None else np.log(np.broadcast_to(weights, (cells, len(pairs))))
    particles = mf.AttentionAV(*(jnp.asarray(np.stack([x] * cells)) for x in (A, V)))
    return mf.ParameterMeasure(particles, mf.DepthGrid(np.array(nodes)), log_weights)


class TestGaussianClosure:
    def test_one_dimension_to_1e_9_and_to_the_printed_digits(self):
        """The reference tilts strongly: 24 nodes give 5e-7, 48 nodes the 1e-10 of the scheme."""
        rho = fine(exact.constant_head(0.5, 0.7), 128)
        law = mf.Gaussian([0.4], [[0.8]])
        probes = np.array([[-2.0], [0.3], [1.7]])
        closed = exact.gaussian_isotropic([0.4], [[0.8]], value=0.7, score=0.5, depths=[0.0, 1.0])
        assert closed.means[-1, 0] == pytest.approx(1.2143385729530707, rel=1e-14)
        assert closed.covariances[-1, 0, 0] == pytest.approx(1.8181818181818181, rel=1e-14)
        for num_nodes, tolerance in ((24, 1e-6), (48, 1e-9)):
            tokens = law.tokens(num_nodes, rule="hermite")
            flow = mf.solve_flow(AV, rho, tokens, scheme=RK4, probes=probes)
            assert relative_gap(flow.final.mean(), closed.means[-1]) < tolerance
            assert relative_gap(flow.final.covariance(), closed.covariances[-1]) < tolerance
        assert relative_gap(flow.probe_path[-1], closed.flow_map(probes)[-1]) < 1e-9

    def test_heads_that_do_not_commute_in_the_plane(self):
        """Two heads of unequal mass, a jump in depth, a rank that stays, an affine flow map."""
        field = AV
        rho = random_measure(
            field, dim=2, num_particles=2, nodes=[0.0, 0.3, 0.8], seed=4, scale=0.4
        )
        mean, covariance = np.array([0.3, -0.2]), np.array([[0.7, 0.2], [0.2, 0.4]])
        tokens = mf.Gaussian(mean, covariance).tokens(24, rule="hermite")
        probes = np.array([[1.0, 0.5], [-0.4, 1.2]])
        flow = mf.solve_flow(field, fine(rho, 24), tokens, scheme=RK4, probes=probes, keep="final")
        closed = exact.gaussian_closure(mean, covariance, rho)
        assert relative_gap(flow.final.mean(), closed.means[-1]) < 1e-9
        assert relative_gap(flow.final.covariance(), closed.covariances[-1]) < 1e-9
        assert relative_gap(flow.probe_path, closed.flow_map(probes)[-1]) < 1e-9
        assert relative_gap(closed.means[-1], mean) > 0.1  # and something moved

        sampled = mf.Gaussian(mean, covariance).tokens(576, rule="iid", key=jax.random.key(0))
        missed = mf.solve_flow(
            field, fine(rho, 24), sampled, scheme=RK4, probes=probes, keep="final"
        )
        assert (
            relative_gap(missed.final.mean(), closed.means[-1]) > 1e-3
        )  # what sampling would cost

    def test_blow_up_is_an_error(self):
        depth = exact.gaussian_blow_up_depth([[0.8]], 1.0, 1.0)
        assert depth == pytest.approx(0.625)
        with pytest.raises(mf.DomainError):
            exact.gaussian_isotropic([0.0], [[0.8]], value=1.0, score=1.0, depths=[0.7])

    def test_tokens_that_overflow_name_their_cell(self):
        rho = exact.constant_head(1.0, 1e200)
        tokens = mf.Gaussian([0.4], [[0.8]]).tokens(24, rule="hermite")
        with pytest.raises(mf.NonFiniteError, match="depth cell 1"):
            mf.solve_flow(AV, fine(rho, 4), tokens)


class TestTwoTokens:
    @pytest.mark.parametrize(
        ("value", "horizon", "expected"), [(1.0, 1.0, 0.693960594215), (-1.0, 5.0, 0.267829162806)]
    )
    def test_scalar_references(self, value, horizon, expected):
        rho = exact.constant_head(1.0, value, horizon=horizon)
        tokens = np.array([[0.5], [-0.5]])
        flow = mf.solve_flow(AV, fine(rho, 256), mf.TokenMeasure(tokens), scheme=RK4)
        closed = exact.two_tokens(tokens, rho)[-1]
        assert float(closed[0, 0]) == pytest.approx(expected, abs=1e-12)
        assert float(flow.final.points[0, 0]) == pytest.approx(expected, abs=1e-9)

    @pytest.mark.parametrize("weights", [(0.5, 0.5), (0.8, 0.2), (1.0, 0.0)])
    def test_off_centre_unequal_masses_several_heads(self, weights):
        rho = random_measure(AV, dim=2, num_particles=3, nodes=[0.0, 0.4, 1.0], seed=5, scale=0.7)
        tokens = np.array([[0.9, -0.3], [0.1, 0.8]])
        mu = mf.TokenMeasure.from_weights(tokens, weights)
        flow = mf.solve_flow(AV, fine(rho, 32), mu, scheme=RK4)
        closed = exact.two_tokens(tokens, rho, weights=weights)[-1]
        assert relative_gap(flow.final.points, closed) < 1e-7
        adaptive = mf.solve_flow(AV, rho, mu, scheme=mf.Adaptive(rtol=1e-12, atol=1e-13))
        assert relative_gap(adaptive.final.points, closed) < 1e-11


class TestSymmetricClouds:
    def test_equiangular_tokens(self):
        tokens = exact.equiangular_tokens(4, 1.0, 0.2)
        rho = exact.constant_head(0.8 * np.eye(4), 0.6 * np.eye(4))
        x = mf.solve_flow(AV, fine(rho, 128), mf.TokenMeasure(tokens), scheme=RK4).final.points
        gram = np.asarray(x @ x.T)
        closed = exact.equiangular(
            4, norm_squared=1.0, inner_product=0.2, value=0.6, score=0.8, depths=[1.0]
        )
        assert closed.norms_squared[-1] == pytest.approx(2.09985121, abs=5e-9)
        assert closed.inner_products[-1] == pytest.approx(1.07077862, abs=5e-9)
        expected = np.full((4, 4), closed.inner_products[-1])
        np.fill_diagonal(expected, closed.norms_squared[-1])
        assert relative_gap(gram, expected) < 1e-9

    def test_equiangular_tokens_on_the_sphere(self):
        tokens = exact.equiangular_tokens(4, 1.0, 0.2)
        rho = exact.constant_head(0.8 * np.eye(4), np.eye(4), horizon=2.0)
        field = mf.SphereProjection(AV)
        x = mf.solve_flow(field, fine(rho, 128), mf.TokenMeasure(tokens), scheme=RK4).final.points
        closed = exact.sphere_equiangular(4, correlation=0.2, score=0.8, times=[2.0])[-1]
        assert closed == pytest.approx(0.95289231, abs=5e-9)
        assert float(x[0] @ x[1]) == pytest.approx(closed, abs=1e-9)
        assert relative_gap(np.linalg.norm(x, axis=1), np.ones(4)) < 1e-9
        other = exact.sphere_equiangular(
            4, correlation=0.2, score=0.8, times=[2.0], attention="unnormalised"
        )[-1]
        assert other == pytest.approx(0.99910765, abs=5e-9)

    def test_identical_tokens_stay_together_and_read_no_score(self):
        rho = random_measure(AV, dim=3, num_particles=3, nodes=[0.0, 0.5, 1.0], seed=6)
        point = np.array([0.3, -0.8, 0.5])
        cloud = mf.TokenMeasure.from_weights(np.tile(point, (3, 1)), [0.2, 0.5, 0.3])
        flow = mf.solve_flow(AV, fine(rho, 64), cloud, scheme=RK4)
        assert relative_gap(flow.final.points, np.tile(flow.final.points[0], (3, 1))) < 1e-14
        assert relative_gap(flow.final.points[0], exact.identical_tokens(point, rho)[-1]) < 1e-9
        solution = mf.conditional_gradient(
            AV, rho, mf.SquaredLoss(), mf.Batch(mf.stack_contexts([cloud]), np.ones((1, 3, 3)))
        )
        assert np.max(np.abs(solution.gradient.A)) < 1e-14
        assert np.max(np.abs(solution.gradient.V)) > 0.1


class TestLimitsOfTheScore:
    def test_zero_score_moves_everything_alike(self):
        rho = random_measure(AV, dim=3, num_particles=2, nodes=[0.0, 0.2, 1.0], seed=7)
        particles = mf.AttentionAV(jnp.zeros_like(rho.particles.A), rho.particles.V)
        rho = rho.with_particles(particles)
        mu = mf.Gaussian(np.ones(3), np.eye(3)).tokens(6, rule="iid", key=jax.random.key(1))
        flow = mf.solve_flow(AV, fine(rho, 64), mu, scheme=RK4)
        assert relative_gap(flow.final.points, exact.zero_score(mu, rho)[-1]) < 1e-9
        moved = np.asarray(flow.final.points - mu.points)
        assert relative_gap(moved, np.tile(moved[0], (6, 1))) < 1e-12

    def test_small_scores_are_first_order(self):
        law = mf.Gaussian(np.array([0.3, -0.1]), np.array([[0.5, 0.1], [0.1, 0.3]]))
        cloud = law.tokens(50, rule="iid", key=jax.random.key(2))
        A, x = np.array([[0.3, -1.0], [0.8, 0.4]]), np.array([[1.0, 0.5], [-0.6, 0.2]])
        gaps = []
        for size in (1e-2, 1e-3):
            theta = mf.AttentionAV(jnp.asarray(size * A), jnp.eye(2))
            found = AV(theta, jnp.asarray(x), cloud)
            first = exact.first_order_attention(mf.Empirical(cloud), size * A, x)
            gaps.append(np.max(np.abs(found - first)))
        assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.05)

    def test_large_scores_reach_the_hardmax_without_overflow(self):
        generator = np.random.default_rng(3)
        mu = mf.TokenMeasure.from_weights(generator.normal(size=(7, 2)), generator.uniform(size=7))
        A, x = np.array([[1.0, 0.5], [-0.5, 2.0]]), generator.normal(size=(5, 2))
        limit = exact.hardmax_attention(mu, A, x)
        for beta in (3.0, 30.0, 1e6):
            theta = mf.AttentionAV(jnp.asarray(beta * A), jnp.eye(2))
            found = np.asarray(AV(theta, jnp.asarray(x), mu))
            gap = np.linalg.norm(found - limit.values, axis=1)
            assert np.all(gap <= limit.error_bound(beta) * (1 + 1e-9) + 1e-15)
            assert np.max(gap) > 1e-3 or beta > 3.0
        assert np.max(gap) < 1e-14
        # an unshifted softmax, as a control
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(1e6 * x @ A @ np.asarray(mu.points).T)
            assert np.isnan(weights / weights.sum(axis=1, keepdims=True)).any()

    def test_value_equal_to_score_gives_a_gradient_field(self):
        cloud = mf.TokenMeasure(np.random.default_rng(4).normal(size=(6, 3)))
        A = jnp.asarray(np.random.default_rng(5).normal(size=(3, 3)))
        x = jnp.array([0.4, -0.2, 0.7])
        here = lambda x: AV(mf.AttentionAV(A, A), x[None], cloud)[0]  # noqa: E731
        potential = lambda x: exact.attention_potential(mf.Empirical(cloud), A, x[None])[0]  # noqa: E731
        assert relative_gap(here(x), jax.grad(potential)(x)) < 1e-12
        jacobian = np.asarray(jax.jacobian(here)(x))
        assert relative_gap(jacobian, jacobian.T) < 1e-12
        assert np.linalg.eigvalsh(jacobian).min() > -1e-12
        other = lambda x: AV(mf.AttentionAV(A, A.T), x[None], cloud)[0]  # noqa: E731
        skew = np.asarray(jax.jacobian(other)(x))
        assert relative_gap(skew, skew.T) > 1e-2  # not so for another V


class TestTraining:
    """One scalar Dirac, x_0 = 0.8, v = 0.2, target 1.7, until t = 2 (docs/theory.md 6.10).

    Only the factor M / ds_k gives the particles the speed of the closed form.
    """

    @staticmethod
    def output(scheme, num_cells: int, num_particles: int) -> float:
        """x_1(t = 2), extrapolated to training steps of length 0."""
        shape = (num_cells, num_particles, 1, 1)
        particles = mf.AttentionAV(jnp.full(shape, 0.9), jnp.full(shape, 0.2))
        rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(num_cells))
        batch = mf.Batch(mf.TokenMeasure(np.full((1, 1, 1), 0.8)), np.full((1, 1, 1), 1.7))
        ends = []
        for steps in (100, 200, 400):
            stepper = mf.EulerStep(2.0 / steps)
            state = mf.init_training(
                AV, rho, mf.SquaredLoss(), batch, scheme=scheme, stepper=stepper
            )
            history = mf.run_training(state, steps, record_every=steps)
            trained = history.state.rho
            path = mf.solve_flow(AV, trained, batch.contexts, scheme=scheme, keep="final")
            ends.append(float(path.final.points[0, 0, 0]))
            assert history.risk[-1] == pytest.approx((ends[-1] - 1.7) ** 2 / 2, rel=1e-10)
            assert np.all(trained.particles.A == 0.9)  # a Dirac reads no score
        return float(mf.richardson(np.array(ends), order=1.0).value)

    def test_closed_form_and_continuous_depth(self):
        limit = exact.dirac_training(0.8 * np.exp(0.2), 1.7, [2.0])[-1]
        assert limit == pytest.approx(1.6919369, abs=5e-8)
        assert self.output(RK4, 12, 3) == pytest.approx(limit, abs=1e-7)

    @pytest.mark.parametrize(("num_cells", "expected"), [(20, 1.68872), (80, 1.69121)])
    def test_euler_layers_approach_it_at_first_order(self, num_cells, expected):
        assert self.output(mf.Euler(), num_cells, 1) == pytest.approx(expected, abs=1e-5)


def test_training_tends_to_the_lazy_limit():
    """V = 0 at first and targets x(0) + eps delta: the frozen kernel's decay as eps -> 0.

    The Gram matrix is made by hand from the attention means (docs/theory.md 4.4).
    """
    num_cells, num_heads, end = 2, 20, 2.0
    generator = np.random.default_rng(12)
    x = generator.normal(size=(2, 3, 2))
    scores = generator.normal(size=(num_heads, 2, 2))
    delta = generator.normal(size=x.shape)
    weights = generator.uniform(0.5, 1.0, size=(2, 3))
    weights /= weights.sum(axis=1, keepdims=True)
    tilted = weights[:, None, None] * np.exp(np.einsum("iak,jkl,ibl->ijab", x, scores, x))
    means = np.einsum("ijab,ibl->jial", tilted / tilted.sum(axis=-1, keepdims=True), x)
    features = means.reshape(num_heads, 6, 2)
    gram = np.einsum("jak,jbk->ab", features, features) / num_heads
    omega = weights.ravel() / 2

    A = np.broadcast_to(scores, (num_cells, *scores.shape))
    particles = mf.AttentionAV(jnp.asarray(A), jnp.zeros((num_cells, num_heads, 2, 2)))
    rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(num_cells))
    contexts = mf.TokenMeasure.from_weights(x, weights)

    def decay(size: float) -> float:
        batch = mf.Batch(contexts, x + size * delta)
        ends = []
        for steps in (50, 100, 200):
            stepper = mf.EulerStep(end / steps)
            state = mf.init_training(AV, rho, mf.SquaredLoss(), batch, stepper=stepper)
            risk = mf.run_training(state, steps, record_every=steps).risk
            ends.append(risk[-1] / risk[0])
        return float(mf.richardson(np.array(ends), order=1.0).value)

    lazy = exact.lazy_risk(gram, omega, -delta.reshape(6, 2), [0.0, end])
    expected = lazy[1] / lazy[0]
    assert expected < 0.8
    gaps = {size: abs(decay(size) - expected) for size in (1.0, 0.1, 0.001)}
    assert gaps[1.0] > 1e-3  # features move
    assert gaps[0.1] < 0.2 * gaps[1.0]
    assert gaps[0.001] < 2e-5
