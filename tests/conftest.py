"""Every test runs in float64 with one thread: set before jax starts."""

import atexit
import os
import shutil
import tempfile

# One cache of compiled programs for all workers of a run, made by the process that starts them and
# gone with it: many modules compile the same solvers, and each forgets them at its end.
if "MEANFIELD_TESTS_CACHE" not in os.environ:
    os.environ["MEANFIELD_TESTS_CACHE"] = tempfile.mkdtemp(prefix="meanfield-tests-")
    atexit.register(shutil.rmtree, os.environ["MEANFIELD_TESTS_CACHE"], ignore_errors=True)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("MPLBACKEND", "agg")

import jax  # noqa: E402  after the environment is set
import pytest  # noqa: E402

import meanfield  # noqa: E402

meanfield.use_double()
jax.config.update("jax_compilation_cache_dir", os.environ["MEANFIELD_TESTS_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)


@pytest.fixture(autouse=True, scope="module")
def compiled_code_is_forgotten():
    """Programs compiled for one module serve no other; kept, they add up to gigabytes."""
    yield
    jax.clear_caches()
