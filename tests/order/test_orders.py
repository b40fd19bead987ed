"""Two-sided orders of the depth schemes, of their adjoints, and of the Monte Carlo limits."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield.flow import ExplicitRungeKutta
from tests.helpers import assert_order, fitted_order, random_batch, random_measure

AV = mf.SoftmaxAttention("av")
EULER, HEUN, RK4 = mf.Euler(), mf.Heun(), mf.RungeKutta4()
ADAPTIVE = mf.Adaptive(rtol=1e-12, atol=1e-13)
POWERS = 2 ** np.arange(5)
FACTORS = 4 * POWERS
NUM_CELLS = 3 * int(FACTORS[-1]) + 1


class LopsidedHeun(ExplicitRungeKutta):
    """Heun with its weights shifted: consistent, but of order 1."""

    order: ClassVar[int] = 2
    a: ClassVar[tuple[tuple[float, ...], ...]] = ((), (1.0,))
    b: ClassVar[tuple[float, ...]] = (0.4, 0.6)
    c: ClassVar[tuple[float, ...]] = (0.0, 1.0)


@functools.cache
def refined(kind: str, factor: int) -> mf.ParameterMeasure:
    """Each of 3 uneven cells cut in ``factor``; heads jump, bend or do not depend on depth."""
    same = kind == "depth-independent"
    rho = random_measure(
        AV,
        dim=2,
        num_particles=2,
        nodes=[0.0, 0.3, 0.7, 1.0],
        seed=5 if same else 1,  # leading coefficients of the errors that do not nearly vanish
        scale=0.7,
        constant=same,
        interpolation="linear" if kind == "linear" else "constant",
    )
    return mf.refine_depth(rho, factor)


def padded(rho: mf.ParameterMeasure) -> mf.ParameterMeasure:
    """`NUM_CELLS` cells, the first ones of no length to speak of: one compilation for all grids."""
    extra = NUM_CELLS - rho.num_cells
    nodes = np.concatenate([1e-200 * np.arange(extra), rho.grid.nodes])
    nodes[extra] = 1e-200 * extra

    def pad(leaf):
        return np.concatenate([np.repeat(np.asarray(leaf)[:1], extra, axis=0), leaf])

    particles = jax.tree.map(pad, rho.particles)
    grid = mf.DepthGrid(nodes)
    return mf.ParameterMeasure(
        particles, grid, pad(rho.log_weights), interpolation=rho.interpolation
    )


@functools.cache
def solve(scheme: Any, factor: int, kind: str, method: Any = None) -> dict[str, np.ndarray]:
    """End points, momenta at 0, gradient of the coarse cells and the Hamiltonian at both ends."""
    rho = refined(kind, factor)
    batch = random_batch(dim=2, num_contexts=1, num_tokens=4)  # the last is a query token
    found = mf.conditional_gradient(
        AV, padded(rho), mf.SquaredLoss(), batch, scheme=scheme, method=method
    )
    path, momenta = np.asarray(found.path)[0], np.asarray(found.momenta)[0]
    values = {"tokens": path[-1], "momenta": momenta[0]}
    if kind != "linear":
        # dR/dtheta of a coarse cell is the sum over its parts, so its G is their mean.
        leaves = [np.asarray(leaf)[-rho.num_cells :] for leaf in found.gradient]
        parts = [leaf.reshape(3, factor, *leaf.shape[1:]).mean(axis=1) for leaf in leaves]
        values["gradient"] = np.concatenate([part.ravel() for part in parts])
    energies = [
        np.sum(momenta[end] * velocity_by_hand(rho, end, path[end], batch)) for end in (0, -1)
    ]
    values["hamiltonian drift"] = np.array([energies[1] - energies[0]])
    return values


def velocity_by_hand(rho: mf.ParameterMeasure, cell: int, x: np.ndarray, batch: mf.Batch):
    """sum_j w_j V_j m_j(x) in numpy."""
    total = np.zeros_like(x)
    masses = np.asarray(batch.contexts.weights)[0]
    for A, V, weight in zip(
        *(np.asarray(leaf)[cell] for leaf in rho.particles),
        np.asarray(rho.weights)[cell],
        strict=True,
    ):
        tilted = masses * np.exp(x @ A @ x.T)
        total += weight * (tilted / tilted.sum(axis=1, keepdims=True)) @ x @ V.T
    return total


def errors(scheme: Any, factors: Any, kind: str, name: str, method: Any = None) -> list[float]:
    """Against a scheme of order 5 with error control and its continuous adjoint."""
    reference = solve(ADAPTIVE, 1, kind)[name]
    found = [solve(scheme, int(factor), kind, method)[name] for factor in factors]
    return [float(np.linalg.norm(value - reference)) for value in found]


@pytest.mark.parametrize("kind", ["jumps", "linear"])
@pytest.mark.parametrize(("scheme", "order"), [(EULER, 1.0), (HEUN, 2.0), (RK4, 4.0)])
def test_schemes_and_their_adjoints(scheme, order, kind):
    assert scheme.order == order
    for name in ("tokens", "momenta") + (("gradient",) if kind == "jumps" else ()):
        assert_order(1 / FACTORS, errors(scheme, FACTORS, kind, name), order)


def test_a_shifted_scheme_is_rejected():
    found = errors(LopsidedHeun(), FACTORS, "jumps", "tokens")
    with pytest.raises(AssertionError, match="slope"):
        assert_order(1 / FACTORS, found, LopsidedHeun.order)
    assert_order(1 / FACTORS, found, 1.0)


@pytest.mark.parametrize("name", ["momenta", "gradient"])
def test_gap_of_continuous_and_discrete_adjoint_under_euler_is_of_order_one(name):
    """Both share the forward path, so nothing but the adjoint makes the gap."""
    gaps = []
    for factor in FACTORS:
        continuous = solve(EULER, int(factor), "jumps", mf.ContinuousAdjoint())[name]
        gaps.append(np.linalg.norm(continuous - solve(EULER, int(factor), "jumps")[name]))
    assert_order(1 / FACTORS, gaps, 1.0)


@pytest.mark.parametrize("name", ["momenta", "gradient"])
def test_continuous_adjoint_under_rk4_is_of_order_four(name):
    assert_order(1 / FACTORS, errors(RK4, FACTORS, "jumps", name, mf.ContinuousAdjoint()), 4.0)


@pytest.mark.parametrize(("scheme", "order"), [(EULER, 1.0), (HEUN, 2.0), (RK4, 4.0)])
def test_hamiltonian_drifts_at_the_order_of_the_scheme(scheme, order):
    """sum_a <q_a, Phi(x_a)> is constant where rho does not depend on depth."""
    name = "hamiltonian drift"
    drifts = [abs(solve(scheme, int(f), "depth-independent")[name][0]) for f in FACTORS]
    assert_order(1 / FACTORS, drifts, order)
    assert abs(solve(RK4, int(FACTORS[-1]), "jumps")[name][0]) > 1e-2  # and only there


class TestMonteCarlo:
    """Errors at fixed probes against limits that are known exactly; rows are replicates."""

    def test_heads(self):
        """M heads drawn from a law with finitely many atoms: its own flow is the limit.

        All sizes share the largest ensemble's shape: heads beyond M have no mass.
        """
        law = random_measure(AV, dim=2, num_particles=12, nodes=[0.0, 0.5, 1.0], seed=3)
        mu = mf.TokenMeasure(np.random.default_rng(0).normal(size=(4, 2)))
        limit = mf.solve_flow(AV, law, mu, keep="final").path

        def error(size, key):
            drawn = mf.subsample(law, 128, key=key)
            mass = jnp.where(jnp.arange(128) < size, 0.0, -jnp.inf)
            rho = mf.ParameterMeasure(drawn.particles, law.grid, jnp.stack([mass, mass]))
            moved = mf.solve_flow(AV, rho, mu, keep="final").path
            return jnp.sqrt(jnp.mean((moved - limit) ** 2))

        self.check(error, 8 * POWERS, num_replicates=256)

    def test_tokens(self):
        """n tokens drawn from a Gaussian; quadrature tokens carry the probes to the limit.

        All sizes share the largest cloud's shape: tokens beyond n have no mass.
        """
        law = mf.Gaussian(np.array([0.3, -0.2]), np.array([[0.6, 0.2], [0.2, 0.4]]))
        rho = random_measure(AV, dim=2, num_particles=2, nodes=[0.0, 0.5, 1.0], seed=4, scale=0.4)
        probes = np.array([[0.8, 0.5], [-0.4, 0.9]])
        quadrature = law.tokens(20, rule="hermite")
        limit = mf.solve_flow(AV, rho, quadrature, probes=probes, keep="final").probe_path

        def error(size, key):
            mass = jnp.where(jnp.arange(256) < size, 0.0, -jnp.inf)
            mu = mf.TokenMeasure(law.sample(key, 256), mass)
            moved = mf.solve_flow(AV, rho, mu, probes=probes, keep="final").probe_path
            return jnp.sqrt(jnp.mean((moved - limit) ** 2))

        self.check(error, 16 * POWERS, num_replicates=400)

    @staticmethod
    def check(error, sizes, num_replicates) -> None:
        keys = jax.random.split(jax.random.key(1), (len(sizes), num_replicates))
        run = jax.jit(lambda size, keys: jax.lax.map(lambda key: error(size, key), keys))
        columns = [np.asarray(run(n, some)) for n, some in zip(sizes, keys, strict=True)]
        table = np.stack(columns, axis=1)
        rate = mf.fit_rate(sizes, table)
        assert abs(rate.slope + 0.5) <= 0.06, str(rate)
        assert rate.interval[0] <= -0.5 <= rate.interval[1], str(rate)
        assert rate.interval[1] - rate.interval[0] < 0.12, str(rate)
        slope, r_squared = fitted_order(1 / sizes, np.sqrt(np.mean(table**2, axis=0)))
        assert slope == pytest.approx(-rate.slope, rel=1e-9)
        assert r_squared > 0.99
        shifted = mf.fit_rate(sizes, table * sizes**0.15)  # a slope of -0.35 is not -0.5
        assert abs(shifted.slope + 0.5) > 0.06
        assert shifted.interval[0] > -0.5
