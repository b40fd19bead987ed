"""Reading particle and problem files: the names and shapes of ``A, V`` or ``Q, K, V`` problems.

All checks happen here, so that a wrong file ends in one line before anything is computed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meanfield._checks import MeanfieldError, NonFiniteError, require, require_finite
from meanfield._files import read_float64

PARTICLES = "A, V [L, M, d, d] or Q, K [L, M, k, d] with V [L, M, d, d]; optional nodes, scale"
INPUTS = ("A", "V", "Q", "K", "nodes", "scale", "x", "w", "lw", "y")
RESULTS = ("risk", "x1", "q0", "gA", "gV", "gQ", "gK")


def require_writable(path: Path) -> None:
    """Refuse a result path that could not be written, before the work starts."""
    require(not path.is_dir(), f"{path} is a folder", "the path of a file", "add a file name")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    require(
        parent.is_dir(), f"{parent} is no folder", "a folder to write in", "choose another place"
    )


def require_representable(name: str, values: Any) -> None:
    """Refuse a result that float64 cannot hold.

    Raises: `NonFiniteError` if any entry is not finite.
    """
    values = np.asarray(values)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise NonFiniteError(
            f"{name} is not finite ({bad} of {values.size} numbers)",
            "numbers that float64 can hold",
            "make tokens, heads, targets or weights smaller",
        )


def read_problem(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a problem or particle file in float64.

    A file may hold results beside its problem, as the golden files do; they are not read.
    Raises: `MeanfieldError` on other names or entries that are no real numbers.
    """
    return read_float64(path, known=(*INPUTS, *RESULTS))


def particles_from(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """The field and the parameter measure that a file's particles describe.

    Raises: `MeanfieldError` on missing names, wrong shapes or non-finite numbers.
    """
    import jax.numpy as jnp

    from meanfield.fields import AttentionAV, AttentionQKV, SoftmaxAttention
    from meanfield.measures import DepthGrid, ParameterMeasure

    is_av, is_qkv = {"A", "V"} <= set(arrays), {"Q", "K", "V"} <= set(arrays)
    require(
        is_av != is_qkv,
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}",
        PARTICLES,
        "name the arrays so (one parametrization in one file)",
    )
    names = ("A", "V") if is_av else ("Q", "K", "V")
    leaves = {name: arrays[name] for name in names}
    shapes = {name: values.shape for name, values in leaves.items()}
    value = shapes["V"]
    square = len(value) == 4 and value[2] == value[3] and 0 not in value
    if is_av:
        sound = square and shapes["A"] == value
    else:
        query = shapes["Q"]
        sound = square and shapes["K"] == query and len(query) == 4 and 0 not in query
        sound = sound and query[:2] == value[:2] and query[3] == value[3]
    require(sound, f"{path}: {_listed(shapes)}", PARTICLES, "correct the shapes")
    for name, values in leaves.items():
        require_finite(f"{path}: {name}", values)
    scale = arrays.get("scale")
    require(
        scale is None or (scale.size == 1 and np.isfinite(scale).all()),
        f"{path}: scale is {None if scale is None else scale.tolist()!r:.60}",
        "one finite number",
        "correct it",
    )
    field = SoftmaxAttention(
        "av" if is_av else "qkv",
        head_dim=None if is_av else shapes["Q"][2],
        scale=None if scale is None else float(scale.reshape(())),
    )
    try:
        grid = (
            DepthGrid(arrays["nodes"])
            if "nodes" in arrays
            else DepthGrid.uniform(value[0], dtype=np.float64)
        )
        particle = AttentionAV if is_av else AttentionQKV
        heads = particle(**{name: jnp.asarray(values) for name, values in leaves.items()})
        return field, ParameterMeasure(heads, grid)
    except MeanfieldError as error:
        raise MeanfieldError(f"{path}: {error.given}", error.expected, error.mend) from None


def batch_from(path: Path, arrays: Mapping[str, np.ndarray], dim: int) -> Any:
    """The contexts, targets and loss weights of a problem file: ``x, y`` and optional ``w, lw``.

    Raises: `MeanfieldError` on missing names, wrong shapes, bad weights.
    """
    from meanfield.measures import TokenMeasure
    from meanfield.objectives import Batch

    expected = f"x, y [N, n, {dim}], optional weights w and loss weights lw [N, n]"
    missing = [name for name in ("x", "y") if name not in arrays]
    require(not missing, f"{path} lacks {' and '.join(missing)}", expected, "add them")
    given = {name: arrays[name] for name in ("x", "y", "w", "lw") if name in arrays}
    x = given["x"]
    shapes = {name: values.shape for name, values in given.items()}
    sound = x.ndim == 3 and x.shape[2] == dim and shapes["y"] == x.shape
    sound = sound and all(shapes.get(name, x.shape[:2]) == x.shape[:2] for name in ("w", "lw"))
    require(sound, f"{path}: {_listed(shapes)}", expected, "correct the shapes")
    least = float(np.min(given["lw"], initial=0.0)) if "lw" in given else 0.0
    require(
        least >= 0 or np.isnan(least),  # nan is named below
        f"{path}: lw holds the negative entry {least:g}",
        "loss weights of at least 0",
        "correct them",
    )
    try:
        contexts = TokenMeasure.from_weights(x, given["w"]) if "w" in given else TokenMeasure(x)
        return Batch(contexts, given["y"], given.get("lw"))
    except MeanfieldError as error:
        raise MeanfieldError(f"{path}: {error.given}", error.expected, error.mend) from None


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
