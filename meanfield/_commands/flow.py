"""``meanfield flow``: push a cloud of tokens through, store its path and a picture."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from meanfield._checks import require
from meanfield._commands.flags import SchemeName, parse, scheme_named
from meanfield._commands.problems import particles_from, read_problem, require_representable
from meanfield._commands.runs import RESULTS, free_folder
from meanfield.records import RunDirectory

NUM_PICTURED = 200  # token paths in the picture; the file holds them all


@dataclasses.dataclass(frozen=True)
class FlowOptions:
    """Push a cloud of tokens through attention layers; store the path and a picture, in float64.

    TOKENS is .npy [n, d], .npz (points, optional weights) or .csv (a row per token). Without
    --particles the heads are drawn: A = c (I + G), with scores of about 2 at the cloud's edge, and
    V = I + G'/sqrt(d), where G, G' have standard Gaussian entries.
    """

    tokens: tyro.conf.Positional[Path]
    """The cloud."""
    particles: Path | None = None
    """.npz with A, V or Q, K, V [L, M, ...], optional nodes [L+1] and scale."""
    heads: int | None = None
    """M, drawn particles in each depth cell (64)."""
    depth: int | None = None
    """L, depth cells (16)."""
    seed: int | None = None
    """Seed of the drawn particles (0)."""
    scheme: SchemeName = "euler"
    """Depth scheme; euler = transformer layers."""
    out: Path | None = None
    """Folder, new or empty. Without: results/flow, numbered if that is taken."""


def command(args: Sequence[str]) -> int:
    """Push, store, draw; returns the exit code."""
    options: FlowOptions = parse(FlowOptions, args, prog="meanfield flow")
    drawn = {"heads": options.heads, "depth": options.depth, "seed": options.seed}
    given = [f"--{name}" for name, value in drawn.items() if value is not None]
    require(
        options.particles is None or not given,
        f"--particles together with {', '.join(given)}",
        "a file of particles, or drawn ones",
        "drop one of the two",
    )

    import meanfield as mf

    mf.use_double()
    mu = mf.TokenMeasure.load(options.tokens)
    require(
        mu.num_contexts is None,
        f"{options.tokens} holds {mu.num_contexts} clouds",
        "one cloud [n, d]",
        "save the one to push",
    )
    if options.particles is None:
        numbers = {"heads": 64, "depth": 16, "seed": 0}
        numbers |= {name: value for name, value in drawn.items() if value is not None}
        field, rho = _drawn_heads(mu, **numbers)
    else:
        numbers = {}
        field, rho = particles_from(options.particles, read_problem(options.particles))
    solution = mf.solve_flow(field, rho, mu, scheme=scheme_named(options.scheme))
    path, nodes = np.asarray(solution.path), np.asarray(rho.grid.nodes)
    weights = np.asarray(mu.weights)
    require_representable(f"{options.tokens}: the path", path)
    start, end = _radius(path[0], weights), _radius(path[-1], weights)
    require_representable(f"{options.tokens}: the root mean square radius", [start, end])

    directory = RunDirectory.create(
        options.out or free_folder(RESULTS / "flow"),
        name="flow",
        configuration={**dataclasses.asdict(options), **numbers},
        seeds={"seed": numbers["seed"]} if "seed" in numbers else {},
    )
    stored = directory.save("path", path=path, nodes=nodes, weights=weights)
    picture = _picture(directory.path, path, weights)
    directory.finish([])
    print(
        f"{mu.num_tokens} tokens in d = {mu.dim} through L = {rho.num_cells} cells of"
        f" M = {rho.num_particles} heads ({options.scheme}):"
        f" root mean square radius about the mean {start:.4g} -> {end:.4g}"
    )
    print(f"  {stored}\n  {picture}")
    return 0


def _drawn_heads(mu: Any, *, heads: int, depth: int, seed: int) -> tuple[Any, Any]:
    """A field and the heads of `FlowOptions`: drawn around the identity, so that tokens move."""
    import jax

    import meanfield as mf

    radius = max(float(np.sqrt((np.asarray(mu.points) ** 2).sum(-1).max())), 1e-12)
    scale = 2.0 / radius**2
    require_representable(
        "the scale of drawn heads, 2/|x|^2 at the farthest token,", scale or np.inf
    )
    law = mf.EntrywiseGaussian(A=scale, V=mu.dim**-0.5)
    field = mf.SoftmaxAttention("av")
    grid = mf.DepthGrid.uniform(depth)
    rho = mf.sample_parameters(field, law, grid, heads, dim=mu.dim, key=jax.random.key(seed))
    identity = np.eye(mu.dim)
    centred = rho.particles
    moved = mf.AttentionAV(A=centred.A + scale * identity, V=centred.V + identity)
    return field, rho.with_particles(moved)


def _radius(points: np.ndarray, weights: np.ndarray) -> float:
    centred = points - weights @ points
    return float(np.sqrt(weights @ (centred**2).sum(axis=1)))


def _picture(folder: Path, path: np.ndarray, weights: np.ndarray) -> Path:
    """Draw the paths of (the first `NUM_PICTURED`) tokens."""
    from meanfield import plotting

    figure, axes = plotting.new_figure()
    plotting.token_paths(axes[0, 0], path[:, :NUM_PICTURED], weights=weights[:NUM_PICTURED])
    return plotting.save_figure(figure, folder / "path", formats=("png",))[0]
