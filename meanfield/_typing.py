"""The axis vocabulary: one letter, one meaning, in every annotation of the package.

N contexts, n tokens, d width, L depth cells, M parameter particles (heads, channels, memories),
P context-token pairs, m evaluation points, k head dimension. A leading ``*N`` means "one measure or
a batch of them". Shapes are checked by jaxtyping and beartype while the test-suite runs, and cost
users nothing.
"""

from typing import Any, TypeAlias

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

Key: TypeAlias = PRNGKeyArray
Scalar: TypeAlias = Float[Array, ""]
Points: TypeAlias = Float[Array, "n d"]
EvaluationPoints: TypeAlias = Float[Array, "m d"]
Particle: TypeAlias = PyTree[Any]  # theta: one parameter particle, any pytree of arrays
Particles: TypeAlias = PyTree[Any]  # the particles of one cell [M, ...] or of all cells [L, M, ...]

__all__ = [
    "Array",
    "Bool",
    "EvaluationPoints",
    "Float",
    "Int",
    "Key",
    "Particle",
    "Particles",
    "Points",
    "PyTree",
    "Scalar",
]
