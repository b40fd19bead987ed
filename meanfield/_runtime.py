"""Precision and the guard against compilers that are known to compute wrong.

jax 0.10.2 miscompiles on CPU: under ``jit``, vmapped ``sum((A @ x)**2)`` with d = 3 is silently
wrong in float64 (jax-ml/jax#39103). pip picks that version on Python 3.11 unless told otherwise;
0.10.1 and 0.12 are right. Delete the guard when the oldest supported jax is newer than 0.11.
"""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import MeanfieldError, require

REQUIREMENT = "jax>=0.10,!=0.10.2,!=0.11.*"


def use_double() -> None:
    """Switch jax to float64; call it before any array is made.

    The library never sets precision at import. Experiments and tests call this; the functions of
    the package keep the dtype of their input. Cost: none.
    """
    jax.config.update("jax_enable_x64", True)


def require_double(what: str) -> None:
    """Refuse work whose claims need float64 while jax computes in float32.

    Raises: `MeanfieldError` with the line that mends it.
    """
    require(
        jax.config.read("jax_enable_x64"),
        f"{what} in float32",
        "float64: ranks and smallest eigenvalues are lost in single precision",
        "call meanfield.use_double() first",
    )


def is_known_bad(version: str) -> bool:
    """True for jaxlib versions that compute wrong on CPU (0.10.2 and the 0.11 series)."""
    return version == "0.10.2" or version.startswith("0.10.2.") or version.startswith("0.11.")


@functools.cache
def guard_runtime() -> None:
    """Refuse a known-bad jax or jaxlib; every solver calls it once, at its first solve.

    Raises: `MeanfieldError` with the line that mends the installation.
    """
    for name in ("jax", "jaxlib"):
        version = importlib.import_module(name).__version__
        if is_known_bad(version):
            raise MeanfieldError(
                f"{name} {version} is installed, which computes wrong on CPU (jax-ml/jax#39103)",
                REQUIREMENT,
                f"run: pip install '{REQUIREMENT}'",
            )


def compiled_kernel_error(num_points: int = 20_000) -> float:
    """Largest relative gap between ``jit`` and numpy on the kernel that 0.10.2 miscompiles.

    ``f(x) = |A x|^2`` for ``num_points`` points in d = 3, vmapped, in the active precision.
    Returns about 1e-16 in float64 on a sound compiler, and order 1 on a broken one.
    """
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((3, 3))
    points = generator.standard_normal((num_points, 3))
    compiled = jax.jit(jax.vmap(lambda x: jnp.sum((jnp.asarray(matrix) @ x) ** 2)))
    expected = ((points @ matrix.T) ** 2).sum(axis=1)
    return float(np.max(np.abs(np.asarray(compiled(jnp.asarray(points))) - expected) / expected))
