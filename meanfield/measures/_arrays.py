"""Arrays that measures are made of: floats jax can hold, masses that sum to one."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from meanfield._checks import MeanfieldError, is_concrete, require
from meanfield._typing import Array


def as_float(values: Any) -> Array:
    """An inexact jax array: integers become floats, float arrays keep their dtype."""
    if not is_concrete(values):
        return values
    try:
        raw = values if isinstance(values, (np.ndarray, jax.Array)) else np.asarray(values)
        if not jnp.issubdtype(raw.dtype, jnp.number):
            raise ValueError("not numeric")
        if jnp.issubdtype(raw.dtype, jnp.complexfloating):
            raise ValueError("complex")
        if raw.dtype.itemsize > 8:
            raise ValueError(f"{raw.dtype}, which jax cannot hold")
    except (ValueError, TypeError) as error:
        raise MeanfieldError(
            f"got {type(values).__name__} ({error})",
            "an array of real numbers",
            "pass a numeric numpy or jax array, in float64 at most",
        ) from None
    if not jnp.issubdtype(raw.dtype, jnp.floating):
        raw = raw.astype(float)
    if isinstance(raw, np.ndarray) and not raw.dtype.isnative:
        raw = raw.astype(raw.dtype.newbyteorder("="))
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused by name
        return jnp.asarray(raw)


def normalised_log_weights(log_weights: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """``log w`` with ``sum w = 1`` along the last axis; None means equal weights."""
    if log_weights is None:
        return jnp.full(shape, -np.log(shape[-1]), dtype)
    log_weights = as_float(log_weights)
    require(
        log_weights.shape == shape,
        f"log_weights has shape {tuple(log_weights.shape)}",
        f"shape {shape}, one weight for each token or particle",
        "pass one log-weight each, or None for equal weights",
    )
    log_weights = log_weights.astype(dtype)
    if is_concrete(log_weights):
        values = np.asarray(log_weights)
        bad = np.isnan(values) | (values == np.inf)
        require(
            not bad.any(),
            f"log_weights holds {values[bad][0] if bad.any() else ''}",
            "numbers below infinity (-inf marks a zero-mass query token)",
            "pass log of weights that are finite and not negative",
        )
        require(
            np.isfinite(values).any(axis=-1).all(),
            "log_weights is -inf everywhere in a measure",
            "at least one token with mass",
            "give some token a positive weight",
        )
    return log_weights - jsp.logsumexp(log_weights, axis=-1, keepdims=True)
