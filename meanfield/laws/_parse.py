"""Laws as the command line writes them."""

import math
from pathlib import Path

import numpy as np

from meanfield._checks import MeanfieldError, require
from meanfield._files import read_arrays
from meanfield.laws._base import AbstractLaw
from meanfield.laws._closed import Cube, Gaussian, GaussianMixture, Laplace, two_component_mixture

LAW_SYNTAX = (
    "cube:radius=1,dim=2[,center=0/0] | laplace:cov=1/0.3/0.3/0.6 | gaussian:mean=0/0,cov=... | "
    "gmm:theta=0.6/0.3,cov=... | gmm:FILE.npz"
)
_LARGEST_DIM = 10**6
_FIELDS = {
    "cube": ({"radius", "dim"}, {"center"}),
    "laplace": ({"cov"}, set()),
    "gaussian": ({"cov"}, {"mean"}),
    "gmm": ({"theta", "cov"}, set()),
}


def parse_law(text: str) -> AbstractLaw:
    """The law that a line such as ``cube:radius=1,dim=2`` names.

    ``cube:radius=1,dim=2[,center=0/0]``, ``laplace:cov=1/0.3/0.3/0.6`` (row by row),
    ``gaussian:[mean=0/0,]cov=...``, ``gmm:theta=0.6/0.3,cov=...`` (two components) and
    ``gmm:FILE.npz`` with arrays ``weights [K], means [K, d], covs [K, d, d]``.

    Raises: `MeanfieldError` on an unknown law, an unknown, missing or repeated field, values that
    are no numbers, matrices that are no covariances, an unreadable file.
    """
    name, _, rest = text.partition(":")
    name = name.strip().lower()
    if name not in _FIELDS or not rest.strip():
        raise MeanfieldError(f"law {text!r}", LAW_SYNTAX, "write one of these")
    if name == "gmm" and "=" not in rest:
        return _mixture_file(Path(rest.strip()))
    fields = _read_fields(text, name, rest)
    try:
        if name == "cube":
            dim = _one(text, "dim", fields["dim"])
            require(
                dim == int(dim) and 1 <= dim <= _LARGEST_DIM,
                f"dim={dim:g} in {text!r}",
                f"an integer from 1 to {_LARGEST_DIM}",
                "pass dim=2",
            )
            return Cube(_one(text, "radius", fields["radius"]), int(dim), fields.get("center"))
        covariance = _square(text, fields["cov"])
        if name == "laplace":
            return Laplace(covariance)
        if name == "gmm":
            return two_component_mixture(fields["theta"], covariance)
        return Gaussian(fields.get("mean", np.zeros(len(covariance))), covariance)
    except MeanfieldError as error:
        if text in error.given:
            raise
        raise MeanfieldError(f"{error.given} in {text!r}", error.expected, error.mend) from None


def _read_fields(text: str, name: str, rest: str) -> dict[str, np.ndarray]:
    """``a=1/2,b=3`` as named arrays, checked against the fields of that law."""
    needed, optional = _FIELDS[name]
    expected = f"{name}: with {', '.join(sorted(needed))}" + (
        f" and optionally {', '.join(sorted(optional))}" if optional else ""
    )
    fields: dict[str, np.ndarray] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        require(
            equals and key in needed | optional,
            f"{part.strip()!r} in {text!r}",
            expected,
            f"write {LAW_SYNTAX}",
        )
        require(key not in fields, f"{key} twice in {text!r}", "each field once", "drop one")
        try:
            fields[key] = np.array([float(number) for number in value.split("/")])
        except ValueError:
            raise MeanfieldError(
                f"{key}={value!r} in {text!r}", "numbers joined by /", f"write {LAW_SYNTAX}"
            ) from None
        require(
            np.isfinite(fields[key]).all(),
            f"{key}={value!r} in {text!r}",
            "finite numbers",
            "replace the others",
        )
    missing = sorted(needed - set(fields))
    require(not missing, f"no {', '.join(missing)} in {text!r}", expected, f"add {missing}")
    return fields


def _one(text: str, name: str, values: np.ndarray) -> float:
    require(len(values) == 1, f"{len(values)} values of {name} in {text!r}", "one", "keep one")
    return float(values[0])


def _square(text: str, values: np.ndarray) -> np.ndarray:
    side = math.isqrt(len(values))
    require(
        side * side == len(values),
        f"cov with {len(values)} entries in {text!r}",
        "d * d of them, row by row",
        "write for instance cov=1/0.3/0.3/0.6 in d = 2",
    )
    return values.reshape(side, side)


def _mixture_file(path: Path) -> GaussianMixture:
    """A general mixture from ``weights, means, covs`` of an ``.npz`` file."""
    arrays = read_arrays(path)
    missing = sorted({"weights", "means", "covs"} - set(arrays))
    require(
        not missing,
        f"{path} holds {sorted(arrays)}, without {missing}",
        "arrays weights [K], means [K, d], covs [K, d, d]",
        "save it with numpy.savez(path, weights=..., means=..., covs=...)",
    )
    try:
        return GaussianMixture(arrays["weights"], arrays["means"], arrays["covs"])
    except MeanfieldError as error:
        raise MeanfieldError(f"{path}: {error.given}", error.expected, error.mend) from None
