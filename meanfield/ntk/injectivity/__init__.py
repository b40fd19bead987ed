"""Injectivity of the attention kernel: which log-sum-exp functions are dependent, and how much.

Reference: reconstruction, docs/theory.md 3.2 and 3.3.
"""

from meanfield.ntk.injectivity._independence import (
    Independence,
    Relation,
    evaluation_points,
    independence,
)

__all__ = ["Independence", "Relation", "evaluation_points", "independence"]
