"""Reading arrays runs no code: a pickle is refused before it is opened."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from meanfield._files import read_arrays, write_arrays
from meanfield.ntk import Certificate


class Malice:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("kind", ["array", "archive", "bare"])
def test_pickled_objects_are_refused_and_never_loaded(tmp_path, kind):
    mark, path = tmp_path / "mark", tmp_path / ("x.npz" if kind == "archive" else "x.npy")
    objects = np.array([Malice(mark)], dtype=object)
    if kind == "array":
        np.save(path, objects, allow_pickle=True)
    elif kind == "archive":
        np.savez(path, good=np.ones(2), bad=objects)
    else:
        path.write_bytes(pickle.dumps(Malice(mark)))
    with pytest.raises(mf.MeanfieldError, match="pickle") as caught:
        read_arrays(path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    # Control: the file is live; numpy told to trust it runs its code.
    loaded = np.load(path, allow_pickle=True)
    if kind == "archive":
        with loaded:
            loaded["bad"]
    assert mark.exists()


def test_objects_are_not_written(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(ValueError, match="[Oo]bject arrays"):
        write_arrays(path, {"good": np.ones(2), "bad": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "x.npz"
    write_arrays(path, {"a": np.arange(3), "b": np.array(2.0)})
    found = read_arrays(path)
    np.testing.assert_array_equal(found["a"], [0, 1, 2])
    assert found["b"].shape == ()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    np.save(tmp_path / "y.npy", np.eye(2))
    np.testing.assert_array_equal(read_arrays(tmp_path / "y.npy")["points"], np.eye(2))


def test_what_is_no_regular_file_is_refused_before_it_is_read(tmp_path):
    """Reading a pipe waits for a writer, and a device may never end."""
    pipes = [tmp_path / "pipe.npy", tmp_path / "pipe.json"]
    for pipe in pipes:
        os.mkfifo(pipe)
    endless = tmp_path / "endless.csv"
    endless.symlink_to("/dev/zero")
    for read, path in (
        (read_arrays, pipes[0]),
        (mf.TokenMeasure.load, endless),
        (Certificate.load, pipes[1]),
    ):
        with pytest.raises(mf.MeanfieldError, match="no regular file"):
            read(path)
