"""Problems and measuring tools that several tests share; tests/unit/test_helpers.py breaks them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf
from meanfield.laws._parameters import is_shape

# For tests of the compiled program itself; the others compile plainly (tests/conftest.py).
AS_USERS_COMPILE = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
ORDER_TOLERANCE = 0.15
SMALLEST_R_SQUARED = 0.999


def relative_gap(actual: Any, expected: Any) -> float:
    """Largest entrywise gap over the pytree, relative to the largest entry of each leaf."""
    gaps = []
    actual_leaves, expected_leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual_leaves) == len(expected_leaves) > 0
    for a, b in zip(actual_leaves, expected_leaves, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, (a.shape, b.shape)
        gaps.append(np.max(np.abs(a - b)) / (np.max(np.abs(b)) or 1.0))
    return float(np.max(gaps))


def inner(a: Any, b: Any) -> Any:
    """Euclidean inner product of two pytrees of one structure."""
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def fitted_order(steps: Any, errors: Any) -> tuple[float, float]:
    """Slope and R^2 of ``log error`` against ``log step``."""
    x, y = np.log(np.asarray(steps, float)), np.log(np.asarray(errors, float))
    slope, offset = np.polyfit(x, y, 1)
    residual = y - slope * x - offset
    return float(slope), float(1 - residual @ residual / ((y - y.mean()) @ (y - y.mean())))


def assert_order(steps: Any, errors: Any, expected: float) -> None:
    """Two-sided: slope within 0.15 over at least four refinements, with R^2 > 0.999."""
    assert len(steps) == len(errors) >= 5, "four refinements are five sizes"
    slope, r_squared = fitted_order(steps, errors)
    assert abs(slope - expected) <= ORDER_TOLERANCE, f"slope {slope:.3f}, expected {expected}"
    assert r_squared > SMALLEST_R_SQUARED, f"R^2 = {r_squared:.5f}"


def richardson_slope(function: Callable[[float], Any], step: float) -> float:
    """``f'(0)`` by central differences of steps h and h/2, extrapolated: error O(h^4)."""

    def central(h: float) -> float:
        return (float(function(h)) - float(function(-h))) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3


def random_like(tree: Any, seed: int, scale: float = 1.0) -> Any:
    """Independent normal entries in the shapes of ``tree``."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape) * scale), tree)


def random_measure(
    field: mf.AbstractField,
    *,
    dim: int,
    num_particles: int,
    nodes: Any,
    seed: int,
    scale: float = 0.8,
    weighted: bool = True,
    constant: bool = False,
    interpolation: Any = "constant",
) -> mf.ParameterMeasure:
    """Normal particles of ``field`` on the depth nodes, unequal masses if weighted."""
    generator = np.random.default_rng(seed)
    grid = mf.DepthGrid(nodes)
    shapes = field.particle_shapes(dim)

    def draw(shape: tuple[int, ...]) -> jax.Array:
        rows = 1 if constant else grid.num_cells
        values = scale * generator.normal(size=(rows, num_particles, *shape))
        return jnp.asarray(np.broadcast_to(values, (grid.num_cells, *values.shape[1:])))

    particles = jax.tree.map(draw, shapes, is_leaf=is_shape)
    log_weights = None
    if weighted:
        same = constant or interpolation == "linear"  # labelled particles keep their mass
        rows = generator.normal(size=(1 if same else grid.num_cells, num_particles))
        log_weights = np.broadcast_to(0.6 * rows, (grid.num_cells, num_particles))
    return mf.ParameterMeasure(particles, grid, log_weights, interpolation=interpolation)


def random_batch(
    *, dim: int, num_contexts: int = 2, num_tokens: int = 5, num_queries: int = 1, seed: int = 0
) -> mf.Batch:
    """Contexts with unequal masses; the last tokens are zero-mass queries; all bear loss."""
    generator = np.random.default_rng(1000 + seed)
    weights = generator.uniform(0.3, 1.0, size=(num_contexts, num_tokens))
    weights[:, num_tokens - num_queries :] = 0.0
    points = generator.normal(size=(num_contexts, num_tokens, dim))
    targets = generator.normal(size=points.shape)
    loss_weights = generator.uniform(0.2, 1.0, size=weights.shape)
    return mf.Batch(mf.TokenMeasure.from_weights(points, weights), targets, loss_weights)


def attention_heads(scores: Any, values: Any = None) -> mf.AttentionAV:
    """Heads (A, V) from plain arrays; without V: zeros, which the V-part never looks at."""
    scores = jnp.asarray(scores)
    return mf.AttentionAV(scores, jnp.zeros_like(scores) if values is None else jnp.asarray(values))


def perceptron_neurons(num: int, dim: int, seed: int) -> mf.PerceptronParticle:
    """Normal neurons (u, w, b)."""
    generator = np.random.default_rng(seed)
    shapes = ((num, dim), (num, dim), (num,))
    return mf.PerceptronParticle(*[jnp.asarray(generator.normal(size=s)) for s in shapes])
