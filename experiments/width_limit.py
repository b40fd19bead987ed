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
the limit moves. Negative control: M copies of four heads, exchangeable but not independent: the
check that accepts the claim must reject its slope.

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

import meanfield as mf

CLAIM = "tokens, momenta and trained heads reach the mean-field limit at rate M^(-1/2)"
COST = "smoke 0.5 min, paper 5 min on a CPU core; memory below 1 GB"
FIGURE = "width_limit"

TOKENS, HEADS, DRAWS, TIED = range(4)  # names of the random streams
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

    def sweep(index: int, num_heads: int) -> dict[str, np.ndarray]:
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

    table = []  # [K, R, 4]
    for index, num_heads in enumerate(progress.task(parameters.sizes, "heads M")):
        cell = directory.cached(f"M={num_heads}", lambda i=index, m=num_heads: sweep(i, m))
        table.append(cell["errors"])
    names = ("tokens", "momenta", "heads", "control")
    errors = {name: np.stack(table)[..., i].T for i, name in enumerate(names)}
    directory.save("errors", sizes=np.array(parameters.sizes), **errors)

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
    return claims


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
