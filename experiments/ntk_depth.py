"""The kernel along depth, and the rate of training that it guarantees.

Claim. With K_V(s) the V-part at the tokens of depth s, om_a = w_a/N and the square loss
(docs/theory.md 4.2),

    |grad R|^2 >= 2 kappa R,    kappa = int_0^1 lambda_min(Om^(1/2) K_V(s) Om^(1/2)) tau(s) ds,

where tau(s) is the least factor by which the adjoint flow shrinks ``sum om |p|^2`` from depth 1 to
s: computed from the Jacobian of the flow itself. Positive kernels along depth thus rule out
spurious stationary points, and the risk falls at least like ``e^(-2 kappa t)``. Measured:
1. K_V(s) is positive at every depth, and ``|grad R|^2 = sum_k ds_k |F_k q_{k+1}|^2`` with the
   factors F of the full kernels (exact for Euler layers);
2. the inequality for many random targets at the start, and all along a training run;
3. where kappa stands: above the crude constant, whose tau(s) is the product over later layers of
   ``max(0, 1 - ds c)^2``, c a bound of the adjoint from norms of A, V and tokens (docs/theory.md
   4.2; zero for heads of moderate size); below the best constant, the smallest eigenvalue of the
   kernel of the whole map ``rho -> x(1)``;
4. kappa has a limit in many layers, at rate 1/L.
Negative control: a context given twice. Its kernel has n null directions at every depth, kappa is
0, and where the two copies are to go opposite ways the gradient vanishes at a positive risk.

Commands
    meanfield run ntk_depth --preset smoke --check     20 seconds on a CPU
    meanfield run ntk_depth --preset paper             two minutes
    meanfield figures ntk_depth

Cost: O(L (M d (N n)^2 + N (n d)^3)) for each kappa. Figure: figures/ntk_depth.py.
"""

from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf
from meanfield import ntk

CLAIM = "kernels stay positive along depth; |grad R|^2 >= 2 kappa R with kappa from the flow"
COST = "smoke 20 s, paper 2 min on a CPU core"
FIGURE = "ntk_depth"
HEADLINES = (
    "least |grad R|^2 / (2 kappa R), random targets",
    "least |grad R|^2 / (2 kappa R) along training",
    "kappa / best constant",
    "slope in L of |kappa_L - kappa_2L|",
)

FIELD = mf.SoftmaxAttention("av")
HEADS, TARGETS = range(2)  # names of the random streams


@dataclass(frozen=True)
class Parameters:
    """The contexts, the heads, the sweep in depth, the training run."""

    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """L, layers of the limit; kappa is compared between L and 2L."""
    num_cells: int = 16
    """L of everything else."""
    num_contexts: int = 3
    """N."""
    num_tokens: int = 4
    """n."""
    dim: int = 4
    """d."""
    num_heads: int = 64
    """M, heads in each layer."""
    score_scale: float = 1.0
    """Standard deviation of the entries of A."""
    value_scale: float = 0.7
    """Standard deviation of the entries of V."""
    num_targets: int = 64
    """Random targets that the inequality is tried with."""
    num_steps: int = 24
    """Training steps."""
    record_every: int = 4
    """Steps between two kappas."""
    expected_slope: float = -1.0
    """What theory says of |kappa_L - kappa_2L|."""
    tolerance: float = 0.15
    """Two-sided band around it."""
    seed: int = 0
    """Seed of tokens, heads and targets."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_contexts": 2, "num_tokens": 2, "dim": 2},
            at_most={"num_contexts": 16, "num_tokens": 32, "dim": 16, "sizes": 1024},
        )


def clouds(parameters: Parameters) -> np.ndarray:
    """Tokens ``[N, n, d]`` uniform in the cube."""
    shape = (parameters.num_contexts, parameters.num_tokens, parameters.dim)
    return np.random.default_rng(parameters.seed).uniform(-1, 1, shape)


def heads(parameters: Parameters, num_cells: int, across_depth) -> mf.ParameterMeasure:
    """M Gaussian heads in each layer."""
    law = mf.EntrywiseGaussian(A=parameters.score_scale, V=parameters.value_scale)
    key = jax.random.fold_in(jax.random.key(parameters.seed), HEADS)
    return mf.sample_parameters(
        FIELD,
        law,
        mf.DepthGrid.uniform(num_cells),
        parameters.num_heads,
        dim=parameters.dim,
        key=key,
        across_depth=across_depth,
    )


def kernel_gap(rho: mf.ParameterMeasure, batch: mf.Batch, solution: mf.GradientSolution) -> float:
    """Relative gap between ``|grad R|^2`` and ``sum_k ds_k |F_k q_{k+1}|^2``."""
    factors = ntk.depth_factors(FIELD, rho, batch.contexts, part="full")
    momenta = np.asarray(solution.momenta)
    by_depth = [
        step * np.sum((factor.matrix @ momenta[:, cell + 1].ravel()) ** 2)
        for cell, (step, factor) in enumerate(zip(rho.grid.steps, factors, strict=True))
    ]
    square = float(solution.norm) ** 2
    return abs(float(np.sum(by_depth)) - square) / square


def best_constant(rho: mf.ParameterMeasure, contexts: mf.TokenMeasure) -> float:
    """Smallest eigenvalue of ``Om^(1/2) K Om^(1/2)``, K the kernel of the whole map."""
    tokens = range(contexts.num_tokens)
    factor = np.asarray(ntk.terminal_factor(FIELD, rho, contexts, tokens=tuple(tokens)))
    weights = np.repeat(np.asarray(contexts.weights).ravel(), contexts.dim)
    scaled = factor * np.sqrt(weights / contexts.num_contexts)
    return float(np.linalg.svd(scaled, compute_uv=False)[-1] ** 2)


def along_depth(parameters: Parameters) -> dict[str, np.ndarray]:
    """Spectra, kappa with its parts, and the inequality for random targets."""
    rho = heads(parameters, parameters.num_cells, "independent")
    contexts = mf.TokenMeasure(clouds(parameters))
    weights = np.asarray(contexts.weights) / parameters.num_contexts
    spectra = ntk.depth_spectra(FIELD, rho, contexts, weights=weights)
    targets = np.random.default_rng([parameters.seed, TARGETS]).normal(
        size=(parameters.num_targets, *contexts.points.shape)
    )
    gradient = jax.jit(
        lambda y: mf.conditional_gradient(
            FIELD, rho, mf.SquaredLoss(), mf.Batch(contexts, y, contexts.weights)
        )
    )
    solutions = [gradient(target) for target in targets]
    batch = mf.Batch(contexts, targets[0])
    constant = ntk.convergence_constant(FIELD, rho, batch)
    return {
        "nodes": np.asarray(rho.grid.nodes),
        "eigenvalues": np.stack([one.eigenvalues for one in spectra]),
        "nullity": np.array([one.nullity for one in spectra]),
        "gap": np.array([one.gap for one in spectra]),
        "transported": constant.transported,
        "crude_transported": constant.crude_transported,
        "lambda_min": constant.lambda_min,
        "kappa": np.array(constant.kappa),
        "crude_kappa": np.array(constant.crude_kappa),
        "best": np.array(best_constant(rho, contexts)),
        "ratio": np.array([float(one.norm) ** 2 / (2 * float(one.value)) for one in solutions]),
        "kernel_gap": np.array(kernel_gap(rho, batch, solutions[0])),
    }


def kappa_at(num_cells: int, parameters: Parameters) -> dict[str, float]:
    """kappa of the same heads at every depth, in L layers."""
    rho = heads(parameters, num_cells, "constant")
    contexts = mf.TokenMeasure(clouds(parameters))
    batch = mf.Batch(contexts, np.zeros(contexts.points.shape))
    return {"kappa": ntk.convergence_constant(FIELD, rho, batch).kappa}


def along_training(parameters: Parameters, directory: mf.RunDirectory) -> dict[str, np.ndarray]:
    """Risk, gradient norm and kappa of a training run towards shifted tokens."""
    points = clouds(parameters)
    step = np.random.default_rng([parameters.seed, TARGETS]).normal(size=points.shape)
    batch = mf.Batch(mf.TokenMeasure(points), points + 0.3 * step)
    state = mf.init_training(
        FIELD,
        heads(parameters, parameters.num_cells, "independent"),
        mf.SquaredLoss(),
        batch,
        stepper=mf.AdaptiveStep(initial=0.1, tolerance=0.3),
    )
    history = mf.run_training(
        state,
        parameters.num_steps,
        record_every=parameters.record_every,
        directory=directory,
        observers={"kappa": lambda s: ntk.convergence_constant(FIELD, s.rho, batch).kappa},
    )
    return {
        "time": history.time,
        "risk": history.risk,
        "squared_norm": history.squared_norm,
        "kappa": history.observed["kappa"],
    }


def duplicated(parameters: Parameters) -> dict[str, np.ndarray]:
    """The control: the first context twice, its copies sent opposite ways."""
    rho = heads(parameters, parameters.num_cells, "independent")
    points = clouds(parameters)[:2]
    points[1] = points[0]
    contexts = mf.TokenMeasure(points)
    batch = mf.Batch(contexts, np.zeros(points.shape))
    end = np.asarray(mf.solve_flow(FIELD, rho, contexts, keep="final").path)
    opposed = mf.Batch(contexts, end + np.array([1.0, -1.0])[:, None, None])
    solution = mf.conditional_gradient(FIELD, rho, mf.SquaredLoss(), opposed)
    spectra = ntk.depth_spectra(FIELD, rho, contexts)
    return {
        "nullity": np.array([one.nullity for one in spectra]),
        "kappa": np.array(ntk.convergence_constant(FIELD, rho, batch).kappa),
        "ratio": np.array(float(solution.norm) ** 2 / (2 * float(solution.value))),
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Kernel along depth, along training, in many layers; and the control."""
    mf.use_double()
    depth = directory.cached("depth", lambda: along_depth(parameters))
    progress.note(f"kappa {float(depth['kappa']):.3g}, best {float(depth['best']):.3g}")
    layers = (*parameters.sizes, 2 * max(parameters.sizes))
    layers = sorted({*layers, *(2 * n for n in parameters.sizes)})
    cells = directory.sweep("L", layers, lambda num: kappa_at(num, parameters), progress)
    halves = {num: float(cell["kappa"]) for num, cell in zip(layers, cells, strict=True)}
    gaps = np.array([abs(halves[n] - halves[2 * n]) for n in parameters.sizes])
    training = directory.cached("training", lambda: along_training(parameters, directory))
    control = directory.cached("control", lambda: duplicated(parameters))
    directory.save("depth", **depth)
    directory.save("limit", sizes=np.array(parameters.sizes), gap=gaps)
    directory.save("training", **training)
    directory.save("control", **control)

    rate = mf.fit_rate(parameters.sizes, gaps)
    kappa, best = float(depth["kappa"]), float(depth["best"])
    along = training["squared_norm"] / (2 * training["kappa"] * training["risk"])
    gap = float(depth["gap"].min())
    return [
        mf.Claim.bound(
            "layers whose kernel is not positive", "exactly", 0.0, (depth["nullity"] > 0).sum()
        ),
        mf.Claim(
            "smallest gap of these ranks",
            "at least 1e3",
            gap,
            None,
            "consistent" if gap >= 1e3 else "undecided",
        ),
        mf.Claim.bound(
            "|grad R|^2 from kernels along depth: gap", "below", 1e-10, depth["kernel_gap"]
        ),
        mf.Claim.bound(
            "least |grad R|^2 / (2 kappa R), random targets",
            "at least",
            1.0,
            depth["ratio"].min() / kappa,
        ),
        mf.Claim.bound(
            "least |grad R|^2 / (2 kappa R) along training", "at least", 1.0, along.min()
        ),
        mf.Claim.bound("kappa / best constant", "at most", 1.0, kappa / best),
        mf.Claim.bound("crude kappa / kappa", "at most", 1.0, float(depth["crude_kappa"]) / kappa),
        mf.Claim(
            "slope in L of |kappa_L - kappa_2L|",
            parameters.expected_slope,
            rate.slope,
            rate.interval,
            rate.verdict(parameters.expected_slope, parameters.tolerance, min_r_squared=0.999),
        ),
        mf.Claim.bound(
            "control (duplicate): layers without n null directions",
            "exactly",
            0.0,
            (control["nullity"] != parameters.num_tokens).sum(),
        ),
        mf.Claim.bound("control (duplicate): kappa", "exactly", 0.0, control["kappa"]),
        mf.Claim.bound(
            "control (duplicate): |grad R|^2 / 2R of opposed targets",
            "below",
            1e-20,
            control["ratio"],
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
