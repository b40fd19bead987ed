"""Closed forms against routes that share no code with them.

The reference is a plain softmax particle system integrated by scipy at tight tolerance; ball
arithmetic, quadrature and linear algebra where a formula allows it.
"""

from collections.abc import Callable
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq

import meanfield as mf
from meanfield import exact
from tests.helpers import fitted_order


def attention(points: np.ndarray, weights: Any, score: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Weighted softmax attention at ``x``, written out."""
    logits = x @ score @ points.T
    powers = weights * np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers @ points) / powers.sum(axis=1, keepdims=True)


def particle_flow(
    points: np.ndarray,
    weights: Any,
    heads: list[list[tuple[float, np.ndarray, np.ndarray]]],
    nodes: Any,
    *,
    tolerance: float = 1e-12,
) -> np.ndarray:
    """All tokens at the nodes, ``[L+1, n, d]``; heads[k] = (mass, A, V) of cell k."""
    path = [np.asarray(points, dtype=float)]
    for k, cell in enumerate(heads):

        def rhs(s: float, flat: np.ndarray, cell: Any = cell) -> np.ndarray:
            x = flat.reshape(path[0].shape)
            parts = [w * attention(x, weights, a, x) @ v.T for w, a, v in cell]
            return np.sum(parts, axis=0).ravel()

        span = (nodes[k], nodes[k + 1])
        solved = solve_ivp(
            rhs, span, path[-1].ravel(), method="DOP853", rtol=tolerance, atol=tolerance
        )
        path.append(solved.y[:, -1].reshape(path[0].shape))
    return np.stack(path)


def _heads(dim: int, *, seed: int, scale: float = 0.5, cells: int = 2, num: int = 3):
    """A parameter measure of random heads and the same as a list."""
    generator = np.random.default_rng(seed)
    scores, values = scale * generator.normal(size=(2, cells, num, dim, dim))
    masses = generator.uniform(0.2, 1.0, size=(cells, num))
    masses /= masses.sum(axis=1, keepdims=True)
    nodes = np.array([0.0, 0.4, 1.0])[: cells + 1]
    rho = mf.ParameterMeasure(
        mf.AttentionAV(scores, values), mf.DepthGrid(nodes), log_weights=np.log(masses)
    )
    heads = [list(zip(masses[k], scores[k], values[k], strict=True)) for k in range(cells)]
    return rho, heads, nodes


def _transposed(heads: list) -> list:
    """The control: scores the wrong way round."""
    return [[(w, a.T, v) for w, a, v in cell] for cell in heads]


def _hermite_tokens(mean: np.ndarray, covariance: np.ndarray, num: int):
    """Tensor Gauss-Hermite tokens of N(mean, covariance) in the plane."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes)], axis=1)
    masses = np.outer(weights, weights).ravel()
    return mean + grid @ np.linalg.cholesky(covariance).T, masses / masses.sum()


COVARIANCE = np.array([[0.5, 0.2], [0.2, 0.3]])
MEAN = np.array([0.4, -0.3])


# 6.1 Gaussian closure -----------------------------------------------------------------------------


def test_gaussian_closure_against_quadrature_tokens() -> None:
    rho, heads, nodes = _heads(2, seed=1)
    tokens, masses = _hermite_tokens(MEAN, COVARIANCE, 24)
    keep = masses > 1e-22  # far corners of the grid: a thousandth of the digits that are compared
    queries = np.array([[1.0, 0.5], [-2.0, 0.3]])
    tokens = np.concatenate([tokens[keep], queries])
    masses = np.concatenate([masses[keep], np.zeros(2)])
    path = particle_flow(tokens, masses, heads, nodes, tolerance=1e-11)
    solution = exact.gaussian_closure(MEAN, COVARIANCE, rho)
    means = np.einsum("n,knd->kd", masses, path)
    centred = path - means[:, None]
    covariances = np.einsum("n,kni,knj->kij", masses, centred, centred)
    np.testing.assert_allclose(solution.means, means, atol=1e-9)
    np.testing.assert_allclose(solution.covariances, covariances, atol=1e-9)
    np.testing.assert_allclose(solution.flow_map(queries), path[:, -2:], atol=1e-9)
    np.testing.assert_allclose(solution.flow_map(queries[0]), path[:, -2], atol=1e-9)
    flipped = mf.AttentionAV(jnp.swapaxes(rho.particles.A, 2, 3), rho.particles.V)
    wrong = exact.gaussian_closure(MEAN, COVARIANCE, rho.with_particles(flipped))
    assert np.max(np.abs(wrong.means[-1] - means[-1])) > 1e-3


def test_general_closure_meets_the_isotropic_closed_form() -> None:
    depths = np.linspace(0, 1, 6)
    for value, score in ((0.6, 0.5), (0.7, -0.9), (-0.4, 0.8)):
        closed = exact.gaussian_isotropic(MEAN, COVARIANCE, value=value, score=score, depths=depths)
        head = exact.constant_head(score * np.eye(2), value * np.eye(2))
        solved = exact.gaussian_closure(MEAN, COVARIANCE, head, depths=depths)
        for name in ("means", "covariances", "linear_maps"):
            ours, theirs = getattr(closed, name), getattr(solved, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
        other = exact.gaussian_isotropic(
            MEAN, COVARIANCE, value=value, score=1.01 * score, depths=depths
        )
        assert np.max(np.abs(other.covariances - solved.covariances)) > 1e-4


def test_factored_heads_and_depths_between_nodes() -> None:
    generator = np.random.default_rng(4)
    queries, keys = 0.6 * generator.normal(size=(2, 2, 3, 1, 2))
    values: Any = 0.5 * generator.normal(size=(2, 3, 2, 2))
    grid = mf.DepthGrid([0.0, 0.4, 1.0])
    factored = mf.ParameterMeasure(mf.AttentionQKV(queries, keys, values), grid)
    scores = 0.5 * np.einsum("kjra,kjrb->kjab", queries, keys)
    plain = mf.ParameterMeasure(mf.AttentionAV(scores, values), grid)
    depths = [0.0, 0.1, 0.4, 0.7, 0.7, 1.0]
    ours = exact.gaussian_closure(MEAN, COVARIANCE, factored, scale=0.5, depths=depths)
    theirs = exact.gaussian_closure(MEAN, COVARIANCE, plain, depths=depths)
    np.testing.assert_allclose(ours.means, theirs.means, rtol=1e-12)
    refined = exact.gaussian_closure(MEAN, COVARIANCE, mf.refine_depth(plain, 3), depths=depths)
    np.testing.assert_allclose(refined.means, theirs.means, rtol=1e-12)
    np.testing.assert_allclose(theirs.means[3], theirs.means[4], rtol=0)


def test_rank_of_the_covariance_is_conserved_and_collapse_is_algebraic() -> None:
    rho, _, _ = _heads(2, seed=2)
    singular = np.array([[1.0, 2.0], [2.0, 4.0]]) / 4
    solution = exact.gaussian_closure(MEAN, singular, rho)
    for covariance in solution.covariances:
        values = np.linalg.eigvalsh(covariance)
        assert abs(values[0]) < 1e-13 * values[1]
    far = exact.gaussian_isotropic(MEAN, COVARIANCE, value=-1.0, score=0.5, depths=1e6)
    np.testing.assert_allclose(1e6 * far.covariances[-1], np.eye(2), atol=1e-5)


def test_blow_up_is_named() -> None:
    depth = exact.gaussian_blow_up_depth(0.8, 0.7, 0.5)
    assert depth == pytest.approx(1 / (2 * 0.7 * 0.5 * 0.8), rel=1e-14)
    assert exact.gaussian_blow_up_depth(0.8, 0.7, -0.5) == np.inf
    just_before = exact.gaussian_isotropic(0.4, 0.8, value=0.7, score=0.5, depths=0.999999 * depth)
    assert just_before.covariances[-1, 0, 0] > 1e5
    with pytest.raises(mf.DomainError, match=r"blow-up.*s\* = .* = 1.78571; ask for smaller"):
        exact.gaussian_isotropic(0.4, 0.8, value=0.7, score=0.5, depths=[0.0, depth])
    head = exact.constant_head(0.5, 0.7, horizon=2.0)
    with pytest.raises(
        mf.DomainError, match=r"covariance of the tokens blows up.* near .* 1.78571"
    ):
        exact.gaussian_closure(0.4, 0.8, head)
    exact.gaussian_closure(0.4, 0.8, head, depths=1.7)
    grown = exact.gaussian_closure(1.0, 0.0, exact.constant_head(1.0, 20.0))
    assert grown.means[-1, 0] == pytest.approx(np.exp(20), rel=1e-11)  # large is no blow-up


def test_l2_attention_of_a_gaussian() -> None:
    generator = np.random.default_rng(5)
    query, key = 0.7 * generator.normal(size=(2, 2, 2))
    tokens, masses = _hermite_tokens(MEAN, COVARIANCE, 40)
    x = generator.normal(size=(3, 2))
    gaps = np.sum((x[:, None] @ query.T - tokens[None] @ key.T) ** 2, axis=2)
    powers = masses * np.exp(-gaps)
    expected = (powers @ tokens) / powers.sum(axis=1, keepdims=True)
    found = exact.gaussian_l2_attention(MEAN, COVARIANCE, query, key, x)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    wrong = exact.gaussian_l2_attention(MEAN, COVARIANCE, key, query, x)
    assert np.max(np.abs(wrong - expected)) > 1e-3


# The printed numbers ------------------------------------------------------------------------------


def _two(value: float, depth: float) -> float:
    head = exact.constant_head(1.0, value, horizon=depth)
    return exact.two_tokens([[0.5], [-0.5]], head)[-1, 0, 0]


EQUIANGULAR = dict(norm_squared=1.0, inner_product=0.2, value=0.6, score=0.8, depths=1.0)


def _gaussian():
    return exact.gaussian_isotropic(0.4, 0.8, value=0.7, score=0.5, depths=1.0)


def _sphere(attention_kind: Any) -> float:
    return exact.sphere_equiangular(
        4, correlation=0.2, score=0.8, times=2.0, attention=attention_kind
    )[0]


@pytest.mark.parametrize(
    ("number", "expected", "digits"),
    [
        (lambda: _two(1.0, 1.0), 0.693960594215, 12),
        (lambda: _two(-1.0, 5.0), 0.267829162806, 12),
        (lambda: exact.equiangular(4, **EQUIANGULAR).norms_squared[0], 2.09985121, 8),
        (lambda: exact.equiangular(4, **EQUIANGULAR).inner_products[0], 1.07077862, 8),
        (lambda: _gaussian().means[0, 0], 1.2143385729530707, 15),
        (lambda: _gaussian().covariances[0, 0, 0], 1.8181818181818181, 15),
        (lambda: exact.dirac_training(0.8 * np.exp(0.2), 1.7, 2.0)[0], 1.6919369, 7),
        (lambda: _sphere("softmax"), 0.95289231, 8),
        (lambda: _sphere("unnormalised"), 0.99910765, 8),
    ],
)
def test_regression_numbers_to_the_printed_digits(
    number: Callable[[], float], expected: float, digits: int
) -> None:
    unit = 10.0**-digits
    # the note cuts or rounds its last digit
    assert abs(number() - expected) < unit
    assert abs(number() * (1 + 1e-5) - expected) > unit, "the comparison must see a small change"


# 6.2 two tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.3, 0.7), (1.0, 0.0), (0.0, 1.0)])
def test_two_tokens_against_softmax(weights: tuple[float, float]) -> None:
    rho, heads, nodes = _heads(3, seed=6)
    points = np.random.default_rng(6).normal(size=(2, 3))
    expected = particle_flow(points, weights, heads, nodes)
    found = exact.two_tokens(points, rho, weights=weights)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    louder = [[(w, a, 1.01 * v) for w, a, v in cell] for cell in heads]
    assert np.max(np.abs(found - particle_flow(points, weights, louder, nodes))) > 1e-3
    if min(weights) > 0:  # one atom of all mass is blind to scores
        wrong = particle_flow(points, weights, _transposed(heads), nodes)
        assert np.max(np.abs(found - wrong)) > 1e-3


def test_two_scalar_tokens_against_a_quadrature() -> None:
    """With w = a u^2: int dw / (w tanh w) = 2 v s."""
    for value, depth in ((1.0, 1.0), (-1.0, 5.0)):

        def travelled(end: float, value: float = value, depth: float = depth) -> float:
            area, _ = quad(lambda w: 1 / (w * np.tanh(w)), 0.25, end, epsabs=1e-13, epsrel=1e-12)
            return area - 2 * value * depth

        end: Any = brentq(travelled, 0.01, 0.9, xtol=1e-15)
        assert _two(value, depth) == pytest.approx(np.sqrt(end), rel=1e-11)


# 6.3-6.5 zero score, hardmax, identical tokens ----------------------------------------------------


def test_zero_score_and_identical_tokens_against_softmax() -> None:
    rho, heads, nodes = _heads(3, seed=7)
    generator = np.random.default_rng(7)
    points, masses = generator.normal(size=(5, 3)), np.array([0.2, 0.3, 0.1, 0.4, 0.0])
    no_score = rho.with_particles(rho.particles._replace(A=0 * rho.particles.A))
    blind = [[(w, 0 * a, v) for w, a, v in cell] for cell in heads]
    measure = mf.TokenMeasure.from_weights(points, masses)
    depths = [0.0, 0.4, 0.9, 1.0]
    found = exact.zero_score(measure, no_score, depths=depths)
    expected = particle_flow(points, masses, blind, nodes)
    np.testing.assert_allclose(found[[0, 1, 3]], expected, atol=1e-10)
    assert np.max(np.abs(particle_flow(points, masses, heads, nodes) - found[[0, 1, 3]])) > 1e-3
    inside = particle_flow(expected[1], masses, blind[1:], [0.4, 0.9])
    np.testing.assert_allclose(found[2], inside[-1], atol=1e-10)
    differences = found - found[:, :1]
    np.testing.assert_allclose(differences, np.broadcast_to(differences[0], found.shape))
    one = exact.identical_tokens(points[0], rho)
    same = particle_flow(np.stack([points[0]] * 3), np.array([0.2, 0.5, 0.3]), heads, nodes)
    np.testing.assert_allclose(np.stack([one] * 3, axis=1), same, atol=1e-10)
    with pytest.raises(mf.MeanfieldError, match="expected heads with A = 0"):
        exact.zero_score(measure, rho)


def test_hardmax_limit_within_its_bound() -> None:
    generator = np.random.default_rng(8)
    points, masses = generator.normal(size=(6, 2)), generator.uniform(0.1, 1, size=6)
    points[5] = points[4]
    masses[0] = 0.0
    score, x = generator.normal(size=(2, 2)), generator.normal(size=(7, 2))
    limit = exact.hardmax_attention(mf.TokenMeasure.from_weights(points, masses), score, x)
    errors = []
    for beta in (1.0, 10.0, 40.0):
        found = attention(points, masses / masses.sum(), beta * score, x)
        gap = np.linalg.norm(found - limit.values, axis=1)
        assert np.all(gap <= limit.error_bound(beta) * (1 + 1e-9) + 1e-12)
        errors.append(gap)
    assert np.max(errors[0]) > 0.1
    assert np.all(errors[2] <= errors[0])
    assert np.median(errors[2]) < 1e-3
    assert not np.any(np.all(limit.values[:, None] == points[:1], axis=2)), "no mass, no maximum"
    with pytest.raises(mf.DomainError, match="two tokens tie"):
        exact.hardmax_attention(mf.TokenMeasure([[1.0, 0.0], [0.0, 1.0]]), np.eye(2), [[1.0, 1.0]])
    alone = exact.hardmax_attention(mf.TokenMeasure([[1.0, 0.0]]), np.eye(2), [[1.0, 1.0]])
    assert alone.gaps[0] == np.inf


def test_first_order_in_the_score() -> None:
    generator = np.random.default_rng(9)
    points = generator.normal(size=(5, 2))
    law = mf.Empirical(mf.TokenMeasure(points))
    score, x = generator.normal(size=(2, 2)), generator.normal(size=(3, 2))
    steps = 0.2 * 0.5 ** np.arange(5)
    errors = [
        np.linalg.norm(
            exact.first_order_attention(law, step * score, x)
            - attention(points, np.full(5, 0.2), step * score, x)
        )
        for step in steps
    ]
    slope, r_squared = fitted_order(steps, errors)
    assert abs(slope - 2) < 0.15
    assert r_squared > 0.999
    off = [error + 0.01 * step for error, step in zip(errors, steps, strict=True)]
    assert abs(fitted_order(steps, off)[0] - 2) > 0.15, "a first-order slip must be seen"


# 6.6, 6.7, 6.9 equiangular tokens and the potential -----------------------------------------------


def test_equiangular_tokens_against_softmax() -> None:
    points = exact.equiangular_tokens(4, 1.0, 0.2)
    gram = points @ points.T
    np.testing.assert_allclose(gram, 0.8 * np.eye(4) + 0.2, atol=1e-14)
    heads = [[(1.0, 0.8 * np.eye(4), 0.6 * np.eye(4))]]
    final = particle_flow(points, np.full(4, 0.25), heads, [0.0, 1.0])[-1]
    found = exact.equiangular(4, **EQUIANGULAR)
    gram = final @ final.T
    np.testing.assert_allclose(np.diag(gram), found.norms_squared[0], atol=1e-10)
    np.testing.assert_allclose(gram[np.triu_indices(4, 1)], found.inner_products[0], atol=1e-10)
    other = exact.equiangular(5, **EQUIANGULAR)
    assert abs(other.norms_squared[0] - found.norms_squared[0]) > 1e-3
    simplex = exact.equiangular_tokens(3, 1.0, -0.5)
    np.testing.assert_allclose(simplex.sum(axis=0), 0, atol=1e-8)


@pytest.mark.parametrize("kind", ["softmax", "unnormalised"])
def test_sphere_equiangular_against_projected_particles(kind: Any) -> None:
    points = exact.equiangular_tokens(4, 1.0, 0.2)

    def rhs(t: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(4, 4)
        powers = np.exp(0.8 * x @ x.T)
        total = powers.sum(axis=1, keepdims=True) if kind == "softmax" else 4.0
        move = powers @ x / total
        return (move - np.sum(move * x, axis=1, keepdims=True) * x).ravel()

    times = [0.0, 0.5, 2.0]
    solved = solve_ivp(
        rhs, (0, 2), points.ravel(), method="DOP853", t_eval=times, rtol=1e-12, atol=1e-12
    )
    expected = [y.reshape(4, 4)[0] @ y.reshape(4, 4)[1] for y in solved.y.T]
    found = exact.sphere_equiangular(4, correlation=0.2, score=0.8, times=times, attention=kind)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    wrong = exact.sphere_equiangular(4, correlation=0.2, score=0.9, times=times, attention=kind)
    assert np.max(np.abs(wrong - expected)) > 1e-3


def test_potential_whose_gradient_is_the_velocity_for_equal_score_and_value() -> None:
    law = mf.two_component_mixture([0.7, -0.2], COVARIANCE)
    generator = np.random.default_rng(10)
    score, x = jnp.asarray(generator.normal(size=(2, 2))), jnp.asarray(generator.normal(size=2))

    def potential(y: jax.Array) -> jax.Array:
        return exact.attention_potential(law, score, y)

    gradient, jacobian = jax.jit(lambda y: (jax.grad(potential)(y), jax.hessian(potential)(y)))(x)
    np.testing.assert_allclose(gradient, score @ law.cgf_gradient(score.T @ x), rtol=1e-12)
    expected = score @ law.cgf_hessian(score.T @ x) @ score.T
    np.testing.assert_allclose(jacobian, expected, rtol=1e-11)
    assert np.linalg.eigvalsh(jacobian)[0] > 0
    assert np.max(np.abs(gradient - score @ law.cgf_gradient(score @ x))) > 1e-2


# 6.10, 6.11 training ------------------------------------------------------------------------------

DIRAC = [
    (0.8 * np.exp(0.2), 1.7),
    (3.0, 1.7),
    (-1.0, 2.0),
    (1.0, -2.0),
    (-2.0, -0.3),
    (1e-3, 1.0),
    (1.0, 0.05),
    (1.0, -0.05),
    (20.0, 1.0),
    (1.0, -30.0),
    (0.01, 3.0),
]


def _implicit_error(start: float, target: float, time: float, output: float) -> float:
    """Error of x_1(t) by int dx / (x^2 (x - y)) = log|1 - y/x| / y^2 + 1/(y x) = -t, in balls."""
    with flint.ctx.workprec(300):
        y = flint.arb(target)

        def primitive(x: float) -> flint.arb:
            return abs(1 - y / flint.arb(x)).log() / y**2 + 1 / (y * flint.arb(x))

        miss = float(primitive(output) - primitive(start)) + time
    return abs(miss * output**2 * (output - target))


@pytest.mark.parametrize(("start", "target"), DIRAC)
def test_dirac_training_against_its_implicit_integral(start: float, target: float) -> None:
    times = np.array([0.0, 1e-3, 0.3, 2.0, 10.0])
    found = exact.dirac_training(start, target, times)
    assert found[0] == pytest.approx(start, rel=1e-14)
    for time, output in zip(times, found, strict=True):
        if abs(output - target) > 1e-14 * abs(target):  # not yet at rest to rounding
            assert _implicit_error(start, target, time, output) < 1e-12 * abs(output)
    late = exact.dirac_training(start, target, 1.01e-3)[0]
    assert _implicit_error(start, target, 1e-3, late) > 1e-12 * abs(late)


def test_dirac_training_without_target_and_at_rest() -> None:
    times = np.array([0.0, 1.0, 5.0])
    solved = solve_ivp(lambda t, x: -(x**3), (0, 5), [1.5], t_eval=times, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(exact.dirac_training(1.5, 0.0, times), solved.y[0], rtol=1e-9)
    near = exact.dirac_training(1.5, 1e-9, times)
    np.testing.assert_allclose(near, exact.dirac_training(1.5, 0.0, times), rtol=1e-7)
    np.testing.assert_array_equal(exact.dirac_training(2.0, 2.0, times), 2.0)


def test_dirac_training_is_the_limit_of_layers() -> None:
    """Euler layers x_1 = x_0 (1 + v/L)^L with v' = -(x_1 - y) x_1 / (1 + v/L)."""
    limit = exact.dirac_training(0.8 * np.exp(0.2), 1.7, 2.0)[0]
    counts = np.array([20, 40, 80, 160, 320])
    layered = []
    for count in counts:

        def rhs(t: float, v: np.ndarray, count: int = count) -> np.ndarray:
            output = 0.8 * (1 + v / count) ** count
            return -(output - 1.7) * output / (1 + v / count)

        v = solve_ivp(rhs, (0, 2), [0.2], method="DOP853", rtol=1e-12, atol=1e-13).y[0, -1]
        layered.append(0.8 * (1 + v / count) ** count)
    assert layered[0] == pytest.approx(1.68872, abs=5e-6)
    assert layered[2] == pytest.approx(1.69121, abs=5e-6)
    slope, r_squared = fitted_order(1 / counts, np.abs(np.array(layered) - limit))
    assert abs(slope - 1) < 0.15
    assert r_squared > 0.999


def test_lazy_training_against_an_ode() -> None:
    generator = np.random.default_rng(11)
    factor = generator.normal(size=(6, 4))
    gram, weights = factor.T @ factor / 6, np.array([0.4, 0.3, 0.3, 0.0])
    residual = generator.normal(size=(4, 2))
    times = np.array([0.0, 0.5, 3.0])

    def rhs(t: float, flat: np.ndarray) -> np.ndarray:
        return -(gram @ (weights[:, None] * flat.reshape(4, 2))).ravel()

    solved = solve_ivp(
        rhs, (0, 3), residual.ravel(), method="DOP853", t_eval=times, rtol=1e-12, atol=1e-13
    )
    found = exact.lazy_residual(gram, weights, residual, times)
    np.testing.assert_allclose(found, solved.y.T.reshape(3, 4, 2), atol=1e-10)
    risk = exact.lazy_risk(gram, weights, residual, times)
    np.testing.assert_allclose(risk[0], np.sum(weights[:, None] * residual**2) / 2, rtol=1e-14)
    assert np.all(np.diff(risk) < 0)
    wrong = exact.lazy_residual(2 * gram, weights, residual, times)
    assert np.max(np.abs(wrong - found)) > 1e-2


def test_lazy_risk_decays_at_twice_the_least_eigenvalue() -> None:
    generator = np.random.default_rng(12)
    factor = generator.normal(size=(8, 3))
    gram, weights = factor.T @ factor / 8, np.array([0.5, 0.3, 0.2])
    root = np.sqrt(weights)
    least = np.linalg.eigvalsh(root[:, None] * gram * root)[0]
    times = np.array([40.0, 41.0]) / least
    late = exact.lazy_risk(gram, weights, generator.normal(size=(3, 1)), times)
    assert np.log(late[0] / late[1]) == pytest.approx(2 * least * (times[1] - times[0]), rel=1e-3)


# 6.12 bounds --------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 2.0))
def test_clouds_stay_inside_the_radius_bound(seed: int, scale: float) -> None:
    rho, heads, nodes = _heads(2, seed=seed, scale=scale)
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(5, 2))
    path = particle_flow(points, np.full(5, 0.2), heads, nodes, tolerance=1e-9)
    radii = np.max(np.linalg.norm(path, axis=2), axis=1)
    bound = exact.radius_bound(radii[0], rho)
    assert np.all(radii <= bound * (1 + 1e-6))
    assert exact.radius_bound(radii[0], rho, depths=0.4)[0] == pytest.approx(bound[1], rel=1e-12)


def test_radius_bound_is_attained() -> None:
    head = exact.constant_head(3 * np.eye(2), 0.7 * np.eye(2))
    point = np.array([0.6, 0.8])
    reached = np.linalg.norm(exact.identical_tokens(point, head)[-1])
    assert exact.radius_bound(1.0, head)[-1] == pytest.approx(reached, rel=1e-13)
    smaller = exact.constant_head(3 * np.eye(2), 0.69 * np.eye(2))
    assert exact.radius_bound(1.0, smaller)[-1] < reached


# Bad input ----------------------------------------------------------------------------------------

_HEAD = exact.constant_head(np.eye(2), np.eye(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact.constant_head(np.eye(2), np.eye(3)), r"value has shape \(3, 3\)"),
        (lambda: exact.constant_head([[np.nan]], 1.0), "score holds nan"),
        (lambda: exact.gaussian_closure([0.0], [[1.0]], _HEAD), "mean has width 1"),
        (lambda: exact.gaussian_closure([0.0, 0.0], -np.eye(2), _HEAD), "eigenvalue -1"),
        (lambda: exact.gaussian_closure([0.0, 0.0], np.eye(3), _HEAD), r"covariance \(3, 3\)"),
        (
            lambda: exact.gaussian_closure(MEAN, COVARIANCE, _HEAD, depths=[0.0, 1.5]),
            "from 0 to 1; sort them",
        ),
        (
            lambda: exact.gaussian_closure(MEAN, COVARIANCE, _HEAD, depths=[0.5, 0.1]),
            "increasing numbers",
        ),
        (
            lambda: exact.gaussian_isotropic(0.0, 1.0, value=np.nan, score=1.0, depths=1.0),
            "value=nan",
        ),
        (lambda: exact.two_tokens(np.zeros((3, 2)), _HEAD), r"expected \[2, d\]"),
        (lambda: exact.two_tokens(np.zeros((2, 2)), _HEAD, weights=(-1.0, 1.0)), "weights="),
        (lambda: exact.identical_tokens(np.zeros(3), _HEAD), "point has width 3"),
        (lambda: exact.equiangular_tokens(4, 1.0, -0.5), "a Gram matrix"),
        (lambda: exact.equiangular_tokens(1, 1.0, 0.0), "one token"),
        (
            lambda: exact.sphere_equiangular(4, correlation=1.5, score=1.0, times=1.0),
            "a Gram matrix",
        ),
        (lambda: exact.dirac_training(0.0, 1.0, 1.0), "output=0.0"),
        (lambda: exact.dirac_training(1.0, 1.0, -1.0), "times="),
        (lambda: exact.lazy_residual(np.eye(2), [1.0], [[1.0]], 1.0), r"gram has shape \(2, 2\)"),
        (
            lambda: exact.lazy_residual([[0.0, 1.0], [0.0, 0.0]], [1.0, 1.0], np.eye(2), 1.0),
            "not symmetric",
        ),
        (lambda: exact.lazy_residual(np.eye(1), [-1.0], [[1.0]], 1.0), "weights holds -1"),
        (lambda: exact.radius_bound(-1.0, _HEAD), "radius=-1.0"),
        (
            lambda: exact.gaussian_l2_attention(
                [0.0, 0.0], np.diag([1.0, 0.0]), np.eye(2), np.eye(2), np.eye(2)
            ),
            "a singular covariance",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_other_parameter_measures_are_refused() -> None:
    grid = mf.DepthGrid.uniform(2)
    perceptron = mf.ParameterMeasure({"u": np.zeros((2, 3, 2))}, grid)
    with pytest.raises(mf.MeanfieldError, match="expected attention heads"):
        exact.radius_bound(1.0, perceptron)
    heads = mf.AttentionAV(jnp.zeros((2, 3, 2, 2)), jnp.zeros((2, 3, 2, 2)))
    joined = mf.ParameterMeasure(heads, grid, interpolation="linear")
    with pytest.raises(mf.MeanfieldError, match="constant in each depth cell"):
        exact.radius_bound(1.0, joined)
