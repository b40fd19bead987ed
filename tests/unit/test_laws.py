"""Laws: derivatives, independent values of the CGF, limits, domains, clouds, syntax, particles."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

import meanfield as mf
from meanfield.laws import UniformBall
from meanfield.laws._closed import langevin, langevin_slope, log_sinhc
from tests.helpers import fitted_order

COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.6]])
KEY = jax.random.key(7)


def _empirical() -> mf.Empirical:
    generator = np.random.default_rng(3)
    weights = generator.uniform(0.2, 1.0, size=6)
    weights[4] = 0.0
    return mf.Empirical(mf.TokenMeasure.from_weights(generator.normal(size=(6, 2)), weights))


def _laws() -> dict[str, mf.AbstractLaw]:
    cube = mf.Cube(1.5, 2, [0.2, -0.1])
    mixture = mf.GaussianMixture(
        [1.0, 2.0, 1.5],
        [[0.0, 1.0], [1.0, 0.0], [-1.0, 0.5]],
        [COVARIANCE, 0.3 * COVARIANCE, np.eye(2)],
    )
    laplace = mf.Laplace(0.3 * COVARIANCE)
    return {
        "cube": cube,
        "laplace": laplace,
        "gaussian": mf.Gaussian([0.4, -0.2], COVARIANCE),
        "singular": mf.Gaussian([0.4, -0.2], [[1.0, 2.0], [2.0, 4.0]]),
        "two": mf.two_component_mixture([0.6, 0.3], COVARIANCE),
        "mixture": mixture,
        "empirical": _empirical(),
        "affine": mf.AffineImage(cube, [[1.0, 2.0], [0.0, 1.0], [1.0, -1.0]], [1.0, 0.0, 0.5]),
        "product": mf.Product([laplace, mf.Cube(0.7, 1), mixture]),
        "convolution": mf.Convolution([cube, laplace, _empirical()]),
    }


LAWS = _laws()
EVERYWHERE = [name for name, law in LAWS.items() if law.domain_radius() == np.inf]


def _inside(law: mf.AbstractLaw, num: int, length: float = 0.8) -> jax.Array:
    """Points whose double lies inside the domain: e^{<z, y>} has a finite variance there."""
    points = np.random.default_rng(1).normal(size=(num, law.dim))
    points = points / np.linalg.norm(points, axis=1, keepdims=True)
    return jnp.asarray(min(length, 0.45 * law.domain_radius()) * points)


class Table(NamedTuple):
    """The CGF and its derivatives, closed and automatic, at rows: 0, near, far, and huge."""

    z: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    auto_gradient: np.ndarray
    auto_hessian: np.ndarray


NEAR, FAR, HUGE = slice(1, 5), slice(5, 8), slice(8, 10)


@functools.cache
def _table(name: str) -> Table:
    """One compilation per law serves several tests."""
    law = LAWS[name]
    direction = jnp.full(law.dim, 0.7).at[0].set(-0.4)
    huge = jnp.stack([1e3 * direction, 1e150 * direction])
    rows = [jnp.zeros((1, law.dim)), _inside(law, 4), _inside(law, 3, length=6.0)]
    z = jnp.concatenate([*rows, huge if name in EVERYWHERE else 0 * huge])

    @jax.jit
    def evaluate(z: jax.Array) -> tuple[jax.Array, ...]:
        closed = law.cgf(z), law.cgf_gradient(z), law.cgf_hessian(z)
        return *closed, jax.vmap(jax.grad(law.cgf))(z), jax.vmap(jax.hessian(law.cgf))(z)

    return Table(np.asarray(z), *(np.asarray(part) for part in evaluate(z)))


def _derivative_gap(table: Table, rows: slice) -> float:
    """Closed derivatives against automatic ones."""
    first = np.max(np.abs(table.gradient - table.auto_gradient)[rows])
    return float(max(first, np.max(np.abs(table.hessian - table.auto_hessian)[rows])))


@functools.cache
def _draws(name: str) -> np.ndarray:
    """Independent draws ``[100000, d]``."""
    return np.asarray(LAWS[name].tokens(100_000, key=KEY).points)


def _monte_carlo_score(draws: np.ndarray, table: Table, rows: slice) -> float:
    """Largest |sample mean of e^{<z,y>} - e^{Lam(z)}| in standard errors."""
    powers = np.exp(draws @ table.z[rows].T)
    standard_error = powers.std(axis=0) / np.sqrt(len(draws))
    gap = np.abs(powers.mean(axis=0) - np.exp(table.value[rows]))
    return float(np.max(gap / standard_error))


@pytest.mark.parametrize("name", LAWS)
def test_centred_law_loses_its_mean_and_nothing_else(name: str):
    law = LAWS[name]
    centred, z = law.centred(), _inside(law, 4)
    assert type(centred) is type(law)
    np.testing.assert_allclose(centred.cgf(z), law.cgf(z) - z @ law.mean(), atol=1e-14)
    np.testing.assert_allclose(centred.mean(), 0, atol=1e-15)
    bounded = {"cube", "empirical", "affine"}
    assert law.has_bounded_support == centred.has_bounded_support == (name in bounded)


def test_centred_law_keeps_digits_far_from_the_origin():
    points = np.asarray(_empirical().points)
    near = mf.Empirical(mf.TokenMeasure(points)).centred()
    far = mf.Empirical(mf.TokenMeasure(points + 1e8)).centred()
    z = np.array([[0.7, -0.4]])
    np.testing.assert_allclose(far.cgf(z), near.cgf(z), rtol=1e-7)
    np.testing.assert_array_equal(
        mf.Cube(1.0, 2, [1e8, 0]).centred().cgf(z), mf.Cube(1.0, 2).cgf(z)
    )


def test_laws_without_spread_have_bounded_support():
    zero = np.zeros((2, 2))
    points = mf.GaussianMixture([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]], zero)
    for law in (mf.Gaussian([1.0, 2.0], zero), mf.Laplace(zero), points):
        assert law.has_bounded_support


@pytest.mark.parametrize("name", LAWS)
def test_derivatives_are_those_of_the_cgf(name: str) -> None:
    assert _derivative_gap(_table(name), NEAR) < 1e-13
    assert _derivative_gap(_table(name), FAR) < 1e-12


def test_derivative_check_rejects_a_shift_and_a_scale() -> None:
    table = _table("cube")
    shifted = table._replace(gradient=table.gradient + [0.0, 1e-6])
    assert _derivative_gap(shifted, NEAR) > 1e-7
    scaled = table._replace(hessian=1.001 * table.hessian)
    assert _derivative_gap(scaled, NEAR) > 1e-4


@pytest.mark.parametrize("name", LAWS)
def test_cgf_agrees_with_monte_carlo_over_its_own_draws(name: str) -> None:
    assert _monte_carlo_score(_draws(name), _table(name), NEAR) < 4.5


def test_monte_carlo_check_rejects_a_slightly_wrong_law() -> None:
    wider = 1.05 * (_draws("cube") - [0.2, -0.1]) + [0.2, -0.1]
    assert _monte_carlo_score(wider, _table("cube"), NEAR) > 6


def test_cube_functions_against_ball_arithmetic() -> None:
    sizes = [1e-9, 1e-4, 0.03, 0.3, 0.499999, 0.5, 0.6, 1.3, 4.0, 30.0, 400.0, 1e5]
    with flint.ctx.workprec(400):
        for size in sizes:
            t = flint.arb(size)
            decay = (-2 * t).exp()
            exact = {
                log_sinhc: t + ((1 - decay) / (2 * t)).log(),
                langevin: (1 + decay) / (1 - decay) - 1 / t,
                langevin_slope: 1 / t**2 - 4 * decay / (1 - decay) ** 2,
            }
            for function, value in exact.items():
                gap = abs(float(function(jnp.asarray(size))) / float(value) - 1)
                assert gap < 1e-14, (function.__name__, size, gap)  # a digit cancels near 1/2
    assert float(langevin(jnp.asarray(-2.0))) == -float(langevin(jnp.asarray(2.0)))
    assert float(log_sinhc(jnp.asarray(0.0))) == 0.0


def test_cube_and_laplace_against_quadrature_on_the_line() -> None:
    for z in (-3.0, -0.2, 1e-3, 0.7, 2.5):
        cube = mf.Cube(1.2, 1, [0.3])
        value, _ = quad(lambda y, z=z: np.exp(z * y) / 2.4, -0.9, 1.5, epsabs=0, epsrel=1e-13)
        np.testing.assert_allclose(cube.cgf([z]), np.log(value), rtol=1e-11, atol=1e-14)
    variance = 0.5
    laplace: Any = stats.laplace(scale=np.sqrt(variance / 2))
    density = laplace.pdf
    for z in (-1.2, -0.1, 0.4, 1.7):
        value, _ = quad(lambda y, z=z: np.exp(z * y) * density(y), -90, 90, points=[0], limit=500)
        np.testing.assert_allclose(mf.Laplace([[variance]]).cgf([z]), np.log(value), rtol=1e-8)


@pytest.mark.parametrize("name", ["gaussian", "two", "mixture"])
def test_gaussian_families_against_quadrature(name: str) -> None:
    cloud, table = LAWS[name].tokens(40, rule="hermite"), _table(name)
    points, weights = np.asarray(cloud.points), np.asarray(cloud.weights)
    tilted = weights[:, None] * np.exp(points @ table.z[NEAR].T)
    np.testing.assert_allclose(table.value[NEAR], np.log(tilted.sum(axis=0)), rtol=1e-11)
    mean = (tilted.T @ points) / tilted.sum(axis=0)[:, None]
    np.testing.assert_allclose(table.gradient[NEAR], mean, rtol=1e-11, atol=1e-12)


def test_two_component_mixture_is_log_cosh() -> None:
    theta, table = np.array([0.6, 0.3]), _table("two")
    for rows in (NEAR, FAR):
        z = table.z[rows]
        along = z @ theta
        value = np.einsum("ki,ij,kj->k", z, COVARIANCE, z) / 2 + np.log(np.cosh(along))
        gradient = z @ COVARIANCE + np.tanh(along)[:, None] * theta
        bump = np.outer(theta, theta) / np.cosh(along)[:, None, None] ** 2
        np.testing.assert_allclose(table.value[rows], value, rtol=1e-12)
        np.testing.assert_allclose(table.gradient[rows], gradient, rtol=1e-12)
        np.testing.assert_allclose(table.hessian[rows], COVARIANCE + bump, rtol=1e-11, atol=1e-14)


def test_empirical_is_a_max_shifted_log_sum_exp() -> None:
    law = _empirical()
    points, weights = np.asarray(law.points, np.longdouble), np.exp(np.asarray(law.log_weights))
    z = np.asarray(_inside(law, 4, length=3.0))
    naive = np.log(np.exp(z.astype(np.longdouble) @ points.T) @ weights.astype(np.longdouble))
    np.testing.assert_allclose(law.cgf(z), naive.astype(float), rtol=1e-14, atol=1e-15)
    far = 1e4 * z
    has_mass = weights > 0
    largest = np.max((far @ points.T.astype(float))[:, has_mass], axis=1)
    assert np.all(np.abs(law.cgf(far) - largest) <= -np.log(weights[has_mass].min()))


def test_zero_mass_tokens_and_order_change_nothing() -> None:
    law = _empirical()
    keep = np.array([5, 3, 2, 1, 0])
    measure = mf.TokenMeasure(law.points[keep], law.log_weights[keep])
    z = _inside(law, 5, length=2.0)
    np.testing.assert_allclose(mf.Empirical(measure).cgf(z), law.cgf(z), rtol=1e-14)


def test_convolution_identities() -> None:
    z = _inside(LAWS["cube"], 6, length=2.0)
    signs = mf.TokenMeasure(jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]))
    joined = mf.Convolution([mf.Cube(1.0, 2), mf.Empirical(signs)])
    np.testing.assert_allclose(joined.cgf(z), mf.Cube(2.0, 2).cgf(z), rtol=1e-13)
    halves = mf.Convolution([mf.Gaussian([0.1, 0.2], COVARIANCE), mf.Gaussian([0, 1], np.eye(2))])
    whole = mf.Gaussian([0.1, 1.2], COVARIANCE + np.eye(2))
    np.testing.assert_allclose(halves.cgf_gradient(z), whole.cgf_gradient(z), rtol=1e-13)
    square = mf.AffineImage(mf.Product([mf.Cube(1.0, 1)] * 2), [[2.0, 0.0], [0.0, 2.0]], [1, 0])
    np.testing.assert_allclose(square.cgf(z), mf.Cube(2.0, 2, [1, 0]).cgf(z), rtol=1e-13)


def test_attention_is_the_gradient_of_the_cgf() -> None:
    law = _empirical()
    score, x = np.random.default_rng(0).normal(size=(2, 2)), _inside(law, 4)
    head = mf.AttentionAV(jnp.asarray(score), jnp.eye(2))
    measure = mf.TokenMeasure(law.points, law.log_weights)
    attention = mf.SoftmaxAttention("av")(head, x, measure)
    np.testing.assert_allclose(law.cgf_gradient(x @ score), attention, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["mixture", "empirical"])
def test_cumulant_expansion_near_zero(name: str) -> None:
    law = LAWS[name]
    direction = np.array([0.8, -0.6])
    third = jax.jit(jax.jacfwd(lambda z: law.cgf_hessian(z)))(jnp.zeros(2))
    steps = 0.1 * 0.5 ** np.arange(5)
    z = steps[:, None] * direction
    gradient = np.asarray(law.cgf_gradient(jnp.asarray(z)))
    linear = np.asarray(law.mean()) + z @ np.asarray(law.covariance())
    quadratic = linear + steps[:, None] ** 2 / 2 * (np.asarray(third) @ direction @ direction)
    first = np.linalg.norm(gradient - linear, axis=1)
    second = np.linalg.norm(gradient - quadratic, axis=1)
    for errors, order in ((first, 2), (second, 3)):
        slope, r_squared = fitted_order(steps, errors)
        assert abs(slope - order) < 0.15
        assert r_squared > 0.999
    slope, _ = fitted_order(steps, first)
    assert abs(slope - 3) > 0.5, "the linear expansion must not pass for the quadratic one"


@pytest.mark.parametrize("name", LAWS)
def test_cgf_vanishes_at_zero_with_finite_derivatives(name: str) -> None:
    law, table = LAWS[name], _table(name)
    assert abs(table.value[0]) < 1e-15
    np.testing.assert_allclose(table.auto_gradient[0], law.mean(), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(table.auto_hessian[0], law.covariance(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_nothing_overflows_far_away(name: str) -> None:
    for part in _table(name):
        assert np.isfinite(part[HUGE]).all()


def test_third_derivatives_of_the_cube_are_finite_and_right() -> None:
    third = jax.jit(jax.vmap(jax.grad(jax.grad(jax.grad(lambda t: log_sinhc(t))))))
    points = jnp.array([0.0, 1e-3, 0.498, 0.502, 50.0])
    step = 1e-4
    slopes = (langevin_slope(points + step) - langevin_slope(points - step)) / (2 * step)
    np.testing.assert_allclose(third(points), slopes, rtol=1e-6, atol=1e-9)


def test_domain_of_the_laplace_law() -> None:
    law = mf.Laplace(COVARIANCE)
    radius = law.domain_radius()
    axis = np.linalg.eigh(COVARIANCE)[1][:, -1]
    law.require_domain(0.999 * radius * axis)
    assert np.isfinite(law.cgf(0.999 * radius * axis))
    outside = np.stack([0.1 * axis, 1.001 * radius * axis])
    for method in (law.cgf, law.cgf_gradient, law.cgf_hessian, law.require_domain):
        with pytest.raises(mf.DomainError, match=r"index \[1\].*z\^T S z < 2; take smaller heads"):
            method(outside)
    np.testing.assert_array_equal(law.in_domain(outside), [True, False])
    value, gradient, slope = jax.jit(
        lambda z: (law.cgf(z), law.cgf_gradient(z), jax.vmap(jax.grad(law.cgf))(z))
    )(outside)
    assert value[1] == jnp.inf
    assert np.isfinite(value[0])
    for traced in (gradient, slope):
        assert np.isfinite(traced[0]).all()
        assert np.isnan(traced[1]).all()
    assert mf.Laplace(np.zeros((2, 2))).domain_radius() == float("inf")


def test_domains_of_composed_laws() -> None:
    laplace = mf.Laplace(np.eye(1))  # |z| < sqrt 2
    half = mf.AffineImage(laplace, [[2.0]])
    assert half.domain_radius() == pytest.approx(np.sqrt(2) / 2)
    block = mf.Product([laplace, mf.Cube(1.0, 2)])
    assert np.isfinite(block.cgf([1.4, 9.0, 9.0]))
    both = mf.Convolution([laplace, half])
    for law, z in ((half, [0.8]), (block, [1.5, 0.0, 0.0]), (both, [0.8])):
        with pytest.raises(mf.DomainError, match="no finite cumulant"):
            law.cgf(z)
        assert not law.in_domain(z)
    assert both.in_domain([0.7])


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_shapes_and_dtype_of_the_argument_are_kept(name: str, dtype: type) -> None:
    law = LAWS[name]
    z = jax.ShapeDtypeStruct((2, 1, law.dim), dtype)
    for method, tail in ((law.cgf, ()), (law.cgf_gradient, (law.dim,))):
        result = jax.eval_shape(method, z)
        assert (result.shape, result.dtype) == ((2, 1, *tail), dtype)
    result = jax.eval_shape(law.cgf_hessian, z)
    assert (result.shape, result.dtype) == ((2, 1, law.dim, law.dim), dtype)


@pytest.mark.parametrize("name", LAWS)
def test_iid_clouds_have_the_law_s_moments(name: str) -> None:
    law, points = LAWS[name], _draws(name)
    error = points.std(axis=0) / np.sqrt(len(points))
    assert np.all(np.abs(points.mean(axis=0) - law.mean()) < 4.5 * error)
    gap = np.abs(np.cov(points.T) - law.covariance())
    assert np.max(gap) < 0.03 * np.max(np.abs(law.covariance()))


def test_clouds_are_functions_of_their_key() -> None:
    law = LAWS["cube"]
    rules: list[Any] = ["iid", "quasi"]
    for rule in rules:
        clouds = [
            law.tokens(64, key=key, rule=rule).points for key in (KEY, KEY, jax.random.key(8))
        ]
        np.testing.assert_array_equal(clouds[0], clouds[1])
        assert np.max(np.abs(clouds[0] - clouds[2])) > 0.1


@pytest.mark.parametrize("name", LAWS)
def test_quasi_random_clouds_beat_independent_ones(name: str) -> None:
    law = LAWS[name]

    def error(rule: Any, seed: int) -> float:
        cloud = law.tokens(1024, key=jax.random.key(seed), rule=rule)
        return float(jnp.linalg.norm(cloud.mean() - law.mean()))

    quasi = np.mean([error("quasi", seed) for seed in range(4)])
    independent = np.mean([error("iid", seed) for seed in range(4)])
    assert quasi < 0.35 * independent


@pytest.mark.parametrize("name", LAWS)
def test_quasi_random_clouds_have_the_law_s_moments(name: str) -> None:
    law = LAWS[name]
    points = np.asarray(law.tokens(4096, key=KEY, rule="quasi").points)
    covariance = np.asarray(law.covariance())
    scale = np.max(np.abs(covariance))
    assert np.max(np.abs(points.mean(axis=0) - law.mean())) < 0.01 * np.sqrt(scale)
    assert np.max(np.abs(np.cov(points.T) - covariance)) < 0.03 * scale


def test_quasi_random_points_are_inside_and_raw_keys_work() -> None:
    cube = mf.Cube(1.0, 3)
    cloud = cube.tokens(3000, key=jax.random.PRNGKey(0), rule="quasi")
    assert cloud.num_tokens == 3000
    assert np.max(np.abs(cloud.points)) < 1
    assert np.isfinite(mf.Gaussian([0.0], [[1.0]]).tokens(4096, key=KEY, rule="quasi").points).all()


@pytest.mark.parametrize(
    ("law", "rule"),
    [
        (LAWS["gaussian"], "hermite"),
        (LAWS["singular"], "hermite"),
        (LAWS["mixture"], "hermite"),
        (LAWS["cube"], "legendre"),
        (LAWS["affine"], "legendre"),
        (mf.Product([LAWS["gaussian"], LAWS["two"]]), "hermite"),
        (mf.Convolution([LAWS["gaussian"], LAWS["empirical"]]), "hermite"),
    ],
)
def test_gauss_rules_are_exact_for_moments(law: mf.AbstractLaw, rule: Any) -> None:
    cloud = law.tokens(4, rule=rule)
    np.testing.assert_allclose(cloud.mean(), law.mean(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(cloud.covariance(), law.covariance(), rtol=1e-12, atol=1e-12)
    assert np.max(np.abs(law.tokens(1, rule=rule).covariance() - law.covariance())) > 0.1


def test_gauss_rules_are_exact_to_degree_three() -> None:
    law = LAWS["mixture"]
    third = jax.jit(jax.jacfwd(lambda z: law.cgf_hessian(z)))(jnp.zeros(2))
    for num, is_exact in ((2, True), (1, False)):  # degree 2 num - 1
        cloud = law.tokens(num, rule="hermite")
        weights, centred = np.asarray(cloud.weights), np.asarray(cloud.points - cloud.mean())
        moments = np.einsum("n,ni,nj,nk->ijk", weights, centred, centred, centred)
        assert (np.max(np.abs(moments - third)) < 1e-12) == is_exact


def test_number_of_hermite_nodes() -> None:
    assert LAWS["gaussian"].tokens(24, rule="hermite").num_tokens == 24**2
    assert LAWS["mixture"].tokens(5, rule="hermite").num_tokens == 3 * 25


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mf.Cube(-1.0, 2), "radius is -1.0; expected a positive number"),
        (lambda: mf.Cube(1.0, 2, [0.0]), r"center has shape \(1,\)"),
        (lambda: mf.Cube(1.0, 0), "dim is 0"),
        (lambda: mf.Cube(np.nan, 2), "radius holds nan"),
        (lambda: mf.Laplace([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue"),
        (lambda: mf.Laplace([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (lambda: mf.Laplace([1.0, 2.0]), r"covariance has shape \(2,\)"),
        (lambda: mf.Gaussian([0.0], np.eye(2)), r"covariance has shape \(2, 2\)"),
        (lambda: mf.GaussianMixture([1.0, -1.0], np.eye(2), np.eye(2)), "least entry -1"),
        (lambda: mf.GaussianMixture([1.0], np.eye(2), np.eye(2)), "beside 2 means"),
        (lambda: mf.GaussianMixture([1, 1], np.eye(2), np.eye(3)), "covariances has shape"),
        (lambda: mf.Empirical(mf.TokenMeasure(np.zeros((2, 3, 1)))), "a batch of 2"),
        (lambda: mf.AffineImage(mf.Cube(1.0, 2), [[1.0]]), r"expected \[d, 2\]"),
        (lambda: mf.AffineImage(mf.Cube(1.0, 2), np.eye(2), [1.0]), "shift has shape"),
        (lambda: mf.Product([]), "no laws"),
        (lambda: mf.Convolution([mf.Cube(1.0, 1), mf.Cube(1.0, 2)]), r"widths \[1, 2\]"),
        (lambda: mf.Cube(1.0, 2).cgf([1.0]), r"z has shape \(1,\); expected \[..., 2\]"),
        (lambda: mf.Cube(1.0, 2).tokens(5), "without a key"),
        (lambda: mf.Cube(1.0, 2).tokens(0, key=KEY), "num is 0"),
        (lambda: mf.Cube(1.0, 2).tokens(5, rule="hermite"), "rule='hermite' for Cube"),
        (lambda: mf.Gaussian([0.0], [[1.0]]).tokens(5, rule="legendre"), "for Gaussian; expected"),
    ],
)
def test_bad_laws_are_refused_in_one_line(call: Callable, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_syntax_of_the_command_line(tmp_path) -> None:
    z = jnp.array([0.3, -0.2])
    named = {
        "cube:radius=1,dim=2": mf.Cube(1.0, 2),
        " Cube : dim=2 , radius=1.5 , center=0.5/-1 ": mf.Cube(1.5, 2, [0.5, -1.0]),
        "laplace:cov=1/0.3/0.3/0.6": mf.Laplace(COVARIANCE),
        "gaussian:mean=0.5/1,cov=1/0.3/0.3/0.6": mf.Gaussian([0.5, 1.0], COVARIANCE),
        "gaussian:cov=1/0.3/0.3/0.6": mf.Gaussian([0.0, 0.0], COVARIANCE),
        "gmm:theta=0.6/0.3,cov=1/0.3/0.3/0.6": LAWS["two"],
    }
    path = tmp_path / "mixture.npz"
    law: Any = LAWS["mixture"]
    np.savez(path, weights=3 * law.weights, means=law.means, covs=law.covariances)
    named[f"gmm:{path}"] = law
    for text, expected in named.items():
        parsed = mf.parse_law(text)
        assert type(parsed) is type(expected)
        np.testing.assert_allclose(parsed.cgf(z), expected.cgf(z), rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected cube:radius=1"),
        ("cube", "law 'cube'"),
        ("sphere:radius=1", "law 'sphere:radius=1'"),
        ("cube:radius=1", "no dim"),
        ("cube:radius=1,dim=2,width=3", "'width=3' in"),
        ("cube:radius=1,radius=2,dim=2", "radius twice"),
        ("cube:radius=one,dim=2", "expected numbers joined by /"),
        ("cube:radius=inf,dim=2", "expected finite numbers"),
        ("cube:radius=1,dim=2.5", "expected an integer"),
        ("cube:radius=1,dim=1e30", "expected an integer"),
        ("cube:radius=1/2,dim=2", "2 values of radius"),
        ("cube:radius=1,dim=2,center=0", "center has shape"),
        ("laplace:cov=1/2/3", "cov with 3 entries"),
        ("laplace:cov=1/2/2/1", "negative eigenvalue"),
        ("gaussian:mean=0,cov=1/0/0/1", "covariance has shape"),
        ("gmm:nowhere.npz", "nowhere.npz does not exist"),
        ("gmm:theta=1/0", "no cov"),
    ],
)
def test_bad_syntax_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message) as caught:
        mf.parse_law(text)
    assert "\n" not in str(caught.value)


def test_mixture_files_must_hold_a_mixture(tmp_path) -> None:
    path = tmp_path / "mixture.npz"
    np.savez(path, weights=np.ones(2), means=np.eye(2))
    with pytest.raises(mf.MeanfieldError, match=r"without \['covs'\]"):
        mf.parse_law(f"gmm:{path}")
    np.savez(path, weights=-np.ones(2), means=np.eye(2), covs=np.eye(2))
    with pytest.raises(mf.MeanfieldError, match="mixture.npz: weights sum to -2"):
        mf.parse_law(f"gmm:{path}")


def test_entrywise_gaussian_particles() -> None:
    field = mf.SoftmaxAttention("av")
    law = mf.EntrywiseGaussian(A=2.0, V=0.0)
    grid = mf.DepthGrid.uniform(3)
    rho = mf.sample_parameters(field, law, grid, 4000, dim=2, key=KEY)
    assert rho.particles.A.shape == (3, 4000, 2, 2)
    assert not np.any(rho.particles.V)
    scores = np.asarray(rho.particles.A).ravel()
    assert abs(scores.std() - 2.0) < 4.5 * 2.0 / np.sqrt(2 * scores.size)
    assert stats.kstest(scores / 2, "norm").pvalue > 1e-3
    assert stats.kstest(scores / 2.2, "norm").pvalue < 1e-6, "the test must see a wrong scale"
    plain = mf.EntrywiseGaussian(1.5)(KEY, [(2,), ()], 10)
    assert [leaf.shape for leaf in plain] == [(10, 2), (10,)]


def test_a_further_leaf_does_not_shift_the_others() -> None:
    few = mf.EntrywiseGaussian(1.0)(KEY, {"A": (2, 2), "V": (2, 2)}, 5)
    more = mf.EntrywiseGaussian(1.0)(KEY, {"A": (2, 2), "B": (3,), "V": (2, 2)}, 5)
    np.testing.assert_array_equal(few["A"], more["A"])
    np.testing.assert_array_equal(few["V"], more["V"])
    assert not np.array_equal(few["A"], few["V"])


@settings(max_examples=20, deadline=None)
@given(radius=st.floats(0.1, 5.0), seed=st.integers(0, 2**31 - 1))
def test_uniform_ball_keeps_heads_inside_a_domain(radius: float, seed: int) -> None:
    draw = UniformBall(A=radius)(jax.random.key(seed), {"A": (2, 3)}, 200)["A"]
    norms = np.linalg.norm(np.asarray(draw).reshape(200, -1), axis=1)
    assert norms.max() <= radius
    assert stats.kstest((norms / radius) ** 6, "uniform").pvalue > 1e-6
    law = mf.Laplace(COVARIANCE)
    x = np.array([0.6, -0.8])  # of length 1
    inside = UniformBall(law.domain_radius())(jax.random.key(seed), (2, 2), 200)
    law.require_domain(jnp.einsum("jab,a->jb", inside, x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mf.EntrywiseGaussian(), "with no scale"),
        (lambda: mf.EntrywiseGaussian(1.0, A=2.0), "a number and names"),
        (lambda: mf.EntrywiseGaussian(-1.0), "scale=-1.0"),
        (lambda: mf.EntrywiseGaussian(A=np.nan), "A=nan"),
        (lambda: mf.EntrywiseGaussian(A=1.0)(KEY, {"A": (2,), "V": (2,)}, 3), "a scale for each"),
        (lambda: mf.EntrywiseGaussian(A=1.0, W=1.0)(KEY, {"A": (2,)}, 3), "a scale for each"),
    ],
)
def test_bad_parameter_laws_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message):
        call()
