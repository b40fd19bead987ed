"""The neural tangent kernel: is it positive, how positive, which directions are null, and why."""

from meanfield.ntk.certificate import Certificate, Verification, certify, verify
from meanfield.ntk.depth import (
    ConvergenceConstant,
    convergence_constant,
    depth_factors,
    depth_spectra,
    terminal_factor,
)
from meanfield.ntk.injectivity import (
    Independence,
    Prediction,
    Relation,
    Separation,
    independence,
    predicted_nullity,
    reasons,
    separation,
)
from meanfield.ntk.kernel import Factor, factor, gaussian_kernel, gram
from meanfield.ntk.pairs import Pairs, as_laws, evaluate, pairs_of, shared_queries
from meanfield.ntk.report import (
    Heads,
    PositivityReport,
    Suggestion,
    check,
    draw_heads,
    suggest,
)
from meanfield.ntk.spectra import Spectrum, spectrum
from meanfield.ntk.streamed import Smallest, StreamedKernel, smallest_eigenvalue, streamed_kernel

__all__ = [
    "Certificate",
    "ConvergenceConstant",
    "Factor",
    "Heads",
    "Independence",
    "Pairs",
    "PositivityReport",
    "Prediction",
    "Relation",
    "Separation",
    "Smallest",
    "Spectrum",
    "StreamedKernel",
    "Suggestion",
    "Verification",
    "as_laws",
    "certify",
    "check",
    "convergence_constant",
    "depth_factors",
    "depth_spectra",
    "draw_heads",
    "evaluate",
    "factor",
    "gaussian_kernel",
    "gram",
    "independence",
    "pairs_of",
    "predicted_nullity",
    "reasons",
    "separation",
    "shared_queries",
    "smallest_eigenvalue",
    "spectrum",
    "streamed_kernel",
    "suggest",
    "terminal_factor",
    "verify",
]
