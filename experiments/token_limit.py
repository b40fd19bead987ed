"""n -> infinity: a context of n tokens tends to its token law at n^(-1/2).

Claim. For n tokens drawn independently from a law mu, the flow map of the random cloud mu_n tends
to that of mu. The map is followed at fixed probe points that carry no mass, so that the two are
compared point by point, without any transport between clouds:

    error = max_k ( (1/m) sum_p |X^{mu_n}_{s_k}(p) - X^mu_{s_k}(p)|^2 )^(1/2),    slope -1/2 in n

(docs/theory.md 6.1, 6.13). Three laws, three kinds of limit:
1. a Gaussian, whose flow map is affine and known in closed form;
2. the uniform law on a cube, whose limit is the flow of Gauss-Legendre tokens;
3. a handwritten digit: pixels drawn by their intensity, whose limit is the flow of the whole image.
Scrambled Sobol points of the cube in place of independent ones converge faster (slope below -3/4).
Negative control: the tokens of a context share one random shift, so they are exchangeable but not
independent: there is no limit, and the check that accepts -1/2 must reject the slope.

Commands
    meanfield run token_limit --preset smoke --check     half a minute on a CPU
    meanfield run token_limit --preset paper             two minutes
    meanfield figures token_limit

Cost: O(R L M n (n + m) d) per size; all replicates are one batch of contexts, O(R L n d) memory.
Figure: figures/token_limit.py. Needs the extra `data` (the digit).
"""

from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf
from meanfield import data, exact

CLAIM = "contexts of n independent tokens reach their law's flow map at rate n^(-1/2)"
COST = "smoke 0.5 min, paper 2 min on a CPU core"
FIGURE = "token_limit"
HEADLINES = (
    "gaussian: slope in n",
    "cube: slope in n",
    "digit: slope in n",
    "Sobol points of the cube: slope in n",
)

HEADS, GAUSSIAN, CUBE, DIGIT, SOBOL, SHIFT = range(6)  # names of the random streams
NUM_CELLS = 2  # RK4 there is far more accurate than the largest cloud


@dataclass(frozen=True)
class Parameters:
    """What the sweep is made of."""

    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """n, tokens in a context (powers of two, which Sobol points like)."""
    num_replicates: int = 128
    """Independent contexts for each n; the slope's interval resamples them."""
    num_heads: int = 2
    """M, heads in each depth cell."""
    num_probes: int = 16
    """m, probe points of the flow map."""
    shift: float = 0.3
    """Standard deviation of the shift that the control's tokens share."""
    expected_slope: float = -0.5
    """What theory says of independent tokens."""
    tolerance: float = 0.06
    """Two-sided band around it."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(self, at_least={"num_replicates": 2})


def handwritten_two() -> mf.TokenMeasure:
    """One digit of scikit-learn's as a measure in the plane: pixel = token, intensity = mass."""
    image = data.load_digits("sklearn", num_train=10).train_images[2:3]
    digit = data.digit_measures(image, 2, num_queries=0)
    return mf.TokenMeasure(digit.points[0], digit.log_weights[0])


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep n, store errors ``[R, K]`` of every series, fit slopes."""
    mf.use_double()
    root = jax.random.key(parameters.seed)
    stream = [jax.random.fold_in(root, name) for name in range(6)]
    field, scheme, image = mf.SoftmaxAttention("av"), mf.RungeKutta4(), handwritten_two()
    gaussian = mf.Gaussian(np.array([0.4, -0.2]), np.array([[0.5, 0.15], [0.15, 0.3]]))
    laws = {"gaussian": gaussian, "cube": mf.Cube(1.0, 2), "digit": mf.Empirical(image)}
    rho = mf.sample_parameters(
        field,
        mf.EntrywiseGaussian(A=0.4, V=0.6),
        mf.DepthGrid.uniform(NUM_CELLS),
        parameters.num_heads,
        dim=2,
        key=stream[HEADS],
    )
    probes = mf.Cube(1.0, 2).tokens(parameters.num_probes, key=stream[HEADS], rule="quasi").points

    def follow(tokens: mf.TokenMeasure) -> jax.Array:
        return mf.solve_flow(field, rho, tokens, scheme=scheme, probes=probes).probe_path

    def compute_limits() -> dict[str, np.ndarray]:
        closure = exact.gaussian_closure(gaussian.mean(), gaussian.covariance(), rho)
        return {
            "gaussian": np.asarray(closure.flow_map(probes)),
            "cube": np.asarray(follow(laws["cube"].tokens(24, rule="legendre"))),
            "digit": np.asarray(follow(image)),
        }

    limits = directory.cached("limits", compute_limits)
    errors_of = jax.jit(jax.vmap(mf.coupled_distance, in_axes=(0, None)))

    def draw(law: mf.AbstractLaw, key: jax.Array, num_tokens: int) -> np.ndarray:
        """Independent contexts ``[R, n, 2]``: a part of the largest, which compiles only once."""
        num, most = parameters.num_replicates, max(parameters.sizes)
        return np.asarray(law.sample(key, num * most)).reshape(num, most, 2)[:, :num_tokens]

    def sweep(num_tokens: int) -> dict[str, np.ndarray]:
        keys = [jax.random.fold_in(one, num_tokens) for one in stream]
        clouds = {
            name: draw(law, key, num_tokens)
            for (name, law), key in zip(laws.items(), keys[GAUSSIAN : DIGIT + 1], strict=True)
        }
        scrambles = [jax.random.fold_in(keys[SOBOL], r) for r in range(parameters.num_replicates)]
        sobol = [laws["cube"].tokens(num_tokens, key=key, rule="quasi") for key in scrambles]
        clouds["sobol"] = np.stack([np.asarray(cloud.points) for cloud in sobol])
        shifts = jax.random.normal(keys[SHIFT], (parameters.num_replicates, 1, 2))
        clouds["control"] = clouds["gaussian"] + parameters.shift * np.asarray(shifts)
        limit_of = limits | {"sobol": limits["cube"], "control": limits["gaussian"]}
        return {
            name: errors_of(follow(mf.TokenMeasure(points)), limit_of[name])
            for name, points in clouds.items()
        }

    table = directory.sweep("n", parameters.sizes, sweep, progress)
    errors = {name: np.stack([cell[name] for cell in table], axis=1) for name in table[0]}
    directory.save("errors", sizes=np.array(parameters.sizes), **errors)

    claims = []
    for name in ("gaussian", "cube", "digit"):
        rate = mf.fit_rate(parameters.sizes, errors[name])
        verdict = rate.verdict(parameters.expected_slope, parameters.tolerance)
        claims.append(
            mf.Claim(
                f"{name}: slope in n", parameters.expected_slope, rate.slope, rate.interval, verdict
            )
        )
    sobol, control = (mf.fit_rate(parameters.sizes, errors[name]) for name in ("sobol", "control"))
    rejected = control.verdict(parameters.expected_slope, parameters.tolerance) == "inconsistent"
    return [
        *claims,
        mf.Claim(
            "Sobol points of the cube: slope in n",
            "below -0.75",
            sobol.slope,
            sobol.interval,
            "consistent" if sobol.interval[1] < -0.75 else "inconsistent",
        ),
        mf.Claim(
            "control (tokens sharing a shift): slope in n",
            "any other slope",
            control.slope,
            control.interval,
            "consistent" if rejected else "inconsistent",
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
