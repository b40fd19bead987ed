"""Token measures: clouds with masses and labels, alone or in batches, in memory and in files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import MeanfieldError, is_concrete, require, require_finite
from meanfield._files import read_float64, replacing, write_arrays
from meanfield._typing import Array, Float, Int, PyTree
from meanfield.measures._arrays import as_float, normalised_log_weights
from meanfield.measures._csv import read_csv

_LARGEST_LABEL = 2**30


class TokenMeasure(eqx.Module):
    """Token measure ``mu = sum_a w_a delta_{x_a}``, or a batch of N of them (contexts).

    Args:
        points: positions ``x_a``, array ``[n, d]`` or ``[N, n, d]`` (or a pytree whose leaves share
            the leading axis n).
        log_weights: ``log w_a``, ``[n]`` or ``[N, n]``; normalised here to ``sum w = 1``; ``-inf``
            marks a zero-mass query token, which is moved and moves nobody. None: equal weights.
        labels: integers ``[n]`` or ``[N, n]``: identity or order, read by fields such as
            `Causal`, moved by none. None: 0, 1, ..., n - 1.

    Raises: `MeanfieldError` on wrong shapes, non-finite points, NaN weights, no mass at all.

    Reference: reconstruction, docs/theory.md 1.1. Cost: O(n d) memory.
    """

    points: PyTree
    log_weights: Float[Array, "*N n"]
    labels: Int[Array, "*N n"]

    def __init__(self, points: Any, log_weights: Any = None, labels: Any = None):
        is_array = isinstance(points, (np.ndarray, jax.Array, list, tuple))
        points = as_float(points) if is_array else jax.tree.map(as_float, points)
        leaves = jax.tree.leaves(points)
        require(leaves, "points is empty", "an array [n, d]", "pass at least one token")
        if is_array:
            require(
                points.ndim in (2, 3),
                f"points has shape {tuple(points.shape)}",
                "[n, d] for one measure or [N, n, d] for a batch",
                "add the missing axis: points[:, None] for one-dimensional tokens",
            )
            shape = tuple(points.shape[:-1])
        else:
            shape = (leaves[0].shape[0],) if log_weights is None else tuple(np.shape(log_weights))
        require(
            all(shape) and all(0 not in leaf.shape for leaf in leaves),
            f"points has shape {[tuple(leaf.shape) for leaf in leaves]}, an empty cloud",
            "at least one token and one coordinate",
            "pass a non-empty array",
        )
        require(
            all(tuple(leaf.shape[: len(shape)]) == shape for leaf in leaves),
            f"points has leaves of shapes {[tuple(leaf.shape) for leaf in leaves]}",
            f"the leading axes {shape} in all of them",
            "stack the leaves along one token axis",
        )
        for leaf in leaves:
            if is_concrete(leaf):
                require_finite("points", leaf)
        self.points = points
        self.log_weights = normalised_log_weights(log_weights, shape, leaves[0].dtype)
        if labels is None:
            self.labels = jnp.broadcast_to(jnp.arange(shape[-1]), shape)
        else:
            given = labels if isinstance(labels, jax.Array) else np.asarray(labels)
            require(
                given.shape == shape and np.issubdtype(given.dtype, np.integer),
                f"labels has shape {tuple(given.shape)} and type {given.dtype}",
                f"integers of shape {shape}",
                "pass one integer per token, or None",
            )
            if is_concrete(given):
                require(
                    np.abs(np.asarray(given, float)).max() < _LARGEST_LABEL,
                    "a label of 2^30 or more",
                    "smaller labels: queries and probes are numbered after the largest",
                    "number the tokens from 0",
                )
            self.labels = jnp.asarray(given).astype(int)  # narrow integers would wrap around

    @classmethod
    def from_weights(cls, points: Any, weights: Any, labels: Any = None) -> "TokenMeasure":
        """The same with weights ``w_a >= 0`` instead of their logarithms (0 = query token).

        Raises: `MeanfieldError` on negative, non-finite or all-zero weights.
        """
        weights = as_float(weights)
        require_finite("weights", weights)
        values = np.asarray(weights)
        require(
            (values >= 0).all(),
            f"weights holds the negative entry {values.min() if values.size else 0}",
            "weights of at least 0 (0 = zero-mass query token)",
            "drop those tokens or pass their absolute mass",
        )
        require(
            values.size and (values.sum(axis=-1) > 0).all(),
            "weights sum to 0",
            "a positive total mass in every measure",
            "give some token a positive weight",
        )
        return cls(points, jnp.log(weights), labels)

    @property
    def weights(self) -> Float[Array, "*N n"]:
        """``w_a``, summing to one."""
        return jnp.exp(self.log_weights)

    @property
    def num_tokens(self) -> int:
        """n, query tokens included."""
        return self.log_weights.shape[-1]

    @property
    def dim(self) -> int:
        """d, the width of the tokens."""
        return jax.tree.leaves(self.points)[0].shape[-1]

    @property
    def num_contexts(self) -> int | None:
        """N for a batch, None for one measure."""
        return self.log_weights.shape[0] if self.log_weights.ndim == 2 else None

    def push_forward(self, points: Any) -> "TokenMeasure":
        """``X_# mu``: the same masses and labels at new positions ``X(x_a)``; no validation."""
        return eqx.tree_at(lambda mu: mu.points, self, points)

    def mean(self) -> Array:
        """``int y dmu(y)``, ``[d]`` (``[N, d]`` for a batch). Cost: O(n d)."""
        return jnp.einsum("...n,...nd->...d", self.weights, self.points)

    def covariance(self) -> Array:
        """``int (y - mean)(y - mean)^T dmu(y)``, ``[d, d]`` (batch: ``[N, d, d]``). O(n d^2)."""
        centred = self.points - self.mean()[..., None, :]
        return jnp.einsum("...n,...ni,...nj->...ij", self.weights, centred, centred)

    def with_queries(self, queries: Any) -> "TokenMeasure":
        """Append zero-mass query tokens at ``queries`` ``[K, d]``; they come last in order."""
        require(
            self.num_contexts is None,
            f"a batch of {self.num_contexts} measures",
            "one measure",
            "add the queries before stack_contexts",
        )
        queries = as_float(queries).astype(self.points.dtype)
        require(
            queries.ndim == 2 and queries.shape[1] == self.dim,
            f"queries has shape {tuple(queries.shape)}",
            f"[K, {self.dim}]",
            "pass one row per query",
        )
        num = queries.shape[0]
        return TokenMeasure(
            jnp.concatenate([self.points, queries]),
            jnp.concatenate([self.log_weights, jnp.full(num, -jnp.inf, self.log_weights.dtype)]),
            jnp.concatenate([self.labels, jnp.max(self.labels) + 1 + jnp.arange(num)]),
        )

    @classmethod
    def load(cls, path: str | Path) -> "TokenMeasure":
        """Read a cloud from a file.

        ``.npy``: ``[n, d]`` or ``[N, n, d]``; ``.npz``: ``points`` and optional ``weights``, and
        nothing else; ``.csv``: a row of numbers per token, below an optional row of names (none of
        them a number), where a last column named ``weight`` holds weights. Read as float64.
        Weights are not negative; 0 = query token; pickles are refused.

        Raises: `MeanfieldError` on anything else.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".csv":
            points, weights = read_csv(path)
        elif suffix in (".npy", ".npz"):
            arrays = read_float64(path, known=("points", "weights"))
            require(
                "points" in arrays,
                f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}",
                "an array named points (and optional weights)",
                "save it with numpy.savez(path, points=..., weights=...)",
            )
            points, weights = arrays["points"], arrays.get("weights")
        else:
            raise MeanfieldError(
                f"{path} ends in {path.suffix!r}", ".npy, .npz or .csv", "convert the file"
            )
        try:
            if weights is None:
                return cls(points)
            return cls.from_weights(points, weights)
        except MeanfieldError as error:
            raise MeanfieldError(f"{path}: {error.given}", error.expected, error.mend) from None

    def save(self, path: str | Path) -> None:
        """Write ``points`` and ``weights``, whole or not at all.

        To an ``.npz``, ``.npy`` (equal weights only) or ``.csv`` (one measure only) file.
        Raises: `MeanfieldError` if the format cannot hold this measure.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        points, weights = np.asarray(self.points), np.asarray(self.weights)
        if suffix == ".npz":
            write_arrays(path, {"points": points, "weights": weights})
        elif suffix == ".npy":
            require(
                np.allclose(weights, 1 / self.num_tokens, rtol=1e-12),
                "unequal weights in a .npy file",
                "equal weights there",
                "save to .npz",
            )
            with replacing(path) as temporary, temporary.open("wb") as handle:
                np.save(handle, points, allow_pickle=False)
        elif suffix == ".csv":
            require(points.ndim == 2, "a batch in a .csv file", "one measure there", "save to .npz")
            names = [f"x{i}" for i in range(points.shape[1])] + ["weight"]
            with replacing(path) as temporary, temporary.open("w", newline="") as handle:
                writer = csv.writer(handle)
                writer.writerow(names)
                for row in np.column_stack([points, weights]):
                    writer.writerow([repr(float(value)) for value in row])
        else:
            raise MeanfieldError(
                f"{path} ends in {path.suffix!r}", ".npz, .npy or .csv", "rename the file"
            )


def stack_contexts(measures: Sequence[TokenMeasure]) -> TokenMeasure:
    """A batch ``[N, n, d]`` of measures of different sizes, padded with zero-mass tokens.

    The padding repeats a context's first token with no mass, so it changes no velocity; give it
    loss weight 0 (`objectives.Batch` does so by default).

    Raises: `MeanfieldError` if the list is empty or the widths differ. Cost: O(N n d) memory.
    """
    measures = list(measures)
    require(measures, "an empty list of contexts", "at least one", "pass some measures")
    require(
        all(isinstance(mu, TokenMeasure) and mu.num_contexts is None for mu in measures),
        f"a list of {sorted({type(mu).__name__ for mu in measures})}, batches among them or not",
        "single token measures",
        "wrap arrays as TokenMeasure(points); a batch needs no stacking",
    )
    dims = {mu.dim for mu in measures}
    require(len(dims) == 1, f"contexts of widths {sorted(dims)}", "one width", "lift them alike")
    size = max(mu.num_tokens for mu in measures)
    points, log_weights, labels = [], [], []
    for mu in measures:
        extra = size - mu.num_tokens
        last = np.max(np.asarray(mu.labels)) + 1
        points.append(np.concatenate([mu.points, np.repeat(mu.points[:1], extra, axis=0)]))
        log_weights.append(np.concatenate([mu.log_weights, np.full(extra, -np.inf)]))
        labels.append(np.concatenate([mu.labels, last + np.arange(extra)]))
    return TokenMeasure(np.stack(points), np.stack(log_weights), np.stack(labels))
