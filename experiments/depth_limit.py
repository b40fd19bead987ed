"""L -> infinity: a transformer of L layers tends to the continuity equation in depth.

Claim. Layers are Euler steps of ``d mu/ds + div(mu Phi_{rho(.|s)}[mu]) = 0``; schemes of higher
order reach the same limit faster. Errors are those of *coupled* tokens (same label, same start):

    error = max_k ( sum_a w_a |x_a^L(s_k) - x_a(s_k)|^2 )^(1/2) = O(L^(-p)),
    p = 1 (Euler), 2 (Heun), 4 (RK4)                      (docs/theory.md 1.4, 6.13)

1. Against a closed form: Gaussian tokens by Gauss-Hermite points under heads that are constant in
   each half of the depth; the exact flow map is affine (docs/theory.md 6.1).
2. Layers that read smoothly varying heads, theta(s_k), as a network with depth-wise smooth weights:
   Euler has order 1 towards a fine RK4 solution.
3. The continuous adjoint evaluated along Euler's tokens differs from the exact gradient of the
   discrete risk by O(1/L).
Negative control: heads drawn anew in every layer. Their limit exists too (it is that of the mean
field), but it is reached at L^(-1/2), as a law of large numbers over depth: the check that accepts
order 1 must reject it.

Commands
    meanfield run depth_limit --preset smoke --check     40 seconds on a CPU
    meanfield run depth_limit --preset paper             a minute
    meanfield figures depth_limit

Cost: O(L M n^2 d) per solve, O(L n d) memory. Figure: figures/depth_limit.py.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf

CLAIM = "layers tend to the continuity equation: Euler 1/L, Heun 1/L^2, RK4 1/L^4"
COST = "smoke 40 s, paper 1 min on a CPU core"
FIGURE = "depth_limit"
HEADLINES = (
    "Euler against the closed form: slope in L",
    "Heun against the closed form: slope in L",
    "RK4 against the closed form: slope in L",
    "continuous against discrete adjoint: slope in L",
)

CLOSED, TOKENS, SMOOTH, LAYERS = range(4)  # names of the random streams
SCHEMES = {"euler": mf.Euler(), "heun": mf.Heun(), "rk4": mf.RungeKutta4()}


@dataclass(frozen=True)
class Parameters:
    """What the sweep is made of."""

    sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    """L, layers (even numbers)."""
    num_reference: int = 1024
    """Cells of the fine RK4 solution that layers with smooth heads are compared with."""
    num_heads: int = 4
    """M, heads in each layer."""
    num_nodes: int = 14
    """Gauss-Hermite points per axis for the Gaussian tokens (d = 2)."""
    num_tokens: int = 16
    """n, tokens of the other solves."""
    dim: int = 4
    """d, their width."""
    num_replicates: int = 32
    """Draws of the layers of the negative control."""
    tolerance: float = 0.15
    """Two-sided band around each order."""
    expected_euler: float = -1.0
    """Slope that theory gives Euler's layers."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_replicates": 2},
            at_most={"num_nodes": 128},
            multiple_of={"sizes": 2},
        )


def closed_form_errors(parameters: Parameters, key: jax.Array, name: str) -> dict[str, np.ndarray]:
    """Errors ``[K]`` of a scheme against the Gaussian closure, at all nodes of two cells."""
    field = mf.SoftmaxAttention("av")
    law = mf.Gaussian(np.array([0.4, -0.2]), np.array([[0.25, 0.08], [0.08, 0.15]]))
    tokens = law.tokens(parameters.num_nodes, rule="hermite")
    heads = mf.EntrywiseGaussian(A=0.4, V=0.8)
    halves = mf.sample_parameters(
        field, heads, mf.DepthGrid.uniform(2), parameters.num_heads, dim=2, key=key
    )
    exact = mf.exact.gaussian_closure(law.mean(), law.covariance(), halves)
    expected = exact.flow_map(tokens.points)

    @partial(jax.jit, static_argnums=0)
    def gap(num_cells: int) -> jax.Array:
        rho = mf.refine_depth(halves, num_cells // 2)
        path = mf.solve_flow(field, rho, tokens, scheme=SCHEMES[name]).path
        return mf.coupled_distance(path[:: num_cells // 2], expected, tokens.weights)

    return {"errors": np.array([gap(num_cells) for num_cells in parameters.sizes], float)}


class Layers:
    """Euler's layers against their limits; one cloud, smooth heads, and a crowd to draw from."""

    def __init__(self, parameters: Parameters, stream: list[jax.Array]):
        self.parameters, self.stream = parameters, stream
        self.field = mf.SoftmaxAttention("av")
        self.heads = mf.EntrywiseGaussian(A=1.0, V=1.0)
        self.cloud = mf.Cube(1.0, parameters.dim).tokens(parameters.num_tokens, key=stream[TOKENS])
        contexts = mf.stack_contexts([self.cloud])
        self.batch = mf.Batch(contexts, -contexts.points)
        # many heads, the same in all layers, for the independent ones to be drawn from
        self.crowd = mf.sample_parameters(
            self.field,
            self.heads,
            mf.DepthGrid.uniform(1),
            64,
            dim=parameters.dim,
            key=jax.random.fold_in(stream[SMOOTH], 1),
        )

    def smooth_heads(self, num_cells: int) -> mf.ParameterMeasure:
        """Heads that vary smoothly along depth, as piecewise linear functions of it."""
        return mf.sample_parameters(
            self.field,
            self.heads,
            mf.DepthGrid.uniform(num_cells),
            self.parameters.num_heads,
            dim=self.parameters.dim,
            key=self.stream[SMOOTH],
            across_depth="smooth",
        )

    def end(self, rho: mf.ParameterMeasure, scheme="euler") -> np.ndarray:
        """Where the cloud ends."""
        return mf.solve_flow(self.field, rho, self.cloud, scheme=SCHEMES[scheme], keep="final").path

    def limits(self) -> dict[str, np.ndarray]:
        """The ends in infinitely many layers: smooth heads, the crowd."""
        smooth = self.smooth_heads(self.parameters.num_reference)
        return {
            "smooth": self.end(smooth, "rk4"),
            "crowd": self.end(mf.refine_depth(self.crowd, 64), "rk4"),
        }

    # one program per L: eager, each of its many small operations would be compiled by itself
    @partial(jax.jit, static_argnums=(0, 1))
    def errors(self, num_cells: int, limits: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Smooth heads and adjoint gap (scalars), independent layers ``[R]``."""
        # layer k reads theta(s_k): constant in its cell, where the reference interpolates
        rho = self.smooth_heads(num_cells)
        rho = mf.ParameterMeasure(rho.particles, rho.grid)
        discrete, continuous = (
            mf.conditional_gradient(
                self.field, rho, mf.SquaredLoss(), self.batch, method=method
            ).gradient
            for method in (mf.DiscreteAdjoint(), mf.ContinuousAdjoint(mf.RungeKutta4()))
        )
        difference = mf.labelled_distance(
            rho.with_particles(discrete), rho.with_particles(continuous)
        )
        zero = jax.tree.map(lambda leaf: 0 * leaf, discrete)
        size = mf.labelled_distance(rho.with_particles(discrete), rho.with_particles(zero))
        fine = mf.refine_depth(self.crowd, num_cells)

        def independent(replicate: jax.Array) -> jax.Array:
            draw = jax.random.fold_in(jax.random.fold_in(self.stream[LAYERS], num_cells), replicate)
            few = mf.subsample(fine, self.parameters.num_heads, key=draw)
            return mf.coupled_distance(self.end(few), limits["crowd"])

        return {
            "smooth": mf.coupled_distance(self.end(rho), limits["smooth"]),
            "adjoint_gap": difference / size,
            "independent": jax.lax.map(independent, jnp.arange(self.parameters.num_replicates)),
        }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep L, store the errors of every series, fit slopes."""
    mf.use_double()
    root = jax.random.key(parameters.seed)
    stream = [jax.random.fold_in(root, name) for name in range(4)]
    compute = lambda name: closed_form_errors(parameters, stream[CLOSED], name)  # noqa: E731
    closed = directory.sweep("closed form", SCHEMES, compute, progress, key="closed,{}".format)
    layers = Layers(parameters, stream)
    limits = directory.cached("limits", layers.limits)
    compute = lambda num_cells: layers.errors(num_cells, limits)  # noqa: E731
    cells = directory.sweep("L", parameters.sizes, compute, progress)
    errors = {name: cell["errors"] for name, cell in zip(SCHEMES, closed, strict=True)}
    errors |= {name: np.stack([cell[name] for cell in cells], axis=-1) for name in cells[0]}
    directory.save("errors", sizes=np.array(parameters.sizes), **errors)

    series = {
        "euler": ("Euler against the closed form", parameters.expected_euler),
        "heun": ("Heun against the closed form", -2.0),
        "rk4": ("RK4 against the closed form", -4.0),
        "smooth": ("layers with smooth heads", parameters.expected_euler),
        "adjoint_gap": ("continuous against discrete adjoint", -1.0),
    }
    claims = []
    for name, (words, expected) in series.items():
        rate = mf.fit_rate(parameters.sizes, errors[name])
        verdict = rate.verdict(expected, parameters.tolerance, min_r_squared=0.999)
        claims.append(
            mf.Claim(f"{words}: slope in L", expected, rate.slope, rate.interval, verdict)
        )
    rate = mf.fit_rate(parameters.sizes, errors["independent"])
    rejected = rate.verdict(parameters.expected_euler, parameters.tolerance) == "inconsistent"
    claims.append(
        mf.Claim(
            "control (layers drawn independently): slope in L",
            f"any slope but {parameters.expected_euler:g}",
            rate.slope,
            rate.interval,
            "consistent" if rejected else "inconsistent",
        )
    )
    return claims


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
