"""Benchmark: the conditional gradient by the explicit adjoint against plain automatic derivatives.

Both give the same numbers (the gap is printed). The explicit adjoint keeps one path of tokens and
never an ``[n, n, M]`` array; reverse-mode differentiation of the layers keeps all of them.

Commands
    make bench
    python experiments/bench/gradient.py

Cost: about a minute on two cores.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import meanfield as mf

SIZES = ((32, 4, 16, 8), (64, 8, 32, 16), (128, 8, 32, 16))  # n, d, M, L
REPEATS = 3


def best_seconds(call: Callable[[], Any]) -> float:
    """The fastest of some runs, after one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


def plain_risk(particles: mf.AttentionAV, points: jax.Array, targets: jax.Array) -> jax.Array:
    """Euler layers written as a user of jax would, for one context with equal masses."""
    num_cells = particles.A.shape[0]

    def layer(x: jax.Array, heads: mf.AttentionAV) -> tuple[jax.Array, None]:
        scores = jnp.einsum("ai,mij,bj->mab", x, heads.A, x)
        moved = jnp.einsum("mij,mab,bj->ai", heads.V, jax.nn.softmax(scores), x)
        return x + moved / (num_cells * heads.A.shape[0]), None

    last, _ = jax.lax.scan(layer, points, particles)
    return 0.5 * jnp.mean(jnp.sum((last - targets) ** 2, axis=-1))


def measure(num_tokens: int, dim: int, num_heads: int, num_cells: int) -> str:
    """One row of the table."""
    field, loss = mf.SoftmaxAttention("av"), mf.SquaredLoss()
    heads, cloud = jax.random.split(jax.random.key(0))
    law = mf.EntrywiseGaussian(A=dim**-0.5, V=dim**-0.5)
    grid = mf.DepthGrid.uniform(num_cells)
    rho = mf.sample_parameters(field, law, grid, num_heads, dim=dim, key=heads)
    points = jax.random.normal(cloud, (1, num_tokens, dim))
    batch = mf.Batch(mf.TokenMeasure(points), -points)
    plain = jax.jit(jax.grad(plain_risk))

    found = mf.conditional_gradient(field, rho, loss, batch).gradient
    expected = plain(rho.particles, points[0], -points[0])
    scale = num_heads * num_cells
    gap = jnp.max(jnp.abs(found.A - scale * expected.A)) / jnp.max(jnp.abs(found.A))
    ours = best_seconds(lambda: mf.conditional_gradient(field, rho, loss, batch).gradient)
    theirs = best_seconds(lambda: plain(rho.particles, points[0], -points[0]))
    sizes = f"{num_tokens:5d} {dim:3d} {num_heads:4d} {num_cells:4d}"
    return f"{sizes} {1e3 * ours:12.1f} {1e3 * theirs:12.1f} {gap:9.1e}"


if __name__ == "__main__":
    mf.use_double()
    print("    n   d    M    L   adjoint/ms  jax.grad/ms       gap")
    for size in SIZES:
        print(measure(*size), flush=True)
