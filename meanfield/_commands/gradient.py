"""``meanfield gradient``: risk, momenta and gradient of a stored problem."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from meanfield._checks import require
from meanfield._commands.flags import SchemeName, parse, scheme_named
from meanfield._commands.problems import (
    batch_from,
    particles_from,
    read_problem,
    require_representable,
    require_writable,
)
from meanfield._files import write_arrays


@dataclasses.dataclass(frozen=True)
class GradientOptions:
    """Risk, final tokens, momenta and conditional Wasserstein gradient of a problem, in float64.

    PROBLEM.npz holds x, y [N, n, d], optional weights w and loss weights lw [N, n], and particles
    A, V or Q, K, V [L, M, ...] with optional nodes [L+1] and scale. RESULT.npz gets risk, x1, q0
    and gA, gV (or gQ, gK, gV).
    """

    problem: tyro.conf.Positional[Path]
    """The problem's .npz file."""
    out: Path
    """The result's .npz file."""
    scheme: SchemeName = "euler"
    """Depth scheme; euler = transformer layers."""
    method: Literal["discrete", "continuous"] | None = None
    """Adjoint. Without: discrete (the exact gradient of the discrete risk); continuous with
    the adaptive scheme, which has no discrete adjoint."""


def command(args: Sequence[str]) -> int:
    """Compute and store them; returns the exit code."""
    options: GradientOptions = parse(GradientOptions, args, prog="meanfield gradient")
    require(
        options.out.suffix == ".npz", f"--out {options.out}", "a .npz file", "pass --out RESULT.npz"
    )
    require_writable(options.out)
    arrays = read_problem(options.problem)

    import meanfield as mf

    mf.use_double()
    field, rho = particles_from(options.problem, arrays)
    batch = batch_from(options.problem, arrays, rho.particles.V.shape[-1])
    name = options.method or ("continuous" if options.scheme == "adaptive" else "discrete")
    method = mf.DiscreteAdjoint() if name == "discrete" else mf.ContinuousAdjoint()
    solution = mf.conditional_gradient(
        field,
        rho,
        mf.SquaredLoss(),
        batch,
        scheme=scheme_named(options.scheme),
        method=method,
    )
    result = {"risk": solution.value, "x1": solution.path[:, -1], "q0": solution.momenta[:, 0]}
    result |= {f"g{leaf}": value for leaf, value in solution.gradient._asdict().items()}
    result = {key: np.asarray(value) for key, value in result.items()}
    for key, values in {**result, "the gradient's norm": np.asarray(solution.norm)}.items():
        require_representable(f"{options.problem}: {key}", values)
    write_arrays(options.out, result)
    shape = " x ".join(str(size) for size in batch.contexts.points.shape)
    print(
        f"risk {float(solution.value):.16g}, |grad| {float(solution.norm):.16g}"
        f" ({shape} tokens, L = {rho.num_cells}, M = {rho.num_particles},"
        f" {options.scheme}, {name} adjoint): {options.out}"
    )
    return 0
