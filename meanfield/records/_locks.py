"""Locks that the system frees when their process ends, however it ends."""

import contextlib
import os
from pathlib import Path

from meanfield._checks import MeanfieldError

try:
    import fcntl
except ImportError:  # no locks on such a system
    fcntl = None

# What this process holds, and may take again; None on a file system without locks.
_HELD: dict[Path, int | None] = {}


def acquire(path: Path) -> bool:
    """Take the lock file ``path`` for this process until `release` or its end.

    Returns: whether it is held now; on a system without locks, always.
    Raises: `MeanfieldError` if the file cannot be made.
    """
    path = path.parent.resolve() / path.name
    if is_held(path):
        return True
    _HELD.pop(path, None)  # of a folder that is gone
    if fcntl is None:
        _HELD[path] = None
        return True
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise MeanfieldError(
                f"{path.parent} cannot be used ({error.strerror or error})",
                "a folder that can be written",
                "choose another one",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:  # a file system without locks: go on without
            os.close(handle)
            _HELD[path] = None
            return True
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                _HELD[path] = handle
                return True
        os.close(handle)  # its former owner removed the file in between: take the new one


def is_held(path: Path) -> bool:
    """Whether this process holds the lock file that lies at ``path`` now, and no former one."""
    path = path.parent.resolve() / path.name
    if path not in _HELD:
        return False
    handle = _HELD[path]
    return handle is None or identity(path) == _number(os.fstat(handle))


def is_taken(path: Path) -> bool:
    """Whether a living process holds the lock; where there are no locks, as far as can be told."""
    if fcntl is None:
        return True
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at ``path`` from one that came after it; None if there is none."""
    try:
        return _number(path.stat())
    except OSError:
        return None


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def release(path: Path) -> None:
    """Give up the lock and remove its file, unless it is another one by now."""
    path = path.parent.resolve() / path.name
    is_ours = is_held(path)
    handle = _HELD.pop(path, None)
    if handle is not None:
        if is_ours:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(handle)
