"""Values as JSON and as plain numeric arrays, and back."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meanfield._checks import MeanfieldError, require


def to_plain(value: Any) -> Any:
    """``value`` as JSON can hold it: dicts, lists, strings, finite numbers, booleans, None.

    Dataclasses become dicts, arrays lists, paths strings, non-finite numbers "nan", "inf", "-inf".
    Raises: `MeanfieldError` on anything else (functions, open files).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__array__"):
        return to_plain(np.asarray(value))
    raise MeanfieldError(
        f"a {type(value).__name__} in a manifest", "numbers, strings, lists, dicts", "convert it"
    )


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text (no NaN tokens) of `to_plain`."""
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def from_json(value: Any) -> Any:
    """A number of a claim as a float, those that are no JSON numbers among them; else itself."""
    is_number = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
    return float(value) if is_number else value


def numeric(arrays: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Plain numeric arrays; object arrays would need pickles, which are refused."""
    plain = {}
    for name, value in arrays.items():
        try:
            array = np.asarray(value)
        except Exception as error:
            raise MeanfieldError(
                f"{where}: {name} is no array ({error})", "numbers", "convert it first"
            ) from None
        require(
            array.dtype.kind in "biufcUS",
            f"{where}: {name} has type {array.dtype}",
            "numbers or strings",
            "store keys by jax.random.key_data and other objects as arrays of numbers",
        )
        plain[str(name)] = array
    return plain
