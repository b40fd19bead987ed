"""Depth without end: tokens cluster, clusters are metastable, the temperature says how many.

One head ``A = beta I, V = +-I``, the same at all depths; on the circle by tangential projection
(docs/theory.md 6.7, 6.14), and in R^2 without it. RK4 steps.

1. *Exact.* Equiangular tokens stay equiangular; their Gram matrix solves a closed equation, in R^d
   and on the sphere (6.6, 6.7). The simulation meets it at order 4 in the number of cells.
2. *One point.* On the circle with V = I all tokens meet; near the end 6.7 reads
   ``d(1 - r)/ds = -2 (1 - r)`` whatever beta and n: rate -2. Control: V = -I never clusters.
3. *Metastable states.* Two groups of tokens at a right angle meet after

       s = int_0^(1/2) (e^(beta (1 - r)) + 1) / (2 (1 - r^2)) dr ~ e^beta / (2 beta),

   so log(beta s) has slope 1 in beta. Until then, two clusters look like the end.
4. *How many.* Perturb the uniform law on the circle, rho = (1 + a cos k theta)/(2 pi). Its mean
   velocity is 0, so only the numerator of attention feels the perturbation, and a grows at

       lambda_k = k^2 I_k(beta) / (beta I_0(beta)),    largest near k* = sqrt(2 beta)

   (I_k: modified Bessel functions, the Fourier coefficients of e^(beta cos theta)). The fastest
   mode leaves its number of clusters behind (a heuristic): slope 1/2 of their number in beta.
5. *R^2.* With V = -I tokens contract to a point; near it attention is ``mean + beta Cov x``, so
   dCov/ds = -2 beta Cov^2 for any law (the closure of 6.1) and 2 beta s Cov(s) -> identity:
   algebraic, not exponential, slope -1. With V = I the tokens z = e^(-s) x(s) obey
   dz/ds = (mean of z under scores beta e^(2s) <z, z'>) - z, a hardmax in the end: they gather at
   corners of their convex hull, so in no more groups than the first hull has corners.

Commands
    meanfield run clustering --preset smoke --check     seconds on a CPU
    meanfield run clustering --preset paper             two minutes, with tokens.gif
    meanfield figures clustering

Cost: O(R S n^2) for each temperature. Figure: figures/clustering.py.
"""

from dataclasses import dataclass

import jax
import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.spatial import ConvexHull
from scipy.special import ive

import meanfield as mf
from meanfield import exact

CLAIM = "long depth: one cluster at rate -2, metastable ones for e^beta/(2 beta), sqrt(beta) many"
COST = "smoke 15 s, paper 2 min on a CPU core"
FIGURE = "clustering"
HEADLINES = (
    "rate of the last approach",
    "two groups: slope of log(beta depth) in beta",
    "number of clusters at depth 96: slope in beta",
)

FLAT = mf.SoftmaxAttention("av")
SPHERE = mf.SphereProjection(FLAT)
EQUIANGULAR, CIRCLE, PLANE = range(3)  # names of the random streams
APART = 0.1  # radians between neighbours of different clusters
SETTINGS = {  # of the exact cases: field, v, horizon
    "sphere": (SPHERE, 1.0, 2.0),
    "growing": (FLAT, 0.6, 1.0),
    "contracting": (FLAT, -1.0, 2.0),
}
NUM_EQUIANGULAR, START, SCORE = 4, 0.2, 0.8


@dataclass(frozen=True)
class Parameters:
    """What is simulated."""

    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    """Inverse temperatures of the diagram."""
    pair_betas: tuple[float, ...] = (4.0, 5.0, 6.0, 7.0)
    """Inverse temperatures of two groups that meet."""
    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """L, cells of the exact cases."""
    num_tokens: int = 64
    """n."""
    num_replicates: int = 8
    """Clouds for each temperature."""
    horizon: float = 96.0
    """S, the last depth."""
    num_cells: int = 384
    """L of the long runs."""
    many: float = 8.0
    """Number of clusters: slope over the betas from here on."""
    tolerance: float = 0.06
    """Two-sided band around the rate -2 and the slopes -1 and 1."""
    order_tolerance: float = 0.15
    """The same around order 4 and the slope 1/2."""
    expected_rate: float = -2.0
    """What theory says of the last approach."""
    animate: bool = False
    """Also write tokens.gif: one cloud on its way into clusters."""
    seed: int = 0
    """Seed of the clouds."""

    def __post_init__(self) -> None:
        mf.check_parameters(self, at_least={"num_replicates": 2, "num_tokens": 4})


def heads(nodes, beta, value, dim: int) -> mf.ParameterMeasure:
    """One head at all depths."""
    unit = np.broadcast_to(np.eye(dim), (len(nodes) - 1, 1, dim, dim))
    return mf.ParameterMeasure(mf.AttentionAV(beta * unit, value * unit), mf.DepthGrid(nodes))


def follow(field, points, nodes, beta: float, value: float) -> np.ndarray:
    """Paths ``[R, L+1, n, 2]`` of some clouds: one program for all temperatures."""
    rho = heads(nodes, beta, value, 2)
    tokens = mf.TokenMeasure(points)
    return np.asarray(mf.solve_flow(field, rho, tokens, scheme=mf.RungeKutta4()).path)


@jax.jit
def _flat_end(nodes, value, points):
    rho = heads(nodes, SCORE, value, NUM_EQUIANGULAR)
    tokens = mf.TokenMeasure(points)
    return mf.solve_flow(FLAT, rho, tokens, scheme=mf.RungeKutta4(), keep="final").path


@jax.jit
def _sphere_end(nodes, value, points):
    rho = heads(nodes, SCORE, value, NUM_EQUIANGULAR)
    tokens = mf.TokenMeasure(points)
    return mf.solve_flow(SPHERE, rho, tokens, scheme=mf.RungeKutta4(), keep="final").path


def exact_errors(parameters: Parameters) -> dict[str, np.ndarray]:
    """Errors ``[K]`` of the final Gram matrix; cells beyond L have no length."""
    points = exact.equiangular_tokens(NUM_EQUIANGULAR, 1.0, START)
    found = {}
    for name, (field, value, horizon) in SETTINGS.items():
        if field is SPHERE:
            limit = exact.sphere_equiangular(
                NUM_EQUIANGULAR, correlation=START, score=SCORE, times=[horizon]
            )
            square, product = 1.0, limit[-1]
        else:
            solved = exact.equiangular(
                NUM_EQUIANGULAR,
                norm_squared=1.0,
                inner_product=START,
                value=value,
                score=SCORE,
                depths=[horizon],
            )
            square, product = solved.norms_squared[-1], solved.inner_products[-1]
        gram = np.full((NUM_EQUIANGULAR,) * 2, product)
        np.fill_diagonal(gram, square)
        errors = []
        for num_cells in parameters.sizes:
            steps = np.arange(max(parameters.sizes) + 1) / num_cells
            end = (_sphere_end if field is SPHERE else _flat_end)(
                horizon * np.minimum(steps, 1.0), value, points
            )
            errors.append(np.abs(end @ end.T - gram).max())
        found[name] = np.array(errors, float)
    return found


def clusters(path: np.ndarray) -> np.ndarray:
    """Number of groups on the circle that gaps above `APART` separate, ``[..., L+1]``."""
    angles = np.sort(np.arctan2(path[..., 1], path[..., 0]), axis=-1)
    gaps = np.diff(angles, axis=-1, append=angles[..., :1] + 2 * np.pi)
    return np.maximum((gaps > APART).sum(axis=-1), 1)


def spread(path: np.ndarray) -> np.ndarray:
    """Mean of ``1 - <x_a, x_b>`` over pairs, from differences so that it can be tiny."""
    centred = path - path.mean(axis=-2, keepdims=True)
    return (centred**2).sum(axis=-1).mean(axis=-1)


def approach(depths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rates ``[R]`` of ``values [R, L+1]`` as they fall from 1e-3 to 1e-9; nan if they do not."""
    rates = np.full(len(values), np.nan)
    for number, row in enumerate(values):
        near = (row < 1e-3) & (row > 1e-9)
        if near.sum() >= 4 and row[-1] < 1e-9:
            rates[number] = np.polyfit(depths[near], np.log(row[near]), 1)[0]
    return rates


def meeting_depth(beta: float) -> float:
    """Where two groups at a right angle have reached correlation 1/2, by quadrature."""
    rate = lambda r: (np.exp(beta * (1 - r)) + 1) / (2 * (1 - r * r))  # noqa: E731
    return quad(rate, 0.0, 0.5, epsabs=0, epsrel=1e-12)[0]


def crossing(depths: np.ndarray, values: np.ndarray, level: float) -> float:
    """The depth at which rising values pass a level, on a cubic spline; nan if they do not."""
    found = CubicSpline(depths, values).solve(level, extrapolate=False)
    return float(found[0]) if len(found) else float("nan")


def fastest_mode(betas: np.ndarray) -> np.ndarray:
    """k*, the whole number that maximises ``k^2 I_k(beta)``."""
    modes = np.arange(1, 200)
    return np.array([modes[(modes**2 * ive(modes, beta)).argmax()] for beta in betas])


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Exact cases, the diagram on the circle, meeting groups, the plane."""
    mf.use_double()
    errors = directory.cached("exact", lambda: exact_errors(parameters))
    num, tokens = parameters.num_replicates, parameters.num_tokens
    generator = np.random.default_rng([parameters.seed, CIRCLE])
    angles = generator.uniform(0, 2 * np.pi, (num, tokens))
    clouds = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    nodes = np.linspace(0.0, parameters.horizon, parameters.num_cells + 1)

    def on_circle(beta: float, value: float = 1.0) -> dict[str, np.ndarray]:
        path = follow(SPHERE, clouds, nodes, beta, value)
        return {"clusters": clusters(path), "spread": spread(path), "path": path[0]}

    def meet(beta: float) -> dict[str, np.ndarray]:
        sides = np.where(np.arange(tokens) < tokens // 2 * 2, np.arange(tokens) % 2, -1)
        corner = np.array([[1.0, 0.0], [0.0, 1.0]])[sides[: tokens // 2 * 2]]
        # equal tokens act as one: n tokens at two places are two tokens of mass 1/2
        weights = np.where(sides >= 0, 0.0, -np.inf)
        points = np.concatenate([corner, corner[:1]])[:tokens]
        mu = mf.TokenMeasure(
            np.broadcast_to(points, (num, tokens, 2)), np.broadcast_to(weights, (num, tokens))
        )
        # one horizon for all, some times the expected depth: which then is at no node
        depths = nodes / nodes[-1] * np.e * meeting_depth(beta)
        rho = heads(depths, beta, 1.0, 2)
        path = np.asarray(mf.solve_flow(SPHERE, rho, mu, scheme=mf.RungeKutta4()).path)[0]
        product = (path[:, 0] * path[:, 1]).sum(axis=-1)
        return {
            "depth": np.array(crossing(depths, product, 0.5)),
            "product": product,
            "depths": depths,
        }

    named = "beta={:g}".format
    diagram = directory.sweep("temperatures", parameters.betas, on_circle, progress, key=named)
    repelled = directory.cached("repelled", lambda: on_circle(1.0, -1.0))
    named = "pair,beta={:g}".format
    pairs = directory.sweep("pairs", parameters.pair_betas, meet, progress, key=named)
    plane = directory.cached("plane", lambda: in_plane(parameters, nodes))
    counts = np.stack([cell["clusters"] for cell in diagram], axis=1)  # [R, B, L+1]
    betas = np.array(parameters.betas)
    pair_betas = np.array(parameters.pair_betas)
    meeting = np.array([float(cell["depth"]) for cell in pairs])
    predicted = np.array([meeting_depth(beta) for beta in pair_betas])
    few = [index for index, beta in enumerate(betas) if beta <= 1]
    rates = np.stack([approach(nodes, diagram[i]["spread"]) for i in few])
    rates = rates[:, np.isfinite(rates).all(axis=0)].mean(axis=0)  # one number for each cloud
    shown = int(np.argmin(np.abs(betas - 8)))
    directory.save(
        "clustering",
        sizes=np.array(parameters.sizes),
        betas=betas,
        depths=nodes,
        counts=counts,
        spread=np.stack([diagram[i]["spread"] for i in few]),
        path=diagram[shown]["path"],
        shown=betas[shown],
        pair_betas=pair_betas,
        meeting=meeting,
        predicted=predicted,
        modes=fastest_mode(betas),
        **{f"exact_{k}": v for k, v in errors.items()},
        **plane,
    )
    if parameters.animate and not (directory.path / "tokens.gif").exists():
        from meanfield.plotting import animate_tokens

        frames = np.unique(np.geomspace(1, len(nodes), 48).round().astype(int)) - 1
        animate_tokens(diagram[shown]["path"][frames], directory.path / "tokens.gif", fps=8)

    claims = []
    for name in SETTINGS:
        rate = mf.fit_rate(parameters.sizes, errors[name])
        verdict = rate.verdict(-4.0, parameters.order_tolerance, min_r_squared=0.999)
        claims.append(
            mf.Claim(
                f"equiangular, {name}: slope in L of RK4 against the closed equation",
                -4.0,
                rate.slope,
                rate.interval,
                verdict,
            )
        )
    ends = counts[:, few, -1].ravel()
    claims.append(
        mf.Claim.bound(
            "clouds in one point at the end, beta <= 1", "at least", 1.0, np.mean(ends == 1)
        )
    )
    words = "rate of the last approach"
    claims.append(mf.Claim.mean(words, parameters.expected_rate, rates, parameters.tolerance))
    growth = mf.fit_rate(np.exp(pair_betas), pair_betas * meeting)
    claims += [
        mf.Claim(
            "two groups: slope of log(beta depth) in beta",
            1.0,
            growth.slope,
            growth.interval,
            growth.verdict(1.0, parameters.tolerance),
        ),
        mf.Claim.bound(
            "two groups: largest relative error of the meeting depth",
            "at most",
            1e-4,
            float(np.abs(meeting / predicted - 1).max()),
        ),
    ]
    chosen = betas >= parameters.many
    number = mf.fit_rate(betas[chosen], counts[:, chosen, -1], aggregate="mean")
    claims.append(
        mf.Claim(
            f"number of clusters at depth {parameters.horizon:g}: slope in beta",
            0.5,
            number.slope,
            number.interval,
            number.verdict(0.5, parameters.order_tolerance),
        )
    )
    late = plane["plane_depths"] >= plane["plane_depths"][-1] / 8
    shrink = mf.fit_rate(plane["plane_depths"][late], plane["variance"][:, late])
    claims += [
        mf.Claim(
            "R^2, V = -I: slope of the variance in depth",
            -1.0,
            shrink.slope,
            shrink.interval,
            shrink.verdict(-1.0, parameters.tolerance),
        ),
        mf.Claim.mean(
            "R^2, V = -I: 2 beta s tr Cov / d at the end",
            1.0,
            plane["closure"],
            parameters.tolerance,
        ),
    ]
    ratio = plane["leaders"] / plane["corners"]
    claims.append(
        mf.Claim.bound(
            "R^2, V = I: most groups of e^(-s) x per corner of the hull",
            "at most",
            1.0,
            ratio.max(),
        )
    )
    remaining = repelled["clusters"][:, -1]
    return [
        *claims,
        mf.Claim.bound(
            "control (V = -I): clouds in one point", "at most", 0.0, float(np.mean(remaining == 1))
        ),
    ]


def in_plane(parameters: Parameters, nodes: np.ndarray) -> dict[str, np.ndarray]:
    """Clouds in R^2: contraction under V = -I; groups of e^(-s) x under V = I."""
    shape = (parameters.num_replicates, parameters.num_tokens, 2)
    points = np.random.default_rng([parameters.seed, PLANE]).normal(size=shape)
    beta = 1.0
    inward = follow(FLAT, points, nodes, beta, -1.0)
    centred = inward - inward.mean(axis=2, keepdims=True)
    variance = (centred**2).mean(axis=2)  # of each axis, [R, L+1, 2]
    depths = nodes[1:]
    outward_nodes = 8.0 * nodes / nodes[-1]
    outward = follow(FLAT, points, outward_nodes, beta, 1.0)
    scaled = np.exp(-outward_nodes)[:, None, None] * outward
    leaders = [fcluster(linkage(end[-1], "single"), 0.05, "distance").max() for end in scaled]
    corners = [len(ConvexHull(start).vertices) for start in points]
    return {
        "plane_depths": depths,
        "variance": variance.mean(axis=2)[:, 1:],
        "closure": 2 * beta * depths[-1] * variance[:, -1].mean(axis=1),
        "leaders": np.array(leaders, float),
        "corners": np.array(corners, float),
        "outward": scaled[0][:: max(1, len(nodes) // 96)],
    }


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
