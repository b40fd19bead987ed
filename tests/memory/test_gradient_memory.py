"""The compiled gradient never holds an array over all pairs of tokens and all particles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from tests.helpers import AS_USERS_COMPILE

NUM_TOKENS, DIM, NUM_PARTICLES, NUM_CELLS = 256, 8, 64, 64
BOUND = 16 * 2**20  # 16 MiB; one n x n x M tensor in float64 is 33.6 MB


def temporary_bytes(function, *arguments) -> int:
    """What the compiled function needs beyond its inputs and outputs."""
    analysis: Any = jax.jit(function).lower(*arguments).compile(AS_USERS_COMPILE).memory_analysis()
    return int(analysis.temp_size_in_bytes)


@pytest.fixture(scope="module")
def shapes():
    """Abstract arrays: nothing of this size is computed, only compiled."""
    head = (NUM_CELLS, NUM_PARTICLES, DIM, DIM)

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float64)

    return mf.AttentionAV(array(*head), array(*head)), array(1, NUM_TOKENS, DIM)


@pytest.mark.parametrize("scheme", [mf.Euler(), mf.RungeKutta4()], ids=["euler", "rk4"])
def test_gradient_fits_in_sixteen_mebibytes(shapes, scheme):
    def gradient(particles, points):
        rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(NUM_CELLS))
        batch = mf.Batch(mf.TokenMeasure(points), jnp.zeros_like(points))
        found = mf.conditional_gradient(
            mf.SoftmaxAttention("av"), rho, mf.SquaredLoss(), batch, scheme=scheme
        )
        return found.value, found.gradient, found.momenta

    assert temporary_bytes(gradient, *shapes) <= BOUND


def test_the_check_sees_a_tensor_over_pairs_and_particles(shapes):
    """One layer written with all heads at once, and its automatic derivative."""

    def loss(heads, x):
        scores = jnp.einsum("ai,jik,bk->jab", x, heads.A, x)
        means = jax.nn.softmax(scores, axis=-1) @ x
        return jnp.sum(jnp.einsum("jki,jai->ak", heads.V, means) ** 2)

    particles, points = shapes
    cell = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), particles)
    tokens = jax.ShapeDtypeStruct(points.shape[1:], points.dtype)
    found = temporary_bytes(jax.grad(loss), cell, tokens)
    assert found > BOUND
    assert found >= 8 * NUM_TOKENS**2 * NUM_PARTICLES
    assert np.prod([NUM_TOKENS, NUM_TOKENS, NUM_PARTICLES]) * 8 == 33_554_432
