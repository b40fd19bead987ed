"""Products with a factor of 5 GB are compiled to need little: F is never held."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import meanfield as mf
from meanfield import ntk
from meanfield.ntk import streamed
from tests.helpers import AS_USERS_COMPILE, attention_heads

NUM_CONTEXTS, NUM_TOKENS, DIM, NUM_HEADS = 200, 100, 8, 4096
BOUND = 2**31  # 2 GiB; the factor itself is 5.2 GB


def compiled(function, *arguments) -> Any:
    """The program that users run."""
    lowered: Any = eqx.filter_jit(function).lower(*arguments)
    return lowered.lowered.compile(AS_USERS_COMPILE)


def test_streamed_products_with_twenty_thousand_pairs_fit_in_two_gibibytes():
    generator = np.random.default_rng(0)
    clouds = mf.TokenMeasure(generator.normal(size=(NUM_CONTEXTS, NUM_TOKENS, DIM)))
    pairs = ntk.pairs_of(clouds, "own")
    heads = attention_heads(generator.normal(size=(NUM_HEADS, DIM, DIM)))
    kernel = ntk.streamed_kernel(mf.SoftmaxAttention("av"), heads, pairs)
    v, u = jnp.ones(pairs.num_pairs), jnp.ones(NUM_HEADS * DIM)
    assert pairs.num_pairs == 20_000
    products: Any = ((streamed._apply, v), (streamed._apply_transpose, u), (streamed._product, v))
    for function, vector in products:
        analysis = compiled(function, kernel, vector).memory_analysis()
        needed = analysis.temp_size_in_bytes + analysis.argument_size_in_bytes
        assert 2**20 < needed < BOUND / 4  # room for jax itself


def test_the_check_sees_a_factor_that_is_held():
    def dense(matrix, v):
        features = jnp.tanh(matrix)[:, :, None] * jnp.ones(8)
        return jnp.einsum("mpd,p->md", features**2 + features[::-1], v).sum(axis=1) @ matrix

    shapes = [jnp.zeros((4096, 2000)), jnp.ones(2000)]
    analysis = compiled(dense, *shapes).memory_analysis()
    held = analysis.temp_size_in_bytes + analysis.argument_size_in_bytes
    assert held >= 4096 * 2000 * 8
