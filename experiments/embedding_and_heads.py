"""Width and heads grow together: what stays deterministic, and what does not.

The joint growth of the embedding dimension d and the number of heads M is an open problem of arXiv
2605.17660. Here for layers of new heads each, A_ij ~ N(0, a^2), V = v0 I + v N(0, 1) entrywise, and
n tokens whose Gram matrix G does not depend on d:

    x_a <- x_a + ds (v0 m_a + xi_a),   m_a = (1/M) sum_j m_{A_j}(x_a),   ds = 1/L,
    xi_a = (v/M) sum_j N_j m_{A_j}(x_a).

Scores <x_a, A x_b> are Gaussian with covariance a^2 G G, whatever d. So P, the softmax of one head,
has a law that only G decides, with mean Pi(G). The noise xi has d coordinates of variance
(v^2/M) E (P G P^T): its length does not vanish, its direction is arbitrary. For large d, M

    G <- G + ds v0 (Pi G + G Pi^T) + ds^2 (v0^2 Pi G Pi^T + v^2 (d/M) E P G P^T),          (*)

up to fluctuations M^(-1/2) and (d/M) d^(-1/2): a closed recursion for the Gram matrix, with d/M as
the one parameter (reconstruction, docs/theory.md 6.15).

* d/M fixed. Tokens do not converge (slope 0 in d); their Gram matrix does, to (*) and not to the
  mean-field limit, and so does the V-kernel (1/M) sum_j <m_a, m_b>: both at d^(-1/2).
* d^2/M fixed. d/M = O(1/d): tokens converge to the mean field at d^(-1/2), Gram matrix and kernel
  at M^(-1/2) ~ d^(-1).
Negative control: at fixed d/M the Gram matrix of the mean field, (*) without its last term, is not
the limit; the check of slope -1/2 must reject it.

Commands
    meanfield run embedding_and_heads --preset smoke --check     seconds on a CPU
    meanfield run embedding_and_heads --preset paper             two minutes
    meanfield figures embedding_and_heads

Cost: O(R L M d^2), mostly random numbers. Figure: figures/embedding_and_heads.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf

CLAIM = "d and M together: at fixed d/M Gram matrix and kernel stay deterministic, tokens do not"
COST = "smoke 15 s, paper 4 min on a CPU core"
FIGURE = "embedding_and_heads"
HEADLINES = (
    "d/M fixed, tokens against the mean field: slope in d",
    "d/M fixed, Gram matrix against its recursion: slope in d",
    "d/M fixed, V-kernel of the first layer against its mean (a CLT in M): slope in d",
)

FIELD = mf.SoftmaxAttention("av")
FAMILIES = {  # M as a function of d, slopes of tokens and of Gram matrix and kernel
    "d/M": (lambda dim, ratio: ratio * dim, 0.0, -0.5),
    "d^2/M": (lambda dim, ratio: ratio * dim**2 // 4, -0.5, -1.0),
}


@dataclass(frozen=True)
class Parameters:
    """What the sweep is made of."""

    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """d where d/M is fixed."""
    square_sizes: tuple[int, ...] = (4, 8, 16, 32)
    """d where d^2/M is fixed."""
    ratio: int = 1
    """M is ratio d in one family, ratio d^2/4 in the other."""
    num_replicates: int = 128
    """Draws of all heads."""
    num_tokens: int = 3
    """n, at most the least d."""
    num_cells: int = 4
    """L."""
    num_samples: int = 100_000
    """Gaussian score matrices for each step of the limits."""
    score_scale: float = 1.5
    """a."""
    value_mean: float = 1.0
    """v0."""
    value_scale: float = 2.0
    """v."""
    tolerance: float = 0.15
    """Two-sided band around the slopes."""
    expected_shift: float = 0.0
    """Added to every expected slope."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={
                "num_replicates": 2,
                "sizes": self.num_tokens,
                "square_sizes": self.num_tokens,
                "num_samples": 1000,
            },
            multiple_of={"square_sizes": 2},
        )


@jax.jit
def layer(x, score, value):
    """Tokens ``[n, d]`` after one layer of length ``ds``, folded into V; mean Gram ``[n, n]``."""
    mu = mf.TokenMeasure(x)
    heads = mf.AttentionAV(score, value)
    moved = x + mf.velocity(FIELD, heads, x, mu)
    # with V = I attention returns its own mean
    unit = jnp.broadcast_to(jnp.eye(x.shape[1]), value.shape)
    means = jax.vmap(lambda head: FIELD(head, x, mu))(mf.AttentionAV(score, unit))
    return moved, jnp.einsum("jad,jbd->ab", means, means) / len(score)


def network(points: np.ndarray, num_heads: int, parameters: Parameters, generator) -> tuple:
    """Final tokens ``[n, d]`` and the first layer's kernel ``[n, n]`` under new heads."""
    dim, step = points.shape[1], 1 / parameters.num_cells
    unit, first, now = np.eye(dim), None, points
    for _ in range(parameters.num_cells):
        score, value = generator.normal(size=(2, num_heads, dim, dim))
        score *= parameters.score_scale
        value *= step * parameters.value_scale
        value += step * parameters.value_mean * unit
        now, kernel = layer(now, score, value)
        first = kernel if first is None else first
    return np.asarray(now), np.asarray(first)


def attention(gram: np.ndarray, parameters: Parameters, generator) -> np.ndarray:
    """Softmax matrices ``[samples, n, n]`` of Gaussian scores with covariance ``a^2 G G``."""
    values, vectors = np.linalg.eigh(gram)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shape = (parameters.num_samples, *gram.shape)
    scores = parameters.score_scale * (root @ generator.normal(size=shape) @ root)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def limits(gram: np.ndarray, noise: float, parameters: Parameters) -> dict[str, np.ndarray]:
    """The recursion (*) with ``v^2 d/M = noise``, mean-field tokens and the first kernel."""
    generator = np.random.default_rng([parameters.seed, 1])
    step, drift = 1 / parameters.num_cells, parameters.value_mean
    flow = np.eye(len(gram))  # tokens of the mean field are rows of flow @ x(0)
    kernel = None
    for _ in range(parameters.num_cells):
        drawn = attention(gram, parameters, generator)
        mean = drawn.mean(axis=0)
        square = np.einsum("sab,bc,sdc->ad", drawn, gram, drawn, optimize=True) / len(drawn)
        kernel = square if kernel is None else kernel
        along = mean @ gram
        gram = gram + step * drift * (along + along.T)
        gram = gram + step**2 * (drift**2 * along @ mean.T + noise * square)
        flow = flow + step * drift * mean @ flow
    assert kernel is not None
    return {"gram": gram, "flow": flow, "kernel": kernel}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep d in both families, fit slopes."""
    mf.use_double()
    num = parameters.num_tokens
    generator = np.random.default_rng([parameters.seed, 0])
    corner = generator.normal(size=(num, num)) / np.sqrt(num)
    start = corner @ corner.T
    plain = directory.cached("meanfield", lambda: limits(start, 0.0, parameters))

    def cell(job: tuple[int, int]) -> dict[str, np.ndarray]:
        index, dim = job
        num_heads = list(FAMILIES.values())[index][0](dim, parameters.ratio)
        noise = parameters.value_scale**2 * dim / num_heads
        limit = limits(start, noise, parameters)
        points = np.zeros((num, dim))
        points[:, :num] = corner
        generator = np.random.default_rng([parameters.seed, 2 + index, dim])
        drawn = [
            network(points, num_heads, parameters, generator)
            for _ in range(parameters.num_replicates)
        ]
        ends, kernels = (np.stack(column) for column in zip(*drawn, strict=True))
        grams = ends @ ends.swapaxes(1, 2)
        moved = plain["flow"] @ points
        size = np.linalg.norm(limit["gram"] - start)

        def far(values: np.ndarray, target: np.ndarray, unit: float) -> np.ndarray:
            return np.linalg.norm((values - target).reshape(len(values), -1), axis=1) / unit

        return {
            "tokens": far(ends, moved, float(np.linalg.norm(moved - points))),
            "gram": far(grams, limit["gram"], float(size)),
            "kernel": far(kernels, limit["kernel"], float(np.linalg.norm(limit["kernel"]))),
            "control": far(grams, plain["gram"], float(size)),
        }

    sweeps = {"d/M": parameters.sizes, "d^2/M": parameters.square_sizes}
    table = {
        name: directory.sweep(
            f"{name}, d",
            [(index, dim) for dim in sweeps[name]],
            cell,
            progress,
            key=lambda job: f"family={job[0]},d={job[1]}",
        )
        for index, name in enumerate(FAMILIES)
    }
    errors = {
        f"{index}_{key}": np.stack([cell[key] for cell in table[name]], axis=1)
        for index, name in enumerate(FAMILIES)
        for key in ("tokens", "gram", "kernel", "control")
    }
    for index, name in enumerate(FAMILIES):
        errors[f"{index}_sizes"] = np.array(sweeps[name])
        heads = [FAMILIES[name][0](dim, parameters.ratio) for dim in sweeps[name]]
        errors[f"{index}_heads"] = np.array(heads)
    directory.save("errors", **errors)

    claims = []
    for index, (name, (_, tokens, grams)) in enumerate(FAMILIES.items()):
        for key, words, slope in (
            ("tokens", "tokens against the mean field", tokens),
            ("gram", "Gram matrix against its recursion", grams),
            ("kernel", "V-kernel of the first layer against its mean (a CLT in M)", grams),
        ):
            expected = slope + parameters.expected_shift
            rate = mf.fit_rate(sweeps[name], errors[f"{index}_{key}"])
            verdict = rate.verdict(expected, parameters.tolerance)
            claims.append(
                mf.Claim(
                    f"{name} fixed, {words}: slope in d",
                    expected,
                    rate.slope,
                    rate.interval,
                    verdict,
                )
            )
    rate = mf.fit_rate(parameters.sizes, errors["0_control"])
    rejected = rate.verdict(-0.5 + parameters.expected_shift, parameters.tolerance)
    return [
        *claims,
        mf.Claim(
            "control (d/M fixed, Gram matrix of the mean field): slope in d",
            "any slope but -0.5",
            rate.slope,
            rate.interval,
            "consistent" if rejected == "inconsistent" else "inconsistent",
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
