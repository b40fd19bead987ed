"""Token laws in ball arithmetic, and as exact JSON data: what certificates are made of.

A ball is an interval that is proved to hold the true number (python-flint's ``arb``). The
parameters of a law are float64 numbers, hence exact dyadic ones, and every operation encloses its
rounding: a ball without zero is a proof that the number is not zero.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

import equinox as eqx
import flint
import jax.numpy as jnp
import numpy as np

from meanfield._checks import DomainError, MeanfieldError, require
from meanfield.laws import (
    AbstractLaw,
    AffineImage,
    Convolution,
    Cube,
    Empirical,
    Gaussian,
    GaussianMixture,
    Laplace,
    Product,
)
from meanfield.measures import TokenMeasure

DIGITS = 9  # of printed enclosures
# An enclosure counts once its ball is this narrow: other versions of the arithmetic, whose radii
# differ in their last bits, then print the same DIGITS (but for a chance of about 4e-6).
ACCURACY_BITS = 48
_LARGEST_EXPONENT = 10**5  # of 2: numbers beyond are not printed
_DEEPEST = 16  # laws inside laws
_ROWS = 2**18  # scores held at once

Balls = flint.arb_mat


@contextlib.contextmanager
def precision(bits: int) -> Iterator[None]:
    """Ball arithmetic with ``bits`` bits inside the block; the precision before it comes back."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def exact(values: Any) -> Balls:
    """A float64 matrix ``[m, n]`` as balls of radius 0."""
    values = np.asarray(values, dtype=np.float64)
    num_rows, num_columns = values.shape
    return flint.arb_mat(num_rows, num_columns, values.ravel().tolist())


def rows(matrix: Balls) -> list[list[flint.arb]]:
    """The entries, row by row."""
    return matrix.tolist()


def is_finite(matrix: Balls) -> bool:
    """True if every entry is a finite ball."""
    return all(entry.is_finite() for entry in matrix.entries())


def decimal_bound(ball: flint.arb, *, up: bool) -> str | None:
    """The upper (or lower) end of a ball to `DIGITS` decimal digits, rounded outward.

    Returns None where the end is infinite or has an exponent beyond 10^5 bits.
    """
    end = ball.upper() if up else ball.lower()
    if not end.is_finite():
        return None
    mantissa, exponent = (int(part) for part in end.man_exp())
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    context = Context(
        prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN
    )
    numerator, denominator = mantissa << max(exponent, 0), 1 << max(-exponent, 0)
    return str(context.divide(Decimal(numerator), Decimal(denominator)))


# --- the CGF and its gradient, one family after the other ---------------------------------------
# At exact or enclosed points z [Q, d]: Lam as a list of Q balls, grad Lam as balls [Q, d].


def _times(rows_of: Balls, values: Any) -> Balls:
    """``z M^T`` for a matrix M of floats, ``[Q, d], [m, d] -> [Q, m]``."""
    return rows_of * exact(values).transpose()


def _log_sinhc(t: flint.arb) -> flint.arb:
    """``log(sinh t / t)``; where t may be 0, from ``0 <= log(sinh t / t) <= t^2 / 6``."""
    if t.contains(0):
        return flint.arb(0, (t.abs_upper() ** 2 / 6).abs_upper())
    return (t.sinh() / t).log()


def _langevin(t: flint.arb) -> flint.arb:
    """``coth t - 1/t``; where t may be 0, from ``|coth t - 1/t| <= |t| / 3``."""
    if t.contains(0):
        return flint.arb(0, (t.abs_upper() / 3).abs_upper())
    return t.coth() - 1 / t


def _cube_cgf(law: Cube, z: Balls) -> list[flint.arb]:
    radius, shift = flint.arb(float(law.radius)), _times(z, [law.center])
    return [
        sum((_log_sinhc(radius * entry) for entry in row), shift[i, 0])
        for i, row in enumerate(rows(z))
    ]


def _cube_gradient(law: Cube, z: Balls) -> Balls:
    radius = flint.arb(float(law.radius))
    center = [flint.arb(value) for value in np.asarray(law.center, dtype=np.float64).tolist()]
    return flint.arb_mat(
        [
            [a + radius * _langevin(radius * entry) for a, entry in zip(center, row, strict=True)]
            for row in rows(z)
        ]
    )


def _forms(z: Balls, image: Balls) -> list[flint.arb]:
    """``<z_q, S z_q>`` from ``z`` and its image ``z S``, ``[Q]``."""
    return [
        sum((a * b for a, b in zip(one, other, strict=True)), flint.arb(0))
        for one, other in zip(rows(z), rows(image), strict=True)
    ]


def _laplace_gaps(law: Laplace, z: Balls, image: Balls) -> list[flint.arb]:
    """``1 - z^T S z / 2``; raises where it is certainly not positive."""
    gaps = [1 - form / 2 for form in _forms(z, image)]
    for number, gap in enumerate(gaps):
        if gap <= 0:
            raise DomainError(
                f"point {number} has z^T S z of at least 2, where the Laplace law has no finite "
                "cumulant generating function",
                law._domain_in_words(),
                "take smaller heads, queries or points",
            )
    # A ball that holds 0 decides nothing: the logarithm or the quotient is then not finite.
    return gaps


def _laplace_cgf(law: Laplace, z: Balls) -> list[flint.arb]:
    image = _times(z, law.covariance_matrix)
    return [-gap.log() for gap in _laplace_gaps(law, z, image)]


def _laplace_gradient(law: Laplace, z: Balls) -> Balls:
    image = _times(z, law.covariance_matrix)
    gaps = _laplace_gaps(law, z, image)
    return flint.arb_mat(
        [[entry / gap for entry in row] for row, gap in zip(rows(image), gaps, strict=True)]
    )


def _gaussian_cgf(law: Gaussian, z: Balls) -> list[flint.arb]:
    forms = _forms(z, _times(z, law.covariance_matrix))
    shift = _times(z, [law.mean_vector])
    return [shift[i, 0] + form / 2 for i, form in enumerate(forms)]


def _gaussian_gradient(law: Gaussian, z: Balls) -> Balls:
    mean = exact(np.tile(np.asarray(law.mean_vector), (z.nrows(), 1)))
    return mean + _times(z, law.covariance_matrix)


def _mixture_exponentials(law: GaussianMixture, z: Balls) -> list[list[flint.arb]]:
    """``w_k e^{Lam_k(z)}``, ``[K][Q]``."""
    log_weights = np.asarray(law.log_weights, dtype=np.float64).tolist()
    parts = []
    for log_weight, mean, matrix in zip(log_weights, law.means, law.covariances, strict=True):
        if log_weight == -math.inf:
            parts.append([flint.arb(0)] * z.nrows())
        else:
            part = _gaussian_cgf(Gaussian(mean, matrix), z)
            parts.append([(log_weight + score).exp() for score in part])
    return parts


def _log_mass(log_weights: Any) -> flint.arb:
    """``log sum_k w_k``: stored logarithms of masses sum to one only to rounding."""
    values = np.asarray(log_weights, dtype=np.float64)
    return sum((flint.arb(one).exp() for one in values[values > -np.inf]), flint.arb(0)).log()


def _mixture_cgf(law: GaussianMixture, z: Balls) -> list[flint.arb]:
    mass = _log_mass(law.log_weights)
    parts = zip(*_mixture_exponentials(law, z), strict=True)
    return [sum(one, flint.arb(0)).log() - mass for one in parts]


def _mixture_gradient(law: GaussianMixture, z: Balls) -> Balls:
    exponentials = _mixture_exponentials(law, z)
    total = [[flint.arb(0)] * z.ncols() for _ in range(z.nrows())]
    for part, mean, matrix in zip(exponentials, law.means, law.covariances, strict=True):
        tilted = rows(_gaussian_gradient(Gaussian(mean, matrix), z))
        for i, row in enumerate(tilted):
            total[i] = [sofar + part[i] * one for sofar, one in zip(total[i], row, strict=True)]
    masses = [sum(one, flint.arb(0)) for one in zip(*exponentials, strict=True)]
    return flint.arb_mat(
        [[entry / mass for entry in row] for row, mass in zip(total, masses, strict=True)]
    )


def _token_exponentials(law: Empirical, z: Balls) -> tuple[Balls, np.ndarray]:
    """``w_b e^{<z, y_b>}`` ``[Q, n]`` over the tokens that carry mass, and these tokens."""
    log_weights = np.asarray(law.log_weights, dtype=np.float64)
    carries = log_weights > -np.inf
    points = np.asarray(law.points, dtype=np.float64)[carries]
    bordered = flint.arb_mat([[*row, flint.arb(1)] for row in rows(z)])
    scores = _times(bordered, np.column_stack([points, log_weights[carries]]))
    exponentials = [score.exp() for score in scores.entries()]
    return flint.arb_mat(z.nrows(), len(points), exponentials), points


def _blocks(law: Empirical, z: Balls) -> Iterator[Balls]:
    """The rows of z, as many at once as their scores may fill memory."""
    some = max(1, _ROWS // len(law.log_weights))
    entries = rows(z)
    for start in range(0, len(entries), some):
        yield flint.arb_mat(entries[start : start + some])


def _empirical_cgf(law: Empirical, z: Balls) -> list[flint.arb]:
    mass = _log_mass(law.log_weights)
    values = []
    for block in _blocks(law, z):
        exponentials, points = _token_exponentials(law, block)
        sums = exponentials * exact(np.ones((len(points), 1)))
        values += [one.log() - mass for one in sums.entries()]
    return values


def _empirical_gradient(law: Empirical, z: Balls) -> Balls:
    values = []
    for block in _blocks(law, z):
        exponentials, points = _token_exponentials(law, block)
        sums = exponentials * exact(np.column_stack([points, np.ones(len(points))]))
        values += [[entry / row[-1] for entry in row[:-1]] for row in rows(sums)]
    return flint.arb_mat(values)


def _affine_cgf(law: AffineImage, z: Balls) -> list[flint.arb]:
    inner = cgf(law.law, z * exact(law.matrix))
    shift = _times(z, [law.shift])
    return [shift[i, 0] + one for i, one in enumerate(inner)]


def _affine_gradient(law: AffineImage, z: Balls) -> Balls:
    shift = exact(np.tile(np.asarray(law.shift), (z.nrows(), 1)))
    return shift + _times(gradient(law.law, z * exact(law.matrix)), law.matrix)


def _parts(law: Product, z: Balls) -> list[tuple[AbstractLaw, Balls]]:
    """Each block's law with its columns of z."""
    cuts = np.cumsum([0, *(one.dim for one in law.laws)]).tolist()
    entries = rows(z)
    return [
        (one, flint.arb_mat([row[start:stop] for row in entries]))
        for one, start, stop in zip(law.laws, cuts, cuts[1:], strict=False)
    ]


def _sums(parts: Sequence[list[flint.arb]]) -> list[flint.arb]:
    return [sum(one, flint.arb(0)) for one in zip(*parts, strict=True)]


def _product_cgf(law: Product, z: Balls) -> list[flint.arb]:
    return _sums([cgf(one, block) for one, block in _parts(law, z)])


def _product_gradient(law: Product, z: Balls) -> Balls:
    parts = [rows(gradient(one, block)) for one, block in _parts(law, z)]
    return flint.arb_mat([[entry for row in one for entry in row] for one in zip(*parts)])  # noqa: B905


def _convolution_cgf(law: Convolution, z: Balls) -> list[flint.arb]:
    return _sums([cgf(one, z) for one in law.laws])


def _convolution_gradient(law: Convolution, z: Balls) -> Balls:
    return sum((gradient(one, z) for one in law.laws[1:]), gradient(law.laws[0], z))


# --- laws as data -------------------------------------------------------------------------------


def _floats(values: Any) -> Any:
    """Nested lists of float64 numbers: their shortest decimals are exact on the way back."""
    return np.asarray(values, dtype=np.float64).tolist()


def _carried(law: Empirical) -> dict[str, Any]:
    """Tokens without mass belong to no law; JSON has no -inf for their weights either."""
    carries = np.asarray(law.log_weights) > -np.inf
    return {
        "points": _floats(np.asarray(law.points)[carries]),
        "log_weights": _floats(np.asarray(law.log_weights)[carries]),
    }


def _components(law: GaussianMixture) -> dict[str, Any]:
    carries = np.asarray(law.log_weights) > -np.inf
    return {
        "log_weights": _floats(np.asarray(law.log_weights)[carries]),
        "means": _floats(np.asarray(law.means)[carries]),
        "covariances": _floats(np.asarray(law.covariances)[carries]),
    }


def _with_log_weights(law: Any, log_weights: np.ndarray) -> Any:
    """The stored logarithms bit by bit: normalising them again would move their last bits."""
    require(
        np.shape(law.log_weights) == log_weights.shape,
        f"{log_weights.size} log_weights for {np.size(law.log_weights)} masses",
        "as many as points or means",
        "restore the file",
    )
    return eqx.tree_at(lambda one: one.log_weights, law, jnp.asarray(log_weights))


def _empirical_of(points: np.ndarray, log_weights: np.ndarray) -> Empirical:
    return _with_log_weights(Empirical(TokenMeasure(points)), log_weights)


def _mixture_of(log_weights: np.ndarray, means: np.ndarray, covs: np.ndarray) -> GaussianMixture:
    weights = np.exp(np.minimum(log_weights, 1.0))
    return _with_log_weights(GaussianMixture(weights, means, covs), log_weights)


@dataclass(frozen=True)
class _Family:
    """One kind of law: its name in a file, its numbers and how many axes they have, its balls."""

    law: type[AbstractLaw]
    fields: dict[str, int]  # axes of each; -1: a law, -2: a list of laws
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[..., AbstractLaw]
    cgf: Callable[[Any, Balls], list[flint.arb]]
    gradient: Callable[[Any, Balls], Balls]


_FAMILIES = {
    "cube": _Family(
        Cube,
        {"radius": 0, "center": 1},
        lambda law: {"radius": _floats(law.radius), "center": _floats(law.center)},
        lambda radius, center: Cube(radius, len(center), center),
        _cube_cgf,
        _cube_gradient,
    ),
    "laplace": _Family(
        Laplace,
        {"covariance": 2},
        lambda law: {"covariance": _floats(law.covariance_matrix)},
        Laplace,
        _laplace_cgf,
        _laplace_gradient,
    ),
    "gaussian": _Family(
        Gaussian,
        {"mean": 1, "covariance": 2},
        lambda law: {
            "mean": _floats(law.mean_vector),
            "covariance": _floats(law.covariance_matrix),
        },
        Gaussian,
        _gaussian_cgf,
        _gaussian_gradient,
    ),
    "mixture": _Family(
        GaussianMixture,
        {"log_weights": 1, "means": 2, "covariances": 3},
        _components,
        _mixture_of,
        _mixture_cgf,
        _mixture_gradient,
    ),
    "empirical": _Family(
        Empirical,
        {"points": 2, "log_weights": 1},
        _carried,
        _empirical_of,
        _empirical_cgf,
        _empirical_gradient,
    ),
    "affine": _Family(
        AffineImage,
        {"inner": -1, "matrix": 2, "shift": 1},
        lambda law: {
            "inner": law_to_data(law.law),
            "matrix": _floats(law.matrix),
            "shift": _floats(law.shift),
        },
        AffineImage,
        _affine_cgf,
        _affine_gradient,
    ),
    "product": _Family(
        Product,
        {"laws": -2},
        lambda law: {"laws": [law_to_data(one) for one in law.laws]},
        Product,
        _product_cgf,
        _product_gradient,
    ),
    "convolution": _Family(
        Convolution,
        {"laws": -2},
        lambda law: {"laws": [law_to_data(one) for one in law.laws]},
        Convolution,
        _convolution_cgf,
        _convolution_gradient,
    ),
}


def _family(law: AbstractLaw) -> tuple[str, _Family]:
    for name, family in _FAMILIES.items():
        if type(law) is family.law:
            return name, family
    raise MeanfieldError(
        f"a law of type {type(law).__name__}",
        f"one of {', '.join(family.law.__name__ for family in _FAMILIES.values())}",
        "certificates know these only: build the law from them",
    )


def cgf(law: AbstractLaw, z: Balls) -> list[flint.arb]:
    """Enclosures of ``Lam(z_q)`` for the rows of ``z [Q, d]``, at the precision in force.

    A ball that is not finite says that this precision decides nothing.

    Raises: `DomainError` where Lam is certainly infinite; `MeanfieldError` on a law of the user's.
    Reference: reconstruction, docs/theory.md 3.4 and 3.7. Cost: O(Q n d) ball operations.
    """
    return _family(law)[1].cgf(law, z)


def gradient(law: AbstractLaw, z: Balls) -> Balls:
    """Enclosures of ``grad Lam(z_q)``, ``[Q, d]``; otherwise as `cgf`."""
    return _family(law)[1].gradient(law, z)


def law_to_data(law: AbstractLaw) -> dict[str, Any]:
    """A law as JSON data whose numbers are exactly those that the balls use.

    Raises: `MeanfieldError` on a law of the user's own.
    """
    name, family = _family(law)
    return {"law": name, **family.encode(law)}


def law_from_data(data: Any, *, depth: int = 0) -> AbstractLaw:
    """The law that `law_to_data` wrote.

    Raises: `MeanfieldError` on anything else, whatever it is.
    """
    mend = "restore the file"
    require(
        isinstance(data, dict) and isinstance(data.get("law"), str) and data["law"] in _FAMILIES,
        f"a law stored as {type(data).__name__}",
        f"an object whose 'law' is one of {', '.join(_FAMILIES)}",
        mend,
    )
    require(depth < _DEEPEST, f"{depth} laws inside each other", f"at most {_DEEPEST}", mend)
    family = _FAMILIES[data["law"]]
    require(
        set(data) == {"law", *family.fields},
        f"a stored {data['law']} law with fields {', '.join(sorted(map(repr, data)))[:200]}",
        f"law, {', '.join(family.fields)}",
        mend,
    )
    values = []
    for name, axes in family.fields.items():
        value = data[name]
        if axes == -1:
            values.append(law_from_data(value, depth=depth + 1))
        elif axes == -2:
            require(isinstance(value, list), f"{name} is no list", "a list of laws", mend)
            values.append([law_from_data(one, depth=depth + 1) for one in value])
        else:
            values.append(numbers(f"{name} of a {data['law']} law", value, axes))
    for name in ("covariance", "covariances"):
        if name in family.fields:
            stacked = np.asarray(data[name], dtype=np.float64)
            for matrix in stacked if stacked.ndim == 3 else [stacked]:
                _require_covariance(f"{name} of a {data['law']} law", matrix)
    return family.decode(*values)


def _require_covariance(name: str, matrix: np.ndarray) -> None:
    """Refuse what is positive semidefinite to rounding only: there is no such law.

    Symmetric elimination in exact fractions: a pivot below 0 proves it, and so does a pivot 0 whose
    row is not 0.
    """
    rest = [[Fraction(float(value)) for value in row] for row in matrix]
    while rest:
        pivot, row = rest[0][0], rest[0]
        require(
            pivot > 0 or (pivot == 0 and not any(row)),
            f"the {name}, which is positive semidefinite to rounding only",
            "a covariance that is positive semidefinite exactly, for a certificate",
            "add a small multiple of the identity matrix",
        )
        rest = [
            [own[j] - (own[0] * row[j] / pivot if pivot else 0) for j in range(1, len(row))]
            for own in rest[1:]
        ]


def numbers(name: str, value: Any, axes: int) -> np.ndarray:
    """A stored array of finite float64 numbers with that many axes.

    Raises: `MeanfieldError` on other entries, ragged rows, empty axes, numbers beyond float64.
    """
    try:
        array = np.asarray(value)
        okay = array.dtype.kind in "if" and array.ndim == axes and 0 not in array.shape
        array = array.astype(np.float64) if okay else array
        okay = okay and bool(np.isfinite(array).all())
    except (TypeError, ValueError, OverflowError, RecursionError):
        okay = False
        array = np.zeros(())
    require(
        okay,
        f"{name} as stored",
        f"finite float64 numbers with {axes} axes" if axes else "one finite float64 number",
        "restore the file",
    )
    return array
