"""Injectivity of the attention kernel: which log-sum-exp functions are dependent, and how much.

`independence` compares functions, `predicted_nullity` turns their relations into the nullity of
a kernel, `reasons` into sentences; `separation` is a sufficient condition for clouds and
`evaluation_points` serves certificates. Reference: reconstruction, docs/theory.md 3.2, 3.3, 3.6.
"""

from meanfield.ntk.injectivity._independence import (
    Independence,
    Relation,
    evaluation_points,
    independence,
)
from meanfield.ntk.injectivity._prediction import Line, Prediction, predicted_nullity
from meanfield.ntk.injectivity._reasons import reasons
from meanfield.ntk.injectivity._separation import Separation, separation

__all__ = [
    "Independence",
    "Line",
    "Prediction",
    "Relation",
    "Separation",
    "evaluation_points",
    "independence",
    "predicted_nullity",
    "reasons",
    "separation",
]
