"""Every test runs in float64 with one thread: set before jax starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("MPLBACKEND", "agg")

import meanfield  # noqa: E402  after the environment is set

meanfield.use_double()
