"""Every test runs in float64 with one thread: set before jax starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("MPLBACKEND", "agg")

import jax  # noqa: E402  after the environment is set
import pytest  # noqa: E402

import meanfield  # noqa: E402

meanfield.use_double()


@pytest.fixture(autouse=True, scope="module")
def compiled_code_is_forgotten():
    """Programs compiled for one module serve no other; kept, they add up to gigabytes."""
    yield
    jax.clear_caches()
