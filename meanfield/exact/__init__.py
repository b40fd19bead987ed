"""Closed-form solutions that the solvers are measured against, in float64 whatever jax's precision.

Each answers by a formula, or by an equation in a few variables solved to about 1e-13; none uses
the package's own schemes. All are reconstructions, docs/theory.md 6:

    6.1   gaussian_closure, gaussian_isotropic, gaussian_blow_up_depth, gaussian_l2_attention
    6.2   two_tokens                          6.3   zero_score, first_order_attention
    6.4   hardmax_attention                   6.5   identical_tokens
    6.6   equiangular, equiangular_tokens     6.7   sphere_equiangular
    6.9   attention_potential                 6.10  dirac_training
    6.11  lazy_residual, lazy_risk            6.12  radius_bound

The identities of 6.8 (symmetries) and the orders of 6.13 are properties of the solvers themselves.
`constant_head` builds the one-head parameter measure that most of these formulas speak of.
"""

from meanfield.exact._gaussian import (
    GaussianClosure,
    gaussian_blow_up_depth,
    gaussian_closure,
    gaussian_isotropic,
    gaussian_l2_attention,
)
from meanfield.exact._heads import constant_head
from meanfield.exact._tokens import (
    Equiangular,
    Hardmax,
    attention_potential,
    equiangular,
    equiangular_tokens,
    first_order_attention,
    hardmax_attention,
    identical_tokens,
    radius_bound,
    sphere_equiangular,
    two_tokens,
    zero_score,
)
from meanfield.exact._training import dirac_training, lazy_residual, lazy_risk

__all__ = [
    "Equiangular",
    "GaussianClosure",
    "Hardmax",
    "attention_potential",
    "constant_head",
    "dirac_training",
    "equiangular",
    "equiangular_tokens",
    "first_order_attention",
    "gaussian_blow_up_depth",
    "gaussian_closure",
    "gaussian_isotropic",
    "gaussian_l2_attention",
    "hardmax_attention",
    "identical_tokens",
    "lazy_residual",
    "lazy_risk",
    "radius_bound",
    "sphere_equiangular",
    "two_tokens",
    "zero_score",
]
