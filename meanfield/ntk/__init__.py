"""The neural tangent kernel: is it positive, how positive, which directions are null, and why."""

from meanfield.ntk.depth import (
    ConvergenceConstant,
    convergence_constant,
    depth_factors,
    depth_spectra,
    terminal_factor,
)
from meanfield.ntk.kernel import Factor, factor, gaussian_kernel, gram
from meanfield.ntk.pairs import Pairs, as_laws, evaluate, pairs_of, shared_queries
from meanfield.ntk.spectra import Spectrum, spectrum

__all__ = [
    "ConvergenceConstant",
    "Factor",
    "Pairs",
    "Spectrum",
    "as_laws",
    "convergence_constant",
    "depth_factors",
    "depth_spectra",
    "evaluate",
    "factor",
    "gaussian_kernel",
    "gram",
    "pairs_of",
    "shared_queries",
    "spectrum",
    "terminal_factor",
]
