"""Causal attention: the flow, its adjoint, its tangent kernel and its training, by numbers.

Token a sees tokens 1 ... a only (`fields.Causal`). The theorems of arXiv 2605.17660 are for the
encoder; for causal attention they are its open problem. What can be said of one layer is this: the
feature of token a is attention against the *prefix law* of its context,

    phi_a(A, V) = V m_A[mu^(a)](x_a),    mu^(a) = (1/a) sum_(b <= a) delta_{x_b},

so the V-part of the tangent kernel is that of the prefix laws at their last tokens, a kernel of
docs/theory.md 3.1 with one law for each pair, and Theorem A counts its null directions (2.10, 3.9):

1. *Flow.* No token feels a later one; the first, alone with itself, obeys dx/ds = Vbar x (6.5).
2. *Adjoint.* The loss on token a gives no momentum to later tokens; the discrete adjoint is the
   gradient of the risk, and the continuous one differs from it by O(1/L).
3. *Kernel.* The whole map's kernel at V = 0 (backward flows through the causal field) equals the
   kernel of prefix laws. Its nullity is what Theorem A predicts: the first tokens are Diracs, so N
   contexts in general position have N - d null directions (N > d) where full attention has none.
   Without first tokens in the loss there are none. Contexts that share a prefix of k tokens lose
   k - 1 more: the shared pairs are equal.
4. *Training.* In the lazy regime (4.4) the residual follows r <- r - dt K Om r with either kernel.
   The causal risk cannot fall below the part of the targets that K does not see. (These runs end
   far above this floor, for the least positive eigenvalues are small.) In any regime the first
   tokens move by one linear map for all contexts, so the risk stays above that of the best such
   map. Which of the two attentions trains faster is not decided by this: prefix laws differ more
   from one another than whole ones, and far from its floor the causal risk may be the lower one.
Negative control: the kernel of full attention does not predict causal training.

Commands
    meanfield run causal --preset smoke --check     seconds on a CPU
    meanfield run causal --preset paper             a minute
    meanfield figures causal

Cost: O(R T N L M n^2 d) for training. Figure: figures/causal.py.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

import meanfield as mf
from meanfield import ntk

CLAIM = "causal attention: prefix laws give its kernel, N - d null directions, its training"
COST = "smoke 15 s, paper 1 min on a CPU core"
FIGURE = "causal"
HEADLINES = (
    "nullity: causal, all tokens (N - d)",
    "nullity: causal without first tokens",
    "nullity: full attention",
)

FULL = mf.SoftmaxAttention("av")
CAUSAL = mf.Causal(FULL)
FIELDS = {"causal": CAUSAL, "full": FULL}
LOSS = mf.SquaredLoss()
DIM = 2


@dataclass(frozen=True)
class Parameters:
    """What is simulated."""

    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """L, for the gap of the two adjoints."""
    num_contexts: int = 4
    """N, more than d = 2."""
    num_tokens: int = 4
    """n."""
    num_heads: int = 32
    """M."""
    num_cells: int = 2
    """L of training."""
    num_replicates: int = 5
    """Problems; intervals are over them."""
    score_scale: float = 1.5
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """The same of V, where it is not 0."""
    lazy_scale: float = 0.003
    """eps, distance of the lazy targets."""
    num_steps: int = 200
    """Steps of training."""
    dt: float = 2.0
    """Their length; the lazy prediction takes the same steps."""
    tolerance: float = 0.15
    """Two-sided band around the slope in L."""
    risk_tolerance: float = 0.03
    """Largest relative error of the lazy prediction of the risk."""
    expected_slope: float = -1.0
    """What theory says of the gap of the adjoints."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self, at_least={"num_replicates": 2, "num_contexts": 3, "num_tokens": 3}
        )


def draw(parameters: Parameters, generator, num_cells: int, value_scale: float):
    """Tokens ``[N, n, 2]`` and heads, one ensemble for all layers."""
    points = generator.uniform(-1, 1, (parameters.num_contexts, parameters.num_tokens, DIM))
    score, value = generator.normal(size=(2, parameters.num_heads, DIM, DIM))
    heads = mf.AttentionAV(parameters.score_scale * score, value_scale * value)
    shape = (num_cells, parameters.num_heads, DIM, DIM)
    heads = mf.AttentionAV(*(np.broadcast_to(leaf, shape) for leaf in heads))
    return points, mf.ParameterMeasure(heads, mf.DepthGrid.uniform(num_cells))


@partial(jax.jit, static_argnums=0)
def _gradients(method, heads, nodes, points, weights):
    """Gradient, momenta, path and risk of the causal field; cells beyond L have no length."""
    rho = mf.ParameterMeasure(heads, mf.DepthGrid(nodes))
    batch = mf.Batch(mf.TokenMeasure(points), -points, weights)
    found = mf.conditional_gradient(CAUSAL, rho, LOSS, batch, method=method)
    return found.gradient, found.momenta, found.path, found.value


def prefix_pairs(points: np.ndarray, first: int = 0) -> ntk.Pairs:
    """Each token of ``[N, n, d]`` from place ``first`` on, with the law of its prefix."""
    chosen = [(context, a) for context in points for a in range(first, len(context))]
    laws = ntk.as_laws([mf.TokenMeasure(context[: a + 1]) for context, a in chosen])
    queries = np.stack([context[a] for context, a in chosen])
    return ntk.Pairs(laws, np.arange(len(chosen)), queries)


def kernel_of(field: str, points: np.ndarray, heads, first: int = 0) -> ntk.Factor:
    """Factor of the scalar V-part of one layer, predicted from prefix laws or from whole ones."""
    if field == "causal":
        return ntk.factor(FULL, heads, prefix_pairs(points, first))
    return ntk.factor(FULL, heads, ntk.pairs_of(mf.TokenMeasure(points), "own"))


def flow_and_adjoint(parameters: Parameters, seed: int) -> dict[str, np.ndarray]:
    """Parts 1 and 2 for one problem."""
    generator = np.random.default_rng([parameters.seed, seed])
    deepest = max(parameters.sizes)
    points, rho = draw(parameters, generator, deepest, parameters.value_scale)
    heads, tokens = rho.particles, points.shape[1]
    everywhere = np.full(points.shape[:2], 1 / tokens)
    discrete = mf.DiscreteAdjoint()
    evaluate = partial(_gradients, discrete, heads, np.asarray(rho.grid.nodes))
    _, _, path, _ = evaluate(points, everywhere)
    moved = points.copy()
    moved[:, -1] += 0.5
    _, _, other, _ = evaluate(moved, everywhere)
    earlier = np.abs(np.asarray(other - path))[:, :, :-1].max()
    layer = np.eye(DIM) + np.asarray(heads.V[0]).mean(axis=0) / deepest
    first = points[:, 0] @ np.linalg.matrix_power(layer, deepest).T
    alone = np.abs(np.asarray(path)[:, -1, 0] - first).max()
    only = np.zeros_like(everywhere)
    only[:, tokens // 2] = 1.0
    _, momenta, _, _ = evaluate(points, only)
    later = np.abs(np.asarray(momenta))[:, :, tokens // 2 + 1 :].max()

    gradient, _, _, _ = evaluate(points, everywhere)
    direction = generator.normal(size=(2, *heads.V.shape))
    along = sum(float((np.asarray(g) * d).sum()) for g, d in zip(gradient, direction, strict=True))
    along /= deepest * parameters.num_heads  # the metric's weights

    def risk(step: float) -> float:
        pushed = mf.AttentionAV(
            *(leaf + step * d for leaf, d in zip(heads, direction, strict=True))
        )
        nodes = np.asarray(rho.grid.nodes)
        return float(_gradients(discrete, pushed, nodes, points, everywhere)[3])

    slopes = [(risk(h) - risk(-h)) / (2 * h) for h in (1e-3, 5e-4)]
    difference = (4 * slopes[1] - slopes[0]) / 3
    gaps = []
    for num_cells in parameters.sizes:
        nodes = np.minimum(np.arange(deepest + 1) / num_cells, 1.0)
        exact, ode = (
            np.stack(_gradients(method, heads, nodes, points, everywhere)[0])[:, :num_cells]
            for method in (discrete, mf.ContinuousAdjoint(mf.RungeKutta4()))
        )
        gaps.append(np.linalg.norm(exact - ode) / np.linalg.norm(exact))
    return {
        "earlier": earlier,
        "alone": alone,
        "later": later,
        "difference": np.array(abs(difference / along - 1)),
        "gaps": np.array(gaps),
    }


def kernels(parameters: Parameters, seed: int) -> dict[str, np.ndarray]:
    """Part 3 for one problem: spectra, nullities predicted and measured."""
    generator = np.random.default_rng([parameters.seed, seed])
    points, rho = draw(parameters, generator, parameters.num_cells, 0.0)
    heads = mf.AttentionAV(np.asarray(rho.particles.A[0]), np.asarray(rho.particles.V[0]))
    shared = points.copy()
    shared[1, :2] = shared[0, :2]  # a prefix of two tokens
    cases = {
        "causal": prefix_pairs(points),
        "full": ntk.pairs_of(mf.TokenMeasure(points), "own"),
        "later": prefix_pairs(points, first=1),
        "shared": prefix_pairs(shared),
    }
    found: dict[str, np.ndarray] = {}
    for name, pairs in cases.items():
        spectrum = ntk.spectrum(ntk.factor(FULL, heads, pairs), interval=False)
        found[f"{name}_eigenvalues"] = np.asarray(spectrum.eigenvalues)
        found[f"{name}_nullity"] = np.array(spectrum.nullity)
        found[f"{name}_gap"] = np.array(spectrum.gap)
        predicted = ntk.predicted_nullity(pairs, seed=parameters.seed)
        found[f"{name}_predicted"] = np.array(predicted.nullity)
    places = tuple(range(parameters.num_tokens))
    whole = np.asarray(ntk.terminal_factor(CAUSAL, rho, mf.TokenMeasure(points), tokens=places))
    scalar = ntk.gram(kernel_of("causal", points, heads))
    difference = whole.T @ whole - np.kron(scalar, np.eye(DIM))
    found["causal_terminal"] = np.array(np.abs(difference).max() / np.abs(scalar).max())
    return found


def trained(field, rho, points, targets, weights, num_steps: int, stepper) -> np.ndarray:
    """Risks before and after each step."""
    batch = mf.Batch(mf.TokenMeasure(points), targets, weights)
    state = mf.init_training(field, rho, LOSS, batch, stepper=stepper)
    risks = [float(state.value)]
    for _ in range(num_steps):
        state, _ = mf.training_step(state)
        risks.append(float(state.value))
    return np.array(risks)


def lazy(gram: np.ndarray, weights: np.ndarray, residual: np.ndarray, parameters) -> np.ndarray:
    """Risks of ``r <- r - dt K Om r``."""
    risks = []
    for _ in range(parameters.num_steps + 1):
        risks.append(0.5 * float((weights[:, None] * residual**2).sum()))
        residual = residual - parameters.dt * gram @ (weights[:, None] * residual)
    return np.array(risks)


def training(parameters: Parameters, seed: int) -> dict[str, np.ndarray]:
    """Part 4 for one problem: measured and predicted risks ``[steps + 1]`` of four runs."""
    generator = np.random.default_rng([parameters.seed, seed])
    points, rho = draw(parameters, generator, parameters.num_cells, 0.0)
    heads = mf.AttentionAV(np.asarray(rho.particles.A[0]), np.asarray(rho.particles.V[0]))
    delta = generator.normal(size=points.shape)
    total, tokens = points.shape[0] * points.shape[1], points.shape[1]
    everywhere = np.full(points.shape[:2], 1 / tokens)
    later = everywhere.copy()
    later[:, 0] = 0.0
    eps, step = parameters.lazy_scale, mf.EulerStep(parameters.dt)
    grams = {name: ntk.gram(kernel_of(name, points, heads)) for name in FIELDS}
    found: dict[str, np.ndarray] = {}
    for name, kind, weights in (
        ("causal", "causal", everywhere),
        ("full", "full", everywhere),
        ("later", "causal", later),
    ):
        start = 0.5 * (weights[..., None] * delta**2).sum() / points.shape[0]
        goal = points + eps * delta
        risks = trained(FIELDS[kind], rho, points, goal, weights, parameters.num_steps, step)
        found[name] = risks / (eps**2 * start)
        shares, residual = weights.ravel() / points.shape[0], delta.reshape(total, DIM)
        found[f"{name}_lazy"] = lazy(grams[kind], shares, residual, parameters) / start
    shares = everywhere.ravel() / points.shape[0]
    other = lazy(grams["full"], shares, delta.reshape(total, DIM), parameters)
    found["control"] = other / other[0]
    # what the null space keeps: uniform weights, so the projection is orthogonal
    _, values, vectors = np.linalg.svd(kernel_of("causal", points, heads).matrix)
    null = vectors[int((values > 1e-10 * values[0]).sum()) :]
    kept = ((null @ delta.reshape(total, DIM)) ** 2).sum() / (delta**2).sum()
    found["plateau"] = np.array(kept)
    # rich: targets at distance 1; first tokens move by one linear map for all contexts
    targets = points + delta
    # no prediction to keep step with: the steps follow the flow, and the risk never rises
    follow = mf.AdaptiveStep(initial=0.1, tolerance=0.2)
    risks = trained(CAUSAL, rho, points, targets, everywhere, parameters.num_steps, follow)
    fitted = np.linalg.lstsq(points[:, 0], targets[:, 0], rcond=None)[0]
    missed = points[:, 0] @ fitted - targets[:, 0]
    best = 0.5 * (missed**2).sum() / total
    return found | {"rich": risks / risks[0], "linear": np.array(best / risks[0])}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """All four parts for every problem."""
    mf.use_double()
    parts = {"adjoint": flow_and_adjoint, "kernel": kernels, "training": training}
    problems = range(parameters.num_replicates)
    cells = directory.sweep(
        "problems",
        [(name, r) for name in parts for r in problems],
        lambda job: parts[job[0]](parameters, job[1]),
        progress,
        key=lambda job: f"{job[0]},problem={job[1]}",
    )
    rows = {name: cells[i * len(problems) :][: len(problems)] for i, name in enumerate(parts)}
    stacked = {
        name: {key: np.stack([cell[key] for cell in row]) for key in row[0]}
        for name, row in rows.items()
    }
    for name, arrays in stacked.items():
        directory.save(name, sizes=np.array(parameters.sizes), **arrays)
    adjoint, kernel, risks = (stacked[name] for name in parts)

    gap = mf.fit_rate(parameters.sizes, adjoint["gaps"])
    verdict = gap.verdict(parameters.expected_slope, parameters.tolerance, min_r_squared=0.999)
    extra = max(parameters.num_contexts - DIM, 0)
    claims = [
        mf.Claim.bound(
            "change of earlier tokens when the last ones move",
            "at most",
            0.0,
            adjoint["earlier"].max(),
        ),
        mf.Claim.bound(
            "first token: distance from its linear layers", "at most", 1e-13, adjoint["alone"].max()
        ),
        mf.Claim.bound(
            "momenta of tokens after the only one with loss", "at most", 0.0, adjoint["later"].max()
        ),
        mf.Claim.bound(
            "discrete adjoint against differences of the risk",
            "at most",
            1e-7,
            adjoint["difference"].max(),
        ),
        mf.Claim(
            "continuous against discrete adjoint: slope in L",
            parameters.expected_slope,
            gap.slope,
            gap.interval,
            verdict,
        ),
        mf.Claim.bound(
            "kernel of the whole map at V = 0 against that of prefix laws",
            "at most",
            1e-12,
            kernel["causal_terminal"].max(),
        ),
    ]
    for name, words, expected in (
        ("causal", "causal, all tokens (N - d)", extra),
        ("later", "causal without first tokens", 0),
        ("shared", "causal, two contexts share two tokens", extra + 1),
        ("full", "full attention", 0),
    ):
        wrong = (kernel[f"{name}_nullity"] != expected) | (kernel[f"{name}_predicted"] != expected)
        claims.append(
            mf.Claim(
                f"nullity: {words}",
                float(expected),
                float(kernel[f"{name}_nullity"].mean()),
                None,
                "inconsistent" if wrong.any() else "consistent",
            )
        )
    for name, words in (
        ("causal", "causal, all tokens"),
        ("later", "causal without first tokens"),
        ("full", "full attention"),
    ):
        miss = np.abs(risks[name] / risks[f"{name}_lazy"] - 1).max()
        claims.append(
            mf.Claim.bound(
                f"lazy risk, {words}: largest error", "at most", parameters.risk_tolerance, miss
            )
        )
    above = (risks["causal"][:, -1] / risks["plateau"]).min()
    control = np.abs(risks["causal"] / risks["control"] - 1).max(axis=1).min()
    return [
        *claims,
        mf.Claim.bound(
            "lazy causal risk at the end over what its null space keeps, its floor",
            "at least",
            0.99,
            above,
        ),
        mf.Claim.bound(
            "rich causal risk at the end over that of the best linear map of first tokens",
            "at least",
            1.0,
            (risks["rich"][:, -1] / risks["linear"]).min(),
        ),
        mf.Claim.bound(
            "control (full attention's kernel for causal training): least error",
            "at least",
            parameters.risk_tolerance,
            control,
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
