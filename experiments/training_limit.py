"""Propagation of chaos in training: M heads train like M heads of the mean-field limit.

Claim. A reference ensemble of very many heads in each layer stands for the limit rho. M of them,
drawn with replacement anew in each layer, are trained in their own crowd; the same heads, trained
in the crowd of the reference, are what each of them would do in the limit (a head moves with
``-G(s, theta)``, which sees the crowd through the tokens' paths and momenta only). At every
training time t up to a fixed one (docs/theory.md 2.4, 4.1, 7.1)

    d_M(t) = ( sum_k ds_k (1/M) sum_j |theta_kj^M(t) - theta_kj(t)|^2 )^(1/2) = O(M^(-1/2)),
    |R(rho^M_t) - R(rho_t)| = O(M^(-1/2)).

d_M is the labelled distance. It bounds the conditional Wasserstein distance between the two crowds,
which is measured beside it; between *independent* ensembles W2 would show its own bias instead
(7.2). Consistency in depth: the same heads in every layer at the start, trained in L and in 2L
layers, differ by O(1/L), in heads and in risk (Euler).
Negative control: M copies of four heads, exchangeable but not independent: no such slope.

Commands
    meanfield run training_limit --preset smoke --check     20 seconds on a CPU
    meanfield run training_limit --preset paper             two minutes
    meanfield figures training_limit

Cost: O(N L M n^2 d) for each gradient and run, sizes padded to the largest M by copies of heads.
Figure: figures/training_limit.py.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf

CLAIM = "trained in a crowd of M, heads stay within M^(-1/2) of the mean-field flow; 1/L in depth"
COST = "smoke 20 s, paper 2 min on a CPU core; memory below 1 GB"
FIGURE = "training_limit"
HEADLINES = (
    "heads, end of training: slope in M",
    "risk, largest gap along training: slope in M",
    "heads, L and 2L layers: slope in L",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
TOKENS, HEADS, DRAWS, DEPTH = range(4)  # names of the random streams
TIED_HEADS = 4


@dataclass(frozen=True)
class Parameters:
    """The sweeps and the training."""

    sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    """M, divisors of the largest."""
    num_reference: int = 1024
    """Heads per layer of the limit."""
    num_replicates: int = 128
    """Draws for each M; the risk is one number for each draw, so its slope needs many."""
    chunk: int = 32
    """Draws trained side by side."""
    num_tokens: int = 8
    """n, tokens in each of the two contexts."""
    dim: int = 2
    """d."""
    num_cells: int = 4
    """L of the sweep in M."""
    score_scale: float = 1.0
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """Standard deviation of the entries of V, half of its variance shared with A."""
    num_steps: int = 8
    """Steps of the conditional gradient flow."""
    num_records: int = 4
    """Records along them."""
    training_dt: float = 0.5
    """Length of a step in training time."""
    depths: tuple[int, ...] = (8, 16, 32, 64)
    """L, compared with 2 L."""
    num_depth_draws: int = 5
    """Draws of the heads there."""
    num_depth_heads: int = 16
    """M there."""
    expected_slope: float = -0.5
    """What theory says in M."""
    tolerance: float = 0.06
    """Two-sided band around it."""
    expected_depth: float = -1.0
    """What theory says in L."""
    depth_tolerance: float = 0.15
    """Two-sided band around it."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_replicates": 2, "num_depth_draws": 2, "sizes": TIED_HEADS + 1},
            at_most={"depths": 512},
        )
        most = max(self.sizes)
        for flag, wrong, mend in (
            ("--sizes", [m for m in self.sizes if most % m], "pass --sizes 8 16 32 64"),
            ("--chunk", [self.chunk] * bool(self.num_replicates % self.chunk), "pass --chunk 1"),
            ("--num-records", [self.num_records] * bool(self.num_steps % self.num_records), ""),
        ):
            if wrong:
                wanted = {
                    "--sizes": f"divisors of the largest, {most}",
                    "--chunk": f"a divisor of --num-replicates {self.num_replicates}",
                    "--num-records": f"a divisor of --num-steps {self.num_steps}",
                }[flag]
                raise mf.MeanfieldError(
                    f"{flag} {' '.join(map(str, wrong))}", wanted, mend or "pass --num-records 1"
                )


def stream(parameters: Parameters, name: int) -> jax.Array:
    """The key of a random stream."""
    return jax.random.fold_in(jax.random.key(parameters.seed), name)


def heads(parameters: Parameters, num_cells: int, num: int, key, across_depth):
    """Heads (A, V) with V = (A scaled + noise)/sqrt(2), so that the limit moves."""

    def law(key, shapes, num):
        drawn = mf.EntrywiseGaussian(A=parameters.score_scale, V=1.0)(key, shapes, num)
        shared = drawn.A / parameters.score_scale
        return mf.AttentionAV(drawn.A, parameters.value_scale * (shared + drawn.V) / 2**0.5)

    grid = mf.DepthGrid.uniform(num_cells)
    return mf.sample_parameters(
        FIELD, law, grid, num, dim=parameters.dim, key=key, across_depth=across_depth
    )


def task(parameters: Parameters) -> mf.Batch:
    """Two contexts, a cube and a mixture of two Gaussians; every token is to end at a sign flip."""
    dim, num = parameters.dim, parameters.num_tokens
    mixture = mf.two_component_mixture(np.full(dim, 0.6), 0.2 * np.eye(dim))
    keys = jax.random.split(stream(parameters, TOKENS))
    laws = (mf.Cube(1.0, dim), mixture)
    clouds = [law.tokens(num, key=key) for law, key in zip(laws, keys, strict=True)]
    contexts = mf.stack_contexts(clouds)
    return mf.Batch(contexts, -contexts.points)


@partial(jax.jit, static_argnames=("num_records", "num_steps"))
def train(grid, particles, batch, dt, *, num_records, num_steps):
    """Explicit Euler in training time, runs side by side: risks ``[B, K+1]``, heads at records."""

    def one(particles):
        rho = mf.ParameterMeasure(particles, grid)

        def step(_, theta):
            found = mf.conditional_gradient(FIELD, rho.with_particles(theta), LOSS, batch)
            return jax.tree.map(lambda x, g: x - dt * g, theta, found.gradient)

        def record(theta, _):
            theta = jax.lax.fori_loop(0, num_steps // num_records, step, theta)
            return theta, (mf.risk(FIELD, rho.with_particles(theta), LOSS, batch), theta)

        first = mf.risk(FIELD, rho, LOSS, batch)
        _, (risks, path) = jax.lax.scan(record, particles, length=num_records)
        joined = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), particles, path)
        return jnp.append(first, risks), joined

    return jax.vmap(one)(particles)


def flow(parameters: Parameters, particles: mf.AttentionAV, batch: mf.Batch):
    """Risks and heads at the records, as arrays, of runs side by side."""
    risks, path = train(
        mf.DepthGrid.uniform(particles.A.shape[1]),
        particles,
        batch,
        parameters.training_dt,
        num_records=parameters.num_records,
        num_steps=parameters.num_steps,
    )
    return np.asarray(risks), jax.tree.map(np.asarray, path)


def distances(path, other) -> np.ndarray:
    """Labelled distances at the records, ``[B, K+1]``, on a uniform grid of [0, 1]."""
    squares = [
        np.sum((a - b) ** 2, axis=(-2, -1)).mean(axis=(-2, -1))
        for a, b in zip(path, other, strict=True)
    ]
    return np.sqrt(sum(squares))


def crowd(parameters: Parameters, reference, batch, num_heads: int) -> dict[str, np.ndarray]:
    """Distances and risks of all draws of M heads and of the control, ``[R, K+1]``."""
    risks, path = reference
    most, num_cells = max(parameters.sizes), parameters.num_cells
    cells = np.arange(num_cells)[:, None]
    rng = np.random.default_rng([parameters.seed, DRAWS, num_heads])
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("heads", "risk", "control")}
    optimal = np.nan
    for number in range(parameters.num_replicates // parameters.chunk):
        shape = (parameters.chunk, num_cells, num_heads)
        drawn = rng.integers(parameters.num_reference, size=shape)
        tied = np.tile(drawn[..., :TIED_HEADS], num_heads // TIED_HEADS)
        runs = [("heads", drawn), ("control", tied)]
        for name, index in runs[: 2 if number == 0 else 1]:  # one chunk tells the control
            index = np.tile(index, most // num_heads)  # copies of all heads: the same measure
            # the path of the very same heads in the crowd of the reference, [B, K+1, L, M, ...]
            limit = jax.tree.map(lambda leaf: np.moveaxis(leaf[:, cells, index], 1, 0), path)  # noqa: B023
            start = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, 0]), limit)
            found, trained = flow(parameters, start, batch)
            rows[name].append(distances(trained, limit))
            if name == "heads":
                rows["risk"].append(np.abs(found - risks))
                if np.isnan(optimal):
                    optimal = assigned(trained, limit, num_heads) / rows["heads"][0][0, -1]
    arrays = {name: np.concatenate(some) for name, some in rows.items()}
    return {**arrays, "assigned": np.array(optimal)}


def assigned(trained, limit, num_heads: int) -> float:
    """Conditional Wasserstein distance of the first run's crowds at the end, without the copies."""
    ends = [
        mf.AttentionAV(one.A[0, -1, :, :num_heads], one.V[0, -1, :, :num_heads])
        for one in (trained, limit)
    ]
    grid = mf.DepthGrid.uniform(ends[0].A.shape[0])
    crowds = [mf.ParameterMeasure(jax.tree.map(jnp.asarray, one), grid) for one in ends]
    return mf.conditional_wasserstein2(*crowds)


def in_layers(parameters: Parameters, batch, num_cells: int) -> dict[str, np.ndarray]:
    """Risks and heads of the same start in L layers, several draws."""
    keys = jax.random.split(stream(parameters, DEPTH), parameters.num_depth_draws)
    draws = [
        heads(parameters, num_cells, parameters.num_depth_heads, key, "constant").particles
        for key in keys
    ]
    start = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
    risks, path = flow(parameters, start, batch)
    return {"risk": risks, "A": path.A, "V": path.V}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Train the limit, the crowds, the depths; store distances and fit slopes."""
    mf.use_double()
    batch = task(parameters)
    key = stream(parameters, HEADS)
    rho = heads(parameters, parameters.num_cells, parameters.num_reference, key, "independent")

    def limit() -> dict[str, np.ndarray]:
        risks, path = flow(parameters, jax.tree.map(lambda leaf: leaf[None], rho.particles), batch)
        return {"risk": risks[0], "A": path.A[0], "V": path.V[0]}

    stored = directory.cached("limit", limit)
    reference = stored["risk"], mf.AttentionAV(stored["A"], stored["V"])
    compute = lambda num: crowd(parameters, reference, batch, num)  # noqa: E731
    table = directory.sweep("M", parameters.sizes, compute, progress)
    errors = {
        name: np.stack([cell[name] for cell in table], axis=1)
        for name in table[0]
        if name != "assigned"
    }  # [R, S, K+1]
    ratios = np.array([cell["assigned"] for cell in table])
    layers = sorted({*parameters.depths, *(2 * num for num in parameters.depths)})
    compute = lambda num: in_layers(parameters, batch, num)  # noqa: E731
    nets = dict(zip(layers, directory.sweep("L", layers, compute, progress), strict=True))
    depth = {"heads": [], "risk": []}
    for num in parameters.depths:
        few, many = nets[num], nets[2 * num]
        path = [np.repeat(few[name], 2, axis=2) for name in ("A", "V")]
        depth["heads"].append(distances(path, [many["A"], many["V"]]))
        depth["risk"].append(np.abs(few["risk"] - many["risk"]))
    depth = {name: np.stack(rows, axis=1) for name, rows in depth.items()}  # [D, S, K+1]
    steps = np.linspace(0, parameters.num_steps, parameters.num_records + 1)
    times = parameters.training_dt * steps
    directory.save(
        "crowds",
        sizes=np.array(parameters.sizes),
        time=times,
        limit_risk=stored["risk"],
        assigned=ratios,
        **errors,
    )
    directory.save("depth", sizes=np.array(parameters.depths), time=times, **depth)
    travelled = distances(
        [stored["A"][None], stored["V"][None]], [stored["A"][None, :1], stored["V"][None, :1]]
    )
    progress.note(f"heads of the limit travel {travelled[0, -1]:.3g}")
    return claims_of(parameters, errors, ratios, depth, stored["risk"])


def claims_of(parameters: Parameters, errors, ratios, depth, risks) -> list[mf.Claim]:
    """Slopes in M at the end and along training, the control, slopes in L."""
    sizes, band = parameters.sizes, (parameters.expected_slope, parameters.tolerance)

    def slope(quantity, found, numbers, expected, tolerance):
        rate = mf.fit_rate(numbers, found)
        verdict = rate.verdict(expected, tolerance)
        return mf.Claim(quantity, expected, rate.slope, rate.interval, verdict)

    along = [mf.fit_rate(sizes, errors["heads"][..., k]) for k in range(1, len(risks))]
    farthest = max(along, key=lambda rate: abs(rate.slope - band[0]))
    control = mf.fit_rate(sizes, errors["control"][..., -1])
    rejected = control.verdict(*band) == "inconsistent"
    in_depth = (parameters.depths, parameters.expected_depth, parameters.depth_tolerance)
    fallen = float(risks[-1] / risks[0])
    return [
        slope("heads, end of training: slope in M", errors["heads"][..., -1], sizes, *band),
        mf.Claim(
            "heads, record with the slope farthest from it: slope in M",
            band[0],
            farthest.slope,
            farthest.interval,
            farthest.verdict(*band),
        ),
        slope("risk, largest gap along training: slope in M", errors["risk"].max(-1), sizes, *band),
        mf.Claim(
            "conditional Wasserstein / labelled distance, largest over M",
            "at most 1 (to 1e-9)",
            float(ratios.max()),
            None,
            "consistent" if ratios.max() <= 1 + 1e-9 else "inconsistent",
        ),
        mf.Claim(
            "risk of the limit, end / start",
            "below 0.5: it trains",
            fallen,
            None,
            "consistent" if fallen < 0.5 else "inconsistent",
        ),
        slope("heads, L and 2L layers: slope in L", depth["heads"][..., -1], *in_depth),
        slope("risk, L and 2L layers: slope in L", depth["risk"].max(axis=-1), *in_depth),
        mf.Claim(
            "control (copies of four heads): slope in M",
            "any other slope",
            control.slope,
            control.interval,
            "consistent" if rejected else "inconsistent",
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
