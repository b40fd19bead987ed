"""The paper's four families of token laws: how positive is the tangent kernel, and what kills it?

Claim. With K shared, pairwise non-collinear, non-zero queries the V-part ``K(a, b) = E <m_a, m_b>``
is positive as soon as the cumulant generating functions of the contexts are independent modulo
polynomials of degree 2; where all supports are bounded (cubes, clouds) modulo affine functions is
enough, and for K >= 2 necessary (docs/theory.md 3.2, corollary i). Arxiv 2605.17660 names four
families with distinct parameters; here in d = 2 with K = 3:

    cubes of radius 1 + t, Laplace laws of covariance (1 + t) S, mixtures of N(+-(1 + t) theta, S),
    and discrete clouds: independent ones, or one with tokens moved by t.

1. *Contexts.* N laws with distinct t are positive, for every N tried; the functions of all N are
   certified independent in ball arithmetic, modulo affine functions for cubes and clouds, modulo
   degree 2 for Laplace laws and mixtures. lambda_min falls steeply in N.
2. *Separation.* Of two laws t apart, the features differ by t (d m/dt) + O(t^2), so that

       lambda_min = O(t^2),    slope 2 in t.

3. *Head scale.* Heads s A_0, s -> 0. A symmetric law has ``m(z) = sum_j m_j(z)``, m_j of odd
   degree 2j - 1, linear in the power t^2j of the parameter (cubes, Laplace: m_j of different t are
   multiples of one another; mixtures: up to a constant part of degree 1). A combination with
   weights c that vanishes up to degree 2j - 1 is one whose moments ``sum c t^2i``, i <= j, vanish
   line by line, but for the K - d relations of the queries at degree 1. So K > d shared queries
   need one degree more than N, the last of them 2N + 1: the smallest singular value is
   O(s^(2N+1)). Clouds in general position (N <= d) have all N K features at degrees 0 and 1. Hence

       lambda_min = O(s^(4N+2)) for cubes, Laplace laws and mixtures, O(s^2) for clouds;

   slopes 10 and 2 for N = 2.
Negative controls: Gaussians (1 + t) S, whose generating functions are quadratic: N K - 2
null directions for any N; a cloud and its translate by t: K - 1 of them at every t.

Commands
    meanfield run ntk_families --preset smoke --check     15 seconds on a CPU
    meanfield run ntk_families --preset paper             a minute
    meanfield figures ntk_families

Cost: O(R M N K n d) for each of some hundred kernels. Figure: figures/ntk_families.py.
"""

from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf
from meanfield import ntk
from meanfield.laws import UniformBall

CLAIM = "four families of laws give positive kernels; lambda_min ~ separation^2, head scale^10 or 2"
COST = "smoke 15 s, paper 1 min on a CPU core"
FIGURE = "ntk_families"
HEADLINES = (
    "kernels of distinct parameters that are not positive",
    "families whose independence is certified",
    "cubes: slope of lambda_min in separation",
    "cubes: slope of lambda_min in scale",
)

FIELD = mf.SoftmaxAttention("av")
COVARIANCE = np.array([[0.5, 0.15], [0.15, 0.3]])
THETA = np.array([0.8, 0.4])
QUERIES = "shared:3"  # K = 3 > d = 2: two queries would leave degree 1 without a relation
NUM_QUERIES = 3
GAP = 0.5  # between the parameters of neighbouring contexts
FAMILIES = ("cubes", "laplace", "mixtures", "clouds")


@dataclass(frozen=True)
class Parameters:
    """What the three sweeps are made of."""

    most_contexts: int = 6
    """N runs from 2 to this."""
    separations: tuple[float, ...] = (0.04, 0.02, 0.01, 0.005, 0.0025)
    """t, distances between two laws' parameters."""
    scales: tuple[float, ...] = (0.16, 0.12, 0.08, 0.06, 0.04)
    """s, largest Frobenius norms of a head."""
    num_tokens: int = 5
    """n, tokens of a cloud."""
    num_heads: int = 64
    """M."""
    num_replicates: int = 8
    """Draws of the heads; intervals of slopes resample them."""
    head_scale: float = 2.0
    """s where it is not swept (Laplace laws: 0.6, inside their domain)."""
    expected_separation_slope: float = 2.0
    """What theory says of lambda_min against t."""
    expected_symmetric_slope: float = 10.0
    """What theory says of lambda_min against s for two cubes, Laplace laws, mixtures."""
    expected_cloud_slope: float = 2.0
    """The same for two clouds."""
    tolerance: float = 0.15
    """Two-sided band around the slopes in t; twice that for the slopes in s."""
    seed: int = 0
    """Seed of clouds and heads."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_replicates": 2, "most_contexts": 2, "num_tokens": 2},
            at_most={"most_contexts": 8, "head_scale": 50.0},
        )


def clouds(parameters: Parameters, num: int) -> list[np.ndarray]:
    """Independent clouds ``[n, 2]`` in the square: the same whatever their number."""
    shape = (parameters.num_tokens, 2)
    return [np.random.default_rng([parameters.seed, i]).uniform(-1, 1, shape) for i in range(num)]


def member(family: str, t: float, parameters: Parameters):
    """The family's law with parameter t."""
    if family == "cubes":
        return mf.Cube(1 + t, 2)
    if family == "laplace":
        return mf.Laplace((1 + t) * COVARIANCE)
    if family == "mixtures":
        return mf.two_component_mixture((1 + t) * THETA, COVARIANCE)
    if family == "gaussians":
        return mf.Gaussian(np.zeros(2), (1 + t) * COVARIANCE)
    points, step = clouds(parameters, 2)
    return mf.TokenMeasure(points + t * (step if family == "clouds" else np.array([0.6, 0.8])))


def contexts(family: str, num: int, parameters: Parameters) -> list:
    """N laws of distinct parameters."""
    if family == "clouds":
        return [mf.TokenMeasure(points) for points in clouds(parameters, num)]
    return [member(family, GAP * i, parameters) for i in range(num)]


def heads(scale: float, parameters: Parameters) -> list[mf.AttentionAV]:
    """R draws of M heads, A uniform in the ball of that radius."""
    draw = UniformBall(A=scale, V=1.0)
    keys = jax.random.split(jax.random.key(parameters.seed), parameters.num_replicates)
    shapes = FIELD.particle_shapes(2)
    return [draw(key, shapes, parameters.num_heads) for key in keys]


def spectra(laws: list, scale: float, parameters: Parameters) -> list[ntk.Spectrum]:
    """Spectrum of the V-part for each draw of the heads."""
    pairs = ntk.pairs_of(laws, QUERIES, seed=parameters.seed)
    return [
        ntk.spectrum(ntk.factor(FIELD, particles, pairs), interval=False)
        for particles in heads(scale, parameters)
    ]


def cell(laws: list, scale: float, parameters: Parameters) -> dict[str, np.ndarray]:
    """lambda_min, lambda_max, nullity and gap of each draw, ``[R]``."""
    found = spectra(laws, scale, parameters)
    names = ("lambda_min", "lambda_max", "nullity", "gap")
    return {name: np.array([getattr(one, name) for one in found]) for name in names}


def scale_of(family: str, parameters: Parameters) -> float:
    """s where it is not swept: Laplace laws are finite near 0 only."""
    return 0.6 if family == "laplace" else parameters.head_scale


def sweep(family: str, parameters: Parameters) -> dict[str, np.ndarray]:
    """The three sweeps of one family, each ``[R, sizes]``."""
    usual = scale_of(family, parameters)
    pair = [member(family, 0.0, parameters), member(family, 1.0, parameters)]
    if family == "clouds":
        pair = contexts(family, 2, parameters)
    sweeps = {
        "contexts": [
            cell(contexts(family, num, parameters), usual, parameters)
            for num in range(2, parameters.most_contexts + 1)
        ],
        "separation": [
            cell([member(family, u, parameters) for u in (0.0, t)], usual, parameters)
            for t in parameters.separations
        ],
        "scale": [cell(pair, s, parameters) for s in parameters.scales],
    }
    return {
        f"{name}_{quantity}": np.stack([one[quantity] for one in cells], axis=1)
        for name, cells in sweeps.items()
        for quantity in cells[0]
    }


def proofs(family: str, parameters: Parameters) -> dict[str, int]:
    """Nullity that Theorem A predicts for the most contexts, and whether balls prove it.

    Independence modulo affine functions proves positive kernels for bounded supports only: two
    Gaussians have it too.
    """
    laws = contexts(family, parameters.most_contexts, parameters)
    is_bounded = all(law.has_bounded_support for law in ntk.as_laws(laws))
    prediction = ntk.predicted_nullity(laws, QUERIES, seed=parameters.seed)
    certificate = ntk.certify(
        laws,
        kind="independence",
        modulo="affine" if is_bounded else "quadratic",
        seed=parameters.seed,
    )
    return {
        "predicted": prediction.nullity,
        "certified": int(certificate.status == "certified"),
        "precision": certificate.precision,
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep every family and the two controls, fit the slopes."""
    mf.use_double()
    families = (*FAMILIES, "gaussians", "translates")
    compute = lambda family: sweep(family, parameters)  # noqa: E731
    found = directory.sweep("families", families, compute, progress, key=str)
    tables = dict(zip(families, found, strict=True))
    compute = lambda family: proofs(family, parameters)  # noqa: E731
    found = directory.sweep("proofs", FAMILIES, compute, progress, key="proof_{}".format)
    proved = dict(zip(FAMILIES, found, strict=True))
    directory.save(
        "sweeps",
        contexts=np.arange(2, parameters.most_contexts + 1),
        separation=np.array(parameters.separations),
        scale=np.array(parameters.scales),
        **{f"{family}_{k}": v for family, table in tables.items() for k, v in table.items()},
        **{f"{family}_precision": proof["precision"] for family, proof in proved.items()},
    )

    null = np.stack([tables[family]["contexts_nullity"] for family in FAMILIES])
    gaps = np.stack([tables[family]["contexts_gap"] for family in FAMILIES])
    predicted = sum(int(proof["predicted"]) for proof in proved.values())
    certified = sum(int(proof["certified"]) for proof in proved.values())
    claims = [
        mf.Claim.bound(
            "kernels of distinct parameters that are not positive",
            "exactly",
            0,
            int((null > 0).sum()),
        ),
        mf.Claim(
            "smallest gap of these ranks",
            "at least 1e3",
            float(gaps.min()),
            None,
            "consistent" if gaps.min() >= 1e3 else "undecided",
        ),
        mf.Claim.bound(
            f"null directions predicted, N = {parameters.most_contexts}", "exactly", 0, predicted
        ),
        mf.Claim.bound(
            "families whose independence is certified", "exactly", len(FAMILIES), certified
        ),
    ]
    for family in FAMILIES:
        slopes = {
            "separation": (parameters.expected_separation_slope, parameters.tolerance),
            "scale": (
                parameters.expected_cloud_slope
                if family == "clouds"
                else parameters.expected_symmetric_slope,
                2 * parameters.tolerance,
            ),
        }
        for name, (expected, tolerance) in slopes.items():
            sizes = getattr(parameters, {"separation": "separations", "scale": "scales"}[name])
            rate = mf.fit_rate(sizes, tables[family][f"{name}_lambda_min"], aggregate="geometric")
            verdict = rate.verdict(expected, tolerance, min_r_squared=0.999)
            claims.append(
                mf.Claim(
                    f"{family}: slope of lambda_min in {name}",
                    expected,
                    rate.slope,
                    rate.interval,
                    verdict,
                )
            )
    num = np.arange(2, parameters.most_contexts + 1)
    expected = num * NUM_QUERIES - 2
    wrong = int((tables["gaussians"]["contexts_nullity"] != expected).sum())
    translates = tables["translates"]["separation_nullity"]
    lost = int((translates != NUM_QUERIES - 1).sum())
    return [
        *claims,
        mf.Claim.bound(
            "control: kernels of Gaussians with another nullity than predicted", "exactly", 0, wrong
        ),
        mf.Claim.bound(
            "control: kernels of translates without K - 1 null directions", "exactly", 0, lost
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
