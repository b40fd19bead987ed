"""Injectivity of the attention kernel: which log-sum-exp functions are dependent, and how much.

Reference: reconstruction, docs/theory.md 3.2 and 3.3.
"""

from meanfield.ntk.injectivity._independence import (
    Independence,
    Relation,
    evaluation_points,
    independence,
)
from meanfield.ntk.injectivity._prediction import Line, Prediction, predicted_nullity

__all__ = [
    "Independence",
    "Line",
    "Prediction",
    "Relation",
    "evaluation_points",
    "independence",
    "predicted_nullity",
]
