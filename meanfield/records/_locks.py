"""Locks that the system frees when their process ends, however it ends."""

import contextlib
import os
from pathlib import Path

from meanfield._checks import MeanfieldError

try:
    import fcntl
except ImportError:  # no locks on such a system
    fcntl = None

_HELD: dict[Path, int] = {}  # what this process holds: it may take it again


def acquire(path: Path) -> bool:
    """Take the lock file ``path`` for this process until `release` or its end.

    Returns: whether it is held now; on a system without locks, always.
    Raises: `MeanfieldError` if the file cannot be made.
    """
    path = path.parent.resolve() / path.name
    if path in _HELD or fcntl is None:
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
            return True
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                _HELD[path] = handle
                return True
        os.close(handle)  # its former owner removed the file in between: take the new one


def release(path: Path) -> None:
    """Give up the lock and remove its file."""
    path = path.parent.resolve() / path.name
    handle = _HELD.pop(path, None)
    if handle is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)
