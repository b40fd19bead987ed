"""M -> infinity: a transformer with M heads per layer tends to its mean-field limit at M^(-1/2).

Claim. A reference parameter measure rho of very many heads per depth cell stands for the limit. M
heads drawn from it with replacement, anew in each cell, give rho_M, whose velocity field is an
unbiased mean over M draws:

    Phi_{rho_M}[mu](x) = (1/M) sum_j V_j m_{A_j}[mu](x),    E Phi_{rho_M} = Phi_rho.

So tokens, momenta q = dL/dx and, in training, the heads themselves stay within O(M^(-1/2)) of the
limit. All three are measured between *coupled* objects, never by W2 in high dimension: the same
token, the same momentum, and the same head trained in the crowd of M and in the crowd of all.

    error = ( E |u_M - u|^2 / |u - u_0|^2 )^(1/2),    slope -1/2 (docs/theory.md 6.13, 7.1)

with u_0 = initial tokens, 0 for momenta, initial heads. The heads have V correlated with A, so that
the limit moves.

Heads chosen well beat heads drawn at random. Where heads are a smooth function of few numbers, one
ensemble for all layers can be a randomised quasi-Monte Carlo rule (Owen-scrambled Sobol points, M a
power of two). Final tokens are a smooth function of means over heads, so its error falls faster:

    two parameters, A = a u R(t), V = v u (I + R(t)), R(t) a rotation:   slope below -1,
    all entries of A and V in the plane, Gaussian (8 parameters):        slope below -1/2,

where independent heads have -1/2 again. The limit of the first is a product quadrature, that of the
second a rule of 2^16 heads.

Negative control: M copies of four heads, exchangeable but not independent: the check that accepts
the claim must reject its slope.

Commands
    meanfield run width_limit --preset smoke --check     half a minute on a CPU
    meanfield run width_limit --preset paper             five minutes
    meanfield figures width_limit

Cost: O(N L M n^2 d) per replicate and size, a few gradients each; memory O(N L n d + L M d^2).
Figure: figures/width_limit.py.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

import meanfield as mf

CLAIM = "tokens, momenta and trained heads reach the mean-field limit at rate M^(-1/2)"
COST = "smoke 0.5 min, paper 5 min on a CPU core; memory below 1 GB"
FIGURE = "width_limit"
HEADLINES = (
    "tokens: slope in M",
    "heads: slope in M",
    "scrambled Sobol heads of 2 parameters: slope in M",
    "scrambled Sobol heads of 8 parameters: slope in M",
)

TOKENS, HEADS, DRAWS, TIED = range(4)  # names of the random streams
QUASI = {"smooth": 2, "gaussian": 8}  # parameters of a head
TIED_HEADS = 4


@dataclass(frozen=True)
class Parameters:
    """What the sweep is made of."""

    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """M, heads per layer."""
    num_reference: int = 2048
    """Heads per layer of the limit."""
    num_replicates: int = 32
    """Independent draws of rho_M for each M; the slope's interval resamples them."""
    num_tokens: int = 16
    """n, tokens in each of the two contexts."""
    dim: int = 4
    """d, width of the tokens."""
    num_cells: int = 4
    """L, layers (Euler)."""
    score_scale: float = 1.0
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """Standard deviation of the entries of V, half of its variance shared with A."""
    num_steps: int = 4
    """Steps of the conditional gradient flow after which heads are compared."""
    training_dt: float = 0.5
    """Length of a step in training time."""
    expected_slope: float = -0.5
    """What theory says."""
    tolerance: float = 0.06
    """Two-sided band around it."""
    quasi_layers: int = 4
    """L of the comparison with quasi-Monte Carlo."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(self, at_least={"num_replicates": 2})


def reference_heads(parameters: Parameters, key: jax.Array) -> mf.ParameterMeasure:
    """The measure that stands for the limit: heads (A, V) with V = (A scaled + noise)/sqrt(2)."""

    def law(key, shapes, num):
        heads = mf.EntrywiseGaussian(A=parameters.score_scale, V=1.0)(key, shapes, num)
        shared = heads.A / parameters.score_scale
        return mf.AttentionAV(heads.A, parameters.value_scale * (shared + heads.V) / 2**0.5)

    return mf.sample_parameters(
        mf.SoftmaxAttention("av"),
        law,
        mf.DepthGrid.uniform(parameters.num_cells),
        parameters.num_reference,
        dim=parameters.dim,
        key=key,
    )


def task(parameters: Parameters, key: jax.Array) -> mf.Batch:
    """Two contexts, a cube and a mixture of two Gaussians; every token is to end at a sign flip."""
    dim, num = parameters.dim, parameters.num_tokens
    mixture = mf.two_component_mixture(np.full(dim, 0.6), 0.2 * np.eye(dim))
    laws = [mf.Cube(1.0, dim), mixture]
    keys = jax.random.split(key, len(laws))
    clouds = [law.tokens(num, key=one) for law, one in zip(laws, keys, strict=True)]
    contexts = mf.stack_contexts(clouds)
    return mf.Batch(contexts, -contexts.points)


def train(rho: mf.ParameterMeasure, batch: mf.Batch, parameters: Parameters) -> mf.ParameterMeasure:
    """The heads after ``num_steps`` explicit Euler steps of the conditional gradient flow."""
    state = mf.init_training(
        mf.SoftmaxAttention("av"),
        rho,
        mf.SquaredLoss(),
        batch,
        stepper=mf.EulerStep(parameters.training_dt),
    )
    for _ in range(parameters.num_steps):
        state, _ = mf.training_step(state)
    return state.rho


def with_heads(rho: mf.ParameterMeasure, index: np.ndarray) -> mf.ParameterMeasure:
    """The heads at ``index [M]`` of each cell; an index may occur again."""
    return mf.ParameterMeasure(jax.tree.map(lambda leaf: leaf[:, index], rho.particles), rho.grid)


def heads_of(family: str, uniforms: np.ndarray, parameters: Parameters) -> mf.AttentionAV:
    """Heads ``[M, 2, 2]`` from points ``[M, q]`` of the unit cube."""
    if family == "gaussian":
        normal = ndtri(uniforms).reshape(-1, 2, 2, 2)
        score, value = parameters.score_scale * normal[:, 0], normal[:, 1]
        shared = normal[:, 0]  # V correlated with A, as above
        return mf.AttentionAV(score, parameters.value_scale * (shared + value) / 2**0.5)
    length, angle = uniforms[:, 0, None, None], 2 * np.pi * uniforms[:, 1]
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(-1, 2, 2)
    scale, value = 2 * parameters.score_scale, parameters.value_scale
    return mf.AttentionAV(scale * length * turn, value * length * (np.eye(2) + turn))


def quasi_limit(family: str, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of a rule far finer than any M."""
    if family == "gaussian":
        engine = qmc.Sobol(QUASI[family], rng=np.random.default_rng([parameters.seed, 99]))
        return engine.random_base2(16), np.full(2**16, 2.0**-16)
    nodes, weights = np.polynomial.legendre.leggauss(32)
    turns = (np.arange(64) + 0.5) / 64
    length, angle = np.meshgrid((nodes + 1) / 2, turns, indexing="ij")
    points = np.stack([length.ravel(), angle.ravel()], axis=-1)
    return points, np.repeat(weights / 2, 64) / 64


def quasi_errors(parameters: Parameters) -> dict[str, np.ndarray]:
    """Relative errors ``[R, K]`` of final tokens under independent and under scrambled heads."""
    generator = np.random.default_rng([parameters.seed, TOKENS])
    cloud = generator.uniform(-1, 1, (parameters.num_tokens, 2))
    tokens, most = mf.TokenMeasure(cloud), max(parameters.sizes)
    layers = parameters.quasi_layers
    grid = mf.DepthGrid.uniform(layers)

    @jax.jit
    def end(heads: mf.AttentionAV, log_weights: jax.Array) -> jax.Array:
        same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (layers, *leaf.shape)), heads)
        rho = mf.ParameterMeasure(same, grid, jnp.broadcast_to(log_weights, (layers, len(heads.A))))
        return mf.solve_flow(mf.SoftmaxAttention("av"), rho, tokens, keep="final").path

    def padded(family: str, points: np.ndarray) -> np.ndarray:
        missing = most - len(points)  # heads without mass: one compilation serves every M
        points = np.concatenate([points, np.full((missing, points.shape[1]), 0.5)])
        log_weights = np.where(np.arange(most) < most - missing, 0.0, -np.inf)
        return np.asarray(end(heads_of(family, points, parameters), log_weights))

    found = {}
    for family, count in QUASI.items():
        points, weights = quasi_limit(family, parameters)
        limit = np.asarray(end(heads_of(family, points, parameters), np.log(weights)))
        moved = np.linalg.norm(limit - cloud)
        for rule in ("random", "sobol"):
            rows = []
            for replicate in range(parameters.num_replicates):
                stream = [parameters.seed, replicate, count, rule == "sobol"]
                draw = np.random.default_rng([int(number) for number in stream])
                row = []
                for num_heads in parameters.sizes:
                    if rule == "sobol":
                        power = int(np.ceil(np.log2(num_heads)))
                        chosen = qmc.Sobol(count, rng=draw).random_base2(power)[:num_heads]
                    else:
                        chosen = draw.random((num_heads, count))
                    row.append(np.linalg.norm(padded(family, chosen) - limit) / moved)
                rows.append(row)
            found[f"{family}_{rule}"] = np.array(rows)
    return found


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep M, store errors ``[R, K]`` of tokens, momenta, heads and the control, fit slopes."""
    mf.use_double()
    root = jax.random.key(parameters.seed)
    stream = [jax.random.fold_in(root, name) for name in range(4)]
    field, loss = mf.SoftmaxAttention("av"), mf.SquaredLoss()
    # a draw of M heads is a part of a draw of the most: one compilation serves every M
    subsample = jax.jit(partial(mf.subsample, num_particles=max(parameters.sizes)))
    batch = task(parameters, stream[TOKENS])
    rho = reference_heads(parameters, stream[HEADS])
    start = np.asarray(batch.contexts.points)

    def limits() -> dict[str, np.ndarray]:
        limit = mf.conditional_gradient(field, rho, loss, batch)
        trained = train(rho, batch, parameters).particles
        return {
            "tokens": limit.path[:, -1],
            "momenta": limit.momenta[:, 0],
            "A": trained.A,
            "V": trained.V,
        }

    limit = directory.cached("limit", limits)
    tokens, momenta = limit["tokens"], limit["momenta"]
    trained = rho.with_particles(mf.AttentionAV(jnp.asarray(limit["A"]), jnp.asarray(limit["V"])))
    moved = np.linalg.norm(tokens - start)
    travelled = mf.labelled_distance(rho, trained)

    def sweep(num_heads: int) -> dict[str, np.ndarray]:
        index = parameters.sizes.index(num_heads)
        rows, first = [], np.arange(num_heads)
        for replicate in range(parameters.num_replicates):
            draw, tie = (
                jax.random.fold_in(jax.random.fold_in(stream[name], index), replicate)
                for name in (DRAWS, TIED)
            )
            few = with_heads(subsample(rho, key=draw), first)
            found = mf.conditional_gradient(field, few, loss, batch)
            # the same key draws the same labels: these heads again, trained in the crowd of all
            followed = with_heads(subsample(trained, key=draw), first)
            tied = with_heads(subsample(rho, key=tie), first % TIED_HEADS)
            control = mf.conditional_gradient(field, tied, loss, batch).path[:, -1]
            rows.append(
                [
                    np.linalg.norm(found.path[:, -1] - tokens) / moved,
                    np.linalg.norm(found.momenta[:, 0] - momenta) / np.linalg.norm(momenta),
                    mf.labelled_distance(train(few, batch, parameters), followed) / travelled,
                    np.linalg.norm(control - tokens) / moved,
                ]
            )
        return {"errors": np.array(rows, float)}

    cells = directory.sweep("M", parameters.sizes, sweep, progress)
    table = [cell["errors"] for cell in cells]  # [K, R, 4]
    names = ("tokens", "momenta", "heads", "control")
    errors = {name: np.stack(table)[..., i].T for i, name in enumerate(names)}
    quasi = directory.cached("quasi", lambda: quasi_errors(parameters))
    directory.save("errors", sizes=np.array(parameters.sizes), **errors, **quasi)

    claims = []
    for name in names:
        rate = mf.fit_rate(parameters.sizes, errors[name])
        verdict = rate.verdict(parameters.expected_slope, parameters.tolerance)
        if name == "control":
            verdict = "consistent" if verdict == "inconsistent" else "inconsistent"
            quantity, expected = "control (copies of four heads): slope", "any other slope"
        else:
            quantity, expected = f"{name}: slope in M", parameters.expected_slope
        claims.append(mf.Claim(quantity, expected, rate.slope, rate.interval, verdict))
    for name, errors_of in quasi.items():
        family, rule = name.split("_")
        rate = mf.fit_rate(parameters.sizes, errors_of)
        if rule == "random":
            expected: float | str = parameters.expected_slope
            verdict = rate.verdict(parameters.expected_slope, parameters.tolerance)
        else:
            bound = -1.0 if family == "smooth" else parameters.expected_slope
            expected = f"below {bound:g}"
            verdict = "consistent" if rate.interval[1] < bound else "inconsistent"
        words = {"random": "independent", "sobol": "scrambled Sobol"}[rule]
        claims.append(
            mf.Claim(
                f"{words} heads of {QUASI[family]} parameters: slope in M",
                expected,
                rate.slope,
                rate.interval,
                verdict,
            )
        )
    return claims


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
