"""Every test runs in float64 with one thread: set before jax starts."""

import os

# Most of a test's time is the compiler's: programs of toy size run once. So it compiles plainly.
# Flags that are given come later and win: XLA_FLAGS="--xla_backend_optimization_level=3
# --xla_cpu_use_fusion_emitters=true" tests as users run; tests/workflow/test_runtime_guard.py and
# tests/memory do that always, and `meanfield run all --preset smoke --check` with all experiments.
# (XLA reads no further than the first word without dashes.)
PLAINLY = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_multi_thread_eigen=false"
)
os.environ["XLA_FLAGS"] = f"{PLAINLY} {os.environ.get('XLA_FLAGS', '')}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
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
