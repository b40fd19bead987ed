"""Your own limit in 40 lines: copy this file, change the claim, run it by its path.

Claim. As the scores A -> eps A become small, attention sees only the mean and the tokens tend to
``x(s) = x(0) + (E(s) - I) mean(0)``, dE/ds = Vbar E (docs/theory.md 6.3), at order 1:

    error = ( sum_a w_a |x_a(1) - limit_a|^2 )^(1/2) = O(eps),    slope +1 in eps.

An experiment is a file with a frozen dataclass `Parameters` (each field is a flag of the command
line) and a function `run` that stores arrays and returns claims. Presets: presets/*.toml.

Commands
    meanfield run experiments/template.py --check        seconds
    python experiments/template.py --num-heads 8         the same, as a script
"""

from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf

CLAIM = "small scores: tokens tend to the flow of the mean at rate eps (a template)"
COST = "seconds"
FIGURE = None


@dataclass(frozen=True)
class Parameters:
    """What the sweep is made of."""

    sizes: tuple[float, ...] = (0.2, 0.1, 0.05, 0.025, 0.0125)
    """eps, factors of the scores."""
    num_heads: int = 4
    """M, heads in each of four layers."""
    expected_slope: float = 1.0
    """What theory says."""
    seed: int = 0
    """Seed of the heads and of the tokens."""

    def __post_init__(self) -> None:
        mf.check_parameters(self)


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Sweep eps, store the errors, fit their slope."""
    mf.use_double()
    field, grid = mf.SoftmaxAttention("av"), mf.DepthGrid.uniform(4)
    head_key, token_key = jax.random.split(jax.random.key(parameters.seed))
    tokens = mf.Cube(1.0, 3).tokens(32, key=token_key)
    law = mf.EntrywiseGaussian(A=1.0, V=0.5)
    rho = mf.sample_parameters(field, law, grid, parameters.num_heads, dim=3, key=head_key)

    def scaled(eps: float) -> mf.ParameterMeasure:
        return rho.with_particles(mf.AttentionAV(eps * rho.particles.A, rho.particles.V))

    limit = mf.exact.zero_score(tokens, scaled(0.0))[-1]
    errors = []
    for eps in progress.task(parameters.sizes, "eps"):
        final = mf.solve_flow(field, scaled(eps), tokens, scheme=mf.RungeKutta4()).final
        errors.append(float(mf.coupled_distance(final.points, limit, tokens.weights)))
    directory.save("errors", sizes=np.array(parameters.sizes), error=np.array(errors))

    rate = mf.fit_rate(parameters.sizes, errors)
    verdict = rate.verdict(parameters.expected_slope, 0.15, min_r_squared=0.999)
    return [mf.Claim("slope in eps", parameters.expected_slope, rate.slope, rate.interval, verdict)]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
