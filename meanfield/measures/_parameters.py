"""Depth grids and parameter measures on them: refined, subsampled, drawn from laws."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import is_concrete, require, require_finite, require_positive_integer
from meanfield._typing import Array, Float, Key, Particles
from meanfield.measures._arrays import as_float, normalised_log_weights


class DepthGrid(eqx.Module):
    """Depth grid ``0 = s_0 < s_1 < ... < s_L = S`` of L cells.

    Args: nodes ``[L+1]``, increasing from 0. S = 1 unless a field's horizon says otherwise.
    Raises: `MeanfieldError` if the nodes do not increase from 0 or are not finite.
    Reference: reconstruction, docs/theory.md 1.2.
    """

    nodes: Float[Array, " L_plus_1"]

    def __init__(self, nodes: Any):
        nodes = as_float(nodes)
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
        particles = jax.tree.map(as_float, particles)
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
        self.log_weights = normalised_log_weights(
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
