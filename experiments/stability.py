"""Well-posedness made visible: small changes of tokens, heads or training steps stay small.

1. *Initial law.* Two clouds whose tokens are displaced by one length, ``W2(mu_0, mu_0') = eps``.
   By docs/theory.md 1.6 the flow map and the final law move by at most

       sup_a |x_a(1) - x_a'(1)| <= e^c eps,   c = int_0^1 int |V| (1 + 2 |A| R^2) drho ds,

   R the largest length on the two paths; ``W2(mu_1, mu_1')`` and the flow map at probes without
   mass are below that too. Lipschitz, and no better: slope 1 in eps.
2. *Heads.* Displaced and shuffled, at conditional distance d(rho, rho') = eps. With 1.6 (5),

       sup_a |x_a(1) - x_a'(1)| <= e^c ( int int (R^2 + |V|^2 R^6) drho ds )^(1/2) d(rho, rho'),

   slope 1 again. Euler's layers obey both bounds, since 1 + u <= e^u.
3. *Training time.* Explicit Euler steps of the conditional gradient flow reach their limit at
   order 1 in dt, Heun's steps at order 2. Both limits are the same: their distance is below the
   errors that Richardson's extrapolation states for them.
Negative control: attention without temperature (scores times 1e9), where a query half way between
two tokens takes one or the other. It is no Lipschitz field; the check of slope 1 must reject it.

Commands
    meanfield run stability --preset smoke --check     seconds on a CPU
    meanfield run stability --preset paper             a minute
    meanfield figures stability

Cost: O(R K L M n^2 d) for the flows, O(T/dt) gradients. Figure: figures/stability.py.
"""

from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf

CLAIM = "tokens, heads and training steps: Lipschitz with Groenwall's constant, slope 1 in each"
COST = "smoke 15 s, paper 1 min on a CPU core"
FIGURE = "stability"
HEADLINES = (
    "tokens: slope of W2 of the final laws",
    "heads: slope of W2 of the final laws",
    "training: order of Euler's steps in dt",
    "training: order of Heun's steps in dt",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
TRAINING = 3  # its random stream; those before it are the three disturbances'


@dataclass(frozen=True)
class Parameters:
    """What is disturbed, and by how much."""

    sizes: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001)
    """eps, distances between clouds and between ensembles."""
    num_replicates: int = 32
    """Draws of cloud, heads and displacement."""
    num_tokens: int = 12
    """n."""
    num_probes: int = 6
    """Points without mass at which the flow map is read."""
    num_heads: int = 16
    """M."""
    num_cells: int = 8
    """L."""
    score_scale: float = 0.5
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """Standard deviation of the entries of V."""
    num_steps: tuple[int, ...] = (8, 16, 32, 64)
    """Steps that one training time is cut into, each twice the one before."""
    training_time: float = 4.0
    """T."""
    num_problems: int = 5
    """Training problems; the intervals of the orders resample them."""
    expected_slope: float = 1.0
    """What theory says of every slope but Heun's."""
    tolerance: float = 0.06
    """Two-sided band around the slopes in eps."""
    order_tolerance: float = 0.15
    """The same around the orders in dt."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_replicates": 2, "num_problems": 2},
            multiple_of={"num_steps": self.num_steps[0]} if self.num_steps else None,
        )


@jax.jit
def flows(particles, points, log_weights):
    """Paths ``[B, L+1, n, d]`` of B clouds, each under its own heads ``[B, L, M, ...]``."""

    def one(pair):
        heads, cloud = pair
        rho = mf.ParameterMeasure(heads, mf.DepthGrid.uniform(heads.A.shape[0]))
        return mf.solve_flow(FIELD, rho, mf.TokenMeasure(cloud, log_weights)).path

    return jax.lax.map(one, (particles, points))


def draw_heads(parameters: Parameters, generator: np.random.Generator, num: int):
    """Heads ``[num, L, M, 2, 2]``."""
    shape = (2, num, parameters.num_cells, parameters.num_heads, 2, 2)
    score, value = generator.normal(size=shape)
    return mf.AttentionAV(parameters.score_scale * score, parameters.value_scale * value)


def growth(heads, radius: np.ndarray) -> np.ndarray:
    """c of each replicate, ``[B]``: the mean of ``|V| (1 + 2 |A| R^2)``, spectral norms."""
    score, value = (np.linalg.norm(leaf, ord=2, axis=(-2, -1)) for leaf in heads)
    return (value * (1 + 2 * score * radius[:, None, None] ** 2)).mean(axis=(1, 2))


def sensitivity(heads, radius: np.ndarray) -> np.ndarray:
    """``( int int (R^2 + |V|^2 R^6) drho ds )^(1/2)`` of each replicate, ``[B]``."""
    value = np.linalg.norm(heads.V, ord=2, axis=(-2, -1)) ** 2
    return np.sqrt((radius**2) + (value.mean(axis=(1, 2)) * radius**6))


def disturbed(parameters: Parameters, which: str, generator) -> dict[str, np.ndarray]:
    """Distances before and after, ``[R, K]``, and the quotient by Groenwall's bound."""
    num, sizes = parameters.num_replicates, np.array(parameters.sizes)
    count = parameters.num_tokens + parameters.num_probes
    cloud = generator.uniform(-1, 1, (num, count, 2))
    log_weights = np.where(np.arange(count) < parameters.num_tokens, 0.0, -np.inf)
    mass = slice(parameters.num_tokens)
    heads = draw_heads(parameters, generator, num)
    before = np.asarray(flows(heads, cloud, log_weights))
    if which == "tokens":
        angle = generator.uniform(0, 2 * np.pi, (num, parameters.num_tokens))
        shift = np.zeros_like(cloud)
        shift[:, mass] = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    else:
        directions = draw_heads(parameters, generator, num)
        square = sum((leaf**2).sum(axis=(-2, -1)).mean(axis=(1, 2)) for leaf in directions)
        unit = np.sqrt(square)[:, None, None, None, None]
        order = np.stack([generator.permutation(parameters.num_heads) for _ in range(num)])
    found = {
        name: np.zeros((num, len(sizes))) for name in ("start", "law", "map", "quotient", "bound")
    }
    for column, size in enumerate(sizes):
        other, points = heads, cloud
        if which == "tokens":
            points = cloud + size * shift
        else:
            other = jax.tree.map(lambda a, b, size=size: a + size * b / unit, heads, directions)
            other = jax.tree.map(
                lambda a: np.stack([a[r][:, o] for r, o in enumerate(order)]), other
            )
        after = np.asarray(flows(other, points, log_weights))
        radius = np.maximum(*(np.linalg.norm(p, axis=-1).max(axis=(1, 2)) for p in (before, after)))
        factor = np.exp(growth(heads, radius))
        if which == "heads":
            factor = factor * sensitivity(other, radius)
        for r in range(num):
            ends = [mf.TokenMeasure(path[r, -1, mass]) for path in (before, after)]
            if which == "tokens":
                pair = [mf.TokenMeasure(x[r, mass]) for x in (cloud, points)]
                start = mf.wasserstein2(*pair)
            else:
                grid = mf.DepthGrid.uniform(parameters.num_cells)
                pair = [
                    mf.ParameterMeasure(jax.tree.map(lambda leaf, r=r: leaf[r], one), grid)
                    for one in (heads, other)
                ]
                start = mf.conditional_wasserstein2(*pair)
            gaps = np.linalg.norm(after[r, -1] - before[r, -1], axis=-1)
            found["start"][r, column] = start
            found["law"][r, column] = mf.wasserstein2(*ends)
            found["map"][r, column] = gaps[parameters.num_tokens :].max()
            found["quotient"][r, column] = gaps.max() / (factor[r] * start)
            found["bound"][r, column] = factor[r] * start
    return found


def hardmax(parameters: Parameters, generator) -> dict[str, np.ndarray]:
    """The control ``[R, K]``: how far a query ends from its twin, displaced by eps over a tie."""
    num = parameters.num_replicates
    shape = (num, parameters.num_cells, parameters.num_heads, 2, 2)
    unit = np.broadcast_to(np.eye(2), shape)
    value = parameters.value_scale * np.ones((num, 1, 1, 1, 1)) * unit
    steep = mf.AttentionAV(1e9 * unit, value)
    log_weights = np.array([0.0, 0.0, -np.inf])
    height = generator.uniform(0.5, 1.5, num)

    def ends(offset: np.ndarray) -> np.ndarray:
        query = np.stack([offset, height], axis=-1)
        rows = [np.broadcast_to(row, (num, 2)) for row in ([1.0, 0.0], [-1.0, 0.0])]
        return np.asarray(flows(steep, np.stack([*rows, query], axis=1), log_weights))[:, -1, 2]

    apart = [ends(np.full(num, s / 2)) - ends(np.full(num, -s / 2)) for s in parameters.sizes]
    return {"control": np.stack([np.linalg.norm(gap, axis=-1) for gap in apart], axis=1)}


def train(parameters: Parameters, generator) -> dict[str, np.ndarray]:
    """Final heads of both schemes and Euler's risks ``[T, times]``, coarse to fine in dt."""
    cloud = generator.uniform(-1, 1, (2, 6, 2))
    batch = mf.Batch(mf.TokenMeasure(cloud), -cloud)
    scales = (parameters.score_scale, parameters.value_scale)
    heads = mf.AttentionAV(*(scale * generator.normal(size=(4, 8, 2, 2)) for scale in scales))
    rho = mf.ParameterMeasure(heads, mf.DepthGrid.uniform(4))

    def moved(heads, gradient, dt):
        return jax.tree.map(lambda a, g: a - dt * np.asarray(g), heads, gradient)

    def slope(heads):
        return mf.conditional_gradient(FIELD, rho.with_particles(heads), LOSS, batch).gradient

    found: dict[str, list] = {name: [] for name in ("euler", "heun", "risk")}
    for count in parameters.num_steps:
        dt = parameters.training_time / count
        state = mf.init_training(FIELD, rho, LOSS, batch, stepper=mf.EulerStep(dt))
        risks = [float(state.value)]
        for _ in range(count):
            state, _ = mf.training_step(state)
            risks.append(float(state.value))
        found["euler"].append(np.stack(state.rho.particles))
        # read at the same training times whatever dt
        found["risk"].append(risks[:: count // parameters.num_steps[0]])
        now = heads
        for _ in range(count):
            first = slope(now)
            second = slope(moved(now, first, dt))
            mean = jax.tree.map(lambda a, b: (np.asarray(a) + np.asarray(b)) / 2, first, second)
            now = moved(now, mean, dt)
        found["heun"].append(np.stack(now))
    return {name: np.stack(values) for name, values in found.items()}


def orders(cells: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Distances ``[P, T]`` from the common limit, and the gap between the two limits ``[P]``."""
    found: dict[str, list] = {name: [] for name in ("euler", "heun", "gap", "stated")}
    for cell in cells:
        limits = {
            name: mf.richardson(cell[name], order=order)
            for name, order in (("euler", 1), ("heun", 2))
        }
        size = np.sqrt(cell["heun"][0, 0].size / 4)  # L M: the metric is a mean over heads
        for name in ("euler", "heun"):
            gaps = cell[name] - limits["heun"].value
            found[name].append(np.sqrt((gaps**2).sum(axis=(1, 2, 3, 4, 5))) / size)
        gap = np.linalg.norm(limits["euler"].value - limits["heun"].value)
        found["gap"].append(gap / size)
        found["stated"].append((limits["euler"].error + limits["heun"].error) / size)
    return {name: np.stack(values) for name, values in found.items()}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Disturb tokens and heads, cut training time finer, fit slopes."""
    mf.use_double()
    parts = ("tokens", "heads", "control")

    def disturb(which: str) -> dict[str, np.ndarray]:
        generator = np.random.default_rng([parameters.seed, parts.index(which)])
        if which == "control":
            return hardmax(parameters, generator)
        return disturbed(parameters, which, generator)

    found = directory.sweep("disturbed", parts, disturb, progress, key=str)
    tables = dict(zip(parts, found, strict=True))
    cells = directory.sweep(
        "problem",
        range(parameters.num_problems),
        lambda p: train(parameters, np.random.default_rng([parameters.seed, TRAINING, p])),
        progress,
    )
    trained = orders(cells)
    directory.save(
        "stability",
        sizes=np.array(parameters.sizes),
        control=tables["control"]["control"],
        **{f"{w}_{k}": v for w in ("tokens", "heads") for k, v in tables[w].items()},
    )
    directory.save(
        "training",
        dt=parameters.training_time / np.array(parameters.num_steps),
        time=np.linspace(0.0, parameters.training_time, parameters.num_steps[0] + 1),
        risk=cells[0]["risk"],
        **trained,
    )

    claims = []
    for which in ("tokens", "heads"):
        table = tables[which]
        worst = float(table["quotient"].max())
        claims.append(
            mf.Claim(
                f"{which}: largest distance over Groenwall's bound",
                "at most 1",
                worst,
                None,
                "consistent" if worst <= 1 else "inconsistent",
            )
        )
        for name, words in (("law", "W2 of the final laws"), ("map", "flow map at probes")):
            # the distances at the start are eps up to rounding and rearrangement
            rate = mf.fit_rate(table["start"].mean(axis=0), table[name])
            verdict = rate.verdict(parameters.expected_slope, parameters.tolerance)
            claims.append(
                mf.Claim(
                    f"{which}: slope of {words}",
                    parameters.expected_slope,
                    rate.slope,
                    rate.interval,
                    verdict,
                )
            )
    dt = parameters.training_time / np.array(parameters.num_steps)
    for name, expected in (("euler", parameters.expected_slope), ("heun", 2.0)):
        rate = mf.fit_rate(dt, trained[name])
        verdict = rate.verdict(expected, parameters.order_tolerance, min_r_squared=0.999)
        claims.append(
            mf.Claim(
                f"training: order of {name.title()}'s steps in dt",
                expected,
                rate.slope,
                rate.interval,
                verdict,
            )
        )
    agreement = float((trained["gap"] / trained["stated"]).max())
    rejected = mf.fit_rate(parameters.sizes, tables["control"]["control"])
    verdict = rejected.verdict(parameters.expected_slope, parameters.tolerance)
    return [
        *claims,
        mf.Claim(
            "training: distance of the two schemes' limits over their stated errors",
            "at most 1",
            agreement,
            None,
            "consistent" if agreement <= 1 else "inconsistent",
        ),
        mf.Claim(
            "control (attention without temperature): slope in eps",
            f"any slope but {parameters.expected_slope:g}",
            rejected.slope,
            rejected.interval,
            "consistent" if verdict == "inconsistent" else "inconsistent",
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
