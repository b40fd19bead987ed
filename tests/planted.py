"""Problems whose nullity is known because it was planted: random recipes over generic clouds.

Every context is ``y = sum_g rho_g y_g + shift + Gaussian`` of independent draws ``y_g`` of generic
base clouds, so its mean map is ``m(z) = sum_g rho_g m_g(rho_g z) + shift + S z``. Base functions
``m_g(s z)`` with different g or s are independent modulo affine functions (the gaps between the
extreme tokens differ almost surely, docs/theory.md 3.6), and functions of different lines can only
cancel by their constants and slopes (3.2). A pair is therefore a row of coordinates: one for each
(line, g, s), d for the constant, d^3 for ``S t (x) e``; the nullity is P minus the rank of these
rows, whose entries are planted small numbers. No function is evaluated here.
"""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import meanfield as mf
from meanfield.ntk.pairs import Pairs

NUM_TOKENS = 4  # of a base cloud: one shape for all, compiled once
KINDS = (
    "base",
    "symmetric",
    "duplicate",
    "translate",
    "reflection",
    "dilation",
    "dirac",
    "gaussian",
    "convolution",
    "blurred",
)
DILATIONS = (0.5, 2.0, -2.0)
MULTIPLES = (1.0, 1.0, 1.0, -1.0, 2.0, 0.5, 0.0)  # of a query along its line


class Recipe(NamedTuple):
    """``terms``: (base, rho) of each summand; the base cloud is symmetric if its number is odd."""

    terms: tuple[tuple[int, float], ...]
    shift: np.ndarray
    covariance: np.ndarray


class Planted(NamedTuple):
    """A problem, its nullity (V and full), that of its A-part, and what was planted."""

    pairs: Pairs
    nullity: int
    score_nullity: int
    kinds: tuple[str, ...]


def _simple(generator: np.random.Generator, shape: Any) -> np.ndarray:
    """Random multiples of 1/8 in [-1, 1]: sums of them are exact."""
    return generator.integers(-8, 9, size=shape) / 8


def _base(generator: np.random.Generator, dim: int, is_symmetric: bool) -> np.ndarray:
    points = generator.normal(size=(NUM_TOKENS, dim))
    if is_symmetric:
        points[NUM_TOKENS // 2 :] = -points[: NUM_TOKENS // 2]
    return points


def _covariance(generator: np.random.Generator, dim: int) -> np.ndarray:
    root = _simple(generator, (dim, dim)) + np.eye(dim)
    return root @ root.T


def _law(recipe: Recipe, bases: list[np.ndarray], as_cloud: bool) -> mf.AbstractLaw:
    clouds = [rho * bases[base] for base, rho in recipe.terms] or [np.zeros((1, len(recipe.shift)))]
    if as_cloud and len(clouds) == 2:
        sums = clouds[0][:, None, :] + clouds[1][None, :, :]
        clouds = [sums.reshape(-1, sums.shape[-1])]
    clouds[0] = clouds[0] + recipe.shift
    parts: list[mf.AbstractLaw] = [mf.Empirical(mf.TokenMeasure(cloud)) for cloud in clouds]
    if recipe.covariance.any():
        gaussian = mf.Gaussian(np.zeros(len(recipe.shift)), recipe.covariance)
        if not recipe.terms:
            return mf.Gaussian(recipe.shift, recipe.covariance)
        parts.append(gaussian)
    return parts[0] if len(parts) == 1 else mf.Convolution(parts)


def _recipe(
    kind: str, earlier: list[Recipe], dim: int, fresh: int, generator: np.random.Generator
) -> Recipe:
    """One more context: of fresh bases, or made of an earlier one."""
    none = np.zeros((dim, dim))
    if kind == "dirac":
        return Recipe((), _simple(generator, dim), none)
    if kind == "gaussian":
        return Recipe((), _simple(generator, dim), _covariance(generator, dim))
    if kind in ("base", "symmetric") or not earlier:
        base = 2 * fresh + (kind == "symmetric")
        shift = _simple(generator, dim) * generator.integers(0, 2)
        return Recipe(((base, 1.0),), shift, none)
    terms, shift, covariance = earlier[generator.integers(len(earlier))]
    if kind == "translate":
        return Recipe(terms, shift + _simple(generator, dim), covariance)
    if kind in ("reflection", "dilation"):
        rho = -1.0 if kind == "reflection" else float(generator.choice(DILATIONS))
        terms = tuple((base, rho * own) for base, own in terms)
        return Recipe(terms, rho * shift, rho**2 * covariance)
    if kind == "blurred":
        return Recipe(terms, shift, covariance + _covariance(generator, dim))
    if kind == "convolution":
        other = earlier[generator.integers(len(earlier))]
        both = (terms + other.terms)[:2]
        return Recipe(both, shift + other.shift, covariance + other.covariance)
    return Recipe(terms, shift, covariance)


@st.composite
def choices(draw: st.DrawFn, *, largest_dim: int = 3) -> dict[str, Any]:
    """Of `plant`: 2 to 4 contexts of drawn kinds, each with 1 to 3 queries on few lines."""
    dim = draw(st.integers(1, largest_dim))
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4)))
    num_queries, num_lines = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    are_shared, as_cloud = draw(st.booleans()), draw(st.booleans())
    return {
        "kinds": kinds,
        "dim": dim,
        "num_queries": num_queries,
        "num_lines": num_lines,
        "are_shared": are_shared,
        "as_cloud": as_cloud,
        "seed": draw(st.integers(0, 2**31)),
    }


def plant(
    *,
    kinds: tuple[str, ...],
    dim: int,
    num_queries: int,
    num_lines: int,
    are_shared: bool,
    as_cloud: bool,
    seed: int,
) -> Planted:
    """The problem of the given choices; everything else comes from the seed."""
    generator = np.random.default_rng(seed)
    recipes: list[Recipe] = []
    for kind in kinds:
        recipes.append(_recipe(kind, recipes, dim, len(recipes), generator))
    bases = [_base(generator, dim, number % 2 == 1) for number in range(2 * len(kinds))]
    num_lines = 1 if dim == 1 else num_lines
    directions = generator.normal(size=(num_lines, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    draws = 1 if are_shared else len(kinds)
    lines = generator.integers(num_lines, size=(draws, num_queries))
    multiples = generator.choice(MULTIPLES, size=(draws, num_queries))
    if are_shared:
        lines, multiples = np.tile(lines, (len(kinds), 1)), np.tile(multiples, (len(kinds), 1))
    index = np.repeat(np.arange(len(kinds)), num_queries)
    lines, multiples = lines.ravel(), multiples.ravel()
    rows, constants = rows_of(recipes, bases, index, lines, multiples, directions)
    laws = tuple(_law(recipe, bases, as_cloud) for recipe in recipes)
    pairs = Pairs(laws, index, multiples[:, None] * directions[lines])
    total = len(index)
    return Planted(
        pairs,
        total - _rank(np.concatenate([rows, constants], axis=1)),
        total - _rank(rows),
        kinds,
    )


def _rank(matrix: np.ndarray) -> int:
    """Of planted numbers: they are 0 or far from it."""
    return int(np.linalg.matrix_rank(matrix, tol=1e-9)) if matrix.size else 0


def rows_of(
    recipes: list[Recipe],
    bases: list[np.ndarray],
    index: np.ndarray,
    lines: np.ndarray,
    multiples: np.ndarray,
    directions: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates: functions and slopes ``[P, .]``, constants ``[P, d]``."""
    dim = directions.shape[1]
    names: dict[Any, int] = {}
    entries: list[dict[int, float]] = []
    constants = np.zeros((len(index), dim))
    slopes = np.zeros((len(index), dim**3))
    for a, (i, line, t) in enumerate(zip(index, lines, multiples, strict=True)):
        recipe, entry = recipes[i], {}
        constants[a] = recipe.shift
        slopes[a] = np.multiply.outer(recipe.covariance * t, directions[line]).ravel()
        for base, rho in recipe.terms:
            if t == 0:
                constants[a] += 0.0 if base % 2 else rho * bases[base].mean(axis=0)
                continue
            scale, factor = rho * t, rho
            if base % 2 and scale < 0:  # symmetric: m(-z) = -m(z)
                scale, factor = -scale, -factor
            column = names.setdefault((int(line), base, scale), len(names))
            entry[column] = entry.get(column, 0.0) + factor
        entries.append(entry)
    functions = np.zeros((len(index), len(names)))
    for a, entry in enumerate(entries):
        for column, value in entry.items():
            functions[a, column] = value
    return np.concatenate([functions, slopes], axis=1), constants
