"""jvp, the discrete adjoint, (1 / ds_k w_kj) x jax.grad and finite differences agree.

Every case: zero-mass query tokens among the tokens, unequal loss weights, several contexts.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield.flow import contexts_budget
from tests.helpers import (
    inner,
    random_batch,
    random_like,
    random_measure,
    relative_gap,
    richardson_slope,
)

AV = mf.SoftmaxAttention("av")
QKV = mf.SoftmaxAttention("qkv", head_dim=2, scale=0.7)
UNEVEN = (0.0, 0.15, 0.5, 0.7, 1.0)
UNIFORM = (0.0, 0.5, 1.0)
EULER, HEUN, RK4 = mf.Euler(), mf.Heun(), mf.RungeKutta4()


@dataclass(frozen=True)
class Case:
    field: mf.AbstractField
    scheme: Any
    interpolation: str = "constant"
    nodes: tuple[float, ...] = UNEVEN
    weighted: bool = True
    dim: int = 3
    objective: Any = mf.SquaredLoss()  # noqa: RUF009 - immutable

    def build(self) -> tuple[mf.ParameterMeasure, mf.Batch]:
        rho = random_measure(
            self.field,
            dim=self.dim,
            num_particles=3,
            nodes=self.nodes,
            seed=2,
            weighted=self.weighted,
            interpolation=self.interpolation,
        )
        return rho, random_batch(dim=self.dim)


CASES = {
    "av, Euler": Case(AV, EULER),
    "av, Euler, linear": Case(AV, EULER, "linear"),
    "av, Heun, uniform": Case(AV, HEUN, nodes=UNIFORM, weighted=False),
    "av, Heun, linear": Case(AV, HEUN, "linear"),
    "av, RK4": Case(AV, RK4),
    "av, RK4, linear, one cell": Case(AV, RK4, "linear", nodes=(0.0, 1.0)),
    "qkv, Euler, equal masses": Case(QKV, EULER, weighted=False),
    "qkv, RK4, linear, long": Case(QKV, RK4, "linear", nodes=(0.0, 0.4, 1.1, 1.5)),
    "one-dimensional, Heun": Case(AV, HEUN, dim=1),
    "perceptron, RK4": Case(mf.Perceptron(), RK4, "linear"),
    "sum, Heun": Case(mf.Sum(AV, mf.Perceptron()), HEUN, "linear"),
    "causal, RK4": Case(mf.Causal(QKV), RK4),
    "sphere, Heun": Case(mf.SphereProjection(AV), HEUN, "linear"),
    "layer norm, Euler": Case(mf.LayerNorm(QKV), EULER),
    "other loss, Heun": Case(
        AV, HEUN, objective=mf.PointwiseLoss(lambda x, y: jnp.sum(jnp.log1p((x - y) ** 4)))
    ),
}


def metric(rho: mf.ParameterMeasure, tree: Any) -> Any:
    """Multiply a tree of particles by ``ds_k w_kj``."""
    factor = rho.grid.steps[:, None] * rho.weights
    return jax.tree.map(
        lambda leaf: factor.reshape(*factor.shape, *[1] * (leaf.ndim - 2)) * leaf, tree
    )


def moved(batch: mf.Batch, points: Any) -> mf.Batch:
    return mf.Batch(batch.contexts.push_forward(points), batch.targets, batch.loss_weights)


@pytest.mark.parametrize("name", CASES)
def test_four_derivatives_agree(name):
    case = CASES[name]
    rho, batch = case.build()

    def risk(where):
        particles, points = where
        some, contexts = rho.with_particles(particles), moved(batch, points)
        return mf.risk(case.field, some, case.objective, contexts, scheme=case.scheme)

    where = (rho.particles, batch.contexts.points)
    direction = random_like(where, seed=6)
    solution = mf.conditional_gradient(case.field, rho, case.objective, batch, scheme=case.scheme)
    by_hand = (metric(rho, solution.gradient), solution.momenta[:, 0])

    value, by_autodiff = jax.jit(jax.value_and_grad(risk))(where)
    assert relative_gap(solution.value, value) < 1e-13
    assert relative_gap(by_hand, by_autodiff) < 1e-10
    squared_norm = inner(by_autodiff[0], solution.gradient)
    assert float(solution.norm) ** 2 == pytest.approx(float(squared_norm), rel=1e-10)

    forward = jax.jit(lambda where: jax.jvp(risk, (where,), (direction,)))
    found = float(inner(by_hand, direction))
    assert found == pytest.approx(float(forward(where)[1]), rel=1e-10)
    along = lambda t: forward(jax.tree.map(lambda a, b: a + t * b, where, direction))[0]  # noqa: E731
    assert found == pytest.approx(richardson_slope(along, 3e-4), rel=1e-7)


def test_wrong_factors_and_a_missing_mean_field_part_are_seen():
    case = CASES["av, Euler"]
    rho, batch = case.build()
    solution = mf.conditional_gradient(AV, rho, case.objective, batch)
    partial = jax.jit(
        jax.grad(lambda some: mf.risk(AV, rho.with_particles(some), case.objective, batch))
    )(rho.particles)
    by_cells = jax.tree.map(lambda leaf: leaf / rho.grid.steps.reshape(-1, 1, 1, 1), partial)
    scaled = jax.tree.map(lambda leaf: leaf * rho.num_particles, by_cells)
    assert relative_gap(solution.gradient, by_cells) > 0.05
    assert relative_gap(solution.gradient, scaled) > 0.05  # M / ds_k, but the masses differ


def test_momenta_at_inner_nodes_are_derivatives_of_the_rest_of_the_flow():
    case = Case(AV, RK4, "linear")
    rho, batch = case.build()
    solution = mf.conditional_gradient(AV, rho, case.objective, batch, scheme=RK4)
    node = 2
    rest = mf.ParameterMeasure(
        jax.tree.map(lambda leaf: leaf[node:], rho.particles),
        mf.DepthGrid(rho.grid.nodes[node:] - rho.grid.nodes[node]),
        rho.log_weights[node:],
        interpolation="linear",
    )
    expected = jax.jit(
        jax.grad(lambda x: mf.risk(AV, rest, case.objective, moved(batch, x), scheme=RK4))
    )(solution.path[:, node])
    assert relative_gap(solution.momenta[:, node], expected) < 1e-10


def test_momenta_of_queries_are_those_of_probes():
    """A zero-mass token in the measure and a probe beside it: one trajectory, one momentum."""
    rho, _ = Case(QKV, HEUN, "linear").build()
    generator = np.random.default_rng(7)
    mu = mf.TokenMeasure.from_weights(generator.normal(size=(4, 3)), [0.1, 0.4, 0.3, 0.2])
    probes, targets = jnp.asarray(generator.normal(size=(2, 2, 3)))
    batch = mf.Batch.at_queries([mu], probes, targets[None])
    solution = mf.conditional_gradient(QKV, rho, mf.SquaredLoss(), batch, scheme=HEUN)

    def loss(probes, points):
        flow = mf.solve_flow(QKV, rho, mu.push_forward(points), scheme=HEUN, probes=probes)
        return 0.5 * jnp.sum((flow.probe_path[-1] - targets) ** 2)

    at_probes, at_tokens = jax.jit(jax.grad(loss, argnums=(0, 1)))(probes, mu.points)
    assert relative_gap(solution.momenta[0, 0], jnp.concatenate([at_probes, at_tokens])) < 1e-10
    assert np.max(np.abs(at_tokens)) > 1e-3  # the context feels the queries' loss
    flow = mf.solve_flow(QKV, rho, mu, scheme=HEUN, probes=probes)
    assert relative_gap(solution.path[0, :, :2], flow.probe_path) < 1e-13


@pytest.mark.parametrize("kind", ["R1", "R2", "R3"])
def test_the_three_risks_by_their_definitions(kind):
    rho, batch = CASES["av, Euler"].build()
    contexts = batch.contexts
    loss_weights = {
        "R1": contexts.weights,
        "R2": jnp.zeros_like(contexts.weights).at[:, 1].set(2.0),
        "R3": jnp.where(contexts.weights == 0, 1.0, 0.0),
    }[kind]
    given = mf.Batch(contexts, batch.targets, None if kind == "R1" else loss_weights)
    flow = mf.solve_flow(AV, rho, contexts)
    squares = ((np.asarray(flow.final.points) - np.asarray(batch.targets)) ** 2).sum(axis=-1)
    expected = (np.asarray(loss_weights) * squares).sum() / (2 * len(squares))
    assert float(mf.risk(AV, rho, mf.SquaredLoss(), given)) == pytest.approx(expected, rel=1e-13)


def test_many_contexts_in_chunks_are_the_mean_of_single_ones():
    """More pairs than the memory budget holds: contexts and particles are scanned in chunks."""
    rho = random_measure(AV, dim=2, num_particles=70, nodes=UNIFORM, seed=1)
    batch = random_batch(dim=2, num_contexts=3, num_tokens=45)
    whole = mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch)
    single = [
        mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch.take(np.array([i])))
        for i in range(3)
    ]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *[s.gradient for s in single])
    assert relative_gap(whole.gradient, mean) < 1e-12
    assert relative_gap(whole.value, sum(s.value for s in single) / 3) < 1e-13
    momenta = np.concatenate([s.momenta for s in single]) / 3
    assert relative_gap(whole.momenta, momenta) < 1e-12


def test_the_risk_divides_by_all_contexts_whatever_the_chunks():
    """Three contexts, two at a time and one left over; V = 0, so that the risk is known."""
    rho = random_measure(AV, dim=2, num_particles=64, nodes=(0.0, 1.0), seed=1)
    rho = rho.with_particles(rho.particles._replace(V=jnp.zeros_like(rho.particles.V)))
    batch = random_batch(dim=2, num_contexts=3, num_tokens=32)
    assert contexts_budget(batch.contexts, rho, 0)[0] == 2
    squares = np.square(np.asarray(batch.contexts.points - batch.targets)).sum(axis=-1)
    expected = (np.asarray(batch.loss_weights) * squares).sum() / (2 * 3)
    assert float(mf.risk(AV, rho, mf.SquaredLoss(), batch)) == pytest.approx(expected, rel=1e-13)


def test_the_continuous_adjoint_reads_linear_measures_where_the_tokens_are():
    """RK4 both ways: momenta and gradient differ from the discrete ones at order 4 only."""
    rho = random_measure(
        AV,
        dim=2,
        num_particles=1,
        nodes=[0.0, 0.1, 0.3, 0.5],
        seed=4,
        scale=0.4,
        interpolation="linear",
    )
    discrete, continuous = (
        mf.conditional_gradient(
            AV, rho, mf.SquaredLoss(), random_batch(dim=2), scheme=RK4, method=method
        )
        for method in (mf.DiscreteAdjoint(), mf.ContinuousAdjoint())
    )
    assert relative_gap(continuous.momenta, discrete.momenta) < 2e-4
    assert relative_gap(continuous.gradient, discrete.gradient) < 3e-3


def test_adaptive_steps_read_linear_measures_at_their_fraction_of_the_cell():
    """x' = V(s) x has x(S) = x(0) exp(int V): trapezia, and the last cell its own value."""
    nodes, values = np.array([0.0, 0.2, 0.9]), np.array([-0.5, 1.5])
    V = jnp.asarray(values.reshape(2, 1, 1, 1))
    rho = mf.ParameterMeasure(
        mf.AttentionAV(jnp.zeros_like(V), V), mf.DepthGrid(nodes), interpolation="linear"
    )
    batch = mf.Batch(mf.TokenMeasure(np.ones((1, 1, 1))), np.zeros((1, 1, 1)))
    found = mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch, scheme=mf.Adaptive())
    exponents = np.array([0.0, 0.2 * 0.5, 0.2 * 0.5 + 0.7 * 1.5])
    np.testing.assert_allclose(found.path[0, :, 0, 0], np.exp(exponents), rtol=1e-7)
    # q(s) x(s) = x(S)^2 throughout: dL/dV of a node is that times the integral of its hat.
    square = np.exp(2 * exponents[-1])
    np.testing.assert_allclose(found.momenta[0, :, 0, 0], square * np.exp(-exponents), rtol=1e-7)
    partial = square * np.array([0.2 / 2, 0.2 / 2 + 0.7])
    np.testing.assert_allclose(np.ravel(found.gradient.V) * np.diff(nodes), partial, rtol=1e-7)


def test_loss_weight_zero_ignores_the_target():
    rho, batch = CASES["av, Euler"].build()
    silent = batch.loss_weights.at[:, 2].set(0.0)
    one = mf.Batch(batch.contexts, batch.targets, silent)
    other = mf.Batch(batch.contexts, batch.targets.at[:, 2].set(1e200), silent)
    for a, b in zip(
        jax.tree.leaves(mf.conditional_gradient(AV, rho, mf.SquaredLoss(), one)),
        jax.tree.leaves(mf.conditional_gradient(AV, rho, mf.SquaredLoss(), other)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
