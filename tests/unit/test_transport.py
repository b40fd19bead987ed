"""Transport: exact values, metric axioms, what dominates what, chunks, and the bias in high d."""

import itertools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linprog

import meanfield as mf
from meanfield import transport
from meanfield.transport import TransportBiasWarning

# square roots of rounding: a distance is exact to about sqrt(1e-16) times the size of the cloud
ROUNDING = 1e-7


def _measure(seed: int, num: int = 6, dim: int = 2, *, weighted: bool = True) -> mf.TokenMeasure:
    generator = np.random.default_rng(seed)
    weights = generator.uniform(0.1, 1.0, size=num) if weighted else np.ones(num)
    return mf.TokenMeasure.from_weights(generator.normal(size=(num, dim)), weights)


def _linear_programme(mu: mf.TokenMeasure, nu: mf.TokenMeasure) -> float:
    """W2 by scipy's general linear programme: an independent route."""
    x, y = np.asarray(mu.points), np.asarray(nu.points)
    costs = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
    rows = np.kron(np.eye(len(x)), np.ones(len(y)))
    columns = np.kron(np.ones(len(x)), np.eye(len(y)))
    masses = np.concatenate([mu.weights, nu.weights])
    found = linprog(costs.ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses, method="highs")
    return float(np.sqrt(found.fun))


def _parameters(seed: int, *, cells: int = 3, num: int = 4, nodes=None) -> mf.ParameterMeasure:
    generator = np.random.default_rng(seed)
    particles = mf.AttentionAV(
        jnp.asarray(generator.normal(size=(cells, num, 2, 2))),
        jnp.asarray(generator.normal(size=(cells, num, 2, 2))),
    )
    grid = mf.DepthGrid.uniform(cells) if nodes is None else mf.DepthGrid(nodes)
    return mf.ParameterMeasure(particles, grid)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("sizes", [(6, 6), (5, 8)])
@pytest.mark.parametrize("weighted", [False, True])
def test_wasserstein_against_a_linear_programme(dim: int, sizes, weighted: bool) -> None:
    mu = _measure(1, sizes[0], dim, weighted=weighted)
    nu = _measure(2, sizes[1], dim, weighted=weighted)
    expected = _linear_programme(mu, nu)
    assert mf.wasserstein2(mu, nu) == pytest.approx(expected, rel=1e-9)
    moved = nu.push_forward(1.01 * nu.points + 0.01)
    assert mf.wasserstein2(mu, moved) != pytest.approx(expected, rel=1e-4)


def test_gaussians_on_the_line() -> None:
    """W2(N(a, s^2), N(b, t^2))^2 = (a - b)^2 + (s - t)^2, by quasi-random quantiles."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    normal = stats.norm.ppf(grid)
    mu = mf.TokenMeasure((0.3 + 0.5 * normal)[:, None])
    nu = mf.TokenMeasure((-0.4 + 1.5 * normal)[::-1, None])
    expected = np.sqrt(0.7**2 + 1.0**2)
    assert mf.wasserstein2(mu, nu) == pytest.approx(expected, rel=2e-4)
    assert mf.wasserstein2(mu, nu) != pytest.approx(0.7, rel=0.1)


def test_translates_and_dilations() -> None:
    mu = _measure(3, 7, 3)
    shift = np.array([1.0, -2.0, 0.5])
    shifted = mu.push_forward(mu.points + shift)
    assert mf.wasserstein2(mu, shifted) == pytest.approx(np.linalg.norm(shift), rel=1e-12)
    nu = _measure(4, 5, 3)
    doubled = mf.wasserstein2(mu.push_forward(2 * mu.points), nu.push_forward(2 * nu.points))
    assert doubled == pytest.approx(2 * mf.wasserstein2(mu, nu), rel=1e-12)


DISTANCES = {"wasserstein": mf.wasserstein2, "energy": mf.energy_distance}


@pytest.mark.parametrize("name", DISTANCES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 4), weighted=st.booleans())
def test_metric_axioms(name: str, seed: int, dim: int, weighted: bool) -> None:
    distance = DISTANCES[name]
    mu, nu, xi = (_measure(seed + i, 4 + i, dim, weighted=weighted) for i in range(3))
    there, back = distance(mu, nu), distance(nu, mu)
    assert there > 0
    assert there == pytest.approx(back, rel=1e-9)
    assert distance(mu, mu) == 0
    assert there <= distance(mu, xi) + distance(xi, nu) + ROUNDING


@pytest.mark.parametrize("name", DISTANCES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_splitting_permuting_and_queries_change_nothing(name: str, seed: int) -> None:
    distance = DISTANCES[name]
    mu, nu = _measure(seed), _measure(seed + 1, 5)
    expected = distance(mu, nu)
    order = np.random.default_rng(seed).permutation(6)
    permuted = mf.TokenMeasure(mu.points[order], mu.log_weights[order])
    halves = mf.TokenMeasure(
        jnp.concatenate([mu.points, mu.points]), jnp.tile(mu.log_weights - np.log(2), 2)
    )
    queries = mu.with_queries(np.full((3, 2), 50.0))
    for same in (permuted, halves, queries):
        assert distance(same, nu) == pytest.approx(expected, rel=1e-9)
        assert distance(same, mu) < ROUNDING
    heavier = mf.TokenMeasure(mu.points, mu.log_weights.at[0].add(1.0))
    assert distance(heavier, mu) > 1e-3, "a moved mass must be seen"


def test_energy_distance_against_scipy_on_the_line() -> None:
    mu, nu = _measure(5, 40, 1), _measure(6, 30, 1)
    expected = stats.energy_distance(
        np.asarray(mu.points)[:, 0], np.asarray(nu.points)[:, 0], mu.weights, nu.weights
    )
    assert mf.energy_distance(mu, nu) == pytest.approx(expected, rel=1e-11)


def test_energy_distance_chunks_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu = _measure(7, 53, 3), _measure(8, 31, 3)
    whole = mf.energy_distance(mu, nu)
    monkeypatch.setattr(transport, "PAIR_BUDGET", 20)  # rows of 5 pairs at a time
    assert mf.energy_distance(mu, nu) == pytest.approx(whole, rel=1e-13)


def test_conditional_distance_is_transport_inside_cells() -> None:
    nodes = np.array([0.0, 0.2, 0.5, 1.0])
    rho, other = _parameters(1, nodes=nodes), _parameters(2, nodes=nodes)
    total = 0.0
    for k, step in enumerate(np.diff(nodes)):
        x, y = (
            np.concatenate([np.asarray(leaf[k]).reshape(4, -1) for leaf in r.particles], axis=1)
            for r in (rho, other)
        )
        costs = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
        best = min(
            np.mean(costs[np.arange(4), list(order)]) for order in itertools.permutations(range(4))
        )
        total += step * best
    assert mf.conditional_wasserstein2(rho, other) == pytest.approx(np.sqrt(total), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_conditional_metric_axioms_and_labels(seed: int) -> None:
    rho, other, third = (_parameters(seed + i) for i in range(3))
    distance = mf.conditional_wasserstein2(rho, other)
    assert mf.conditional_wasserstein2(rho, rho) == 0
    assert distance == pytest.approx(mf.conditional_wasserstein2(other, rho), rel=1e-12)
    detour = mf.conditional_wasserstein2(rho, third) + mf.conditional_wasserstein2(third, other)
    assert distance <= detour + ROUNDING
    assert distance <= float(mf.labelled_distance(rho, other)) + ROUNDING
    order = np.random.default_rng(seed).permutation(4)
    relabelled = rho.with_particles(jax.tree.map(lambda leaf: leaf[:, order], rho.particles))
    assert mf.conditional_wasserstein2(rho, relabelled) < ROUNDING
    refined = (mf.refine_depth(rho, 3), mf.refine_depth(other, 3))
    assert mf.conditional_wasserstein2(*refined) == pytest.approx(distance, rel=1e-12)


def test_labels_only_bound_from_above() -> None:
    rho = _parameters(3)
    flipped = rho.with_particles(jax.tree.map(lambda leaf: leaf[:, ::-1], rho.particles))
    assert mf.labelled_distance(rho, flipped) > 1
    assert mf.conditional_wasserstein2(rho, flipped) < ROUNDING


def test_depth_is_not_transported() -> None:
    """Swapping two cells costs, though the joint measures of depth and parameters are close."""
    rho = _parameters(4, cells=2)
    swapped = rho.with_particles(jax.tree.map(lambda leaf: leaf[::-1], rho.particles))
    assert mf.conditional_wasserstein2(rho, swapped) > 0.5


def test_conditional_distance_of_different_widths_and_masses() -> None:
    rho = _parameters(5)
    doubled = mf.ParameterMeasure(
        jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf], axis=1), rho.particles), rho.grid
    )
    assert mf.conditional_wasserstein2(rho, doubled) < ROUNDING
    other = _parameters(6)
    expected = mf.conditional_wasserstein2(rho, other)
    assert mf.conditional_wasserstein2(doubled, other) == pytest.approx(expected, rel=1e-9)
    masses = np.log(np.array([[0.7, 0.1, 0.1, 0.1]] * 3))
    weighted = mf.ParameterMeasure(rho.particles, rho.grid, masses)
    assert mf.conditional_wasserstein2(rho, weighted) > 0.1


def test_labelled_distance_weighs_cells_and_particles() -> None:
    nodes = np.array([0.0, 0.25, 1.0])
    rho = _parameters(7, cells=2, nodes=nodes)
    moved = rho.with_particles(
        mf.AttentionAV(rho.particles.A.at[1, 2, 0, 1].add(3.0), rho.particles.V)
    )
    expected = np.sqrt(0.75 / 4 * 9)
    assert mf.labelled_distance(rho, moved) == pytest.approx(expected, rel=1e-14)
    assert jax.jit(mf.labelled_distance)(rho, moved) == pytest.approx(expected, rel=1e-14)


def test_coupled_distance() -> None:
    generator = np.random.default_rng(0)
    path = generator.normal(size=(4, 5, 2))
    other = path + np.array([0.0, 0.3, 0.1, 0.2])[:, None, None] * np.array([0.6, 0.8])
    assert mf.coupled_distance(path, other) == pytest.approx(0.3, rel=1e-13)
    assert mf.coupled_distance(path[-1], other[-1]) == pytest.approx(0.2, rel=1e-13)
    weights = np.array([1.0, 0.0, 0.0, 3.0, 0.0])
    bent = path.copy()
    bent[2, 0] += 2.0
    bent[3, 1] += 50.0  # a query token does not count
    assert mf.coupled_distance(path, bent, weights) == pytest.approx(np.sqrt(8 / 4), rel=1e-13)
    traced = jax.jit(mf.coupled_distance)(path, bent, weights)
    assert traced == pytest.approx(np.sqrt(2), rel=1e-13)
    for k in range(4):
        below = mf.wasserstein2(mf.TokenMeasure(path[k]), mf.TokenMeasure(bent[k]))
        assert below <= float(mf.coupled_distance(path, bent)) + ROUNDING


def test_independent_clouds_in_high_dimension_are_mostly_bias() -> None:
    generator = np.random.default_rng(0)
    first, second = (mf.TokenMeasure(generator.normal(size=(256, 8))) for _ in range(2))
    with pytest.warns(TransportBiasWarning, match="mostly bias"):
        blind = mf.wasserstein2(first, second)
    assert blind > 1.5, "equal laws look far apart"
    assert mf.energy_distance(first, second) < 0.4
    moved = second.push_forward(second.points + 1.0)
    assert mf.energy_distance(first, moved) > 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mf.wasserstein2(_measure(1, 5, 7), _measure(2, 5, 7))
        mf.conditional_wasserstein2(_parameters(1), _parameters(2))


def test_pytree_tokens_are_flattened() -> None:
    generator = np.random.default_rng(1)
    parts = generator.normal(size=(5, 2)), generator.normal(size=(5, 3))
    tree = mf.TokenMeasure({"a": parts[0], "b": parts[1]}, np.zeros(5))
    flat = mf.TokenMeasure(np.concatenate(parts, axis=1))
    assert mf.wasserstein2(tree, flat) < ROUNDING


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mf.wasserstein2(_measure(1), _measure(2, 6, 3)), "points of widths 2 and 3"),
        (lambda: mf.energy_distance(_measure(1), _measure(2, 6, 3)), "points of widths 2 and 3"),
        (
            lambda: mf.wasserstein2(mf.TokenMeasure(np.zeros((2, 3, 1))), _measure(1, 3, 1)),
            "mu is a batch",
        ),
        (
            lambda: mf.conditional_wasserstein2(_parameters(1), _parameters(1, cells=4)),
            "3 and 4 cells.*refine_depth",
        ),
        (
            lambda: mf.conditional_wasserstein2(
                _parameters(1), _parameters(1, nodes=[0.0, 0.2, 0.5, 1.0])
            ),
            "that differ",
        ),
        (lambda: mf.labelled_distance(_parameters(1), _parameters(1, num=5)), "4 and 5 particles"),
        (lambda: mf.coupled_distance(np.zeros((3, 2, 1)), np.zeros((2, 2, 1))), "paths of shapes"),
        (
            lambda: mf.coupled_distance(np.zeros((2, 1)), np.zeros((2, 1)), [1.0, -1.0]),
            "weights from -1",
        ),
        (
            lambda: mf.coupled_distance(np.zeros((2, 1)), np.zeros((2, 1)), [1.0]),
            "weights has shape",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_other_particles_are_refused() -> None:
    rho = _parameters(1)
    perceptron = mf.ParameterMeasure({"u": jnp.zeros((3, 4, 2))}, rho.grid)
    with pytest.raises(mf.MeanfieldError, match="same structure"):
        mf.conditional_wasserstein2(rho, perceptron)
