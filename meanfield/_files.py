"""Reading and writing files without surprises: no pickles, nothing half written. Free of jax."""

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from meanfield._checks import MeanfieldError, require

_READABLE = "a .npy, .npz or .csv file of numbers, without pickled objects"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` that replaces it only if the block succeeds."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
    except OSError as error:
        raise MeanfieldError(
            f"{path} cannot be written ({error.strerror or error})",
            "a writable place",
            "choose another one or free some space",
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes private files; results are to be shared
        os.replace(temporary, path)
    except OSError as error:
        raise MeanfieldError(
            f"{path} could not be written ({error.strerror or error})",
            "a writable place with free space",
            "choose another one or free some space",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def require_regular(path: Path) -> None:
    """Refuse what is there but no regular file: reading a pipe or a device may never end."""
    require(
        path.is_file() or not path.exists(),
        f"{path} is no regular file",
        "a file",
        "pass the path of a file",
    )


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz file by name (of a .npy file: under the name "points").

    Raises: `MeanfieldError` if the file is missing, damaged or needs pickles.
    """
    path = Path(path)
    require_regular(path)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"points": loaded}
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        strange = [name for name, values in arrays.items() if not isinstance(values, np.ndarray)]
        if strange:
            raise ValueError(f"{strange[0]} in it is no array")
        return arrays
    except FileNotFoundError:
        raise MeanfieldError(f"{path} does not exist", _READABLE, "check the path") from None
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        if "pickle" in str(error).lower():
            raise MeanfieldError(
                f"{path} holds pickled objects or is no numpy file, and pickles are refused",
                _READABLE,
                "save plain numeric arrays with numpy.save or numpy.savez",
            ) from None
        raise MeanfieldError(
            f"{path} cannot be read ({error})", _READABLE, "save it again with numpy"
        ) from None
    except Exception as error:  # zlib.error and friends: hostile bytes end in one line, not a trace
        raise MeanfieldError(
            f"{path} is damaged ({type(error).__name__}: {error})", _READABLE, "save it again"
        ) from None


def read_float64(path: str | Path, *, known: Collection[str]) -> dict[str, np.ndarray]:
    """The same arrays in native float64, whatever real type and byte order they were saved in.

    Raises: `MeanfieldError` also on names that are not ``known`` (a misspelt optional array would
    be ignored in silence) and on entries that are no real numbers.
    """
    arrays = read_arrays(path)
    unknown = sorted(set(arrays) - set(known))
    require(
        not unknown,
        f"{path} holds {', '.join(map(repr, unknown))}",
        f"no other arrays than {', '.join(known)}",
        "correct the name or leave it out",
    )
    for name, values in arrays.items():
        require(
            values.dtype.kind in "biuf",
            f"{path}: {name} has type {values.dtype}",
            "real numbers",
            "save arrays of real numbers",
        )
        with np.errstate(all="ignore"):  # a longdouble beyond float64 becomes inf
            arrays[name] = values.astype(np.float64)
    return arrays


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a .npz file of named arrays, whole or not at all."""
    # Not numpy.savez: its own parameters "file" and "allow_pickle" are names an array may have.
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as handle:
                np.lib.format.write_array(handle, np.asarray(values), allow_pickle=False)
