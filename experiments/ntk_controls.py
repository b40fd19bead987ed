"""The checklist: what makes a tangent kernel singular, and by how much, predicted and measured.

Claim. For pairs a of a context mu_i and a query x, sorted by lines ``x_a = t_a e_l``, Theorem A
(docs/theory.md 3.2) gives the nullity of the V-part exactly: with Lam the cumulant generating
functions and c the weights of the pairs,

    W_l = { c : f_l(z) = sum_a c_a grad Lam_{i_a}(t_a z) = b_l + T_l z },    T_l = T_l^T,
    nullity = sum_l dim W_l - rank of the map  c -> ( sum_l b_l, sum_l T_l (x) e_l );

pairs at x = 0 are a class of their own, with W_0 everything, b_0 = sum_a c_a mean(mu_i), T_0 = 0.
Where all supports are bounded T_l = 0: combinations of bounded functions are bounded.

Each line of the table LINES is a configuration in d = 2 with the nullity worked out by hand: the
positive ones (distinct laws of the paper's families, one query for translates, ...) and every known
way to lose positivity (duplicates, translates, reflections, dilations along a line, Diracs,
Gaussians, convolution identities, too few heads, a centred law at x = 0), then the A-part and the
full kernel of seven of them. The prediction sees contexts and queries only; the measured nullity
is read off the singular values of the factor F of finitely many heads, with the gap between kept
and dropped ones.
P are positive, N singular, Q compares the parts; the numbers are those of the checklist that came
with the theory, which has no P7 and no N13.
Negative control: LINES again, every context convolved with a small random cloud of its own (each
token splits in three). Nullities that come from relations between the laws must then vanish, and
only those that dimension forces may stay: three means in R^2 at x = 0 (1), nine pairs and two heads
(5), which makes 6 in all. A check that always finds what it has found before fails this.

Commands
    meanfield run ntk_controls --preset smoke --check     20 seconds on a CPU
    meanfield run ntk_controls --preset paper             a minute
    meanfield figures ntk_controls

Cost: some forty small kernels for each draw of the heads. Figure: figures/ntk_controls.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import meanfield as mf
from meanfield import ntk

CLAIM = "the nullity of the tangent kernel is the predicted one in every line of the checklist"
COST = "smoke 20 s, paper 1 min on a CPU core"
FIGURE = "ntk_controls"
HEADLINES = (
    "lines whose predicted nullity is not the listed one",
    "lines whose measured nullity is not the listed one",
)


@dataclass(frozen=True)
class Parameters:
    """How the lines are measured."""

    num_tokens: int = 4
    """n, tokens of the random clouds."""
    num_heads: int = 64
    """M, where the line does not say."""
    num_replicates: int = 2
    """Draws of clouds and heads: the nullity is to be the same in each."""
    disturbance: float = 0.5
    """Size of the clouds that the control convolves with."""
    seed: int = 0
    """Seed of clouds and heads."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"num_tokens": 3, "num_heads": 16},
            at_most={"disturbance": 2.0, "seed": 2**63 - 10**6},
        )


COVARIANCE = np.array([[0.5, 0.15], [0.15, 0.3]])
OTHER = np.array([[0.3, -0.1], [-0.1, 0.6]])
THIRD = np.array([[0.4, 0.0], [0.0, 0.2]])
FOURTH = np.array([[0.9, 0.2], [0.2, 0.7]])
THETA = np.array([0.6, 0.3])
SHIFT = np.array([0.3, -0.2])
QUERIES = np.array([[1.0, 0.0], [0.3, 0.9], [-0.7, 0.6], [0.5, -0.8]])
RADEMACHER = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])


@dataclass(frozen=True)
class Line:
    """One configuration: contexts and queries as functions of a cloud maker, and its nullity."""

    name: str
    title: str
    build: Callable[[Callable[[], np.ndarray]], tuple[list[Any], Any]]
    nullity: int
    part: str = "V"
    num_heads: int | None = None
    head_dim: int | None = None


def shared(num: int, *contexts: Any) -> tuple[list[Any], np.ndarray]:
    """Contexts that all share the first K queries; arrays are points of clouds."""
    return as_contexts(contexts), QUERIES[:num]


def as_contexts(given: Any) -> list[Any]:
    """Arrays of points as token measures, laws as they are."""
    return [mf.TokenMeasure(one) if isinstance(one, np.ndarray) else one for one in given]


def translates(cloud: Callable[[], np.ndarray], num: int) -> tuple[list[Any], np.ndarray]:
    """A cloud and itself shifted."""
    points = cloud()
    return shared(num, points, points + SHIFT)


def own_places(cloud: Callable[[], np.ndarray]) -> tuple[list[Any], Any]:
    """Translates, each asked at its own tokens."""
    contexts, _ = translates(cloud, 1)
    return contexts, "own"


def line_of_one(context: Any, queries: Any) -> tuple[list[Any], np.ndarray]:
    """One context at queries of its own."""
    return as_contexts([context]), np.asarray(queries, float)


def symmetric(points: np.ndarray) -> np.ndarray:
    """A cloud with its reflection."""
    return np.concatenate([points, -points])


def centred(points: np.ndarray) -> np.ndarray:
    """A cloud of mean 0."""
    return points - points.mean(axis=0)


def weighted(points: np.ndarray) -> mf.TokenMeasure:
    """The same points with masses 1, 2, 3, ..."""
    return mf.TokenMeasure.from_weights(points, 1.0 + np.arange(len(points)))


def sums(points: np.ndarray) -> np.ndarray:
    """Points of the law of y + y', independent copies: mu * mu."""
    return (points[:, None] + points[None]).reshape(-1, points.shape[1])


def at_the_origin(cloud: Callable[[], np.ndarray], num: int) -> tuple[list[Any], np.ndarray]:
    """Several clouds asked at x = 0 only."""
    return as_contexts([cloud() for _ in range(num)]), np.zeros((1, 2))


def twice(cloud: Callable[[], np.ndarray], num: int) -> tuple[list[Any], np.ndarray]:
    """The same cloud as two contexts."""
    points = cloud()
    return shared(num, points, points.copy())


def convolved(cloud: Callable[[], np.ndarray], num: int) -> tuple[list[Any], np.ndarray]:
    """mu and mu * mu."""
    points = cloud()
    return shared(num, points, sums(points))


def reflected(cloud: Callable[[], np.ndarray]) -> tuple[list[Any], list[np.ndarray]]:
    """mu at x and its reflection at -x."""
    points = cloud()
    return as_contexts([points, -points]), [QUERIES[:1], -QUERIES[:1]]


def different_masses(cloud: Callable[[], np.ndarray]) -> tuple[list[Any], np.ndarray]:
    """The same support with other weights."""
    points = cloud()
    return shared(3, points, weighted(points))


def cubes_and_corners(num: int) -> tuple[list[Any], np.ndarray]:
    """sinh(2z)/2z = sinh(z)/z cosh(z): the large cube is the small one plus independent signs."""
    return shared(num, mf.Cube(2.0, 2), mf.Cube(1.0, 2), RADEMACHER)


def gaussians(*covariances: np.ndarray) -> list[Any]:
    """Centred Gaussian laws."""
    return [mf.Gaussian(np.zeros(2), matrix) for matrix in covariances]


def diracs(num: int) -> tuple[list[Any], list[np.ndarray]]:
    """Single points, one query each, no two of them on a line."""
    atoms = [np.array([[0.5, 0.2]]), np.array([[-0.3, 0.4]]), np.array([[0.1, -0.6]])]
    return as_contexts(atoms[:num]), [QUERIES[[i]] for i in range(num)]


def dilated_cubes() -> tuple[list[Any], list[np.ndarray]]:
    """Two centred cubes asked where the dilation between them cancels."""
    return [mf.Cube(1.0, 2), mf.Cube(2.0, 2)], [QUERIES[:1], QUERIES[:1] / 2]


def laplace_and_its_square() -> tuple[list[Any], np.ndarray]:
    """Laplace and variance-gamma (1 - q)^-2 of the same covariance; scores stay in the domain."""
    law = mf.Laplace(COVARIANCE)
    return shared(3, law, mf.Convolution([law, law]))


STRUCTURAL = ("N16'", "N17")  # null by dimension: no disturbance helps
DIRAC, ATOM = np.array([[0.5, 0.2]]), np.zeros((1, 2))
LINES = (
    Line("P1", "cubes r = 1, 2", lambda c: shared(3, mf.Cube(1.0, 2), mf.Cube(2.0, 2)), 0),
    Line(
        "P1'",
        "cubes r = 1, 3/2, 2",
        lambda c: shared(3, *[mf.Cube(r, 2) for r in (1.0, 1.5, 2.0)]),
        0,
    ),
    Line(
        "P2",
        "two Laplace laws",
        lambda c: shared(3, mf.Laplace(COVARIANCE), mf.Laplace(OTHER)),
        0,
    ),
    Line(
        "P3",
        r"mixtures $\theta$, $2\theta$",
        lambda c: shared(3, *[mf.two_component_mixture(t * THETA, COVARIANCE) for t in (1.0, 2.0)]),
        0,
    ),
    Line("P4", "three clouds", lambda c: shared(3, c(), c(), c()), 0),
    Line("P4'", "three clouds, rank-1 heads", lambda c: shared(3, c(), c(), c()), 0, head_dim=1),
    Line("P5", "clouds, own tokens", lambda c: (as_contexts([c(), c(), c()]), "own"), 0),
    Line("P6", "translates, own tokens", own_places, 0),
    Line("P8", "translates, one query", lambda c: translates(c, 1), 0),
    Line("P9", "point a, one query", lambda c: shared(1, DIRAC), 0),
    Line("P10", "two Gaussians, K = 2", lambda c: shared(2, *gaussians(COVARIANCE, OTHER)), 0),
    Line(
        "P10'",
        "three Gaussians, K = 2, rank 1",
        lambda c: shared(2, *gaussians(COVARIANCE, OTHER, THIRD)),
        0,
        head_dim=1,
    ),
    Line("P11", "same points, other masses", different_masses, 0),
    Line("N1", "translates", lambda c: translates(c, 3), 2),
    Line("N2", "duplicates", lambda c: twice(c, 3), 3),
    Line("N3", "point a", lambda c: shared(3, DIRAC), 2),
    Line("N3'", "point 0", lambda c: shared(3, ATOM), 3),
    Line("N4", "three points, one query each", lambda c: diracs(3), 1),
    Line("N5", "one Gaussian", lambda c: shared(3, *gaussians(COVARIANCE)), 1),
    Line("N6", "cubes r = 1, 2 at $x$, $x/2$", lambda c: dilated_cubes(), 1),
    Line(
        "N7",
        "four Gaussians, K = 4",
        lambda c: shared(4, *gaussians(COVARIANCE, OTHER, THIRD, FOURTH)),
        10,
    ),
    Line("N8", "two Gaussians", lambda c: shared(3, *gaussians(COVARIANCE, OTHER)), 2),
    Line(
        "N9",
        "Gaussian at $x$, $2x$",
        lambda c: line_of_one(gaussians(COVARIANCE)[0], [QUERIES[0], 2 * QUERIES[0]]),
        1,
    ),
    Line(
        "N10",
        "symmetric cloud at $x$, $-x$",
        lambda c: line_of_one(symmetric(c()), [QUERIES[0], -QUERIES[0]]),
        1,
    ),
    Line("N11", "reflections at $x$, $-x$", reflected, 1),
    Line("N12", "cubes r = 1, 2 and corners", lambda c: cubes_and_corners(3), 3),
    Line("N14", r"$\mu$ and $\mu * \mu$", lambda c: convolved(c, 3), 3),
    Line("N15", "Laplace, variance gamma", lambda c: laplace_and_its_square(), 3),
    Line("N16", "centred cloud at 0", lambda c: line_of_one(centred(c()), np.zeros((1, 2))), 1),
    Line("N16'", "three clouds at 0", lambda c: at_the_origin(c, 3), 1),
    Line("N17", "three clouds, two heads", lambda c: shared(3, c(), c(), c()), 5, num_heads=2),
)
# V, A and full part, nullity per coordinate: the V-part binds, the A-part alone may not
PARTS = tuple(
    Line(name, f"{title}, {part}", build, nullity, part)
    for name, title, build, nullities in (
        ("Q1", "two clouds", lambda c: shared(3, c(), c()), (0, 0, 0)),
        ("Q2", "translates, one query", lambda c: translates(c, 1), (0, 1, 0)),
        ("Q3", "translates", lambda c: translates(c, 3), (2, 3, 2)),
        ("Q4", "duplicates, K = 2", lambda c: twice(c, 2), (2, 2, 2)),
        ("Q5", "cloud at 0", lambda c: at_the_origin(c, 1), (0, 1, 0)),
        ("Q6", "cubes and corners, K = 2", lambda c: cubes_and_corners(2), (2, 2, 2)),
        ("Q7", "point a, one query", lambda c: shared(1, DIRAC), (0, 1, 0)),
    )
    for part, nullity in zip(("V", "A", "full"), nullities, strict=True)
)


def cloud_maker(parameters: Parameters, draw: int, number: int) -> Callable[[], np.ndarray]:
    """Clouds ``[n, 2]`` one after another, each line with a stream of its own."""
    generator = np.random.default_rng([parameters.seed, draw, number])
    return lambda: generator.uniform(-1, 1, (parameters.num_tokens, 2))


def measure(
    line: Line, parameters: Parameters, draw: int, number: int, *, disturb: bool = False
) -> ntk.PositivityReport:
    """Check one line, or its control."""
    cloud = cloud_maker(parameters, draw, number)
    contexts, queries = line.build(cloud)
    if disturb:
        pairs = ntk.pairs_of(contexts, queries)  # own tokens are asked where they were
        queries = [pairs.queries[pairs.index == i] for i in range(len(contexts))]
        contexts = [disturbed(one, parameters.disturbance * cloud()[:3]) for one in contexts]
    return ntk.check(
        contexts,
        queries,
        num_heads=line.num_heads or parameters.num_heads,
        head_dim=line.head_dim,
        part=line.part,
        seed=parameters.seed + draw,
    )


def disturbed(context: Any, points: np.ndarray) -> mf.AbstractLaw:
    """The context's law, convolved with a cloud."""
    law = mf.Empirical(context) if isinstance(context, mf.TokenMeasure) else context
    return mf.Convolution([law, mf.Empirical(mf.TokenMeasure(points))])


def table(
    lines: tuple[Line, ...], parameters: Parameters, draw: int, progress, *, disturb: bool = False
) -> dict[str, np.ndarray]:
    """Nullities, gaps and relative singular values (padded with NaN) of all lines."""
    reports = [
        measure(line, parameters, draw, number, disturb=disturb)
        for number, line in enumerate(progress.task(lines, f"draw {draw + 1}"))
    ]
    spectra = [one.spectrum for one in reports]
    # over the size of the features, which a kernel that is zero has as well
    values = [one.singular_values * np.finfo(float).eps / max(one.noise, 1e-300) for one in spectra]
    padded = np.full((len(reports), max(map(len, values))), np.nan)
    for row, some in zip(padded, values, strict=True):
        row[: len(some)] = some
    return {
        "predicted": np.array([one.predicted_nullity for one in reports]),
        "measured": np.array([one.nullity for one in reports], dtype=float),
        "gap": np.array([one.gap for one in reports]),
        "undecided": np.array([one.verdict == "undecided" for one in reports]),
        "explained": np.array([bool(one.reasons) for one in reports]),
        "kept": np.array([one.rank for one in spectra]),
        "singular_values": padded,
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Measure every line, in several draws, and the control."""
    mf.use_double()
    lines = (*LINES, *PARTS)
    draws = range(parameters.num_replicates)
    found = directory.sweep(
        "draw", draws, lambda draw: table(lines, parameters, draw, progress), progress
    )
    control = directory.cached(
        "control", lambda: table(LINES, parameters, 0, progress, disturb=True)
    )
    listed = np.array([line.nullity for line in lines])
    every = {key: np.stack([one[key] for one in found]) for key in found[0] if key[:2] != "si"}
    directory.save(
        "lines",
        name=np.array([line.name for line in lines]),
        title=np.array([line.title for line in lines]),
        part=np.array([line.part for line in lines]),
        listed=listed,
        singular_values=found[0]["singular_values"],
        **every,
        **{f"control_{key}": values for key, values in control.items()},
    )
    is_null = np.tile(listed > 0, (parameters.num_replicates, 1))
    structural = sum(line.nullity for line in LINES if line.name in STRUCTURAL)
    least = float(every["gap"][every["kept"] > 0].min())  # a kernel that is 0 has no gap
    return [
        mf.Claim.bound(
            "lines whose predicted nullity is not the listed one",
            "exactly",
            0,
            np.sum(every["predicted"] != listed),
        ),
        mf.Claim.bound(
            "lines whose measured nullity is not the listed one",
            "exactly",
            0,
            np.sum(every["measured"] != listed),
        ),
        mf.Claim(
            "smallest gap between kept and dropped singular values",
            "at least 1e3",
            least,
            None,
            "consistent" if least >= 1e3 else "undecided",
        ),
        mf.Claim.bound(
            "singular lines without a reason in words",
            "exactly",
            0,
            np.sum(is_null & ~every["explained"]),
        ),
        mf.Claim(
            "control: null directions left in all lines together",
            float(structural),
            float(control["measured"].sum()),
            None,
            "consistent" if control["measured"].sum() == structural else "inconsistent",
        ),
        mf.Claim.bound(
            "control: lines whose measured nullity is not the predicted one",
            "exactly",
            0,
            np.sum(control["measured"] != control["predicted"]),
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
