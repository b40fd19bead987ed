"""From the kernel regime to feature learning: what moves, and how the kernel follows the target.

Claim. Let V = 0 at the start and let targets lie at distance eps from the tokens. Up to a fixed
training time (docs/theory.md 4.4)

    |V_t| = O(eps),    |A_t - A_0| = O(eps^2),    |K_t - K_0| = O(eps),
    |r(t) - exp(-K_0 Om t) r(0)| = O(eps^2),

so eps -> 0 is the lazy regime and eps ~ 1 the rich one. In the rich regime the kernel of the whole
map turns towards the target: its alignment ``<r, Om^(1/2) K_t Om^(1/2) r> / (|K| |r|^2)`` with the
residual r of the start grows.

Scaling in M. Let heads be summed with M^(-g) in place of 1/M, each trained at the rate that keeps
the speed of the outputs (g = 1: mean field; g = 1/2: the kernel scaling of wide nets). In the
values ``M^(1-g) V`` that is the mean-field flow with A slowed down by ``M^(-2(1-g))``. So A stops
moving, with slope -2(1-g) in M (sharp where A's movement does not act back on itself: at a small
eps), and V itself moves by M^(-(1-g)). But the tokens inside the net
still move as far as the targets ask, whatever g: at eps = 1 the change of the kernel (in the
mean-field metric) has slope 0 in M.
In a residual flow small eps makes training lazy; width alone freezes the scores only.
Negative control: heads in pairs +V, -V. The velocity is 0 at the start as well, but the gradient
in A is not of second order: the check must reject slope 2 for A.

Commands
    meanfield run lazy_to_rich --preset smoke --check     20 seconds on a CPU
    meanfield run lazy_to_rich --preset paper             five minutes
    meanfield figures lazy_to_rich

Cost: O(N L M n^2 d) for each gradient and run. Figure: figures/lazy_to_rich.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf
from meanfield import exact, ntk

CLAIM = "small residuals train in the kernel regime, at foretold orders; width freezes scores only"
COST = "smoke 20 s, paper 5 min on a CPU core"
FIGURE = "lazy_to_rich"
HEADLINES = (
    "movement of V: slope in eps",
    "movement of A: slope in eps",
    "movement of kernel: slope in eps",
    "movement of residual - lazy residual: slope in eps",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
GAMMAS = (0.5, 0.75, 1.0)  # powers of 1/M in front of the sum over heads


@dataclass(frozen=True)
class Parameters:
    """The problems and the two sweeps."""

    sizes: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04, 0.08)
    """eps at which orders are fitted."""
    rich_sizes: tuple[float, ...] = (0.2, 0.5, 1.0)
    """eps beyond, up to the rich regime. In the sweep in M the first one serves the movement of
    A, whose feedback on itself is of relative order eps^2, the last one the kernel's."""
    heads: tuple[int, ...] = (4, 8, 16, 32)
    """M of the sweep, divisors of the largest, which is used everywhere else."""
    num_draws: int = 8
    """Draws of tokens, targets and scores."""
    num_contexts: int = 2
    """N."""
    num_tokens: int = 3
    """n, all with loss."""
    dim: int = 3
    """d."""
    num_cells: int = 4
    """L."""
    score_scale: float = 1.5
    """Standard deviation of the entries of A."""
    pair_scale: float = 1.0
    """That of the entries of V in the control's pairs."""
    num_steps: int = 100
    """RK4 steps in training time."""
    step: float = 0.25
    """Their length in units of 1/lambda_max(K_0)."""
    tolerance: float = 0.15
    """Band around the slopes in eps and in M."""
    seed: int = 0
    """Seed of everything."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            num_sizes=3,
            at_least={"num_draws": 2, "heads": 2},
            at_most={"num_contexts": 8, "num_tokens": 16, "dim": 8, "step": 2.0},
        )
        most = max(self.heads)
        if any(most % number for number in self.heads):
            raise mf.MeanfieldError(
                f"--heads {' '.join(map(str, self.heads))}",
                f"divisors of the largest, {most}",
                "pass for instance --heads 4 8 16 32",
            )


@dataclass(frozen=True)
class Draw:
    """One problem: heads at the start, tokens ``[N, n, d]``, a unit residual, the kernel's size."""

    particles: mf.AttentionAV
    points: np.ndarray
    residual: np.ndarray
    largest: float


def draw_of(parameters: Parameters, number: int, num_heads: int, *, pairs: bool = False) -> Draw:
    """The first M heads of the draw, repeated to fill the largest M: the same measure."""
    rng = np.random.default_rng([parameters.seed, number])
    shape = (parameters.num_contexts, parameters.num_tokens, parameters.dim)
    points, residual = rng.uniform(-1.5, 1.5, shape), rng.normal(size=shape)
    most = max(parameters.heads)
    matrices = (parameters.num_cells, most, parameters.dim, parameters.dim)
    scores = parameters.score_scale * rng.normal(size=matrices)[:, :num_heads]
    values = np.zeros(scores.shape)
    if pairs:
        half = parameters.pair_scale * rng.normal(size=matrices)[:, : num_heads // 2]
        values = np.concatenate([half, -half], axis=1)
        scores = np.concatenate([scores[:, : num_heads // 2]] * 2, axis=1)
    copies = most // num_heads
    heads = [jnp.asarray(one.repeat(copies, axis=1)) for one in (scores, values)]
    particles = mf.AttentionAV(*heads)
    size = np.sqrt(np.sum(residual**2) / np.prod(shape[:2]))  # sum om |delta|^2 = 1
    largest = np.linalg.norm(kernel_factor(particles, points), ord=2) ** 2
    return Draw(particles, points, residual / size, float(largest))


@jax.jit
def _factor(particles, points):
    contexts, tokens = mf.TokenMeasure(points), range(points.shape[1])
    rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(particles.A.shape[0]))
    factor = ntk.terminal_factor(FIELD, rho, contexts, tokens=tuple(tokens))
    return factor / jnp.sqrt(contexts.log_weights.size)


def kernel_factor(particles: mf.AttentionAV, points: np.ndarray) -> np.ndarray:
    """``F Om^(1/2)`` of the whole map, ``[features, N n d]``."""
    return np.asarray(_factor(particles, points))


@partial(jax.jit, static_argnames="num_steps")
def train(particles, points, targets, dt, slowdown, *, num_steps):
    """RK4 in training time, runs side by side: final heads and tokens.

    A moves ``slowdown`` times as fast as in the mean-field flow.
    """

    def one(particles, points, targets, dt, slowdown):
        contexts = mf.TokenMeasure(points)
        batch = mf.Batch(contexts, targets)
        rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(particles.A.shape[0]))

        def stage(carry, coefficients):
            theta, slope, total = carry
            reach, share = coefficients
            here = jax.tree.map(lambda x, k: x + reach * dt * k, theta, slope)
            found = mf.conditional_gradient(FIELD, rho.with_particles(here), LOSS, batch).gradient
            slope = mf.AttentionAV(-slowdown * found.A, -found.V)
            total = jax.tree.map(lambda x, k: x + share * dt * k, total, slope)
            return (theta, slope, total), None

        def step(_, theta):
            nothing = jax.tree.map(jnp.zeros_like, theta)
            weights = (jnp.array([0.0, 0.5, 0.5, 1.0]), jnp.array([1.0, 2.0, 2.0, 1.0]) / 6)
            return jax.lax.scan(stage, (theta, nothing, theta), weights)[0][2]

        theta = jax.lax.fori_loop(0, num_steps, step, particles)
        solved = mf.solve_flow(FIELD, rho.with_particles(theta), contexts, keep="final")
        return theta, solved.path

    return jax.vmap(one)(particles, points, targets, dt, slowdown)


def length(tree: Any) -> float:
    """Root mean square over layers and heads of the Frobenius norm."""
    return float(np.sqrt(np.mean(np.sum(np.asarray(tree) ** 2, axis=(-2, -1)))))


def alignment(factor: np.ndarray, residual: np.ndarray) -> float:
    """Cosine of the kernel and the residual's ``r r^T``."""
    unit = residual.ravel() / np.linalg.norm(residual)
    return float(np.sum((factor @ unit) ** 2) / np.linalg.norm(factor.T @ factor))


def compare(draws: list[Draw], sizes: Any, slowdowns: Any, parameters: Parameters):
    """Train every draw at its eps and slowdown; what moved, ``[B]`` each."""
    horizon = parameters.num_steps * parameters.step
    joined = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one.particles for one in draws])
    points = np.stack([one.points for one in draws])
    offsets = np.array(sizes)[:, None, None, None] * np.stack([one.residual for one in draws])
    dt = parameters.step / np.array([one.largest for one in draws])
    ends, tokens = train(
        joined, points, points + offsets, dt, np.array(slowdowns), num_steps=parameters.num_steps
    )
    weight = 1 / (parameters.num_contexts * parameters.num_tokens)
    rows = []
    for number, one in enumerate(draws):
        end = jax.tree.map(lambda leaf: leaf[number], ends)  # noqa: B023 - used now
        first, last = kernel_factor(one.particles, one.points), kernel_factor(end, one.points)
        before, after = first.T @ first, last.T @ last
        start = -offsets[number].reshape(-1, 1)
        lazy = exact.lazy_residual(
            before / weight, np.full(len(start), weight), start, [horizon / one.largest]
        )[0]
        residual = (np.asarray(tokens[number]) - points[number]).reshape(-1, 1) + start
        scale = np.sqrt(weight)
        rows.append(
            {
                "scores": length(end.A - one.particles.A),
                "values": length(end.V - one.particles.V),
                "kernel": np.linalg.norm(after - before) / np.linalg.norm(before),
                "gap": scale * np.linalg.norm(residual - lazy),
                "aligned_before": alignment(first, one.residual),
                "aligned_after": alignment(last, one.residual),
                "risk": weight * np.sum(residual**2) / np.sum(weight * start**2),
                "lazy": np.sum(lazy**2) / np.sum(start**2),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def in_scale(parameters: Parameters, pairs: bool) -> dict[str, np.ndarray]:
    """All sizes of the residual, in the mean-field scaling, ``[S, E]``."""
    sizes = (*parameters.sizes, *parameters.rich_sizes)
    num_heads = max(parameters.heads)
    draws = [draw_of(parameters, i, num_heads, pairs=pairs) for i in range(parameters.num_draws)]
    parts = [
        compare(draws, np.full(len(draws), eps), np.ones(len(draws)), parameters) for eps in sizes
    ]
    return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def in_width(parameters: Parameters, gamma: float, eps: float) -> dict[str, np.ndarray]:
    """All M at one residual, heads summed with M^(-gamma), ``[S, H]``."""
    parts = []
    for num_heads in parameters.heads:
        draws = [draw_of(parameters, i, num_heads) for i in range(parameters.num_draws)]
        slowdown = float(num_heads) ** (-2 * (1 - gamma))
        sizes = np.full(len(draws), eps)
        parts.append(compare(draws, sizes, np.full(len(draws), slowdown), parameters))
    return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Both sweeps and the control."""
    mf.use_double()
    scale, control = directory.sweep(
        "residual",
        ("scale", "control"),
        lambda name: in_scale(parameters, name == "control"),
        progress,
        key=str,
    )
    ends = {"mild": parameters.rich_sizes[0], "rich": parameters.rich_sizes[-1]}
    settings = [(words, gamma) for gamma in GAMMAS for words in ends]
    found = directory.sweep(
        "scaling in M",
        settings,
        lambda one: in_width(parameters, one[1], ends[one[0]]),
        progress,
        key=lambda one: f"{one[0]},gamma={one[1]:g}",
    )
    width = dict(zip(settings, found, strict=True))
    sizes, rich = np.array(parameters.sizes), np.array(parameters.rich_sizes)
    directory.save("scale", sizes=np.concatenate([sizes, rich]), num_fitted=len(sizes), **scale)
    directory.save("control", sizes=np.concatenate([sizes, rich]), **control)
    directory.save(
        "width",
        heads=np.array(parameters.heads),
        gammas=np.array(GAMMAS),
        **{
            f"{words}_{name}": np.stack([width[words, g][name] for g in GAMMAS])
            for words in ends
            for name in ("scores", "values", "kernel", "risk")
        },
    )
    num = len(sizes)
    orders = {"values": 1.0, "scores": 2.0, "kernel": 1.0, "gap": 2.0}
    names = {"values": "V", "scores": "A", "kernel": "kernel", "gap": "residual - lazy residual"}

    def slope(quantity, numbers, found, expected):
        rate = mf.fit_rate(numbers, found, aggregate="geometric", min_sizes=3)
        verdict = rate.verdict(expected, parameters.tolerance)
        return mf.Claim(quantity, expected, rate.slope, rate.interval, verdict)

    claims = [
        slope(f"movement of {names[key]}: slope in eps", sizes, scale[key][:, :num], order)
        for key, order in orders.items()
    ]
    claims += [
        slope(
            f"A, eps = {ends['mild']:g}, heads summed with M^-{g:g}: slope in M",
            parameters.heads,
            width["mild", g]["scores"],
            2 * g - 2,
        )
        for g in GAMMAS
    ]
    claims.append(
        slope(
            f"kernel's change, eps = {ends['rich']:g}, heads summed with M^-0.5: slope in M",
            parameters.heads,
            width["rich", GAMMAS[0]]["kernel"],
            0.0,
        )
    )
    change = scale["aligned_after"][:, -1] - scale["aligned_before"][:, -1]
    words = "alignment of the kernel with the target, rich: mean change"
    claims.append(mf.Claim.above(words, 0.0, change))
    pairs = slope(
        "control (pairs +V, -V): slope of A in eps", sizes, control["scores"][:, :num], 2.0
    )
    rejected = pairs.verdict == "inconsistent"
    claims.append(
        mf.Claim(
            pairs.quantity,
            "any other slope than 2",
            pairs.measured,
            pairs.interval,
            "consistent" if rejected else "inconsistent",
        )
    )
    return claims


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
