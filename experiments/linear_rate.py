"""Linear convergence: how fast training is, how far it goes, and from which initial risk.

Claim. Along the gradient flow the log-risk falls at a Rayleigh quotient of the kernel of the whole
map ``rho -> x(1)``, which the V-part of the layers bounds from below (docs/theory.md 3.1, 4.2):

    -d log R / dt = |grad R|^2 / R >= 2 lambda_min(K_t) >= 2 kappa(t) > 0.

If ``kappa >= kappa_r`` within distance r of the start and ``(2 R(0) / kappa_r)^(1/2) < r``, then
the flow stays there, R(t) <= R(0) e^(-2 kappa_r t), and its length is at most
``(2 R(0) / kappa_r)^(1/2)`` (4.3). Measured, for several draws of contexts, heads and targets:
1. the rate between records against 2 kappa(t), at a small R(0) against what the spectrum of K_0
   and the residual's coefficients in it predict, and at late times against 2 lambda_min(K_t); for
   full training and for V alone (whose kernel is the V-rows of the factor: a smaller one). After
   a time T, eigenvalues closer than 1/T to the least still speak: hence a tolerance of 0.1 there;
2. residuals along one eigenvector of K_0: the rate is 2 lambda_j, with a relative gap O(eps) for
   a residual of size eps. It is the smallest eigenvalue *actually excited* that counts;
3. a success map over initial risk and number of heads, with the threshold ``kappa_r r^2 / 2``.
   kappa_r is half of kappa(0), and r the largest labelled distance (of a few radii, bisected) at
   which kappa is still above it along sampled directions, half of them random, half gradients for
   random targets: an estimate, not a proof.
   Success: a hundredth of the initial risk within a stated number of gradients;
4. the PL constant for *all* targets, lambda_min(K), at random points of that ball.
What the threshold leaves open is said, not claimed: far beyond it the flow still goes down, in
ever smaller steps (the kernel grows with the tokens), and runs out of gradients.
Negative control: the first context given twice, with different targets. It stops at the spread of
the targets, ``sum_a om_a |y_a - y'_a|^2 / 4``, at every initial risk.

Commands
    meanfield run linear_rate --preset smoke --check     20 seconds on a CPU
    meanfield run linear_rate --preset paper             eight minutes
    meanfield figures linear_rate

Cost: O(N L M n^2 d) for each gradient and run. Figure: figures/linear_rate.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf
from meanfield import ntk

CLAIM = "the risk falls at least like exp(-2 kappa t) from initial risks below the threshold"
COST = "smoke 20 s, paper 8 min on a CPU core"
FIGURE = "linear_rate"
HEADLINES = (
    "least rate / 2 kappa(t), full training",
    "largest |rate / prediction from the spectrum - 1|, full",
    "* runs below the threshold: not converged",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
RUNGE_KUTTA = (np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 2.0, 1.0]) / 6)
RADII = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
NUM_SCALES = 4  # sizes eps, 2 eps, 4 eps, 8 eps of the residuals along eigenvectors


@dataclass(frozen=True)
class Parameters:
    """The problems, the runs, the map."""

    num_seeds: int = 5
    """Draws of contexts, heads and targets."""
    num_contexts: int = 3
    """N."""
    num_tokens: int = 4
    """n, all of them with loss."""
    dim: int = 4
    """d."""
    num_cells: int = 4
    """L."""
    heads: tuple[int, ...] = (8, 16)
    """M of the map; divisors of the largest, which the other measurements use."""
    risks: tuple[float, ...] = (1e-5, 1e-3, 1e-1, 1e1, 1e3)
    """R(0) of the map, over the mean of |delta|^2/2 of the targets' directions, which is 1."""
    num_gradients: int = 200
    """Gradients that a run of the map may use."""
    num_directions: int = 1
    """Directions of each kind along which kappa is followed to measure r."""
    num_points: int = 64
    """Points of the ball where the PL constant is measured, in all draws together."""
    num_eigenvalues: int = 6
    """Eigenvectors of K_0 tried as residuals, spread over the spectrum."""
    largest_residual: float = 0.01
    """eps of the largest residual along an eigenvector."""
    start_risk: float = 1e-6
    """R(0) of the runs whose rates are measured."""
    horizon: float = 8.0
    """Their length in units of 1/lambda_min(K_0)."""
    num_records: int = 4
    """Records of kappa and of the kernel along them."""
    score_scale: float = 2.0
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """Standard deviation of the entries of V."""
    tolerance: float = 0.1
    """Band around 1 for a late rate over its eigenvalue."""
    sharp_tolerance: float = 0.02
    """Band around 1 for rates over the prediction from the spectrum, and for the control."""
    slope_tolerance: float = 0.15
    """Band around the slope 1 in eps."""
    seed: int = 0
    """Seed of everything."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            num_sizes=2,
            at_least={"num_seeds": 2, "num_contexts": 2, "num_records": 3, "num_gradients": 2},
            at_most={"num_contexts": 8, "num_tokens": 16, "dim": 8, "num_seeds": 1000},
        )
        most = max(self.heads)
        wrong = [number for number in self.heads if most % number]
        if wrong:
            raise mf.MeanfieldError(
                f"--heads {' '.join(map(str, self.heads))}",
                f"divisors of the largest, {most}",
                "pass for instance --heads 16 32 64",
            )


class Problems(NamedTuple):
    """One entry per draw: particles ``[S, L, M, ...]``, tokens, their ends, unit directions."""

    particles: mf.AttentionAV
    points: np.ndarray
    ends: np.ndarray
    directions: np.ndarray


def problems(parameters: Parameters, num_heads: int, *, duplicated: bool = False) -> Problems:
    """The draws at M heads, each repeated to fill max(heads) slots: the same measure rho."""
    shape = (parameters.num_contexts, parameters.num_tokens, parameters.dim)
    matrices = (parameters.num_cells, num_heads, parameters.dim, parameters.dim)
    grid, copies = grid_of(parameters), max(parameters.heads) // num_heads
    draws = []
    for number in range(parameters.num_seeds):
        rng = np.random.default_rng([parameters.seed, number])
        points, direction = rng.uniform(-1.5, 1.5, shape), rng.normal(size=shape)
        if duplicated:
            points[1] = points[0]
        scores, values = rng.normal(size=(2, *matrices)).repeat(copies, axis=2)
        particles = mf.AttentionAV(parameters.score_scale * scores, parameters.value_scale * values)
        rho = mf.ParameterMeasure(particles, grid)
        end = np.asarray(mf.solve_flow(FIELD, rho, mf.TokenMeasure(points), keep="final").path)
        size = np.sqrt(np.sum(direction**2) / np.prod(shape[:2]))  # sum om |delta|^2 = 1
        draws.append((rho.particles, points, end, direction / size))
    return Problems(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one[0] for one in draws]),
        *(np.stack([one[i] for one in draws]) for i in (1, 2, 3)),
    )


def grid_of(parameters: Parameters) -> mf.DepthGrid:
    """L equal layers."""
    return mf.DepthGrid.uniform(parameters.num_cells)


def take(tree: Any, index: Any) -> Any:
    """Entries of the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def axpy(factor: Any, increments: Any, start: Any) -> Any:
    """``start + factor * increments``."""
    return jax.tree.map(lambda x, k: x + factor * k, start, increments)


@partial(jax.jit, static_argnames="num_records")
def descend(grid, particles, points, targets, dt, scores, steps_per_record, *, num_records):
    """RK4 in training time for runs side by side: risks ``[B, K+1]`` and particles at records.

    ``scores [B]`` multiplies the velocity of A: 0 trains V alone.
    """

    def one(particles, points, targets, dt, scores):
        batch = mf.Batch(mf.TokenMeasure(points), targets)
        rho = mf.ParameterMeasure(particles, grid)

        def speed(theta):
            found = mf.conditional_gradient(FIELD, rho.with_particles(theta), LOSS, batch)
            return mf.AttentionAV(-scores * found.gradient.A, -found.gradient.V)

        def step(_, theta):
            def stage(carry, coefficients):
                slope, total = carry
                reach, share = coefficients
                slope = speed(axpy(reach * dt, slope, theta))
                return (slope, axpy(share, slope, total)), None

            nothing = jax.tree.map(jnp.zeros_like, theta)
            (_, mean), _ = jax.lax.scan(stage, (nothing, nothing), RUNGE_KUTTA)
            return axpy(dt, mean, theta)

        def record(theta, _):
            theta = jax.lax.fori_loop(0, steps_per_record, step, theta)
            return theta, (mf.risk(FIELD, rho.with_particles(theta), LOSS, batch), theta)

        first = mf.risk(FIELD, rho, LOSS, batch)
        _, (risks, path) = jax.lax.scan(record, particles, length=num_records)
        joined = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), particles, path)
        return jnp.append(first, risks), joined

    return jax.vmap(one)(particles, points, targets, dt, scores)


@partial(jax.jit, static_argnames="num_steps")
def attempt(grid, particles, points, targets, *, num_steps):
    """Adaptive steps for runs side by side: risk, time, length after each, ``[B, num_steps]``."""

    def one(particles, points, targets):
        rho = mf.ParameterMeasure(particles, grid)
        state = mf.init_training(
            FIELD,
            rho,
            LOSS,
            mf.Batch(mf.TokenMeasure(points), targets),
            stepper=mf.AdaptiveStep(initial=0.05, tolerance=0.3),
        )

        def step(state, _):
            state, info = mf.training_step(state)
            length = jnp.where(info.accepted, info.dt * jnp.sqrt(info.squared_norm), 0.0)
            return state, (state.value, state.time, length)

        _, (risks, times, lengths) = jax.lax.scan(step, state, length=num_steps)
        return risks, times, jnp.cumsum(lengths)

    return jax.vmap(one)(particles, points, targets)


@jax.jit
def scaled_factor(grid, particles, points):
    """``F Om^(1/2)`` of the whole map, ``[features, N n d]``; rows of A, then rows of V."""
    contexts = mf.TokenMeasure(points)
    rho, tokens = mf.ParameterMeasure(particles, grid), range(points.shape[1])
    factor = ntk.terminal_factor(FIELD, rho, contexts, tokens=tuple(tokens))
    return factor / jnp.sqrt(contexts.log_weights.size)


def eigensystem(grid, particles, points, scores: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of ``Om^(1/2) K Om^(1/2)``, falling, and vectors as rows; ``scores`` as above."""
    factor = np.asarray(scaled_factor(grid, particles, points))
    rows = factor if scores else factor[len(factor) // 2 :]
    _, singular, vectors = np.linalg.svd(rows, full_matrices=False)
    return singular**2, vectors


def kappa(parameters: Parameters, particles: mf.AttentionAV, points: np.ndarray) -> float:
    """The constant of the layers' V-parts at one measure (the targets do not enter)."""
    rho = mf.ParameterMeasure(particles, grid_of(parameters))
    batch = mf.Batch(mf.TokenMeasure(points), points)
    return ntk.convergence_constant(FIELD, rho, batch).kappa


def rates(parameters: Parameters) -> dict[str, np.ndarray]:
    """Log-risk, kappa and kernels along full training and along training of V alone."""
    draws, grid = problems(parameters, max(parameters.heads)), grid_of(parameters)
    num_seeds, num_records = parameters.num_seeds, parameters.num_records
    twice = take(draws, np.tile(np.arange(num_seeds), 2))
    scores = np.repeat([1.0, 0.0], num_seeds)
    spectra, shares = [], []
    for run, trains_scores in enumerate(scores):
        particles, points, _, direction = take(twice, run)
        values, vectors = eigensystem(grid, particles, points, trains_scores)
        spectra.append(values)
        shares.append((vectors @ direction.ravel()) ** 2 / np.sum(direction**2))
    spectra, shares = np.array(spectra), np.array(shares)
    horizons = np.tile(parameters.horizon / spectra[:num_seeds, -1], 2)
    steps = int(np.ceil(np.max(horizons * spectra[:, 0]) / num_records))  # lambda_max dt <= 1
    risks, path = descend(
        grid,
        twice.particles,
        twice.points,
        twice.ends + np.sqrt(2 * parameters.start_risk) * twice.directions,
        horizons / (steps * num_records),
        scores,
        steps,
        num_records=num_records,
    )
    times = np.outer(horizons, np.linspace(0, 1, num_records + 1))
    decays = np.exp(-2 * spectra[:, None] * times[..., None])  # [B, K+1, P d]
    predicted = parameters.start_risk * np.einsum("bkp,bp->bk", decays, shares)
    constants, least = np.zeros((2, *times.shape))
    for run, trains_scores in enumerate(scores):
        points = twice.points[run]
        for k in range(num_records + 1):
            here = take(take(path, run), k)
            constants[run, k] = kappa(parameters, here, points)
            least[run, k] = eigensystem(grid, here, points, trains_scores)[0][-1]
    arrays = {
        "time": times,
        "risk": np.asarray(risks),
        "predicted": predicted,
        "kappa": constants,
        "least": least,
    }
    return {name: one.reshape(2, num_seeds, num_records + 1) for name, one in arrays.items()}


def excited(parameters: Parameters) -> dict[str, np.ndarray]:
    """Rates of residuals along single eigenvectors of K_0, for several sizes eps."""
    draws, grid = problems(parameters, max(parameters.heads)), grid_of(parameters)
    num_pairs = parameters.num_contexts * parameters.num_tokens
    last = num_pairs * parameters.dim - 1
    chosen = np.round(np.linspace(0, last, parameters.num_eigenvalues)).astype(int)
    scales = parameters.largest_residual / 2.0 ** np.arange(NUM_SCALES)[::-1]
    values, residuals, largest = [], [], []
    for number in range(parameters.num_seeds):
        particles, points, _, _ = take(draws, number)
        spectrum, vectors = eigensystem(grid, particles, points)
        largest.append(spectrum[0])
        values.append(spectrum[chosen])
        residuals.append(vectors[chosen].reshape(-1, *points.shape) * np.sqrt(num_pairs))
    values, residuals = np.array(values), np.array(residuals)  # [S, J], [S, J, N, n, d]
    fewest = np.max(np.array(largest)[:, None] / values)
    steps = int(np.ceil(fewest / parameters.num_records))
    twice = take(draws, np.tile(np.arange(parameters.num_seeds), 2))  # the batch of `rates`
    measured = np.zeros((*values.shape, NUM_SCALES))
    for j in range(len(chosen)):
        horizons = np.tile(1 / values[:, j], 2)
        for pair in range(0, NUM_SCALES, 2):
            sizes = np.repeat(scales[pair : pair + 2], parameters.num_seeds)
            offsets = sizes[:, None, None, None] * np.tile(residuals[:, j], (2, 1, 1, 1))
            risks, _ = descend(
                grid,
                twice.particles,
                twice.points,
                twice.ends + offsets,
                horizons / (steps * parameters.num_records),
                np.ones(len(sizes)),
                steps,
                num_records=parameters.num_records,
            )
            fall = -np.log(np.asarray(risks)[:, -1] / np.asarray(risks)[:, 0]) / horizons
            measured[:, j, pair : pair + 2] = fall.reshape(2, -1).T
    return {"scales": scales, "eigenvalue": values, "rate": measured}


def radius(parameters: Parameters, particles, points, directions, start: float) -> float:
    """The largest of RADII at which kappa keeps half its start along all directions (bisected)."""
    kept = len(RADII)
    for direction in directions:
        sound, broken = 0, kept  # how many radii are known to do, and from which on none does
        while sound < broken:
            middle = (sound + broken) // 2
            moved = axpy(RADII[middle], direction, particles)
            if kappa(parameters, moved, points) >= start / 2:
                sound = middle + 1
            else:
                broken = middle
        kept = sound
    return RADII[kept - 1] if kept else 0.0


def unit_directions(parameters: Parameters, particles, points, ends, num: int, rng) -> list[Any]:
    """``num`` random and ``num`` gradient directions, of length 1 in the labelled distance."""
    rho = mf.ParameterMeasure(particles, grid_of(parameters))
    contexts = mf.TokenMeasure(points)
    found = []
    for _ in range(num):
        noise = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), particles)
        batch = mf.Batch(contexts, ends + rng.normal(size=ends.shape))
        slope = mf.conditional_gradient(FIELD, rho, LOSS, batch).gradient
        found += [noise, jax.tree.map(jnp.negative, slope)]
    zero = rho.with_particles(jax.tree.map(jnp.zeros_like, particles))
    return [
        axpy(1 / float(mf.labelled_distance(zero, rho.with_particles(one))) - 1, one, one)
        for one in found
    ]


def balls(parameters: Parameters, num_heads: int) -> dict[str, np.ndarray]:
    """kappa at the start, r, and the PL constant at random points of the ball, per draw."""
    draws = problems(parameters, num_heads)
    starts, radii, least = [], [], []
    share = -(-parameters.num_points // (parameters.num_seeds * len(parameters.heads)))
    for number in range(parameters.num_seeds):
        rng = np.random.default_rng([parameters.seed, number, num_heads])
        particles, points, ends, _ = take(draws, number)
        start = kappa(parameters, particles, points)
        directions = partial(unit_directions, parameters, particles, points, ends)
        r = radius(parameters, particles, points, directions(parameters.num_directions, rng), start)
        fresh = directions(-(-share // 2), rng)[:share]
        depths = r * rng.uniform(size=share) ** 0.25  # most of them near the sphere
        inside = [axpy(depth, one, particles) for depth, one in zip(depths, fresh, strict=True)]
        starts.append(start)
        radii.append(r)
        least.append([eigensystem(grid_of(parameters), one, points)[0][-1] for one in inside])
    return {"kappa": np.array(starts), "radius": np.array(radii), "least": np.array(least)}


def runs_of_map(parameters: Parameters, num_heads: int, duplicated: bool) -> dict[str, np.ndarray]:
    """Final over initial risk, time and length of all runs at M heads, ``[S, R]``."""
    draws = problems(parameters, num_heads, duplicated=duplicated)
    num_risks = len(parameters.risks)
    index = np.repeat(np.arange(parameters.num_seeds), num_risks)
    each = take(draws, index)
    sizes = np.sqrt(2 * np.tile(parameters.risks, parameters.num_seeds))[:, None, None, None]
    targets = each.ends + sizes * each.directions
    risks, times, lengths = (
        np.asarray(found)
        for found in attempt(
            grid_of(parameters),
            each.particles,
            each.points,
            targets,
            num_steps=parameters.num_gradients,
        )
    )
    start = np.tile(parameters.risks, parameters.num_seeds)
    reached = risks <= 0.01 * start[:, None]
    spread = np.sum((targets[:, 0] - targets[:, 1]) ** 2, axis=(1, 2)) / 4
    arrays = {
        "ratio": risks[:, -1] / start,
        "gradients": np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf),
        "time": times[:, -1],
        "length": lengths[:, -1],
        "floor": spread / (parameters.num_contexts * parameters.num_tokens) / start,
    }
    return {name: one.reshape(parameters.num_seeds, num_risks) for name, one in arrays.items()}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Rates, eigenvectors, balls, the map and its control."""
    mf.use_double()
    most = max(parameters.heads)
    parts = {
        "rates": lambda: rates(parameters),
        "excited": lambda: excited(parameters),
        "control": lambda: runs_of_map(parameters, most, True),
    }
    rate, single, control = directory.sweep(
        "parts", parts, lambda name: parts[name](), progress, key=str
    )
    success = directory.sweep(
        "map,M", parameters.heads, lambda num: runs_of_map(parameters, num, False), progress
    )
    ball = directory.sweep("ball,M", parameters.heads, lambda num: balls(parameters, num), progress)
    ball = {name: np.stack([one[name] for one in ball]) for name in ball[0]}  # [H, S, ...]
    success = {name: np.stack([one[name] for one in success]) for name in success[0]}  # [H, S, R]
    heads, risks = np.array(parameters.heads), np.array(parameters.risks)
    threshold = ball["kappa"] * ball["radius"] ** 2 / 4  # kappa_r r^2 / 2 with kappa_r = kappa/2
    directory.save("rates", **rate)
    directory.save("excited", **single)
    directory.save("map", heads=heads, risks=risks, threshold=threshold, **ball, **success)
    directory.save("control", risks=risks, **control)
    return [
        *claims_on_rates(parameters, rate, single),
        *claims_on_map(parameters, ball, success, threshold, control),
    ]


def claims_on_rates(parameters: Parameters, rate, single) -> list[mf.Claim]:
    """The rate from below, at late times, and along eigenvectors."""
    fall = -np.diff(np.log(rate["risk"]), axis=-1) / np.diff(rate["time"], axis=-1)
    guaranteed = 2 * np.minimum(rate["kappa"][..., 1:], rate["kappa"][..., :-1])
    foretold = -np.diff(np.log(rate["predicted"]), axis=-1) / np.diff(rate["time"], axis=-1)
    late = fall[..., -1] / (2 * rate["least"][..., -1])  # [2, S]
    gaps = np.abs(single["rate"] / (2 * single["eigenvalue"][..., None]) - 1)  # [S, J, E]
    slope = mf.fit_rate(single["scales"], np.sqrt(np.mean(gaps**2, axis=1)))
    advantage = fall[0, :, 0] / fall[1, :, 0]
    return [
        bound("least rate / 2 kappa(t), full training", "at least", 1.0, fall[0] / guaranteed[0]),
        bound("least rate / 2 kappa(t), V alone", "at least", 1.0, fall[1] / guaranteed[1]),
        mf.Claim.bound(
            "largest |rate / prediction from the spectrum - 1|, full",
            "at most",
            parameters.sharp_tolerance,
            np.abs(fall[0] / foretold[0] - 1).max(),
        ),
        mf.Claim.bound(
            "largest |rate / prediction from the spectrum - 1|, V alone",
            "at most",
            parameters.sharp_tolerance,
            np.abs(fall[1] / foretold[1] - 1).max(),
        ),
        mf.Claim.mean("late rate / 2 lambda_min(K_t), full", 1.0, late[0], parameters.tolerance),
        mf.Claim.mean("late rate / 2 lambda_min(K_t), V alone", 1.0, late[1], parameters.tolerance),
        bound("first rate, full / V alone: least", "at least", 1.0, advantage),
        mf.Claim(
            "residuals along eigenvectors: slope of |rate / 2 lambda_j - 1| in eps",
            1.0,
            slope.slope,
            slope.interval,
            slope.verdict(1.0, parameters.slope_tolerance),
        ),
    ]


def claims_on_map(parameters: Parameters, ball, success, threshold, control) -> list[mf.Claim]:
    """Below the threshold; in the ball; the duplicated context."""
    risks = np.array(parameters.risks)
    below = risks < threshold[..., None]  # [H, S, R]
    failed = np.isinf(success["gradients"])
    half = ball["kappa"][..., None] / 2
    used = success["length"] / np.sqrt(2 * risks / half)
    slow = success["ratio"] / np.exp(-2 * half * success["time"])
    floor = np.maximum(control["ratio"], 1e-300) / control["floor"]
    converged = ~np.isinf(control["gradients"])
    reachable = risks <= 1.0  # larger ones run out of gradients with or without a duplicate
    num = int(below.sum())
    words = f"{num} runs below the threshold"
    return [
        bound(f"{words}: at least", "at least", 1.0, np.array([num])),
        mf.Claim.bound(f"{words}: not converged", "exactly", 0, np.sum(failed & below)),
        bound(f"{words}: largest length / bound", "at most", 1.0, used[below]),
        bound(f"{words}: largest R(t) / (R(0) e^(-2 kappa_r t))", "at most", 1.0, slow[below]),
        bound(
            f"least lambda_min(K) / kappa_r at {ball['least'].size} points of the balls",
            "at least",
            1.0,
            ball["least"] / half,
        ),
        mf.Claim.bound("control (duplicate): converged runs", "exactly", 0, np.sum(converged)),
        mf.Claim.bound(
            "control (duplicate): largest |final risk / spread of the targets - 1|, R(0) <= 1",
            "at most",
            parameters.sharp_tolerance,
            np.abs(floor[:, reachable] - 1).max(),
        ),
    ]


def bound(quantity: str, relation: str, limit: float, values: np.ndarray) -> mf.Claim:
    """The worst of the values against a one-sided limit; nothing measured decides nothing."""
    if not np.size(values):
        return mf.Claim(quantity, f"{relation} {limit:g}", float("nan"), None, "undecided")
    worst = np.min(values) if relation == "at least" else np.max(values)
    return mf.Claim.bound(quantity, relation, limit, worst)


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
