"""The run directory: created, resumed, joined, read; its cells, arrays and manifest."""

import contextlib
import json
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meanfield import __version__
from meanfield._checks import MeanfieldError, require
from meanfield._files import read_arrays, replacing, write_arrays
from meanfield.records import _locks
from meanfield.records._claims import Claim
from meanfield.records._manifest import is_manifest
from meanfield.records._plain import from_json, numeric, to_json, to_plain

MANIFEST, LOCK = "manifest.json", ".lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+-]{0,199}")
_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "scipy")
_WAIT = 0.05  # seconds between two looks at a cell that another process computes
_T = TypeVar("_T")


def save_checkpoint(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write a flat dict of arrays, whole or not at all; `load_checkpoint` returns the same bits."""
    write_arrays(path, numeric(arrays, str(path)))


def load_checkpoint(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of `save_checkpoint`. Raises: `MeanfieldError` if missing or damaged."""
    return read_arrays(path)


class RunDirectory:
    """One run's folder: `create` it, `resume` it, `join` its process, or `open` it to read."""

    def __init__(self, path: Path, manifest: dict[str, Any], *, is_joined: bool = False):
        self.path = path
        self._manifest = manifest
        self._is_joined = is_joined
        self._is_in_cell = False
        self._owner: tuple[int, int] | None = None  # of a joined run: its lock
        self.num_computed = 0
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
                "choose another folder"
                if status == "finished"
                else f"replace --out by --resume {shlex.quote(str(path))}",
            )
        require(
            not occupied,
            f"{path} holds other files",
            "a new or empty folder",
            "choose another one",
        )
        _own(path)
        if (path / MANIFEST).exists():  # another process was quicker
            _locks.release(path / LOCK)
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
            is_manifest(manifest),
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
        _own(path)
        try:
            directory = cls.open(path)  # again: its owner may have ended in between
            require(
                directory.status != "finished",
                f"{path} holds a finished run",
                "an unfinished one, since a finished run is never overwritten",
                "start a new run in another folder",
            )
        except MeanfieldError:
            _locks.release(path / LOCK)
            raise
        directory._manifest["status"] = "running"
        directory._manifest["versions"] = versions()
        directory._manifest["device"] = device()
        directory._write_manifest()
        return directory

    @classmethod
    def join(cls, path: str | Path) -> "RunDirectory":
        """Work beside the process that owns a run: compute cells, leave everything else to it.

        Both processes execute the same experiment. Each cell is computed by one of them, under a
        lock of its own; results, checkpoints outside cells and the manifest are the owner's.

        Raises: `MeanfieldError` if the run is not running, its process has ended, or it was started
            by other versions (the cells would not be the same bits). So does a later cell once the
            owner has ended: a joined process never outlives it by more than a cell.
        """
        directory = cls.open(path)
        require(
            directory.status == "running",
            f"{path} holds a run that is {directory.status}",
            "one that is running",
            f"go on with it by --resume {path}" if directory.status != "finished" else "start one",
        )
        require(
            directory.manifest.get("versions") == versions(),
            f"{path} is computed by other versions",
            f"{versions()}",
            "join it from the same environment",
        )
        lock = directory.path / LOCK
        directory._owner = _locks.identity(lock)
        require(
            _locks.is_taken(lock),
            f"{path} holds a run whose process has ended",
            "one that is running",
            f"go on with it by --resume {shlex.quote(str(path))}",
        )
        directory._is_joined = True
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
            expected, measured = (from_json(entry[key]) for key in ("expected", "measured"))
            low, high = map(from_json, entry["interval"] or (0.0, 0.0))
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
        path = self.path / f"{_checked(name)}.npz"
        return path if self._is_joined else self._store(path, arrays)

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
        """A single cell: computed once, stored, and read on a resumed run.

        Args:
            key: the cell's name.
            compute: returns a dict of arrays; called only if the cell is not stored yet.

        Returns: the arrays, the same bits whether computed now or read, here or elsewhere.
        """
        path = self._cell(key)
        for _ in self._missing([path], lambda _: compute()):
            pass
        return read_arrays(path)

    def sweep(
        self,
        label: str,
        values: Iterable[_T],
        compute: Callable[[_T], Mapping[str, Any]],
        progress: Any = None,
        *,
        key: Callable[[_T], str] | None = None,
    ) -> list[dict[str, np.ndarray]]:
        """A sweep, cell by cell: each computed once, and read on a resumed run.

        The processes of one run (`join`) share the cells out among themselves. The last value is
        begun first: sweeps are written from small to large, and what takes longest is then not
        left for the end.

        Args:
            label, key: the cell of a value is named ``key(value)``, by default
                ``f"{label}={value}"``.
            values: all of the sweep.
            compute: returns the dict of arrays of one value.
            progress: what `run` was given: shows a bar with the time left.

        Returns: the cells in the order of ``values``.
        """
        values = list(values)
        paths = [self._cell(key(v) if key else f"{label}={v}") for v in values]
        require(
            len(set(paths)) == len(paths),
            f"a sweep over {label} with two cells of one name",
            "a name for each value",
            "pass distinct values",
        )
        missing = [i for i in reversed(range(len(paths))) if not paths[i].exists()]
        done = self._missing([paths[i] for i in missing], lambda j: compute(values[missing[j]]))
        for _ in done if progress is None else progress.task(done, label, total=len(missing)):
            pass
        return [read_arrays(path) for path in paths]

    def _cell(self, key: str) -> Path:
        return self.path / "cells" / f"{_checked(key)}.npz"

    def _missing(
        self, paths: Sequence[Path], compute: Callable[[int], Mapping[str, Any]]
    ) -> Iterator[Path]:
        """Compute what is not stored, or wait for the process that does; yields what is done."""
        waiting = dict(enumerate(paths))
        while waiting:
            before = len(waiting)
            for index, path in list(waiting.items()):
                if path.exists() or self._claimed(path, lambda i=index: compute(i)):
                    del waiting[index]
                    yield path
            if len(waiting) == before:
                time.sleep(_WAIT)

    def _claimed(self, path: Path, compute: Callable[[], Mapping[str, Any]]) -> bool:
        """Compute and store one cell unless another process is about it."""
        self._require_unfinished()
        self._require_hold()
        path.parent.mkdir(exist_ok=True)
        lock = path.with_name(f".{path.stem}.lock")
        if not _locks.acquire(lock):
            return False
        outside, self._is_in_cell = self._is_in_cell, True
        try:
            if not path.exists():  # its owner may have ended in between
                self._store(path, compute())
                self.num_computed += 1
        finally:
            self._is_in_cell = outside
            _locks.release(lock)
        return True

    def save_checkpoint(self, name: str, /, **arrays: Any) -> Path:
        """Replace the checkpoint ``name`` of a loop, whole or not at all."""
        path = self.path / "checkpoints" / f"{_checked(name)}.npz"
        if self._is_joined and not self._is_in_cell:
            return path
        return self._store(path, arrays)

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
        if self._is_joined:
            return
        require(
            not self.has_results,
            f"{self.path} holds results",
            "a run that has stored nothing",
            "remove the folder by hand if you mean it",
        )
        (self.path / MANIFEST).unlink(missing_ok=True)
        for folder in ("cells", "checkpoints"):
            with contextlib.suppress(OSError):
                (self.path / folder).rmdir()
        _locks.release(self.path / LOCK)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _close(self, status: str, claims: Iterable[Claim]) -> None:
        if self._is_joined:  # only its owner closes a run
            return
        self._require_unfinished()
        if (self.path / MANIFEST).exists():  # what this object knows may be old
            type(self).open(self.path)._require_unfinished()
        self._require_hold()
        self._manifest["status"] = status
        self._manifest["claims"] = to_plain(list(claims))
        elapsed = time.monotonic() - self._started
        self._manifest["seconds"] = round(self._seconds_before + elapsed, 3)
        self._write_manifest()
        _locks.release(self.path / LOCK)

    def _require_unfinished(self) -> None:
        require(
            self.status != "finished",
            f"a write to the finished run {self.path}",
            "no change after finish()",
            "create a new run directory",
        )

    def _require_hold(self) -> None:
        """Refuse to write into a folder that was taken away, or given to another run, meanwhile."""
        lock = self.path / LOCK
        if self._is_joined:
            is_ours = _locks.identity(lock) == self._owner and _locks.is_taken(lock)
        else:
            is_ours = _locks.is_held(lock)
        require(
            is_ours,
            f"{self.path} is not held by this run any more",
            "the folder as it was when the run began",
            "leave it alone while it is written; go on with a run by --resume",
        )

    def _store(self, path: Path, arrays: Mapping[str, Any]) -> Path:
        self._require_unfinished()
        self._require_hold()
        write_arrays(path, numeric(arrays, path.name))
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


def _own(folder: Path) -> None:
    """Take the folder for this process until its end, however it ends."""
    require(
        _locks.acquire(folder / LOCK),
        f"{folder} is being written by another process",
        "a run whose process has ended",
        "wait for it, or stop it first",
    )


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


def _checked(name: Any) -> str:
    require(
        isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith(".npz"),
        f"the name {name!r}",
        "letters, digits and _ . , = + - (no folders, no .npz)",
        "choose another name",
    )
    return name
