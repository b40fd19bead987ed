"""Measures on tokens, on depth and on parameters: the objects that every other room moves.

`TokenMeasure` is ``mu = sum_a w_a delta_{x_a}``; `DepthGrid` cuts [0, S] into L cells;
`ParameterMeasure` is ``rho(.|s) = sum_j w_kj delta_{theta_kj}`` on the k-th cell. Definitions:
reconstruction, docs/theory.md 1.
"""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from meanfield._checks import (
    MeanfieldError,
    is_concrete,
    require,
    require_finite,
    require_positive_integer,
)
from meanfield._files import read_float64, replacing, write_arrays
from meanfield._typing import Array, Float, Int, Key, Particles, PyTree

_LARGEST_LABEL = 2**30


def _as_float(values: Any) -> Array:
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


def _normalised_log_weights(log_weights: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """``log w`` with ``sum w = 1`` along the last axis; None means equal weights."""
    if log_weights is None:
        return jnp.full(shape, -np.log(shape[-1]), dtype)
    log_weights = _as_float(log_weights)
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
        points = _as_float(points) if is_array else jax.tree.map(_as_float, points)
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
        self.log_weights = _normalised_log_weights(log_weights, shape, leaves[0].dtype)
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
        weights = _as_float(weights)
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
        queries = _as_float(queries).astype(self.points.dtype)
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
            points, weights = _read_csv(path)
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


def _read_csv(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of numbers below an optional row of names; a last column ``weight`` is split off."""
    mend = "write one token per row, numbers separated by commas"
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle)
            rows = [
                (reader.line_num, cells)
                for row in reader
                if len(cells := [cell.strip() for cell in row]) > 1 or any(cells)
            ]
    except FileNotFoundError:
        raise MeanfieldError(f"{path} does not exist", "a .csv file", "check the path") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeanfieldError(f"{path} cannot be read ({error})", "a .csv file", mend) from None
    require(rows, f"{path} is empty", "a row per token", mend)
    header: list[str] = []
    if not any(_is_number_in_python(cell) for cell in rows[0][1]):
        header, rows = rows[0][1], rows[1:]
    require(rows, f"{path} holds no token", "a row per token", mend)
    width = len(header or rows[0][1])
    for line, cells in rows:
        require(
            len(cells) == width,
            f"{path}, line {line}: {len(cells)} cells",
            f"{width}, as in the {'header' if header else 'first row'}",
            mend,
        )
        for cell in cells:
            require(
                _NUMBER.fullmatch(cell),
                f"{path}, line {line}: {cell!r:.40} is no number",
                "numbers in every row below a header without any",
                mend,
            )
    table = np.array([[float(cell) for cell in cells] for _, cells in rows])
    doubtful = [
        name
        for place, name in enumerate(header, 1)
        if name.lower() in ("weight", "weights") and (name, place) != ("weight", width)
    ]
    require(
        not doubtful,
        f"{path}: the column {(doubtful or [''])[0]!r} in a header of {width}",
        "weights in the last column, under the name 'weight'",
        "move it there and rename it, or give a coordinate another name",
    )
    if header[-1:] != ["weight"]:
        return table, None
    require(width > 1, f"{path} holds weights alone", "coordinates before them", mend)
    return table[:, :-1], table[:, -1]


_NUMBER = re.compile(
    r"[+-]?(nan|inf(inity)?|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.IGNORECASE
)


def _is_number_in_python(cell: str) -> bool:
    """True also of what is no number in a file (``1_0``): such a row is a bad one, no header."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


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


class DepthGrid(eqx.Module):
    """Depth grid ``0 = s_0 < s_1 < ... < s_L = S`` of L cells.

    Args: nodes ``[L+1]``, increasing from 0. S = 1 unless a field's horizon says otherwise.
    Raises: `MeanfieldError` if the nodes do not increase from 0 or are not finite.
    Reference: reconstruction, docs/theory.md 1.2.
    """

    nodes: Float[Array, " L_plus_1"]

    def __init__(self, nodes: Any):
        nodes = _as_float(nodes)
        require(
            nodes.ndim == 1 and nodes.shape[0] >= 2,
            f"nodes has shape {tuple(nodes.shape)}",
            "[L+1] with L >= 1",
            "use DepthGrid.uniform(L)",
        )
        if is_concrete(nodes):
            require_finite("nodes", nodes)
            values = np.asarray(nodes)
            require(
                values[0] == 0 and (np.diff(values) > 0).all(),
                f"nodes starts at {values[0]} with smallest step {np.diff(values).min()}",
                "0 = s_0 < s_1 < ... < s_L",
                "sort the nodes and start at 0",
            )
        self.nodes = nodes

    @classmethod
    def uniform(cls, num_cells: int, horizon: float = 1.0, dtype: Any = None) -> "DepthGrid":
        """L equal cells of [0, horizon]."""
        require_positive_integer("num_cells", num_cells)
        require(
            isinstance(horizon, (int, float, np.number)) and np.isfinite(horizon) and horizon > 0,
            f"horizon is {horizon!r}",
            "a positive number",
            "pass horizon=1.0",
        )
        return cls(jnp.linspace(0.0, horizon, num_cells + 1, dtype=dtype))

    @property
    def steps(self) -> Float[Array, " L"]:
        """``ds_k = s_{k+1} - s_k``."""
        return jnp.diff(self.nodes)

    @property
    def num_cells(self) -> int:
        """L."""
        return self.nodes.shape[0] - 1

    @property
    def midpoints(self) -> Float[Array, " L"]:
        """``(s_k + s_{k+1}) / 2``."""
        return (self.nodes[1:] + self.nodes[:-1]) / 2

    @property
    def horizon(self) -> Float[Array, ""]:
        """S, the last node."""
        return self.nodes[-1]


class ParameterMeasure(eqx.Module):
    """Parameter measure: ``rho(.|s) = sum_j w_kj delta_{theta_kj}`` for s in the k-th cell.

    Args:
        particles: any pytree of arrays with leading axes ``[L, M, ...]``.
        grid: the `DepthGrid` of L cells; its marginal (Lebesgue) never changes.
        log_weights: ``log w_kj``, ``[L, M]``, normalised in every cell; None: equal mass 1/M.
        interpolation: "constant" reads the same particles throughout a cell; "linear" joins
            particle j of cell k, placed at the node s_k, to particle j of cell k+1 (particles are
            labelled then and keep their mass; the last cell stays constant).

    Raises: `MeanfieldError` on leaves without the axes [L, M], non-finite values, bad weights.
    Reference: reconstruction, docs/theory.md 1.2 and 4.1.
    """

    particles: Particles
    grid: DepthGrid
    log_weights: Float[Array, "L M"]
    interpolation: Literal["constant", "linear"] = eqx.field(static=True)

    def __init__(
        self,
        particles: Particles,
        grid: DepthGrid,
        log_weights: Any = None,
        *,
        interpolation: Literal["constant", "linear"] = "constant",
    ):
        require(
            isinstance(grid, DepthGrid),
            f"grid is a {type(grid).__name__}",
            "a DepthGrid",
            "pass DepthGrid.uniform(L) or DepthGrid(nodes)",
        )
        particles = jax.tree.map(_as_float, particles)
        leaves = jax.tree.leaves(particles)
        require(leaves, "particles is an empty pytree", "arrays [L, M, ...]", "pass some arrays")
        shapes = {tuple(leaf.shape[:2]) for leaf in leaves}
        require(
            len(shapes) == 1 and all(leaf.ndim >= 2 for leaf in leaves),
            f"particles has leaves of shapes {[tuple(leaf.shape) for leaf in leaves]}",
            "the same leading axes [L, M] in all of them",
            "stack the particles of each cell along axis 1",
        )
        (num_cells, num_particles) = shapes.pop()
        require(num_particles, "particles holds none (M = 0)", "M >= 1", "pass some particles")
        require(
            num_cells == grid.num_cells,
            f"particles has {num_cells} depth cells but grid has {grid.num_cells}",
            "as many cells",
            f"pass grid=DepthGrid.uniform({num_cells}) or call refine_depth(rho, factor)",
        )
        for leaf in leaves:
            if is_concrete(leaf):
                require_finite("particles", leaf)
        require(
            interpolation in ("constant", "linear"),
            f"interpolation is {interpolation!r}",
            "'constant' or 'linear'",
            "pass one of them",
        )
        self.particles = particles
        self.grid = grid
        self.log_weights = _normalised_log_weights(
            log_weights, (num_cells, num_particles), leaves[0].dtype
        )
        self.interpolation = interpolation
        if interpolation == "linear":
            self._require_constant_masses("linear interpolation")

    def _require_constant_masses(self, what: str) -> None:
        """Particles that are labelled across depth keep their mass."""
        if is_concrete(self.log_weights):
            masses = np.exp(np.asarray(self.log_weights))
            require(
                np.allclose(masses, masses[0], rtol=1e-6, atol=1e-12),
                f"{what} of particles whose masses change with depth",
                "the same log_weights in every cell, since particles are labelled",
                "pass equal rows of log_weights, or interpolation='constant'",
            )

    @property
    def num_cells(self) -> int:
        """L."""
        return self.log_weights.shape[0]

    @property
    def num_particles(self) -> int:
        """M."""
        return self.log_weights.shape[1]

    @property
    def weights(self) -> Float[Array, "L M"]:
        """``w_kj``, summing to one in every cell."""
        return jnp.exp(self.log_weights)

    def with_particles(self, particles: Particles) -> "ParameterMeasure":
        """The same masses, grid and labels at new particles; no validation."""
        return eqx.tree_at(lambda rho: rho.particles, self, particles)


def refine_depth(rho: ParameterMeasure, factor: int) -> ParameterMeasure:
    """The same ``rho(.|s)`` on a grid whose cells are cut into ``factor`` equal parts.

    Constant particles are repeated; with linear interpolation the new nodes read the line.
    Raises: `MeanfieldError` if factor < 1. Cost: O(factor L M) memory.
    """
    require_positive_integer("factor", factor)
    nodes, steps = rho.grid.nodes, rho.grid.steps
    inner = nodes[:-1, None] + steps[:, None] * jnp.arange(factor) / factor
    grid = DepthGrid(jnp.concatenate([inner.ravel(), nodes[-1:]]))

    def refine(leaf: Array) -> Array:
        if rho.interpolation == "constant":
            return jnp.repeat(leaf, factor, axis=0)
        following = jnp.concatenate([leaf[1:], leaf[-1:]])
        part = (jnp.arange(factor) / factor).reshape(1, factor, *[1] * (leaf.ndim - 1))
        part = part.astype(leaf.dtype)
        joined = (1 - part) * leaf[:, None] + part * following[:, None]
        return joined.reshape(-1, *leaf.shape[1:])

    return ParameterMeasure(
        jax.tree.map(refine, rho.particles),
        grid,
        jnp.repeat(rho.log_weights, factor, axis=0),
        interpolation=rho.interpolation,
    )


def subsample(
    rho: ParameterMeasure,
    num_particles: int,
    *,
    key: Key,
    replace: bool = True,
    labelled: bool = False,
) -> ParameterMeasure:
    """Draw ``num_particles`` equal-mass particles of each cell: the finite model of width M.

    Draws follow the particles' masses, with replacement by default, independently in every cell;
    ``labelled=True`` draws the same labels in all cells (particles that are the same head at every
    depth). Error of a mean: ``O(M^-1/2)``; without replacement ``(1/M - 1/M_ref)^{1/2}``.

    Raises: `MeanfieldError` if more are asked without replacement than there are, if masses are
        unequal without replacement, or change with depth for labelled draws (both are biased).
    """
    require_positive_integer("num_particles", num_particles)
    require(
        replace or num_particles <= rho.num_particles,
        f"{num_particles} of {rho.num_particles} particles without replacement",
        f"at most {rho.num_particles}",
        "pass replace=True or fewer particles",
    )
    if labelled:
        rho._require_constant_masses("labelled draws")
    if not replace and is_concrete(rho.log_weights):
        require(
            np.ptp(np.asarray(rho.log_weights)) < 1e-6,
            "draws without replacement from particles of unequal mass",
            "equal masses, without which such a draw is biased",
            "pass replace=True",
        )

    def draw(one_key: Key, weights: Array) -> Array:
        return jax.random.choice(
            one_key, rho.num_particles, (num_particles,), replace=replace, p=weights
        )

    if labelled:
        index = jnp.broadcast_to(draw(key, rho.weights[0]), (rho.num_cells, num_particles))
    else:
        index = jax.vmap(draw)(jax.random.split(key, rho.num_cells), rho.weights)
    cells = jnp.arange(rho.num_cells)[:, None]
    particles = jax.tree.map(lambda leaf: leaf[cells, index], rho.particles)
    return ParameterMeasure(particles, rho.grid, interpolation=rho.interpolation)


def sample_parameters(
    field: Any,
    law: Callable[[Key, Any, int], Particles],
    grid: DepthGrid,
    num_particles: int,
    *,
    dim: int,
    key: Key,
    across_depth: Literal["independent", "constant", "smooth"] = "independent",
) -> ParameterMeasure:
    """Draw M particles in each depth cell from a law on one particle.

    Args:
        field: knows the shapes of a particle, ``field.particle_shapes(dim)``.
        law: ``law(key, shapes, M) -> [M, ...]`` leaves, for instance `laws.EntrywiseGaussian`.
        across_depth: "independent" draws anew in every cell; "constant" keeps one ensemble;
            "smooth" joins two independent ensembles, ``theta(s) = cos(pi s/2S) theta_0 +
            sin(pi s/2S) theta_1`` read at the cells' left nodes with linear interpolation, which
            keeps the marginals of a centred Gaussian law at the nodes (between them up to O(ds^2))
            and has a limit as L grows.

    Cost: O(L M) particles. Reference: our choice, docs/theory.md 1.2.
    """
    require_positive_integer("num_particles", num_particles)
    require_positive_integer("dim", dim)
    require(
        hasattr(field, "particle_shapes") and not isinstance(field, type) and callable(law),
        f"field is {field!r:.60} and law {law!r:.60}",
        "an instance of a field, and a law such as EntrywiseGaussian(1.0)",
        "build them before the call",
    )
    shapes = field.particle_shapes(dim)
    num_cells = grid.num_cells
    if across_depth == "constant":
        one = law(key, shapes, num_particles)
        particles = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_cells, *x.shape)), one)
        return ParameterMeasure(particles, grid)
    if across_depth == "smooth":
        first, last = (law(k, shapes, num_particles) for k in jax.random.split(key))
        angle = jnp.pi / 2 * grid.nodes[:-1] / grid.horizon

        def join(a: Array, b: Array) -> Array:
            turn = angle.reshape(-1, *[1] * a.ndim).astype(a.dtype)
            return jnp.cos(turn) * a + jnp.sin(turn) * b

        particles = jax.tree.map(join, first, last)
        return ParameterMeasure(particles, grid, interpolation="linear")
    require(
        across_depth == "independent",
        f"across_depth is {across_depth!r}",
        "'independent', 'constant' or 'smooth'",
        "pass one of them",
    )
    cells = [law(k, shapes, num_particles) for k in jax.random.split(key, num_cells)]
    return ParameterMeasure(jax.tree.map(lambda *leaves: jnp.stack(leaves), *cells), grid)
