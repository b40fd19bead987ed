"""A finite transformer trained by plain SGD follows the mean-field flow.

Claim. An ordinary stack of L layers of M heads with the multiplier 1/(L M), trained by SGD on the
loss as automatic differentiation sees it, takes the steps of the conditional gradient flow if its
learning rate is L M dt (docs/theory.md 4.5):

    theta <- theta - (L M dt) dR/dtheta    is    theta <- theta - dt G(s_k, theta),

to rounding. So its distance from the flow at a training time t is, with one cause at a time,

    steps      O(dt)         full batches,
    noise      O(dt^(1/2))   minibatches: a martingale of variance O(dt),
    layers     O(1/L)        the same heads in all layers at the start,
    heads      O(M^(-1/2))   M heads drawn with replacement in each layer from the limit's.

The transformer never calls the flow's engine, nor the reverse. Distances are labelled: the same
heads, trained by the transformer and by the flow, and tokens of a context not trained on; no
transport between independent ensembles. References: Runge-Kutta steps of order 4 in training time;
Heun's scheme on a grid of many cells; the ensemble from which the M heads are drawn, trained in the
same steps.
Negative control: SGD at the rate L dt. A step then is one of dt/M in training time: as M grows the
heads stay where they began, and the gap becomes all that the flow travels.

Commands
    meanfield run finite_transformer --preset smoke --check     15 seconds on a CPU
    meanfield run finite_transformer --preset paper             three minutes
    meanfield figures finite_transformer

Cost: O(N L M n^2 d) for each gradient and run, widths padded to the largest M by copies of heads.
Figure: figures/finite_transformer.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf

CLAIM = "SGD at rate L M dt on an ordinary multi-head stack follows the flow: dt, 1/L, M^(-1/2)"
COST = "smoke 15 s, paper 3 min on a CPU core; memory below 1 GB"
FIGURE = "finite_transformer"
HEADLINES = (
    "SGD against Euler's steps of the flow, largest relative difference",
    "heads at the end, full batches: slope in dt",
    "heads at the end, minibatches: slope in dt",
    "heads at the end, slope in L",
    "heads at the end, slope in M",
)

LOSS = mf.SquaredLoss()
# Shifts and weights of explicit steps in training time; Euler also in the shape of order 4.
EULER = ((0.0,), (1.0,))
EULER_PADDED = ((0.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
CLASSIC = ((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6))
TOKENS, HEADS, DRAWS, TIME, NOISE, DEPTH = range(6)  # names of the random streams
FINER = 4  # layers of the reference in depth, in units of the deepest stack
FINER_STEPS = 4  # of fourth order between two records


@dataclass(frozen=True)
class Parameters:
    """The sweeps and the training."""

    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """M, divisors of the largest."""
    num_reference: int = 64
    """Heads per layer of the ensemble that is the limit of M drawn from it."""
    time_steps: tuple[int, ...] = (16, 32, 64, 128)
    """Steps of SGD in the training time, full batches."""
    noise_steps: tuple[int, ...] = (32, 64, 128, 256)
    """The same with minibatches."""
    depths: tuple[int, ...] = (2, 4, 8, 16)
    """L."""
    num_replicates: int = 256
    """Draws of the heads for each M; the risk is one number for each draw."""
    num_time_draws: int = 64
    """Draws of the heads and of the minibatches in the sweeps over steps."""
    num_depth_draws: int = 16
    """Draws of the heads in the sweep over L."""
    chunk: int = 16
    """Draws trained side by side."""
    num_contexts: int = 3
    """N, contexts."""
    num_tokens: int = 4
    """n, tokens in each."""
    dim: int = 2
    """d."""
    head_dim: int = 2
    """k."""
    num_layers: int = 2
    """L of the sweeps over M and steps."""
    num_heads: int = 8
    """M of the sweeps over L and steps."""
    minibatch: int = 1
    """Contexts in a minibatch."""
    training_time: float = 4.0
    """t at the end."""
    num_steps: int = 8
    """Steps of SGD in the sweeps over M and L."""
    num_records: int = 4
    """Records along the training."""
    score_scale: float = 1.0
    """Standard deviation of the entries of Q and K."""
    value_scale: float = 0.5
    """Standard deviation of the entries of V, half of its variance shared with Q^T K."""
    expected_slope: float = -0.5
    """What theory says in M."""
    expected_noise: float = 0.5
    """What theory says in dt for minibatches."""
    tolerance: float = 0.06
    """Two-sided band around these two."""
    expected_depth: float = -1.0
    """What theory says in L."""
    expected_time: float = 1.0
    """What theory says in dt for full batches."""
    order_tolerance: float = 0.15
    """Two-sided band around these two."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={
                "num_reference": 8,  # heads drawn from one are that one: gaps of rounding only
                "num_replicates": 2,
                "num_time_draws": 2,
                "num_depth_draws": 2,
                "num_contexts": 2,
            },
            at_most={"depths": 128, "minibatch": self.num_contexts - 1},
        )
        records, most = self.num_records, max(self.sizes)
        for name in ("sizes", "time_steps", "noise_steps", "depths"):
            given = getattr(self, name)
            if list(given) != sorted(given):  # the last is the largest, in claims and figure
                flag = f"--{name.replace('_', '-')} {' '.join(map(str, given))}"
                raise mf.MeanfieldError(flag, "sizes from small to large", "sort them")
        for flag, wrong, wanted, mend in (
            (
                "--sizes",
                [m for m in self.sizes if most % m],
                f"divisors of the largest, {most}",
                "pass --sizes 8 16 32 64",
            ),
            (
                "--chunk",
                [self.chunk]
                * any(n % self.chunk for n in (self.num_replicates, self.num_time_draws)),
                f"a divisor of --num-replicates {self.num_replicates} and"
                f" --num-time-draws {self.num_time_draws}",
                "pass --chunk 1",
            ),
            (
                "--num-records",
                [records]
                * any(n % records for n in (self.num_steps, *self.time_steps, *self.noise_steps)),
                "a divisor of all numbers of steps",
                "pass --num-records 1",
            ),
            (
                "--depths",
                [n for n in self.depths if max(self.depths) % n],
                f"divisors of the largest, {max(self.depths)}",
                "pass --depths 4 8 16 32",
            ),
        ):
            if wrong:
                raise mf.MeanfieldError(f"{flag} {' '.join(map(str, wrong))}", wanted, mend)

    @property
    def field(self) -> mf.SoftmaxAttention:
        """The velocity field of one head."""
        return mf.SoftmaxAttention("qkv", head_dim=self.head_dim)

    def stream(self, *names: int) -> np.random.Generator:
        """A random stream of its own for every name."""
        return np.random.default_rng([self.seed, *names])


class Course(NamedTuple):
    """Runs side by side: risks ``[B, K+1]`` and heads, leaves ``[B, K+1, L, M, ...]``."""

    risk: np.ndarray
    heads: mf.AttentionQKV


def draw(parameters: Parameters, rng, *axes: int) -> mf.AttentionQKV:
    """Heads ``[*axes, ...]`` with V = (Q^T K scaled + noise) / sqrt(2), so that the limit moves."""
    k, d = parameters.head_dim, parameters.dim
    query, key = parameters.score_scale * rng.normal(size=(2, *axes, k, d))
    shared = np.einsum("...ki,...kj->...ij", query, key) / (parameters.score_scale**2 * k**0.5)
    value = parameters.value_scale * (shared + rng.normal(size=(*axes, d, d))) / 2**0.5
    return mf.AttentionQKV(query, key, value)


def task(parameters: Parameters) -> tuple[mf.Batch, mf.TokenMeasure]:
    """Cubes and mixtures in turn, whose tokens are to change sign; a context not trained on."""
    rng, shape = parameters.stream(TOKENS), (parameters.num_tokens, parameters.dim)
    clouds = []
    for number in range(parameters.num_contexts + 1):
        side = rng.choice([-0.6, 0.6], size=(shape[0], 1))
        mixture = side + 0.2**0.5 * rng.normal(size=shape)
        clouds.append(mixture if number % 2 else rng.uniform(-1, 1, size=shape))
    contexts = mf.TokenMeasure(np.stack(clouds[:-1]))
    return mf.Batch(contexts, -contexts.points), mf.TokenMeasure(clouds[-1])


def sgd(parameters: Parameters, heads, batch, num_steps: int, *, factor=1.0, keys=None) -> Course:
    """The transformers with these heads ``[B, L, M, ...]``, trained at ``factor`` times L M dt."""
    dt = parameters.training_time / num_steps

    def one(heads, key):
        net = mf.models.Transformer(*heads)
        found = mf.models.fit(
            net,
            batch,
            num_steps,
            learning_rate=factor * net.learning_rate(dt),
            minibatch=None if key is None else parameters.minibatch,
            key=key,
            num_records=parameters.num_records,
        )
        nets = found.models
        return found.loss, mf.AttentionQKV(nets.query, nets.key, nets.value)

    heads = jax.tree.map(jnp.asarray, heads)
    # records first, as `fit` has them: moved by numpy, which compiles nothing
    found = jax.vmap(one, in_axes=(0, None if keys is None else 0), out_axes=1)(heads, keys)
    return Course(*jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf), 1, 0), found))


@partial(jax.jit, static_argnames=("field", "scheme", "num_records"))
def flow(field, scheme, heads, batch, tableau, dt, steps, *, num_records):
    """The conditional gradient flow by explicit steps in training time, runs side by side."""
    grid = mf.DepthGrid.uniform(heads.Q.shape[1])

    def one(heads):
        rho = mf.ParameterMeasure(heads, grid)

        def stage(carry, row):
            theta, slope, total = carry
            shift, weight = row
            there = jax.tree.map(lambda x, v: x + dt * shift * v, theta, slope)
            found = mf.conditional_gradient(
                field, rho.with_particles(there), LOSS, batch, scheme=scheme
            )
            slope = jax.tree.map(jnp.negative, found.gradient)
            total = jax.tree.map(lambda x, v: x + dt * weight * v, total, slope)
            return (theta, slope, total), found.value

        def step(_, carry):
            theta = carry[0]
            still = jax.tree.map(jnp.zeros_like, theta)
            (_, _, new), values = jax.lax.scan(stage, (theta, still, theta), tableau)
            return new, theta, values[0]  # where the step begins, and the risk there

        def record(carry, number):
            done = jnp.maximum((number - 1) * steps + 1, 0)
            carry = jax.lax.fori_loop(done, number * steps + 1, step, carry)
            return carry, (carry[2], carry[1])

        start = (heads, heads, jnp.zeros_like(heads.Q, shape=()))
        return jax.lax.scan(record, start, jnp.arange(num_records + 1))[1]

    return jax.vmap(one)(heads)


@jax.jit
def outputs(heads, mu):
    """The tokens of ``mu`` after the stacks with heads ``[..., L, M, ...]``."""

    def one(heads):
        net = mf.models.Transformer(*heads)
        return net(mu.points, mu.log_weights)

    return jax.vmap(jax.vmap(one))(heads)


def distances(path, other) -> np.ndarray:
    """Labelled distances at the records, ``[B, K+1]``, on a uniform grid of [0, 1]."""
    squares = [
        np.sum((a - b) ** 2, axis=(-2, -1)).mean(axis=(-2, -1))
        for a, b in zip(path, other, strict=True)
    ]
    return np.sqrt(sum(squares))


def in_the_limit(parameters: Parameters, batch, held_out) -> dict[str, np.ndarray]:
    """The ensemble that stands for the limit, in the sweep's own steps of training time.

    By SGD, which takes the flow's steps (`in_time` measures that); as often as there are draws side
    by side, in the program that trains those.
    """
    size = 1, parameters.num_layers, parameters.num_reference
    heads = draw(parameters, parameters.stream(HEADS), *size)
    heads = jax.tree.map(lambda leaf: np.repeat(leaf, parameters.chunk, axis=0), heads)
    found = sgd(parameters, heads, batch, parameters.num_steps)
    output = np.asarray(outputs(found.heads, held_out))
    return {"output": output[0], **jax.tree.map(lambda leaf: leaf[0], joined([found]))}


def crowd(parameters: Parameters, limit, batch, held_out, num_heads: int) -> dict[str, np.ndarray]:
    """Gaps of all draws of M heads and of the control, ``[R, K+1]``."""
    most, num_layers = max(parameters.sizes), parameters.num_layers
    layers = np.arange(num_layers)[:, None]
    path = mf.AttentionQKV(limit["Q"], limit["K"], limit["V"])
    rng = parameters.stream(DRAWS, num_heads)
    rows: dict[str, list[np.ndarray]] = {n: [] for n in ("heads", "risk", "output", "control")}
    for number in range(parameters.num_replicates // parameters.chunk):
        shape = (parameters.chunk, num_layers, num_heads)
        index = rng.integers(parameters.num_reference, size=shape)
        index = np.tile(index, most // num_heads)  # copies of all heads: the same function
        # the path of the very same heads in the crowd of the reference, [B, K+1, L, M, ...]
        limited = jax.tree.map(lambda leaf: np.moveaxis(leaf[:, layers, index], 1, 0), path)  # noqa: B023
        start = jax.tree.map(lambda leaf: leaf[:, 0], limited)
        found = sgd(parameters, start, batch, parameters.num_steps)
        gaps = np.asarray(outputs(found.heads, held_out)) - limit["output"]
        rows["heads"].append(distances(found.heads, limited))
        rows["risk"].append(np.abs(found.risk - limit["risk"]))
        rows["output"].append(np.sqrt(np.mean(np.sum(gaps**2, axis=-1), axis=-1)))
        if number == 0:  # one chunk tells the control; copies share a rate, so 1/M and not 1/most
            still = sgd(parameters, start, batch, parameters.num_steps, factor=1 / num_heads)
            rows["control"].append(distances(still.heads, limited))
    return {name: np.concatenate(some) for name, some in rows.items()}


def in_time(parameters: Parameters, batch) -> dict[str, np.ndarray]:
    """The flow by Runge-Kutta steps in training time; its Euler steps against SGD's."""
    courses = []
    size = parameters.chunk, parameters.num_layers, parameters.num_heads
    for number in range(parameters.num_time_draws // parameters.chunk):
        heads = draw(parameters, parameters.stream(TIME, number), *size)
        steps = parameters.num_records * FINER_STEPS
        dt = parameters.training_time / steps
        courses.append(follow(parameters, heads, batch, mf.Euler(), CLASSIC, dt, steps))
    steps = parameters.num_steps
    dt = parameters.training_time / steps
    flowed = follow(parameters, heads, batch, mf.Euler(), EULER_PADDED, dt, steps)
    trained = sgd(parameters, heads, batch, steps)
    pairs = zip(jax.tree.leaves(trained), jax.tree.leaves(flowed), strict=True)
    gaps = np.array([np.abs(a - b).max() / np.abs(b).max() for a, b in pairs])
    return {"difference": gaps, **joined(courses)}


def follow(parameters: Parameters, heads, batch, scheme, tableau, dt, num_steps: int) -> Course:
    """`flow` at the records."""
    risks, path = flow(
        parameters.field,
        scheme,
        jax.tree.map(jnp.asarray, heads),
        batch,
        tuple(map(jnp.asarray, tableau)),
        dt,
        num_steps // parameters.num_records,
        num_records=parameters.num_records,
    )
    return Course(np.asarray(risks), jax.tree.map(np.asarray, path))


def joined(courses: list[Course]) -> dict[str, np.ndarray]:
    """The arrays of courses one after another."""
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *courses)
    return {"risk": whole.risk, **whole.heads._asdict()}


def stepping(parameters: Parameters, flowed, batch, num_steps: int, noise: bool):
    """Gaps of SGD in so many steps from the flow, ``[R, K+1]``."""
    path = mf.AttentionQKV(flowed["Q"], flowed["K"], flowed["V"])
    rows: dict[str, list[np.ndarray]] = {"heads": [], "risk": []}
    for number in range(parameters.num_time_draws // parameters.chunk):
        some = slice(number * parameters.chunk, (number + 1) * parameters.chunk)
        limited = jax.tree.map(lambda leaf: leaf[some], path)  # noqa: B023
        start = jax.tree.map(lambda leaf: leaf[:, 0], limited)
        keys = None
        if noise:
            seeds = parameters.stream(NOISE, num_steps, number).integers(2**32, size=len(start.Q))
            keys = jax.vmap(jax.random.key)(seeds)
        found = sgd(parameters, start, batch, num_steps, keys=keys)
        rows["heads"].append(distances(found.heads, limited))
        rows["risk"].append(np.abs(found.risk - flowed["risk"][some]))
    return {name: np.concatenate(some) for name, some in rows.items()}


def in_layers(parameters: Parameters, num_layers: int) -> mf.AttentionQKV:
    """The same heads in all layers, several draws."""
    size = parameters.num_depth_draws, 1, parameters.num_heads
    heads = draw(parameters, parameters.stream(DEPTH), *size)
    return jax.tree.map(lambda leaf: np.repeat(leaf, num_layers, axis=1), heads)


def deepest(parameters: Parameters, batch) -> dict[str, np.ndarray]:
    """The same steps in training time of a flow with many cells and Heun's scheme in depth."""
    heads = in_layers(parameters, FINER * max(parameters.depths))
    dt = parameters.training_time / parameters.num_steps
    heun = mf.Heun()
    return joined([follow(parameters, heads, batch, heun, EULER, dt, parameters.num_steps)])


def layering(parameters: Parameters, reference, batch, num_layers: int) -> dict[str, np.ndarray]:
    """Gaps of L layers from the reference, whose cells are finer, ``[D, K+1]``."""
    found = sgd(parameters, in_layers(parameters, num_layers), batch, parameters.num_steps)
    fine = mf.AttentionQKV(reference["Q"], reference["K"], reference["V"])
    factor = FINER * max(parameters.depths) // num_layers
    path = jax.tree.map(lambda leaf: np.repeat(leaf, factor, axis=2), found.heads)
    risk = np.abs(found.risk - reference["risk"])
    return {"heads": distances(path, fine), "risk": risk}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """One sweep for each cause of a gap; store the gaps and fit slopes."""
    mf.use_double()
    batch, held_out = task(parameters)
    limit = directory.cached("limit", lambda: in_the_limit(parameters, batch, held_out))
    flowed = directory.cached("flow", lambda: in_time(parameters, batch))
    reference = directory.cached("depth", lambda: deepest(parameters, batch))
    sweeps = {
        "M": (parameters.sizes, lambda m: crowd(parameters, limit, batch, held_out, m)),
        "steps": (parameters.time_steps, lambda n: stepping(parameters, flowed, batch, n, False)),
        "noise": (parameters.noise_steps, lambda n: stepping(parameters, flowed, batch, n, True)),
        "L": (parameters.depths, lambda n: layering(parameters, reference, batch, n)),
    }
    found = {}
    for name, (values, compute) in sweeps.items():
        cells = directory.sweep(name, values, compute, progress)
        sizes = np.array(values, float)
        if name in ("steps", "noise"):
            sizes = parameters.training_time / sizes
        arrays = {kind: np.stack([cell[kind] for cell in cells], axis=1) for kind in cells[0]}
        found[name] = {"sizes": sizes, **arrays}  # [R, S, K+1]
        directory.save(name, **found[name])
    heads = mf.AttentionQKV(limit["Q"], limit["K"], limit["V"])
    travelled = distances(*(jax.tree.map(lambda x, k=k: x[k][None], heads) for k in (-1, 0)))
    directory.save(
        "limit",
        time=np.linspace(0, parameters.training_time, parameters.num_records + 1),
        risk=limit["risk"],
        travelled=travelled,
        difference=flowed["difference"],
    )
    return claims_of(parameters, found, limit["risk"], flowed["difference"], float(travelled[0]))


def claims_of(parameters: Parameters, found, risks, differences, travelled: float):
    """The identity; slopes at the end and along training; the control."""
    width, order = parameters.tolerance, parameters.order_tolerance
    causes = {
        "full batches: slope in dt": ("steps", parameters.expected_time, order),
        "minibatches: slope in dt": ("noise", parameters.expected_noise, width),
        "slope in L": ("L", parameters.expected_depth, order),
        "slope in M": ("M", parameters.expected_slope, width),
    }

    def slope(quantity, gaps, cause):
        name, expected, tolerance = causes[cause]
        rate = mf.fit_rate(found[name]["sizes"], gaps)
        verdict = rate.verdict(expected, tolerance)
        return mf.Claim(quantity.format(cause), expected, rate.slope, rate.interval, verdict)

    claims = [
        mf.Claim.bound(
            "SGD against Euler's steps of the flow, largest relative difference",
            "below",
            1e-12,
            differences.max(),
        )
    ]
    for cause, (name, expected, _) in causes.items():
        gaps = np.moveaxis(found[name]["heads"][..., 1:], -1, 0)
        along = [slope("heads at the record farthest from it, {}", some, cause) for some in gaps]
        claims.append(slope("heads at the end, {}", gaps[-1], cause))
        claims.append(max(along, key=lambda claim: abs(claim.measured - expected)))  # noqa: B023
        if name != "noise":  # fluctuations of the risk are small against what dt does to it
            largest = found[name]["risk"].max(axis=-1)
            claims.append(slope("largest gap of the risk, {}", largest, cause))
    crowds = found["M"]
    output = crowds["output"][..., -1]
    claims.append(slope("outputs in a context not trained on, {}", output, "slope in M"))
    fallen = risks[-1] / risks[0]
    claims.append(mf.Claim.bound("risk of the limit, end / start", "below", 0.5, fallen))
    control = mf.fit_rate(crowds["sizes"], crowds["control"][..., -1])
    rejected = control.verdict(parameters.expected_slope, width) == "inconsistent"
    still = np.sqrt(np.mean(crowds["control"][:, -1, -1] ** 2)) / travelled
    return [
        *claims,
        mf.Claim(
            "control (rate without M): slope in M",
            "any other slope",
            control.slope,
            control.interval,
            "consistent" if rejected else "inconsistent",
        ),
        mf.Claim.bound(
            "control (rate without M): gap / way of the flow, largest M", "above", 0.9, still
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
