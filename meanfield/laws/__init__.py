"""Token laws by their cumulant generating function, and laws of parameter particles.

`AbstractLaw` says what a law can do; `Cube`, `Laplace`, `Gaussian`, `GaussianMixture`
(`two_component_mixture`) and `Empirical` have closed forms; `AffineImage`, `Product` and
`Convolution` build laws from laws; `parse_law` reads the command line's syntax.
`EntrywiseGaussian` and `UniformBall` draw parameter particles.
Reference: reconstruction, docs/theory.md 3.4.
"""

from meanfield.laws._base import AbstractLaw, Rule
from meanfield.laws._closed import (
    Cube,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    two_component_mixture,
)
from meanfield.laws._composed import AffineImage, Convolution, Product
from meanfield.laws._parameters import AbstractParameterLaw, EntrywiseGaussian, UniformBall
from meanfield.laws._parse import LAW_SYNTAX, parse_law

__all__ = [
    "LAW_SYNTAX",
    "AbstractLaw",
    "AbstractParameterLaw",
    "AffineImage",
    "Convolution",
    "Cube",
    "Empirical",
    "EntrywiseGaussian",
    "Gaussian",
    "GaussianMixture",
    "Laplace",
    "Product",
    "Rule",
    "UniformBall",
    "parse_law",
    "two_component_mixture",
]
