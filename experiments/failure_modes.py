"""What training does where the kernel is not positive: three plateaus that can be foretold.

Claim. Where positivity fails, the flow stops at a positive risk that is known beforehand, or, where
only the kernel at the start is singular, leaves the plateau in a known way (docs/theory.md 3.2,
6.1, 6.8). All risks are (1/N) sum_i sum_q |x_iq(1) - y_iq|^2 / 2 at zero-mass queries.
Draws are such that the positive part of the kernel at the start is well conditioned, so that the
plateau is reached in the time there is.

1. Duplicates: one context twice, shared queries, different targets. Both copies end at one place,
   so the plateau is the *spread* ``(1/N) sum_q |y_1q - y_2q|^2 / 4``, for residuals of any size eps
   (lazy and rich), in one layer and in many.
2. A Gaussian context N(a, S) with a != 0, moved by its exact closure, at more than d + 1 queries.
   Heads act through an affine map x -> a(1) + G(1)(x - a), det G > 0, so the plateau is the
   residual of the best affine fit (drawn with a positive determinant). Controls: a = 0 keeps the
   mean at 0, and the plateau is the residual of the best *linear* fit; targets whose best fit
   turns orientation stay above ``affine residual + sigma^2/2``, sigma the least singular value of
   that fit: the infimum over maps with det G >= 0. Risks are those of `exact.gaussian_closure`.
3. Translates: mu and mu + b at shared queries x. At the first layer m[mu + b](x) = b + m[mu](x),
   so differences D_x of the two outputs are the same for all x, and the tangent kernel at V = 0
   has K - 1 null directions. In *one layer* that is so for every head: the plateau is the
   projection ``(1/N) sum_x |D_x - mean D|^2 / 4`` of the residual on the null space, for any eps.
   In several layers tokens move, and translation is no symmetry of the flow: at a fixed training
   time the kernel sees the null direction with weight O(eps^2). So the plateau holds for times
   up to 1/eps^2 (lazy), and is a saddle: rich training (eps of the size of the tokens) falls
   below it in every draw, at eps = 1 to a hundredth and less, further out more slowly.

Commands
    meanfield run failure_modes --preset smoke --check     20 seconds on a CPU
    meanfield run failure_modes --preset paper             a minute
    meanfield figures failure_modes

Cost: O(N L M n^2 d) for each gradient and run. Figure: figures/failure_modes.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf
from meanfield import exact, ntk

CLAIM = "without positivity training stops at foretold risks; depth may break a translation"
COST = "smoke 20 s, paper 1 min on a CPU core"
FIGURE = "failure_modes"
HEADLINES = (
    "duplicates, several layers: largest |final risk / spread - 1|",
    "translates, one layer: largest |final risk / projection - 1|",
    "translates, several layers, rich: largest final risk / projection",
    "Gaussian: final risk / affine residual",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
WORST_CONDITION = 50.0
DIM, SHIFT = 2, np.array([1.0, -0.6])
COVARIANCE = np.array([[0.5, 0.1], [0.1, 0.5]])
SUBSTEPS = 4  # RK4 steps of the closure in each layer
GAUSSIAN = ("mean", "centred", "reversed")  # a != 0; a = 0; a != 0 and a reversed orientation


@dataclass(frozen=True)
class Parameters:
    """The draws, the sizes of residuals, the length of training."""

    num_draws: int = 5
    """Draws of contexts, queries, heads and targets."""
    residuals: tuple[float, ...] = (0.01, 0.1, 1.0)
    """eps: root mean square of ``x(1) - y`` at the start, lazy to rich."""
    escape_residuals: tuple[float, ...] = (0.0025, 0.005, 0.01, 0.02)
    """eps at which the weight of the null direction is fitted."""
    escape_steps: int = 300
    """Euler steps of ``1/lambda_max`` after which it is read."""
    num_tokens: int = 4
    """n of the clouds."""
    num_queries: int = 3
    """K at the clouds."""
    num_cells: int = 4
    """L."""
    num_heads: int = 32
    """M."""
    num_gradients: int = 400
    """Gradients of each run at clouds."""
    num_gaussian_queries: int = 8
    """Queries of the Gaussian context, more than d + 1 = 3."""
    num_gaussian_heads: int = 16
    """M at the Gaussian context."""
    num_gaussian_gradients: int = 400
    """Gradients of its runs."""
    tolerance: float = 0.01
    """Band around 1 for plateau over prediction."""
    expected_slope: float = 2.0
    """What theory says of the weight of the null direction in eps."""
    slope_tolerance: float = 0.1
    """Two-sided band around it."""
    seed: int = 0
    """Seed of everything."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            num_sizes=3,
            at_least={
                "num_draws": 2,
                "num_queries": 2,
                "num_cells": 2,
                "num_gaussian_queries": 4,
                "num_gradients": 2,
            },
            at_most={"num_draws": 1000, "num_queries": 16, "num_tokens": 64, "num_cells": 64},
        )


def stack(trees: list[Any]) -> Any:
    """One leading axis over trees of equal shapes."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def adaptive(gradient_at, theta, metric, num_steps: int, tolerance: float = 0.3):
    """Monotone adaptive Euler steps of any gradient flow: the last theta and all risks."""

    def norm(tree):
        return jnp.sqrt(metric * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))

    def step(carry, _):
        theta, value, slope, dt = carry
        trial = jax.tree.map(lambda x, g: x - dt * g, theta, slope)
        new_value, new_slope = gradient_at(trial)
        error = 0.5 * norm(jax.tree.map(jnp.subtract, new_slope, slope)) / norm(slope)
        error = jnp.where(jnp.isfinite(error) & jnp.isfinite(new_value), error, jnp.inf)
        taken = (error <= tolerance) & (new_value <= value)
        factor = jnp.clip(0.9 * tolerance / jnp.maximum(error, 1e-12), 0.2, 1.5)
        factor = jnp.where(taken, factor, jnp.minimum(factor, 0.5))
        new, old = (trial, new_value, new_slope), (theta, value, slope)
        kept = jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)
        return (*kept, dt * factor), kept[1]

    value, slope = gradient_at(theta)
    (theta, *_), values = jax.lax.scan(step, (theta, value, slope, 0.05), length=num_steps)
    return theta, jnp.append(value, values)


# --- clouds: duplicates and translates ---


@dataclass(frozen=True)
class Clouds:
    """One draw: two contexts at shared queries, heads with V = 0, a unit residual.

    ``largest`` is the largest eigenvalue of the kernel at the start, loss weights included.
    """

    contexts: list[mf.TokenMeasure]
    queries: np.ndarray
    particles: mf.AttentionAV
    residual: np.ndarray
    largest: float

    def batch(self, eps: float) -> mf.Batch:
        """Targets at distance eps from the queries, where all outputs are at the start."""
        return mf.Batch.at_queries(self.contexts, self.queries, self.queries + eps * self.residual)

    def null_part(self, translated: bool) -> np.ndarray:
        """The residual's projection on the null space of the kernel at the start, ``[2, K, d]``."""
        difference = self.residual[1] - self.residual[0]
        if translated:
            difference = difference - difference.mean(axis=0)
        return np.stack([-difference, difference]) / 2


def clouds(parameters: Parameters, number: int, num_cells: int, translated: bool) -> Clouds:
    """Tokens in a cube, and again (shifted or not); A Gaussian, V = 0.

    Drawn again until the positive eigenvalues of the kernel at the start lie within a factor
    WORST_CONDITION of each other: the flow then reaches its plateau in the time there is.
    """
    rng = np.random.default_rng([parameters.seed, number, num_cells, translated])
    num_queries = parameters.num_queries
    num_positive = num_queries + 1 if translated else num_queries
    shape = (num_cells, parameters.num_heads, DIM, DIM)
    while True:
        points = rng.uniform(-1.5, 1.5, (parameters.num_tokens, DIM))
        queries = rng.normal(size=(num_queries, DIM))
        scores = 1.5 * rng.normal(size=shape)
        other = points + SHIFT if translated else points.copy()
        contexts = [mf.TokenMeasure(points), mf.TokenMeasure(other)]
        every = scores.reshape(-1, DIM, DIM)
        heads = mf.AttentionAV(jnp.asarray(every), jnp.zeros(every.shape))
        kernel = ntk.gram(ntk.factor(FIELD, heads, ntk.pairs_of(contexts, queries)))
        positive = np.linalg.eigvalsh(kernel)[-num_positive:]
        if positive[-1] <= WORST_CONDITION * positive[0]:
            break
    residual = rng.normal(size=(2, num_queries, DIM))
    return Clouds(
        contexts,
        queries,
        mf.AttentionAV(jnp.asarray(scores), jnp.zeros(shape)),
        residual / np.sqrt(np.mean(np.sum(residual**2, axis=-1))),
        float(positive[-1]) / 2,
    )


@partial(jax.jit, static_argnames="num_steps")
def train(grid, particles, batches, *, num_steps):
    """Runs side by side: all risks ``[B, T + 1]``."""

    def one(particles, batch):
        rho = mf.ParameterMeasure(particles, grid)

        def gradient_at(theta):
            found = mf.conditional_gradient(FIELD, rho.with_particles(theta), LOSS, batch)
            return found.value, found.gradient

        metric = grid.horizon / (rho.num_cells * rho.num_particles)
        return adaptive(gradient_at, particles, metric, num_steps)[1]

    return jax.vmap(one)(particles, batches)


@jax.jit
def weight_after(grid, particles, batches, directions, steps, num_steps):
    """``|F v|^2`` along unit directions v after Euler steps of equal length, ``[B]``."""

    def one(particles, batch, direction, dt):
        rho = mf.ParameterMeasure(particles, grid)

        def step(_, theta):
            found = mf.conditional_gradient(FIELD, rho.with_particles(theta), LOSS, batch)
            return jax.tree.map(lambda x, g: x - dt * g, theta, found.gradient)

        end = rho.with_particles(jax.lax.fori_loop(0, num_steps, step, particles))
        tokens = tuple(range(direction.shape[1]))
        factor = ntk.terminal_factor(FIELD, end, batch.contexts, tokens=tokens)
        return jnp.sum((factor @ direction.ravel()) ** 2) / direction.shape[0]

    return jax.vmap(one)(particles, batches, directions, steps)


def plateaus(parameters: Parameters, num_cells: int, translated: bool) -> dict[str, np.ndarray]:
    """Risks over the foretold plateau, ``[S, E, T + 1]``, and nullities per coordinate ``[S]``."""
    draws = [
        clouds(parameters, number, num_cells, translated) for number in range(parameters.num_draws)
    ]
    pairs = [(one, eps) for one in draws for eps in parameters.residuals]
    grid = mf.DepthGrid.uniform(num_cells)
    risks = train(
        grid,
        stack([one.particles for one, _ in pairs]),
        stack([one.batch(eps) for one, eps in pairs]),
        num_steps=parameters.num_gradients,
    )
    floors = [eps**2 * np.sum(one.null_part(translated) ** 2) / 4 for one, eps in pairs]
    ratio = np.asarray(risks) / np.array(floors)[:, None]
    nullity = [ntk.predicted_nullity(one.contexts, one.queries).nullity for one in draws]
    return {
        "ratio": ratio.reshape(len(draws), len(parameters.residuals), -1),
        "nullity": np.array(nullity),
    }


def escape(parameters: Parameters) -> dict[str, np.ndarray]:
    """Weight of the null direction of translates after a fixed training time, ``[S, E]``."""
    grid = mf.DepthGrid.uniform(parameters.num_cells)
    items, directions, steps = [], [], []
    for number in range(parameters.num_draws):
        one = clouds(parameters, number, parameters.num_cells, True)
        null = one.null_part(True)
        for eps in parameters.escape_residuals:
            items.append((one.particles, one.batch(eps)))
            directions.append(null / np.linalg.norm(null))
            steps.append(1 / one.largest)
    rows = weight_after(
        grid,
        stack([one for one, _ in items]),
        stack([one for _, one in items]),
        np.stack(directions),
        np.array(steps),
        parameters.escape_steps,
    )
    return {"weight": np.asarray(rows).reshape(parameters.num_draws, -1)}


# --- the Gaussian context and its closure ---


def closure(scores, values, mean, covariance):
    """Mean and linear map at depth 1 (RK4): da = (Vbar + B) a, dG = B G, B = int V S A^T drho."""
    num_cells, num_heads = scores.shape[:2]
    length = 1 / (num_cells * SUBSTEPS)
    couplings = jnp.einsum("kjac,kjbd->kacbd", values, scores) / num_heads

    def cell(state, heads):
        coupling, mean_value = heads

        def rate(state):
            drift = jnp.einsum("acbd,cd->ab", coupling, state[1] @ covariance @ state[1].T)
            return (mean_value + drift) @ state[0], drift @ state[1]

        def step(_, state):
            def moved(part, slope):
                return jax.tree.map(lambda x, k: x + part * length * k, state, slope)

            k1 = rate(state)
            k2 = rate(moved(0.5, k1))
            k3 = rate(moved(0.5, k2))
            k4 = rate(moved(1.0, k3))
            mixed = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
            return moved(1.0, mixed)

        return jax.lax.fori_loop(0, SUBSTEPS, step, state), None

    start = (mean, jnp.eye(len(mean)))
    return jax.lax.scan(cell, start, (couplings, values.mean(axis=1)))[0]


@partial(jax.jit, static_argnames="num_steps")
def train_closure(particles, means, queries, targets, *, num_steps):
    """Gradient flow of the heads through the closure, runs side by side."""

    def one(particles, mean, queries, targets):
        def risk(theta):
            end, linear = closure(theta.A, theta.V, mean, COVARIANCE)
            residual = end + (queries - mean) @ linear.T - targets
            return jnp.sum(residual**2) / 2

        num = particles.A.shape[0] * particles.A.shape[1]

        def gradient_at(theta):
            value, slope = jax.value_and_grad(risk)(theta)
            return value, jax.tree.map(lambda leaf: num * leaf, slope)

        return adaptive(gradient_at, particles, 1 / num, num_steps)

    return jax.vmap(one)(particles, means, queries, targets)


def least_squares(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
    """Coefficients and residual ``sum |features c - targets|^2 / 2``."""
    found = np.linalg.lstsq(features, targets, rcond=None)[0]
    return found, float(np.sum((features @ found - targets) ** 2) / 2)


def gaussian_draw(parameters: Parameters, number: int, kind: str) -> dict[str, np.ndarray]:
    """Queries, targets near an affine map of the wanted orientation, and the residuals of fits."""
    rng = np.random.default_rng([parameters.seed, number, len(kind)])
    num = parameters.num_gaussian_queries
    while True:
        queries = rng.normal(size=(num, DIM))
        linear = np.array([[1.2, 0.4], [-0.3, 0.9]]) + 0.2 * rng.normal(size=(DIM, DIM))
        linear = linear @ np.diag([1.0, -1.0]) if kind == "reversed" else linear
        targets = queries @ linear.T + 0.7 * rng.normal(size=DIM)
        targets = targets + 0.4 * rng.normal(size=(num, DIM))
        fit, affine = least_squares(np.column_stack([queries, np.ones(num)]), targets)
        straight, linear_residual = least_squares(queries, targets)
        used = straight if kind == "centred" else fit[:DIM]
        sign = -1 if kind == "reversed" else 1
        if sign * np.linalg.det(used) > 0.2:
            break
    centred = queries - queries.mean(axis=0)
    _, scales, axes = np.linalg.svd(centred, full_matrices=False)
    least = np.linalg.svd(fit[:DIM].T @ (axes.T * scales), compute_uv=False)[-1]
    foretold = {"mean": affine, "centred": linear_residual, "reversed": affine + least**2 / 2}
    shape = (parameters.num_cells, parameters.num_gaussian_heads, DIM, DIM)
    mean = rng.normal(size=DIM)
    return {
        "mean": (0.0 if kind == "centred" else 1.0) * mean,
        "queries": queries,
        "targets": targets,
        "affine": np.array(affine),
        "foretold": np.array(foretold[kind]),
        "scores": rng.normal(size=shape),
        "values": 0.5 * rng.normal(size=shape),
    }


def gaussian(parameters: Parameters, kind: str) -> dict[str, np.ndarray]:
    """Final risks by the exact closure, those along training, and the residuals of the fits."""
    draws = [gaussian_draw(parameters, number, kind) for number in range(parameters.num_draws)]
    joined = {name: np.stack([one[name] for one in draws]) for name in draws[0]}
    theta, risks = train_closure(
        mf.AttentionAV(joined["scores"], joined["values"]),
        joined["mean"],
        joined["queries"],
        joined["targets"],
        num_steps=parameters.num_gaussian_gradients,
    )
    finals = []
    for number, one in enumerate(draws):
        heads = jax.tree.map(lambda leaf: leaf[number], theta)  # noqa: B023 - used now
        rho = mf.ParameterMeasure(heads, mf.DepthGrid.uniform(parameters.num_cells))
        solved = exact.gaussian_closure(one["mean"], COVARIANCE, rho)
        ends = solved.flow_map(one["queries"])[-1]
        finals.append(np.sum((ends - one["targets"]) ** 2) / 2)
    return {
        "final": np.array(finals),
        "risk": np.asarray(risks),
        "affine": joined["affine"],
        "foretold": joined["foretold"],
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Train in all settings and compare plateaus with predictions."""
    mf.use_double()
    layers = (parameters.num_cells, 1)
    settings = [(name, num) for name in ("duplicates", "translates") for num in layers]
    found = directory.sweep(
        "layers",
        settings,
        lambda one: plateaus(parameters, one[1], one[0] == "translates"),
        progress,
        key=lambda one: f"{one[0]},L={one[1]}",
    )
    cells = {f"{name}_{num}": cell for (name, num), cell in zip(settings, found, strict=True)}
    weights = directory.cached("escape", lambda: escape(parameters))["weight"]
    compute = lambda kind: gaussian(parameters, kind)  # noqa: E731
    found = directory.sweep("Gaussian", GAUSSIAN, compute, progress, key="gaussian,{}".format)
    closed = dict(zip(GAUSSIAN, found, strict=True))
    residuals = np.array(parameters.residuals)
    deep = f"_{parameters.num_cells}"
    directory.save(
        "clouds",
        residuals=residuals,
        **{
            f"{name}_{size}": cells[f"{name}{key}"]["ratio"]
            for name in ("duplicates", "translates")
            for key, size in ((deep, "deep"), ("_1", "one"))
        },
    )
    sizes = np.array(parameters.escape_residuals)
    directory.save("escape", sizes=sizes, weight=weights)
    directory.save(
        "gaussian", **{f"{k}_{n}": values for k, one in closed.items() for n, values in one.items()}
    )
    return [
        *claims_on_clouds(parameters, cells, deep, sizes, weights),
        *claims_on_gaussian(parameters, closed),
    ]


def claims_on_clouds(parameters: Parameters, cells, deep, sizes, weights) -> list[mf.Claim]:
    """Duplicates, translates in one layer, translates in several."""
    tolerance = parameters.tolerance
    last = {name: one["ratio"][..., -1] for name, one in cells.items()}  # [S, E]
    lazy, rich = np.argmin(parameters.residuals), np.argmax(parameters.residuals)
    nullity = cells[f"translates{deep}"]["nullity"]
    rate = mf.fit_rate(sizes, weights, aggregate="geometric")
    verdict = rate.verdict(parameters.expected_slope, parameters.slope_tolerance)
    claims = [
        mf.Claim.bound(
            f"duplicates, {words}: largest |final risk / spread - 1|",
            "at most",
            tolerance,
            np.abs(last[name] - 1).max(),
        )
        for name, words in ((f"duplicates{deep}", "several layers"), ("duplicates_1", "one layer"))
    ]
    return [
        *claims,
        mf.Claim.bound(
            "translates, one layer: largest |final risk / projection - 1|",
            "at most",
            tolerance,
            np.abs(last["translates_1"] - 1).max(),
        ),
        mf.Claim(
            "translates: null directions of the kernel at the start (predicted), draws not K - 1",
            0.0,
            float(np.sum(nullity != parameters.num_queries - 1)),
            None,
            exact_verdict(nullity == parameters.num_queries - 1),
        ),
        mf.Claim.mean(
            "translates, several layers, lazy: final risk / projection",
            1.0,
            last[f"translates{deep}"][:, lazy],
            tolerance,
        ),
        mf.Claim(
            "translates, several layers, rich: largest final risk / projection",
            "below 1: depth breaks the translation",
            float(last[f"translates{deep}"][:, rich].max()),
            None,
            exact_verdict(last[f"translates{deep}"][:, rich] < 1),
        ),
        mf.Claim(
            "translates, several layers: slope in eps of the null direction's weight",
            parameters.expected_slope,
            rate.slope,
            rate.interval,
            verdict,
        ),
    ]


def claims_on_gaussian(parameters: Parameters, closed) -> list[mf.Claim]:
    """Affine, linear and reversed."""
    found = {kind: one["final"] / one["foretold"] for kind, one in closed.items()}
    above = {kind: one["final"] / one["affine"] for kind, one in closed.items()}
    reversed_floor = float(found["reversed"].min())
    least = float(min(above["centred"].min(), above["reversed"].min()))
    return [
        mf.Claim.mean(
            "Gaussian: final risk / affine residual", 1.0, found["mean"], parameters.tolerance
        ),
        mf.Claim.mean(
            "control (mean zero): final risk / linear residual",
            1.0,
            found["centred"],
            parameters.tolerance,
        ),
        mf.Claim(
            "control (reversed): least final risk / infimum over det >= 0",
            "at least 1 (to 1e-9)",
            reversed_floor,
            None,
            exact_verdict(found["reversed"] >= 1 - 1e-9),
        ),
        mf.Claim(
            "controls: least final risk / affine residual",
            f"above {1 + parameters.tolerance:g}",
            least,
            None,
            exact_verdict(np.array([least > 1 + parameters.tolerance])),
        ),
    ]


def exact_verdict(holds: np.ndarray) -> str:
    """Consistent if it holds throughout."""
    return "consistent" if np.all(holds) else "inconsistent"


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
