"""Proofs by ball arithmetic that token laws are independent, or that a kernel is positive.

Two theorems are certified. *Independence*: the cumulant generating functions of the contexts are
linearly independent modulo affine functions (or constants, or quadratic polynomials), because a
determinant of their values is enclosed away from zero. *Positivity*: the scalar V-part Gram matrix
of some pairs and some heads has no eigenvalue below a stated bound. The inputs are float64
numbers, hence exact; precision doubles until the enclosure decides. Where it does not, the answer
is "undecided", never a guess.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import flint
import numpy as np

from meanfield import __version__
from meanfield._checks import MeanfieldError, require
from meanfield._files import replacing, require_regular
from meanfield._runtime import require_double
from meanfield.fields.attention import AttentionAV, AttentionQKV
from meanfield.ntk import _balls
from meanfield.ntk._proofs import (
    MEND,
    MODULO,
    PROBLEMS,
    Independence,
    Modulo,
    Positivity,
    Problem,
    as_heads,
    as_stored,
    num_functions,
)
from meanfield.ntk.injectivity import evaluation_points
from meanfield.ntk.pairs import Pairs, as_laws, moderate, moderate_laws, pairs_of

Kind = Literal["independence", "positivity"]
Status = Literal["certified", "undecided", "refused"]

FORMAT = "meanfield certificate 1"
FIRST_BITS, LARGEST_BITS = 64, 2**16
_LARGEST_SIZE = 1e150  # of tokens and queries: the float64 tests that may refuse take squares
_LARGEST_FILE = 2**26  # bytes
_CLAIM = (
    "kind",
    "modulo",
    "inputs_sha256",
    "inputs",
    "precision",
    "enclosure",
    "lower_bound",
    "statement",
    "reason",
)


@dataclass(frozen=True)
class Certificate:
    """What was proved about given contexts, or why nothing was.

    Attributes:
        status: "certified"; "undecided" (the limit of precision was reached); "refused" (a linear
            relation holds to rounding: see `reason`).
        kind, modulo: which theorem; `modulo` is None for "positivity".
        statement: the theorem in words, empty unless certified.
        precision: bits of the arithmetic that decided, or the last that was tried (0: refused).
        enclosure: of the determinant, as outward rounded decimals, for "independence".
        lower_bound: proved lower bound of the least eigenvalue, rounded down, for "positivity".
        reason: why it is refused or undecided, else empty.
        inputs: laws, points or queries and heads, as exact JSON data; inputs_sha256: its hash.
        information: versions; no part of the claim.
    """

    status: Status
    kind: Kind
    modulo: Modulo | None
    statement: str
    precision: int
    enclosure: tuple[str, str] | None
    lower_bound: float | None
    reason: str
    inputs_sha256: str
    inputs: dict[str, Any] = field(repr=False)
    information: dict[str, str] = field(repr=False)

    @property
    def data(self) -> dict[str, Any]:
        """The file's content: JSON data that stands for itself."""
        names = self.__dataclass_fields__
        data = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        return {**data, "enclosure": list(self.enclosure) if self.enclosure else None}

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON, one field a line.

        Raises: `MeanfieldError` if the place cannot be written.
        """
        lines = (f" {json.dumps(k)}: {json.dumps(v)}" for k, v in self.data.items())
        with replacing(path) as temporary:
            temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Certificate":
        """Read a certificate, without checking its claim: that is `verify`.

        Raises: `MeanfieldError` on a file that is missing, too large or no certificate.
        """
        return _from_data(_read(Path(path)), str(path))


@dataclass(frozen=True)
class Verification:
    """Whether a stored certificate holds, and if not, what differs."""

    holds: bool
    reason: str


def certify(
    contexts: Any,
    queries: Any = None,
    *,
    kind: Kind = "independence",
    modulo: Modulo = "affine",
    heads: AttentionAV | AttentionQKV | None = None,
    head_scale: float | int = 1.0,
    max_bits: int = 4096,
    seed: int = 0,
) -> Certificate:
    """Prove that contexts are independent, or that their kernel is positive, in ball arithmetic.

    "independence": ``sum_i c_i Lam_i = `` affine only for c = 0. The values of ``Lam_1 ... Lam_J``
    and of ``1, z_1 ... z_d`` at as many points have a determinant that is enclosed away from 0.
    "positivity": ``K(a, b) = (1/M) sum_j <m_a(A_j), m_b(A_j)>`` has ``lambda_min(K) >=
    |K^-4|_F^(-1/4)``, which is enclosed from below.

    Args:
        contexts: token laws and token measures, see `as_laws`; or `Pairs`.
        queries: for "positivity", see `pairs_of`; None is "own".
        modulo: what independence is meant modulo; only for "independence".
        heads: for "positivity": `AttentionAV` with A ``[M, d, d]`` or `AttentionQKV` with Q, K
            ``[M, k, d]``; values play no part.
        head_scale: factor of the score.
        max_bits: the last precision that is tried; it doubles from 64.
        seed: of the points and of named queries.

    Raises: `MeanfieldError` on bad input, more than 256 pairs, or work beyond about a minute;
        `DomainError` where a law has no finite CGF.
    Reference: reconstruction, docs/theory.md 3.7. Cost: P M n exponentials and O(P^3 + P^2 M d)
        ball operations at each precision (independence: J^2 n and O(J^3)).
    """
    require_double("a certificate")
    for name, value, known in (("kind", kind, PROBLEMS), ("modulo", modulo, MODULO)):
        require(value in known, f"{name} is {value!r}", f"one of {list(known)}", "pass one of them")
    require(
        isinstance(max_bits, int) and FIRST_BITS <= max_bits <= LARGEST_BITS,
        f"max_bits is {max_bits!r}",
        f"an integer from {FIRST_BITS} to {LARGEST_BITS}",
        "pass max_bits=4096",
    )
    if kind == "independence":
        require(
            queries is None and heads is None,
            "queries or heads for a certificate of independence",
            "contexts only: independence concerns no queries",
            "drop them, or pass kind='positivity'",
        )
        laws = as_stored(contexts.laws if isinstance(contexts, Pairs) else as_laws(contexts))
        moderate_laws(laws, _LARGEST_SIZE)
        num = num_functions(modulo, len(laws), laws[0].dim)
        points = evaluation_points(laws, num, modulo=modulo, seed=seed)
        return _decide(Independence(laws, modulo, np.asarray(points, np.float64)), max_bits)
    require(
        isinstance(head_scale, int | float) and math.isfinite(head_scale),
        f"head_scale is {head_scale!r}",
        "a finite number",
        "pass head_scale=1.0",
    )
    require(
        queries is None or not isinstance(contexts, Pairs),
        "queries beside Pairs",
        "queries once: pairs hold their own",
        "drop the queries",
    )
    pairs = pairs_of(contexts, "own" if queries is None else queries, seed=seed)
    moderate(pairs, _LARGEST_SIZE)
    pairs = Pairs(as_stored(pairs.laws), np.asarray(pairs.index), np.asarray(pairs.queries))
    return _decide(Positivity(pairs, as_heads(heads), float(head_scale)), max_bits)


def verify(path: str | Path) -> Verification:
    """Check a stored certificate from scratch: prove it again and compare every field of its claim.

    Nothing in the file is believed but the inputs; these are hashed and used anew. So an altered
    statement, bound, precision, point, token or hash fails because the proof gives another one.

    Raises: `MeanfieldError` on a file that is missing, too large or no certificate.
    Reference: reconstruction, docs/theory.md 3.7. Cost: that of `certify`.
    """
    require_double("a certificate")
    stored = Certificate.load(path)
    if stored.status != "certified":
        return Verification(False, f"the file claims nothing: {stored.status}, {stored.reason}")
    if stored.precision not in _levels(LARGEST_BITS):
        return Verification(False, f"precision {stored.precision} is none that certify tries")
    if set(stored.inputs) != set(PROBLEMS[stored.kind].keys):
        return Verification(False, f"kind is {stored.kind!r}, but the inputs are not those of it")
    problem = PROBLEMS[stored.kind].from_data(stored.modulo, stored.inputs)
    try:
        again = _decide(problem, stored.precision)
    except MeanfieldError as error:
        return Verification(False, f"the proof cannot be repeated: {error.given}")
    if again.status != "certified":
        return Verification(False, f"the proof fails: {again.status}, {again.reason}")
    for name in _CLAIM:
        given, found = getattr(stored, name), getattr(again, name)
        if given != found:
            text = "differ" if name == "inputs" else f"is {given!r}, but the proof gives {found!r}"
            return Verification(False, f"{name.replace('_', ' ')} {text}"[:600])
    return Verification(True, f"proved again with {again.precision} bits: {again.statement}")


def _levels(max_bits: int) -> list[int]:
    """64, 128, ..., not beyond ``max_bits``."""
    return [FIRST_BITS << k for k in range((max_bits // FIRST_BITS).bit_length())]


def _decide(problem: Problem, max_bits: int) -> Certificate:
    """Refuse, or double the precision until a ball without 0 is narrow enough to be printed."""
    problem.check()
    inputs = problem.inputs
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def answer(status: Status, bits: int, reason: str = "", **result: Any) -> Certificate:
        return Certificate(
            status=status,
            kind=problem.kind,
            modulo=problem.modulo,
            statement=problem.statement if status == "certified" else "",
            precision=bits,
            enclosure=result.get("enclosure"),
            lower_bound=result.get("lower_bound"),
            reason=reason,
            inputs_sha256=hashlib.sha256(canonical.encode()).hexdigest(),
            inputs=inputs,
            information={
                "meanfield": __version__,
                "python-flint": flint.__version__,
                "flint": flint.__FLINT_VERSION__,
            },
        )

    obstacle = problem.obstacle()
    if obstacle:
        return answer(
            "refused",
            0,
            f"{obstacle}: a proof would rest on what float64 does not show",
        )
    beyond = ""
    for bits in _levels(max_bits):
        with _balls.precision(bits):
            found = problem.enclose()
            decided = (
                found is not None
                and not found[0].contains(0)
                and found[0].rel_accuracy_bits() >= _balls.ACCURACY_BITS
            )
        if found is not None and decided:
            if None not in found[1].values():
                return answer("certified", bits, **found[1])
            beyond = ", but the enclosure lies beyond the range of numbers that can be stored"
            break
    return answer("undecided", bits, f"{bits} bits do not separate the enclosure from 0{beyond}")


def _read(path: Path) -> Any:
    """JSON without surprises: no huge files, no NaN, no key twice, no depth that ends a stack."""
    expected = "a certificate written by meanfield"

    def no_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands twice")
        return found

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of a certificate")

    require_regular(path)
    try:
        size = path.stat().st_size
        require(size <= _LARGEST_FILE, f"{path} has {size} bytes", f"at most {_LARGEST_FILE}", MEND)
        return json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=no_twins, parse_constant=no_constant
        )
    except FileNotFoundError:
        raise MeanfieldError(f"{path} does not exist", expected, "check the path") from None
    except MeanfieldError:
        raise
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise MeanfieldError(
            f"{path} is no certificate ({type(error).__name__}: {error})"[:400], expected, MEND
        ) from None


def _from_data(data: Any, path: str) -> Certificate:
    """The stored certificate, its fields of the right types; the claim is not checked here."""
    names = [entry.name for entry in fields(Certificate)]
    require(
        isinstance(data, dict) and set(data) == {"format", *names} and data["format"] == FORMAT,
        f"{path} holds other fields",
        f"a certificate of format {FORMAT!r} with {', '.join(names)}",
        MEND,
    )
    ends, bound, information = data["enclosure"], data["lower_bound"], data["information"]
    sound = {
        "status": _is_one_of(data["status"], ("certified", "undecided", "refused")),
        "kind": _is_one_of(data["kind"], PROBLEMS),
        "modulo": data["modulo"] is None or _is_one_of(data["modulo"], MODULO),
        "statement": isinstance(data["statement"], str),
        "precision": type(data["precision"]) is int,
        "enclosure": ends is None or (isinstance(ends, list) and len(ends) == 2 and _is_text(ends)),
        "lower_bound": bound is None or (type(bound) is float and math.isfinite(bound)),
        "reason": isinstance(data["reason"], str),
        "inputs_sha256": isinstance(data["inputs_sha256"], str),
        "inputs": isinstance(data["inputs"], dict),
        "information": isinstance(information, dict) and _is_text(information.values()),
    }
    wrong = [name for name, okay in sound.items() if not okay]
    require(not wrong, f"{path}: {', '.join(wrong)} as stored", "what certify writes there", MEND)
    values = {name: data[name] for name in names}
    return Certificate(**{**values, "enclosure": None if ends is None else tuple(ends)})


def _is_one_of(value: Any, known: Collection[str]) -> bool:
    return isinstance(value, str) and value in known


def _is_text(values: Iterable[Any]) -> bool:
    return all(isinstance(one, str) for one in values)
