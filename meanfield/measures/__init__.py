"""Measures on tokens, on depth and on parameters: the objects that every other room moves.

`TokenMeasure` is ``mu = sum_a w_a delta_{x_a}``; `DepthGrid` cuts [0, S] into L cells;
`ParameterMeasure` is ``rho(.|s) = sum_j w_kj delta_{theta_kj}`` on the k-th cell. Definitions:
reconstruction, docs/theory.md 1.
"""

from meanfield.measures._arrays import as_float
from meanfield.measures._parameters import (
    DepthGrid,
    ParameterMeasure,
    refine_depth,
    sample_parameters,
    subsample,
)
from meanfield.measures._tokens import TokenMeasure, stack_contexts

__all__ = [
    "DepthGrid",
    "ParameterMeasure",
    "TokenMeasure",
    "as_float",
    "refine_depth",
    "sample_parameters",
    "stack_contexts",
    "subsample",
]
