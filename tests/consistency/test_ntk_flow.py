"""The kernels of a flow against its gradient, the bound that they give, and the lazy limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import meanfield as mf
from meanfield import exact, ntk
from tests.helpers import attention_heads, richardson_slope

FIELDS = {"av": mf.SoftmaxAttention("av"), "qkv": mf.SoftmaxAttention("qkv", head_dim=1)}


def problem(field, *, at_queries=False, num_heads=24, scales=(1.0, 0.5)):
    generator = np.random.default_rng(0)
    weights = generator.uniform(0.5, 1.0, size=(2, 4))
    contexts = mf.TokenMeasure.from_weights(generator.normal(size=(2, 4, 2)), weights)
    names = [name for name in field.particle_shapes(2)._fields if name != "V"]
    rho = mf.sample_parameters(
        field,
        mf.EntrywiseGaussian({name: scales[0] for name in names} | {"V": scales[1]}),
        mf.DepthGrid([0.0, 0.2, 0.5, 1.0]),
        num_heads,
        dim=2,
        key=jax.random.key(0),
    )
    if at_queries:
        measures = [mf.TokenMeasure(contexts.points[i], contexts.log_weights[i]) for i in range(2)]
        queries, targets = generator.normal(size=(2, 2, 2, 2))
        return rho, mf.Batch.at_queries(measures, queries, targets)
    return rho, mf.Batch(contexts, contexts.points + 0.5 * generator.normal(size=(2, 4, 2)))


@pytest.fixture(scope="module", params=["av", "qkv", "av at queries"])
def trained(request):
    """A trained flow, its history with kappa at every record, and the last gradient."""
    field = FIELDS[request.param.split()[0]]
    rho, batch = problem(field, at_queries="queries" in request.param)
    state = mf.init_training(
        field,
        rho,
        mf.SquaredLoss(),
        batch,
        stepper=mf.AdaptiveStep(initial=0.1, tolerance=0.1),
    )

    def kappa(state):
        found = ntk.convergence_constant(field, state.rho, batch)
        return np.array([found.kappa, found.crude_kappa])

    history = mf.run_training(state, 8, record_every=2, observers={"kappa": kappa})
    final = history.state.rho
    return (
        field,
        final,
        batch,
        history,
        mf.conditional_gradient(field, final, mf.SquaredLoss(), batch),
    )


@pytest.mark.parametrize("part", ["full", "V", "A"])
def test_gradient_norm_is_the_kernel_form_of_the_momenta(trained, part):
    """|grad R|^2 = sum_k ds_k q_{k+1} K_k q_{k+1}, on a trained flow, part by part."""
    field, rho, batch, _, solution = trained
    momenta, steps = np.asarray(solution.momenta), np.asarray(rho.grid.steps)
    total = 0.0
    for k, factor in enumerate(ntk.depth_factors(field, rho, batch.contexts, part=part)):
        q = momenta[:, k + 1].reshape(-1, 2)
        q = q.ravel() if factor.copies > 1 else q
        total += steps[k] * np.sum((factor.matrix @ q) ** 2)
    scores = [name for name in solution.gradient._fields if name != "V"]
    names = {"full": ["V", *scores], "V": ["V"], "A": scores}[part]
    leaves = [np.asarray(getattr(solution.gradient, name)) for name in names]
    shares = [np.sum(leaf**2, axis=(1, 2, 3)) / rho.num_particles for leaf in leaves]
    expected = float(steps @ sum(shares[1:], shares[0]))
    assert abs(total / expected - 1) <= 1e-10
    if part == "full":
        assert abs(total / float(solution.norm) ** 2 - 1) <= 1e-10


def test_gradient_is_bounded_below_all_along_training(trained):
    _, _, batch, history, _ = trained
    kappa, crude = history.observed["kappa"].T
    risk, square = np.asarray(history.risk), np.asarray(history.squared_norm)
    assert np.all(square >= 2 * kappa * risk)
    assert np.all(kappa > 0)
    if np.allclose(batch.loss_weights, batch.contexts.weights):
        assert np.all(crude <= kappa)
    else:
        assert np.isnan(crude).all()  # norms bound the adjoint in L^2(mu) only
    assert np.all(square < 1e6 * kappa * risk)  # a bound, not zero


def test_bound_is_attained_where_nothing_moves_and_one_direction_is_left():
    """V = 0 and r the smallest eigenvector: |grad R|^2 = 2 kappa R exactly."""
    field = FIELDS["av"]
    rho, batch = problem(field, scales=(1.0, 0.0))
    found = ntk.convergence_constant(field, rho, batch)
    weights = np.asarray(batch.loss_weights).ravel() / 2
    factors = ntk.depth_factors(field, rho, batch.contexts)
    steps = np.asarray(rho.grid.steps)
    mean = sum(step * ntk.gram(one) for step, one in zip(steps, factors, strict=True))
    values, vectors = np.linalg.eigh(np.sqrt(weights)[:, None] * mean * np.sqrt(weights))
    assert found.kappa <= values[0] * (1 + 1e-12)  # each layer has its own smallest direction
    assert found.kappa >= 0.2 * values[0]
    np.testing.assert_allclose(found.transported, 1.0, rtol=1e-12)
    residual = (vectors[:, 0] / np.sqrt(weights)).reshape(2, 4, 1) * np.array([1.0, 0.0])
    hard = mf.Batch(batch.contexts, np.asarray(batch.contexts.points) - residual)
    solution = mf.conditional_gradient(field, rho, mf.SquaredLoss(), hard)
    assert float(solution.norm) ** 2 == pytest.approx(2 * values[0] * float(solution.value))


def test_transported_factor_is_that_of_the_jacobian_of_an_independent_flow(trained):
    """sigma_min^2 of ``Om^{1/2} J Om^{-1/2}``, J by jax.jacobian of Euler layers written out."""
    field, rho, batch, _, _ = trained
    contexts, found = batch.contexts, ntk.convergence_constant(field, rho, batch)
    path = np.asarray(mf.solve_flow(field, rho, contexts).path)
    loaded = np.asarray(batch.loss_weights) > 0
    weights = np.where(loaded, batch.loss_weights, contexts.weights) / 2
    smallest = np.full(rho.num_cells, np.inf)

    def onwards(points, mu, first):
        for cell in range(first, rho.num_cells):
            heads = jax.tree.map(lambda leaf: leaf[cell], rho.particles)  # noqa: B023
            here = mu.push_forward(points)
            moved = jax.vmap(lambda head: field(head, here.points, here))(heads)  # noqa: B023
            points = points + rho.grid.steps[cell] * moved.mean(axis=0)
        return points

    for i in range(2):
        mu = mf.TokenMeasure(contexts.points[i], contexts.log_weights[i])
        ends, starts = np.repeat(loaded[i], 2), np.repeat(weights[i] > 0, 2)
        roots = np.sqrt(np.repeat(weights[i], 2))
        for k in range(rho.num_cells):
            jacobian = jax.jacobian(onwards)(jnp.asarray(path[i, k + 1]), mu, k + 1)
            jacobian = np.asarray(jacobian).reshape(len(roots), len(roots))
            scaled = roots[ends, None] * jacobian[np.ix_(ends, starts)] / roots[starts]
            value = np.linalg.svd(scaled, compute_uv=False)[-1] ** 2
            smallest[k] = min(smallest[k], value)
    np.testing.assert_allclose(found.transported, smallest, rtol=1e-10)


def test_a_singular_kernel_gives_no_rate():
    """The same context twice: lambda_min is rounding, and counts as zero."""
    field = FIELDS["av"]
    rho, batch = problem(field)
    points = np.asarray(batch.contexts.points)[[0, 0]]
    found = ntk.convergence_constant(field, rho, mf.Batch(mf.TokenMeasure(points), points + 1.0))
    assert found.kappa == 0.0
    assert np.all(found.lambda_min == 0.0)


def test_crude_bound_holds_for_euler_layers_that_contract_too_far():
    """A layer x + ds V x with ds V near -1 kills the adjoint: e^{-2 int c} would be no bound."""
    field, grid = FIELDS["av"], mf.DepthGrid.uniform(2)
    contexts = mf.TokenMeasure(np.ones((1, 1, 1)))
    for value in (-2.0, -1.9, -0.4):
        heads = attention_heads(np.zeros((2, 1, 1, 1)), np.full((2, 1, 1, 1), value))
        rho = mf.ParameterMeasure(heads, grid)
        batch = mf.Batch(contexts, np.full((1, 1, 1), 1.0))
        found = ntk.convergence_constant(field, rho, batch)
        solution = mf.conditional_gradient(field, rho, mf.SquaredLoss(), batch)
        ratio = float(solution.norm) ** 2 / (2 * float(solution.value))
        assert found.crude_kappa <= found.kappa * (1 + 1e-12)
        assert found.kappa <= ratio * (1 + 1e-12) + 1e-300
        assert found.crude_kappa == pytest.approx(found.kappa) or value < -0.5


def test_transported_factor_is_the_smallest_stretch_of_the_adjoint(trained):
    """Random terminal momenta never shrink by more, and the extremal ones exactly so."""
    field, rho, batch, _, _ = trained
    found = ntk.convergence_constant(field, rho, batch)
    loaded = np.asarray(batch.loss_weights) > 0
    weights = np.where(loaded, batch.loss_weights, batch.contexts.weights) / 2
    generator = np.random.default_rng(1)
    for _ in range(3):
        targets = np.asarray(batch.targets) + generator.normal(size=batch.targets.shape)
        other = mf.Batch(batch.contexts, targets, batch.loss_weights)
        solution = mf.conditional_gradient(field, rho, mf.SquaredLoss(), other)
        q = np.asarray(solution.momenta)
        with np.errstate(invalid="ignore", divide="ignore"):
            sizes = np.where(weights > 0, np.sum(q**2, axis=-1).swapaxes(0, 1) / weights, 0)
        squares = sizes.sum(axis=(1, 2))  # sum om |p|^2 at the nodes
        assert squares[-1] == pytest.approx(2 * float(solution.value))
        assert np.all(squares[1:] >= found.transported * squares[-1] * (1 - 1e-12))
    assert found.transported[-1] == pytest.approx(1.0)
    assert np.all(found.transported[:-1] < 1.0)


def test_gradient_of_the_risk_is_the_derivative_along_it(trained):
    """Finite differences along the gradient see its squared norm, hence the kernel form."""
    field, rho, batch, _, solution = trained

    def risk(step):
        moved = jax.tree.map(lambda p, g: p + step * g, rho.particles, solution.gradient)
        return mf.risk(field, rho.with_particles(moved), mf.SquaredLoss(), batch)

    slope = richardson_slope(risk, 1e-3)
    assert slope == pytest.approx(float(solution.norm) ** 2, rel=1e-6)


def test_depth_spectra_weigh_and_leave_out():
    field = FIELDS["av"]
    rho, batch = problem(field, at_queries=True)
    contexts = batch.contexts
    weights = np.asarray(batch.loss_weights)
    spectra = ntk.depth_spectra(field, rho, contexts, weights=weights)
    assert [len(one.eigenvalues) for one in spectra] == [4, 4, 4]  # the queries alone
    everything = ntk.depth_spectra(field, rho, contexts)
    assert [len(one.eigenvalues) for one in everything] == [12, 12, 12]
    with pytest.raises(mf.MeanfieldError, match="positive"):
        ntk.depth_spectra(field, rho, contexts, weights=0 * weights)
    with pytest.raises(mf.MeanfieldError, match="softmax"):
        ntk.convergence_constant(mf.Perceptron(), rho, batch)


# --- the lazy limit (docs/theory.md 4.4) ---


def lazy_problem(seed):
    generator = np.random.default_rng(seed)
    points, delta = generator.normal(size=(2, 2, 3, 2))
    scores = np.broadcast_to(generator.normal(size=(40, 2, 2)), (4, 40, 2, 2))
    heads = mf.AttentionAV(jnp.asarray(scores), jnp.zeros((4, 40, 2, 2)))
    return mf.ParameterMeasure(heads, mf.DepthGrid.uniform(4)), points, delta


def finely_trained(rho, points, targets, horizon, num_steps):
    """Residual and risk at training time T: RK4 in training time, by another loop than ours."""
    field, loss = FIELDS["av"], mf.SquaredLoss()
    size = horizon / num_steps

    def descent(particles, batch):
        gradient = mf.conditional_gradient(field, rho.with_particles(particles), loss, batch)
        return jax.tree.map(jnp.negative, gradient.gradient)

    def axpy(p, factor, k):
        return jax.tree.map(lambda a, b: a + factor * b, p, k)

    @jax.jit
    def run(particles, targets):
        batch = mf.Batch(mf.TokenMeasure(points), targets)

        def step(_, p):
            k1 = descent(p, batch)
            k2 = descent(axpy(p, size / 2, k1), batch)
            k3 = descent(axpy(p, size / 2, k2), batch)
            k4 = descent(axpy(p, size, k3), batch)
            return jax.tree.map(
                lambda a, b, c, d, e: a + size / 6 * (b + 2 * c + 2 * d + e), p, k1, k2, k3, k4
            )

        return jax.lax.fori_loop(0, num_steps, step, particles)

    ends = []
    for target in targets:
        end = rho.with_particles(run(rho.particles, jnp.asarray(target)))
        final = mf.solve_flow(field, end, mf.TokenMeasure(points)).final.points
        ends.append((np.asarray(final) - target).reshape(-1, 2))
    return ends


def test_training_of_small_residuals_is_linear_with_a_quadratic_error():
    """V = 0, y = x + eps delta: |r(T) - exp(-K_V Om T) r(0)| = O(eps^2).

    Relative to r the error is O(eps), so the risk *ratio* has an odd term and its gap has slope 1;
    averaged over +eps and -eps the odd term cancels and the gap falls like eps^2.
    """
    scales = np.array([1.0, 0.3, 0.1, 0.03])
    horizon, om = 4.0, 1 / 6
    gaps = {"residual": [], "symmetrised ratio": [], "ratio": []}
    for seed in range(4):
        rho, points, delta = lazy_problem(seed)
        targets = [points + sign * eps * delta for eps in scales for sign in (1, -1)]
        ends = finely_trained(rho, points, targets, horizon, 20)
        heads = jax.tree.map(lambda leaf: leaf[0], rho.particles)
        pairs = ntk.pairs_of(mf.TokenMeasure(points), "own")
        kernel = ntk.gram(ntk.factor(FIELDS["av"], heads, pairs))
        ratios, residuals = [], []
        for target, end in zip(targets, ends, strict=True):
            start = (points - target).reshape(-1, 2)
            linear = expm(-kernel * om * horizon) @ start
            first = om * np.sum(start**2) / 2
            predicted = exact.lazy_risk(kernel, np.full(6, om), start, np.array([horizon]))[0]
            assert predicted == pytest.approx(om * np.sum(linear**2) / 2, rel=1e-10)
            ratios.append((om * np.sum(end**2) / 2 - predicted) / first)
            residuals.append(np.linalg.norm(end - linear))
        gaps["residual"].append(residuals[::2])
        gaps["symmetrised ratio"].append((np.array(ratios[::2]) + ratios[1::2]) / 2)
        gaps["ratio"].append(ratios[::2])
    # A residual gap has no sign to change: geometric means weigh the problems alike.
    sizes = {name: np.sqrt(np.mean(np.square(rows), axis=0)) for name, rows in gaps.items()}
    sizes["residual"] = np.exp(np.mean(np.log(gaps["residual"]), axis=0))
    slopes = {name: np.polyfit(np.log(scales), np.log(size), 1)[0] for name, size in sizes.items()}
    assert abs(slopes["residual"] - 2) <= 0.3
    assert abs(slopes["symmetrised ratio"] - 2) <= 0.3
    last = np.log(sizes["ratio"][2] / sizes["ratio"][3]) / np.log(scales[2] / scales[3])
    assert 0.8 <= last <= 1.3
    assert sizes["residual"][0] > 1e-2  # the control: large residuals are not linear
