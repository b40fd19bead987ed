"""Run directories: what a run was asked, what it computed, what it claims. Free of jax.

A run directory holds everything that a figure, a report or a resumed run needs::

    manifest.json          name, status, configuration, seeds, versions, device, seconds, claims
    NAME.npz               arrays stored by `RunDirectory.save`
    cells/KEY.npz          a sweep's cells: computed once, skipped on resume
    checkpoints/NAME.npz   the state of a loop, replaced at every save
    .lock                  held by the process that writes; the system frees it when that ends

Every file is written beside its place and then moved there, so that a killed run leaves whole
files only; a finished run is never written to again. Floats are stored bit for bit in ``.npz``
files; in the manifest a number that JSON has no word for is the string "nan", "inf" or "-inf".
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from meanfield import __version__
from meanfield._checks import MeanfieldError, require
from meanfield._files import read_arrays, replacing, write_arrays

try:
    import fcntl
except ImportError:  # no locks on such a system
    fcntl = None

MANIFEST, LOCK = "manifest.json", ".lock"
STATUSES = ("running", "interrupted", "failed", "finished")
CONSISTENT, INCONSISTENT, UNDECIDED = "consistent", "inconsistent", "undecided"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+-]{0,199}")
_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "scipy")


@dataclasses.dataclass(frozen=True)
class Claim:
    """One sentence that a run can confirm or refute: a quantity, expected and measured.

    Args:
        quantity: what is measured, in words ("slope of the W2 error in M").
        expected: a number, or a sentence such as "below 1e-3".
        measured: the number that came out.
        interval: its stated numerical error ``(low, high)``, or None.
        verdict: "consistent", "inconsistent" or "undecided" (within the stated error).

    Raises: `MeanfieldError` on another verdict.
    """

    quantity: str
    expected: float | str
    measured: float | str
    interval: tuple[float, float] | None = None
    verdict: str = UNDECIDED

    def __post_init__(self) -> None:
        require(
            self.verdict in (CONSISTENT, INCONSISTENT, UNDECIDED),
            f"verdict is {self.verdict!r}",
            f"'{CONSISTENT}', '{INCONSISTENT}' or '{UNDECIDED}'",
            "pass one of them",
        )

    @classmethod
    def bound(cls, quantity: str, relation: str, limit: float | int, measured: Any) -> "Claim":
        """A number against a limit, to which nothing is added for errors; NaN refutes it.

        Args: relation, "exactly", "below", "at most", "at least" or "above".
        Raises: `MeanfieldError` on another relation.
        """
        value = float(measured)
        holds = {
            "exactly": value == limit,
            "below": value < limit,
            "at most": value <= limit,
            "at least": value >= limit,
            "above": value > limit,
        }
        require(
            relation in holds,
            f"the relation {relation!r}",
            ", ".join(holds),
            "pass one of them",
        )
        expected = float(limit) if relation == "exactly" else f"{relation} {limit:g}"
        return cls(quantity, expected, value, None, CONSISTENT if holds[relation] else INCONSISTENT)

    @classmethod
    def mean(
        cls, quantity: str, expected: float | int, draws: Any, tolerance: float | int
    ) -> "Claim":
        """The mean of independent draws in a band, with its 95% bootstrap interval.

        Consistent if the mean lies within ``tolerance`` of ``expected``, inconsistent if the whole
        interval lies outside, else undecided.
        """
        draws = np.asarray(draws, dtype=float)
        chosen = np.random.default_rng(0).integers(len(draws), size=(2000, len(draws)))
        low, high = np.quantile(draws[chosen].mean(axis=1), [0.025, 0.975])
        measured = float(draws.mean())
        verdict = CONSISTENT if abs(measured - expected) <= tolerance else UNDECIDED
        if low > expected + tolerance or high < expected - tolerance:
            verdict = INCONSISTENT
        return cls(quantity, float(expected), measured, (float(low), float(high)), verdict)

    def sentence(self) -> str:
        """``slope -0.502 [-0.53, -0.47], expected -0.5: consistent``."""
        words = [self.quantity, _short(self.measured)]
        if self.interval is not None:
            words.append(f"[{_short(self.interval[0])}, {_short(self.interval[1])}]")
        return f"{' '.join(words)}, expected {_short(self.expected)}: {self.verdict}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def overall_verdict(claims: Iterable[Claim]) -> str:
    """The worst verdict; a run without claims has decided nothing."""
    return worst_verdict(claim.verdict for claim in claims)


def worst_verdict(verdicts: Iterable[str]) -> str:
    """Inconsistent before undecided before consistent; undecided if there is none."""
    found = set(verdicts) or {UNDECIDED}
    return next((v for v in (INCONSISTENT, UNDECIDED) if v in found), CONSISTENT)


def to_plain(value: Any) -> Any:
    """``value`` as JSON can hold it: dicts, lists, strings, finite numbers, booleans, None.

    Dataclasses become dicts, arrays lists, paths strings, non-finite numbers "nan", "inf", "-inf".
    Raises: `MeanfieldError` on anything else (functions, open files).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__array__"):
        return to_plain(np.asarray(value))
    raise MeanfieldError(
        f"a {type(value).__name__} in a manifest", "numbers, strings, lists, dicts", "convert it"
    )


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text (no NaN tokens) of `to_plain`."""
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def save_checkpoint(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write a flat dict of arrays, whole or not at all; `load_checkpoint` returns the same bits."""
    write_arrays(path, _numeric(arrays, str(path)))


def load_checkpoint(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of `save_checkpoint`. Raises: `MeanfieldError` if missing or damaged."""
    return read_arrays(path)


class RunDirectory:
    """One run's folder; make it with `create`, go on with `resume`, read it with `open`."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        self.path = path
        self._manifest = manifest
        self._seconds_before = float(manifest.get("seconds", 0.0))
        self._started = time.monotonic()

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        name: str,
        configuration: Mapping[str, Any],
        seeds: Mapping[str, int] | None = None,
    ) -> "RunDirectory":
        """Start a run in a new or empty folder.

        Args:
            path: the folder; its parents are made.
            name: the experiment's name.
            configuration: everything that decides the result, resolved.
            seeds: seeds by name.

        Raises: `MeanfieldError` if the folder holds a run or anything else, or cannot be written.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            occupied = any(not entry.name.startswith(".") for entry in path.iterdir())
        except OSError as error:
            raise MeanfieldError(
                f"{path} cannot be used ({error.strerror or error})",
                "a folder that can be written",
                "choose another one",
            ) from None
        if occupied and (path / MANIFEST).exists():
            status = cls.open(path).status
            raise MeanfieldError(
                f"{path} holds a run already ({status})",
                "a new folder, since a run is never overwritten",
                "choose another folder" if status == "finished" else f"add --resume {path}",
            )
        require(
            not occupied,
            f"{path} holds other files",
            "a new or empty folder",
            "choose another one",
        )
        _lock(path)
        if (path / MANIFEST).exists():  # another process was quicker
            _unlock(path)
            raise MeanfieldError(
                f"{path} holds a run already", "a new folder", "choose another folder"
            )
        manifest = {
            "name": name,
            "status": "running",
            "configuration": to_plain(configuration),
            "seeds": to_plain(seeds or {}),
            "versions": versions(),
            "device": device(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": 0.0,
            "claims": [],
        }
        directory = cls(path, manifest)
        try:
            directory._write_manifest()
        except MeanfieldError:
            directory.discard()
            raise
        return directory

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Read a run, finished or not. Raises: `MeanfieldError` if there is none, or damaged."""
        path = Path(path)
        mend = "pass the folder of a run, or run the experiment again"
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MeanfieldError(f"{path} holds no {MANIFEST}", "a run directory", mend) from None
        except (OSError, ValueError, RecursionError) as error:
            raise MeanfieldError(
                f"{path / MANIFEST} is damaged ({type(error).__name__}: {error})",
                "a manifest that meanfield wrote",
                mend,
            ) from None
        require(
            _is_manifest(manifest),
            f"{path / MANIFEST} is damaged (an entry is missing or has a wrong type)",
            "name, status, configuration, seconds and claims as meanfield wrote them",
            mend,
        )
        return cls(path, manifest)

    @classmethod
    def resume(cls, path: str | Path) -> "RunDirectory":
        """Go on with an unfinished run, under its own stored configuration and seeds.

        Raises: `MeanfieldError` if it is finished (it is never written to again), damaged, missing,
        or still being written by another process.
        """
        path = Path(path)
        cls.open(path)
        _lock(path)
        try:
            directory = cls.open(path)  # again: its owner may have ended in between
            require(
                directory.status != "finished",
                f"{path} holds a finished run",
                "an unfinished one, since a finished run is never overwritten",
                "start a new run in another folder",
            )
        except MeanfieldError:
            _unlock(path)
            raise
        directory._manifest["status"] = "running"
        directory._manifest["versions"] = versions()
        directory._manifest["device"] = device()
        directory._write_manifest()
        return directory

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest."""
        return json.loads(to_json(self._manifest))

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._manifest["name"]

    @property
    def status(self) -> str:
        """One of `STATUSES`: running, interrupted, failed, finished."""
        return self._manifest["status"]

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that decided the result, as plain JSON values."""
        return self.manifest["configuration"]

    @property
    def claims(self) -> list[Claim]:
        """The claims of a finished run."""
        claims = []
        for entry in self.manifest["claims"]:
            expected, measured = (_from_json(entry[key]) for key in ("expected", "measured"))
            low, high = map(_from_json, entry["interval"] or (0.0, 0.0))
            interval = None if entry["interval"] is None else (low, high)
            claims.append(Claim(entry["quantity"], expected, measured, interval, entry["verdict"]))
        return claims

    @property
    def files(self) -> list[str]:
        """Paths of all stored files."""
        return sorted(str(p) for p in self.path.rglob("*") if p.is_file() and p.name[0] != ".")

    @property
    def has_results(self) -> bool:
        """True once anything but the manifest is stored."""
        return not set(self.files) <= {str(self.path / MANIFEST)}

    def save(self, name: str, /, **arrays: Any) -> Path:
        """Store named arrays as ``NAME.npz``, whole or not at all; returns the path."""
        return self._store(self.path / f"{_checked(name)}.npz", arrays)

    def load(self, name: str) -> dict[str, np.ndarray]:
        """The arrays stored under ``name``. Raises: `MeanfieldError` if missing or damaged."""
        path = self.path / f"{_checked(name)}.npz"
        if not path.exists():
            stored = sorted(p.stem for p in self.path.glob("*.npz"))
            raise MeanfieldError(
                f"{self.path} holds no arrays named {name!r}", f"one of {stored}", "run it again"
            )
        return read_arrays(path)

    def cached(self, key: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """A sweep's cell: computed once, stored, and read on a resumed run.

        Args:
            key: the cell's name, for instance ``f"M={num_particles},replicate={r}"``.
            compute: returns a dict of arrays; called only if the cell is not stored yet.

        Returns: the arrays, the same bits whether computed now or read.
        """
        path = self.path / "cells" / f"{_checked(key)}.npz"
        if not path.exists():
            self._store(path, compute())
        return read_arrays(path)

    def save_checkpoint(self, name: str, /, **arrays: Any) -> Path:
        """Replace the checkpoint ``name`` of a loop, whole or not at all."""
        return self._store(self.path / "checkpoints" / f"{_checked(name)}.npz", arrays)

    def load_checkpoint(self, name: str) -> dict[str, np.ndarray] | None:
        """The last checkpoint ``name``, or None if there is none yet."""
        path = self.path / "checkpoints" / f"{_checked(name)}.npz"
        return read_arrays(path) if path.exists() else None

    def finish(self, claims: Iterable[Claim]) -> None:
        """Store the claims and close the run for good."""
        self._close("finished", claims)

    def abandon(self, status: str) -> None:
        """Mark an unfinished run "interrupted" or "failed"; `resume` goes on from there."""
        self._close(status, ())

    def discard(self) -> None:
        """Remove a run that has stored nothing, with its folder; refuse any other."""
        require(
            not self.has_results,
            f"{self.path} holds results",
            "a run that has stored nothing",
            "remove the folder by hand if you mean it",
        )
        (self.path / MANIFEST).unlink(missing_ok=True)
        _unlock(self.path)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _close(self, status: str, claims: Iterable[Claim]) -> None:
        self._require_unfinished()
        if (self.path / MANIFEST).exists():  # what this object knows may be old
            type(self).open(self.path)._require_unfinished()
        self._manifest["status"] = status
        self._manifest["claims"] = to_plain(list(claims))
        elapsed = time.monotonic() - self._started
        self._manifest["seconds"] = round(self._seconds_before + elapsed, 3)
        self._write_manifest()
        _unlock(self.path)

    def _require_unfinished(self) -> None:
        require(
            self.status != "finished",
            f"a write to the finished run {self.path}",
            "no change after finish()",
            "create a new run directory",
        )

    def _store(self, path: Path, arrays: Mapping[str, Any]) -> Path:
        self._require_unfinished()
        write_arrays(path, _numeric(arrays, path.name))
        return path

    def _write_manifest(self) -> None:
        with replacing(self.path / MANIFEST) as temporary:
            temporary.write_text(to_json(self._manifest) + "\n", encoding="utf-8")


def find_runs(folder: str | Path) -> list[RunDirectory]:
    """All sound run directories below ``folder``, oldest first; damaged ones are left out."""
    runs = []
    for manifest in Path(folder).rglob(MANIFEST):
        try:
            runs.append(RunDirectory.open(manifest.parent))
        except MeanfieldError:
            continue
    return sorted(runs, key=lambda run: (run.manifest.get("started", ""), str(run.path)))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version(), "meanfield": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def device() -> str:
    """The device that jax computes on, or the machine's kind where jax is not in use."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "devices"):
        return platform.machine()
    return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"


_LOCKS: dict[Path, int] = {}  # what this process holds: it may open its own run again


def _lock(folder: Path) -> None:
    """Take the folder for this process until `_unlock` or its end, however it ends.

    Raises: `MeanfieldError` if another process holds it.
    """
    folder = folder.resolve()
    if folder in _LOCKS or fcntl is None:
        return
    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise MeanfieldError(
                f"{folder} cannot be used ({error.strerror or error})",
                "a folder that can be written",
                "choose another one",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise MeanfieldError(
                f"{folder} is being written by another process",
                "a run whose process has ended",
                "wait for it, or stop it first",
            ) from None
        except OSError:  # a file system without locks: go on without
            os.close(handle)
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                _LOCKS[folder] = handle
                return
        os.close(handle)  # its former owner removed the file in between: take the new one


def _unlock(folder: Path) -> None:
    handle = _LOCKS.pop(folder.resolve(), None)
    if handle is not None:
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _from_json(value: Any) -> Any:
    """A number of a claim as a float, those that are no JSON numbers among them; else itself."""
    is_number = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
    return float(value) if is_number else value


def _is_manifest(found: Any) -> bool:
    expected = {
        "name": str,
        "status": str,
        "configuration": dict,
        "seeds": dict,
        "started": str,
        "claims": list,
    }
    if not isinstance(found, dict):
        return False
    if not all(isinstance(found.get(key), kind) for key, kind in expected.items()):
        return False
    seconds = found.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    sound = 0 <= seconds < math.inf and found["status"] in STATUSES
    return sound and all(_is_claim(claim) for claim in found["claims"])


def _is_claim(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"expected", "measured", "interval"} <= set(entry):
        return False
    interval = entry["interval"]
    sound = interval is None or (isinstance(interval, list) and len(interval) == 2)
    ends = [_from_json(end) for end in interval or ()] if sound else [None]
    sound = all(isinstance(end, float) for end in ends)
    sound = sound and all(isinstance(entry[k], int | float | str) for k in ("expected", "measured"))
    known = entry.get("verdict") in (CONSISTENT, INCONSISTENT, UNDECIDED)
    return sound and known and isinstance(entry.get("quantity"), str)


def _checked(name: Any) -> str:
    require(
        isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith(".npz"),
        f"the name {name!r}",
        "letters, digits and _ . , = + - (no folders, no .npz)",
        "choose another name",
    )
    return name


def _numeric(arrays: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Plain numeric arrays; object arrays would need pickles, which are refused."""
    plain = {}
    for name, value in arrays.items():
        try:
            array = np.asarray(value)
        except Exception as error:
            raise MeanfieldError(
                f"{where}: {name} is no array ({error})", "numbers", "convert it first"
            ) from None
        require(
            array.dtype.kind in "biufcUS",
            f"{where}: {name} has type {array.dtype}",
            "numbers or strings",
            "store keys by jax.random.key_data and other objects as arrays of numbers",
        )
        plain[str(name)] = array
    return plain
