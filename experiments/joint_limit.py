"""L and M -> infinity together: errors add up, and how they do depends on the heads along depth.

Claim. Layers are Euler steps with M heads each, drawn with replacement from a crowd rho that is the
same at all depths; the limit is the flow of rho itself. Depth leaves a bias a/L. The draws leave a
fluctuation, and what it averages over is the number of *independent* heads on the way
(docs/theory.md 7.1):

    one ensemble for all layers ("constant"):     error ~ a/L + b M^(-1/2)
    a new ensemble in each layer ("independent"): error ~ a/L + b (L M)^(-1/2)

    error = ( E |x^{L,M}(1) - x(1)|^2 / |x(1) - x(0)|^2 )^(1/2).

1. Both laws are fitted to the inner cells of the grid (L, M), by non-negative least squares of
   relative errors, and asked about the cells of largest L or largest M, which the fit has not seen.
   In each family the law of that family must predict better: this is the control, since the law
   that is right in one family is the wrong one in the other.
2. The fluctuation alone, the deviation over draws from their mean, is C L^(-p) M^(-q) with
   (p, q) = (0, 1/2) for constant and (1/2, 1/2) for independent heads.
The rate L^(-1) + L^(-1/3) M^(-1/2) of arXiv 2605.11059 (an upper bound, for trained transformers)
is fitted and drawn beside the two.

A root mean square adds bias and fluctuation in squares, e^2 = (a/L)^2 + b^2/M and (a/L)^2 +
b^2/(L M); the sums above are that within a factor of sqrt(2). The comparison is made in both forms.
The number b belongs to L -> infinity: Euler's own growth differs from the flow's by O(1/L), which
moves measured powers of L by a few hundredths. Drift and noise are small, so that it stays so.

Commands
    meanfield run joint_limit --preset smoke --check     seconds on a CPU
    meanfield run joint_limit --preset paper             a minute
    meanfield figures joint_limit

Cost: O(R L M n^2 d) for each cell of the grid, all padded to the largest: one compilation.
Figure: figures/joint_limit.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

import meanfield as mf

CLAIM = "errors add up: a/L + b/sqrt(M) for one ensemble, a/L + b/sqrt(LM) for independent layers"
COST = "smoke 15 s, paper 2 min on a CPU core"
FIGURE = "joint_limit"
HEADLINES = (
    "same heads in all layers: held-out error, a/L + b/sqrt(M) over a/L + b/sqrt(LM), sum",
    "new heads in every layer: held-out error, a/L + b/sqrt(LM) over a/L + b/sqrt(M), sum",
    "new heads in every layer: slope of the fluctuations in L",
    "new heads in every layer: slope of the fluctuations in M",
)

FIELD = mf.SoftmaxAttention("av")
HEADS, TOKENS, DRAWS, BOOTSTRAP = range(4)  # names of the random streams
FAMILIES = ("constant", "independent")
WORDS = {"constant": "same heads in all layers", "independent": "new heads in every layer"}
COMPARED = {  # its own law over the other one, which is the control
    "constant": "a/L + b/sqrt(M) over a/L + b/sqrt(LM)",
    "independent": "a/L + b/sqrt(LM) over a/L + b/sqrt(M)",
}
LAWS = {  # the part beside a/L
    "constant": lambda num_cells, num_heads: num_heads**-0.5,
    "independent": lambda num_cells, num_heads: (num_cells * num_heads) ** -0.5,
    "published": lambda num_cells, num_heads: num_cells ** (-1 / 3) * num_heads**-0.5,
}
NUM_BOOTSTRAP = 400


@dataclass(frozen=True)
class Parameters:
    """What the grid is made of."""

    depths: tuple[int, ...] = (8, 16, 32, 64)
    """L, layers."""
    widths: tuple[int, ...] = (4, 8, 16, 32, 64)
    """M, heads in each layer."""
    num_reference: int = 1024
    """Heads of the crowd that they are drawn from."""
    num_fine: int = 32
    """Cells of the RK4 solution under the crowd: the limit."""
    num_replicates: int = 64
    """Draws for each cell of the grid; intervals resample them."""
    num_tokens: int = 8
    """n."""
    dim: int = 3
    """d."""
    score_mean: float = 1.0
    """Heads have A = score_mean I + noise."""
    score_scale: float = 0.1
    """Standard deviation of that noise."""
    value_mean: float = 0.3
    """Heads have V = value_mean I + noise: the drift whose Euler steps leave the bias."""
    value_scale: float = 0.02
    """Standard deviation of that noise."""
    tolerance: float = 0.06
    """Two-sided band around the exponents."""
    expected_power: float = 0.5
    """q, and p where layers are independent."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(self, at_least={"num_replicates": 2})


def crowd_of(parameters: Parameters, generator: np.random.Generator) -> mf.AttentionAV:
    """The heads ``[Mref, d, d]`` that stand for the limit, the same at all depths."""
    shape = (2, parameters.num_reference, parameters.dim, parameters.dim)
    score, value = generator.normal(size=shape)
    unit = np.eye(parameters.dim)
    return mf.AttentionAV(
        parameters.score_mean * unit + parameters.score_scale * score,
        parameters.value_mean * unit + parameters.value_scale * value,
    )


def padded_solver(crowd: mf.AttentionAV, tokens: mf.TokenMeasure, parameters: Parameters):
    """``(family, L, M, generator) -> ends [R, n, d]`` of R draws of the heads.

    Layers beyond L have no length and heads beyond M no mass: one program for the whole grid.
    """

    @jax.jit
    def solve(index, nodes, log_weights):
        def one(index):
            particles = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], crowd)
            rho = mf.ParameterMeasure(particles, mf.DepthGrid(nodes), log_weights)
            return mf.solve_flow(FIELD, rho, tokens, keep="final").path

        return jax.lax.map(one, index)

    def ends(family: str, num_cells: int, num_heads: int, generator) -> np.ndarray:
        depth, width = max(parameters.depths), max(parameters.widths)
        layers = depth if family == "independent" else 1
        shape = (parameters.num_replicates, layers, width)
        index = generator.integers(parameters.num_reference, size=shape)
        index = np.broadcast_to(index, (shape[0], depth, width))
        nodes = np.minimum(np.arange(depth + 1) / num_cells, 1.0)
        log_weights = np.where(np.arange(width) < num_heads, 0.0, -np.inf)
        return np.asarray(solve(index, nodes, np.broadcast_to(log_weights, (depth, width))))

    return ends


def fit(law, errors: np.ndarray, grid: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, float]:
    """``(a, b)`` of ``a/L + b law(L, M)`` on the seen cells; relative RMS error on the others."""
    design = np.stack([1 / grid[0], law(*grid)], axis=-1)
    relative = design / errors[..., None]
    coefficients, _ = nnls(relative[seen], np.ones(int(seen.sum())))
    missed = relative[~seen] @ coefficients - 1
    return coefficients, float(np.sqrt(np.mean(missed**2)))


def squares(law, errors: np.ndarray, grid: np.ndarray, seen: np.ndarray) -> tuple:
    """The same for ``e^2 = (a/L)^2 + (b law)^2``."""
    design = np.stack([1 / grid[0], law(*grid)], axis=-1) ** 2
    relative = design / errors[..., None] ** 2
    coefficients, _ = nnls(relative[seen], np.ones(int(seen.sum())))
    missed = np.sqrt(relative[~seen] @ coefficients) - 1
    return np.sqrt(coefficients), float(np.sqrt(np.mean(missed**2)))


FORMS = {"sum": fit, "squares": squares}


def powers(spread: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """``(p, q)`` of ``spread = C L^-p M^-q`` by least squares of logarithms."""
    logs = -np.log(grid).reshape(2, -1).T
    design = np.column_stack([np.ones(len(logs)), logs])
    return np.linalg.lstsq(design, np.log(spread).ravel(), rcond=None)[0][1:]


def summarised(deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """RMS error and RMS fluctuation ``[K, J]`` of deviations from the limit ``[K, J, R, n d]``."""
    errors = np.sqrt(np.mean(np.sum(deviations**2, axis=-1), axis=-1))
    centred = deviations - deviations.mean(axis=2, keepdims=True)
    return errors, np.sqrt(np.mean(np.sum(centred**2, axis=-1), axis=-1))


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Central 95% of bootstrap samples."""
    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep (L, M) for both families, fit the laws, ask them about the rim of the grid."""
    mf.use_double()
    stream = lambda *name: np.random.default_rng([parameters.seed, *name])  # noqa: E731
    crowd = crowd_of(parameters, stream(HEADS))
    cloud = stream(TOKENS).uniform(-1, 1, (parameters.num_tokens, parameters.dim))
    tokens = mf.TokenMeasure(cloud)

    def compute_limit() -> dict[str, np.ndarray]:
        shape = (parameters.num_fine, *crowd.A.shape)
        fine = mf.AttentionAV(*(np.broadcast_to(leaf, shape) for leaf in crowd))
        rho = mf.ParameterMeasure(fine, mf.DepthGrid.uniform(parameters.num_fine))
        solution = mf.solve_flow(FIELD, rho, tokens, scheme=mf.RungeKutta4(), keep="final")
        return {"end": solution.path}

    limit = directory.cached("limit", compute_limit)["end"]
    moved = np.linalg.norm(limit - cloud)
    ends = padded_solver(crowd, tokens, parameters)

    def cell(setting: tuple[str, int, int]) -> dict[str, np.ndarray]:
        family, num_cells, num_heads = setting
        generator = stream(DRAWS, FAMILIES.index(family), num_cells, num_heads)
        found = ends(family, num_cells, num_heads, generator) - limit
        return {"deviations": found.reshape(len(found), -1) / moved}

    settings = [
        (family, num_cells, num_heads)
        for family in FAMILIES
        for num_cells in parameters.depths
        for num_heads in parameters.widths
    ]
    named = lambda one: "{},L={},M={}".format(*one)  # noqa: E731
    cells = directory.sweep("cells (L, M)", settings, cell, progress, key=named)
    table = [one["deviations"] for one in cells]
    shape = (2, len(parameters.depths), len(parameters.widths))
    deviations = np.stack(table).reshape(*shape, *table[0].shape)
    pair = np.meshgrid(parameters.depths, parameters.widths, indexing="ij")
    grid = np.array(pair, float)  # [2, K, J]
    seen = (grid[0] < max(parameters.depths)) & (grid[1] < max(parameters.widths))
    generator = stream(BOOTSTRAP)
    num = parameters.num_replicates
    stored: dict[str, np.ndarray] = {"depths": grid[0][:, 0], "widths": grid[1][0], "seen": seen}
    claims = []
    for index, family in enumerate(FAMILIES):
        errors, spread = summarised(deviations[index])
        stored |= {f"{family}_errors": errors, f"{family}_spread": spread}
        for form, fitted in FORMS.items():
            for name, law in LAWS.items():
                coefficients, missed = fitted(law, errors, grid, seen)
                stored[f"{family}_{form}_{name}"] = coefficients
                stored[f"{family}_{form}_{name}_missed"] = np.array(missed)
        slopes = powers(spread, grid)

        def ratio(errors: np.ndarray, form: str, index=index, family=family) -> float:
            laws = (LAWS[family], LAWS[FAMILIES[1 - index]])
            mine, other = (FORMS[form](law, errors, grid, seen)[1] for law in laws)
            return mine / other

        samples = []
        for _ in range(NUM_BOOTSTRAP):
            # a new resample for each cell: their draws are independent
            draw = generator.integers(num, size=(*grid.shape[1:], num))
            again = np.take_along_axis(deviations[index], draw[..., None], axis=2)
            errors_again, spread_again = summarised(again)
            ratios = [ratio(errors_again, form) for form in FORMS]
            samples.append([*ratios, *powers(spread_again, grid)])
        ranges = [interval(column) for column in np.array(samples).T]
        for form, bounds in zip(FORMS, ranges[:2], strict=True):
            below = "consistent" if bounds[1] < 1 else "undecided"
            claims.append(
                mf.Claim(
                    f"{WORDS[family]}: held-out error, {COMPARED[family]}, {form}",
                    "below 1",
                    ratio(errors, form),
                    bounds,
                    "inconsistent" if bounds[0] >= 1 else below,
                )
            )
        in_depth = parameters.expected_power if family == "independent" else 0.0
        for letter, expected, value, bounds in (
            ("L", in_depth, slopes[0], ranges[2]),
            ("M", parameters.expected_power, slopes[1], ranges[3]),
        ):
            claims.append(
                mf.Claim.within(
                    f"{WORDS[family]}: slope of the fluctuations in {letter}",
                    -expected + 0.0,
                    float(-value),
                    (-bounds[1], -bounds[0]),
                    parameters.tolerance,
                )
            )
    directory.save("grid", **stored)
    return claims


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
