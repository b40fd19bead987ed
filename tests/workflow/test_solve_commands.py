"""`meanfield flow` and `meanfield gradient`: results, golden arrays, and files that are wrong."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meanfield as mf
from tests.workflow.command_line import ROOT, call, process, refused

GOLDEN = ROOT / "tests" / "golden"
NAMES = ["flow_all_tokens", "flow_query_token"]


def arrays(path: str | Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def gap(actual, expected) -> float:
    return float(np.max(np.abs(actual - expected)) / np.max(np.abs(expected)))


def problem(**changes: Any) -> dict[str, Any]:
    """A small sound problem with some entries replaced, or left out where None."""
    draw = np.random.default_rng(5)
    sound = {
        "A": draw.normal(size=(3, 2, 2, 2)),
        "V": draw.normal(size=(3, 2, 2, 2)),
        "x": draw.normal(size=(2, 4, 2)),
        "y": draw.normal(size=(2, 4, 2)),
        "w": np.full((2, 4), 0.25),
        "lw": np.full((2, 4), 0.25),
    }
    merged = {**sound, **changes}
    return {name: values for name, values in merged.items() if values is not None}


def save(**changes) -> str:
    np.savez("problem.npz", **problem(**changes))
    return "problem.npz"


@pytest.mark.parametrize("name", NAMES)
def test_golden_arrays_through_the_command_line(here, name):
    code, out, err = call("gradient", GOLDEN / f"{name}.npz", "--out", "result.npz")
    assert (code, err) == (0, "")
    found, expected = arrays("result.npz"), arrays(GOLDEN / f"{name}.npz")
    assert set(found) == {"risk", "x1", "q0", "gA", "gV"}
    for key, values in found.items():
        assert values.dtype == np.float64
        assert values.shape == expected[key].shape
        assert gap(values, expected[key]) < 1e-12, key
    assert f"risk {float(expected['risk']):.10g}"[:14] in out


def test_control_another_target_misses_the_golden_arrays(here):
    data = arrays(GOLDEN / "flow_all_tokens.npz")
    np.savez("shifted.npz", **{**data, "y": data["y"] + 1e-9})
    call("gradient", "shifted.npz", "--out", "result.npz")
    assert gap(arrays("result.npz")["gV"], data["gV"]) > 1e-12


def test_query_key_value_problem_agrees_with_its_product(here):
    draw = np.random.default_rng(8)
    query, key = draw.normal(size=(2, 3, 2, 1, 2))
    product = 0.7 * np.einsum("lmki,lmkj->lmij", query, key)
    call("gradient", save(A=None, Q=query, K=key, scale=0.7), "--out", "qkv.npz")
    call("gradient", save(A=product), "--out", "av.npz")
    qkv, av = arrays("qkv.npz"), arrays("av.npz")
    assert set(qkv) == {"risk", "x1", "q0", "gQ", "gK", "gV"}
    for name in ("risk", "x1", "q0", "gV"):
        assert gap(qkv[name], av[name]) < 1e-12, name
    assert gap(qkv["gQ"], 0.7 * np.einsum("lmkj,lmij->lmki", key, av["gA"])) < 1e-12
    assert gap(qkv["gK"], 0.7 * np.einsum("lmki,lmij->lmkj", query, av["gA"])) < 1e-12


def test_single_precision_and_integers_are_solved_in_double(here):
    single: dict[str, Any] = {name: values.astype(np.float32) for name, values in problem().items()}
    np.savez("single.npz", **single, nodes=np.array([0, 1, 2, 3]))
    double: dict[str, Any] = {name: values.astype(np.float64) for name, values in single.items()}
    np.savez("double.npz", **double, nodes=np.array([0.0, 1.0, 2.0, 3.0]))
    for name in ("single", "double"):
        assert call("gradient", f"{name}.npz", "--out", f"{name}_result.npz")[0] == 0
    single, double = arrays("single_result.npz"), arrays("double_result.npz")
    assert all(single[name].tobytes() == double[name].tobytes() for name in double)
    assert {values.dtype for values in single.values()} == {np.dtype("f8")}


def test_nodes_default_to_a_uniform_grid_and_weights_to_equal_ones(here):
    call("gradient", save(nodes=np.linspace(0, 1, 4)), "--out", "a.npz")
    call("gradient", save(w=None, lw=None), "--out", "b.npz")
    call("gradient", save(nodes=np.array([0, 0.1, 0.2, 1.0])), "--out", "c.npz")
    a, b, c = (arrays(f"{name}.npz") for name in "abc")
    assert gap(a["gV"], b["gV"]) < 1e-13
    assert gap(a["gV"], c["gV"]) > 1e-3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--scheme", "heun"], "heun, discrete adjoint"),
        (["--scheme", "rk4", "--method", "continuous"], "rk4, continuous adjoint"),
        (["--scheme", "adaptive"], "adaptive, continuous adjoint"),
    ],
)
def test_schemes_and_methods_are_named_and_near_each_other(here, flags, words):
    small = {name: 0.3 * problem()[name] for name in "AV"}
    call("gradient", save(**small), "--out", "euler.npz")
    code, out, _ = call("gradient", save(**small), "--out", "other.npz", *flags)
    assert code == 0
    assert words in out
    assert 1e-9 < gap(arrays("other.npz")["gV"], arrays("euler.npz")["gV"]) < 0.2


@pytest.mark.parametrize("kind", [">f8", "<f2", "f4", np.longdouble])
def test_numbers_of_any_type_are_solved_in_double(here, kind):
    cast = {name: values.astype(kind) for name, values in problem().items()}
    call("gradient", save(**cast), "--out", "cast.npz")
    call("gradient", save(**{k: v.astype("f8") for k, v in cast.items()}), "--out", "double.npz")
    cast, double = arrays("cast.npz"), arrays("double.npz")
    assert all(cast[name].tobytes() == double[name].tobytes() for name in double)


@pytest.mark.parametrize("kind", [">f8", "<f2", "f4", ">i4", np.longdouble])
def test_flow_of_numbers_of_any_type_is_stored_in_double(here, kind):
    points = np.round(4 * CLOUD).astype(kind)
    np.save("cloud.npy", points)
    code, _, err = call("flow", "cloud.npy", "--heads", 2, "--depth", 2, "--out", "out")
    assert (code, err) == (0, "")
    stored = mf.RunDirectory.open("out").load("path")["path"]
    assert stored.dtype == np.float64
    np.testing.assert_array_equal(stored[0], points.astype(float))


def test_flow_that_leaves_the_numbers_is_one_line(here, capfd):
    np.savez("cloud.npz", points=CLOUD, weight=np.ones(5))
    assert "'weight'" in refused("flow", "cloud.npz")
    np.save("cloud.npy", np.full((3, 2), 1e200))
    assert "not finite" in refused("flow", "cloud.npy")
    heads = {"A": np.zeros((1, 1, 2, 2)), "V": np.eye(2)[None, None]}
    np.savez("heads.npz", **heads)
    np.save("cloud.npy", [[1e200, 0.0], [-1e200, 0.0]])
    assert "not finite" in refused("flow", "cloud.npy", "--particles", "heads.npz")
    assert sorted(os.listdir()) == ["cloud.npy", "cloud.npz", "heads.npz"]
    assert capfd.readouterr() == ("", "")


def test_warnings_do_not_precede_the_one_line(here):
    file = save(V=np.full((3, 2, 2, 2), np.longdouble("1e400")))
    done = process("-m", "meanfield", "gradient", file, "--out", "r.npz", cwd=here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    np.save("cloud.npy", np.full((3, 2), 1e200))
    done = process("-m", "meanfield", "flow", "cloud.npy", cwd=here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_adaptive_has_no_discrete_adjoint(here):
    line = refused(
        "gradient", save(), "--out", "r.npz", "--scheme", "adaptive", "--method", "discrete"
    )
    assert "ContinuousAdjoint" in line
    assert not Path("r.npz").exists()


def object_array() -> np.ndarray:
    return np.array([{"a": 1}, None], dtype=object)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": None}, "A, V"),
        ({"A": None, "V": None}, "A, V"),
        ({"Q": np.ones((3, 2, 1, 2)), "K": np.ones((3, 2, 1, 2))}, "one parametrization"),
        ({"x": None}, "lacks x"),
        ({"y": None}, "lacks y"),
        ({"A": np.ones((3, 2, 2, 3))}, "A [3, 2, 2, 3]"),
        ({"V": np.ones((3, 5, 2, 2))}, "V [3, 5, 2, 2]"),
        ({"V": np.ones((0, 2, 2, 2)), "A": np.ones((0, 2, 2, 2))}, "[0, 2, 2, 2]"),
        ({"V": np.array(1.0)}, "V []"),
        ({"x": np.ones((2, 4, 3))}, "x [2, 4, 3]"),
        ({"x": np.ones((4, 2))}, "x [4, 2]"),
        ({"x": np.ones((2, 0, 2)), "y": np.ones((2, 0, 2)), "w": None, "lw": None}, "empty"),
        ({"y": np.ones((2, 3, 2))}, "y [2, 3, 2]"),
        ({"w": np.ones((4, 2))}, "w [4, 2]"),
        ({"lw": np.ones(4)}, "lw [4]"),
        ({"w": np.full((2, 4), -1.0)}, "negative"),
        ({"w": np.zeros((2, 4))}, "sum to 0"),
        ({"w": np.full((2, 4), np.nan)}, "nan"),
        ({"lw": np.full((2, 4), np.inf)}, "inf"),
        ({"x": np.full((2, 4, 2), np.nan)}, "nan"),
        ({"y": np.full((2, 4, 2), np.inf)}, "inf"),
        ({"A": np.full((3, 2, 2, 2), np.nan)}, "A holds nan"),
        ({"V": np.full((3, 2, 2, 2), 1e200)}, "depth cell 1"),
        ({"nodes": np.linspace(0, 1, 5)}, "3 depth cells but grid has 4"),
        ({"nodes": np.array([0.0, 0.5, 0.2, 1.0])}, "s_0 < s_1"),
        ({"nodes": np.array([0.0, 0.5, np.nan, 1.0])}, "nodes holds nan"),
        ({"scale": np.ones(2)}, "scale is"),
        ({"scale": np.array(np.inf)}, "scale is"),
        ({"A": np.ones((3, 2, 2, 2), complex)}, "A has type complex128"),
        ({"A": np.full((3, 2, 2, 2), "1")}, "A has type"),
        ({"A": object_array()}, "pickle"),
        ({"lw": np.full((2, 4), -0.25)}, "lw holds the negative entry -0.25"),
        ({"weights": np.full((2, 4), 0.25)}, "'weights'"),
        ({"scales": np.array(2.0), "node": np.arange(4.0)}, "'node', 'scales'"),
        ({"y": np.full((2, 4, 2), 1e200)}, "finite"),
        ({"lw": np.full((2, 4), 1e308), "y": np.full((2, 4, 2), 1e5)}, "finite"),
        ({"V": np.full((3, 2, 2, 2), np.longdouble("1e400"))}, "V holds inf"),
    ],
)
def test_wrong_problem_is_one_line_and_leaves_nothing(here, changes, words):
    file = save(**changes)
    assert words in refused("gradient", file, "--out", "deep/result.npz")
    assert os.listdir() == [file]


def hostile(kind: str) -> str:
    """Write a file that is no honest problem; returns its name."""
    file = Path("hostile.npz")
    if kind == "empty":
        file.write_bytes(b"")
    elif kind == "text":
        file.write_text("A, V\n1, 2\n")
    elif kind == "pickle":
        file.write_bytes(pickle.dumps({"A": 1}))
    elif kind == "truncated":
        np.savez(file, **problem())
        file.write_bytes(file.read_bytes()[:700])
    elif kind == "flipped":
        np.savez_compressed(file, **problem())
        data = bytearray(file.read_bytes())
        data[200:400] = bytes(255 - byte for byte in data[200:400])
        file.write_bytes(bytes(data))
    elif kind == "claims a petabyte":
        header = io.BytesIO()
        fields = {"descr": "<f8", "fortran_order": False, "shape": (1 << 47, 2)}
        np.lib.format.write_array_header_1_0(header, fields)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("A.npy", header.getvalue())
    elif kind == "code in the header":
        text = b"{'descr': __import__('os').system('touch owned'), 'shape': (1,)}"
        text += b" " * (117 - len(text)) + b"\n"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("A.npy", b"\x93NUMPY\x01\x00\x76\x00" + text)
    elif kind == "a zip without arrays":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "folder":
        file.mkdir()
    return str(file)


KINDS = [
    "empty",
    "text",
    "pickle",
    "truncated",
    "flipped",
    "claims a petabyte",
    "code in the header",
    "a zip without arrays",
    "folder",
    "missing",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["gradient", "flow", "particles"])
def test_hostile_file_is_one_line_and_leaves_nothing(here, kind, command):
    file = hostile(kind)
    np.save("cloud.npy", np.ones((3, 2)))
    before = sorted(os.listdir())
    if command == "gradient":
        line = refused("gradient", file, "--out", "result.npz")
    elif command == "flow":
        line = refused("flow", file)
    else:
        line = refused("flow", "cloud.npy", "--particles", file)
    assert file in line
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--out", "result.txt"], "a .npz file"),
        (["--out", "."], "a .npz file"),
        (["--out", "problem.npz/result.npz"], "problem.npz is no folder"),
        ([], "--out"),
        (["--out", "r.npz", "--scheme", "leapfrog"], "leapfrog"),
        (["--out", "r.npz", "--methods", "discrete"], "--methods"),
    ],
)
def test_wrong_gradient_call_is_one_line(here, args, words):
    file = save()
    assert words in refused("gradient", file, *args)
    assert os.listdir() == [file]


def test_unwritable_result_leaves_nothing_half_written(here, monkeypatch):
    file = save()
    Path("result.npz").write_bytes(b"the old result")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in refused("gradient", file, "--out", "result.npz")
    assert sorted(os.listdir()) == ["problem.npz", "result.npz"]
    assert Path("result.npz").read_bytes() == b"the old result"


CLOUD = np.random.default_rng(2).normal(size=(5, 3))


def write_cloud(suffix: str) -> str:
    name = f"cloud.{suffix}"
    if suffix == "npy":
        np.save(name, CLOUD)
    elif suffix == "npz":
        np.savez(name, points=CLOUD, weights=np.array([1.0, 2.0, 0.0, 1.0, 1.0]))
    else:
        rows = [",".join(repr(float(x)) for x in row) for row in CLOUD]
        Path(name).write_text("\n".join(["x,y,z", *rows]) + "\n")
    return name


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_flow_stores_path_and_picture(here, suffix):
    flags = ["--heads", 4, "--depth", 3, "--seed", 1, "--out", "out"]
    code, out, err = call("flow", write_cloud(suffix), *flags)
    assert (code, err) == (0, "")
    run = mf.RunDirectory.open("out")
    stored = run.load("path")
    assert stored["path"].shape == (4, 5, 3)
    assert stored["path"].dtype == np.float64
    np.testing.assert_array_equal(stored["path"][0], CLOUD)
    np.testing.assert_allclose(stored["nodes"], [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(stored["weights"].sum(), 1)
    assert (stored["weights"][2] == 0) == (suffix == "npz")
    assert Path("out/path.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(Path("out/path.png")) in out
    assert json.loads(Path("out/manifest.json").read_text())["seeds"] == {"seed": 1}


def test_flow_through_stored_particles_equals_solve_flow(here):
    data = problem()
    np.save("cloud.npy", data["x"][0])
    call("flow", "cloud.npy", "--particles", save(), "--scheme", "rk4", "--out", "out")
    rho = mf.ParameterMeasure(
        mf.AttentionAV(data["A"], data["V"]),  # type: ignore[arg-type]
        mf.DepthGrid.uniform(3),
    )
    solution = mf.solve_flow(
        mf.SoftmaxAttention("av"), rho, mf.TokenMeasure(data["x"][0]), scheme=mf.RungeKutta4()
    )
    stored = mf.RunDirectory.open("out").load("path")["path"]
    np.testing.assert_allclose(stored, np.asarray(solution.path), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("x,y\n", "holds no token"),
        ("1,2\n\n3\n", "line 3: 1 cells; expected 2, as in the first row"),
        ("1,2\nthree,4\n", "line 2: 'three'"),
        ("1,2\n3,\n", "line 2: ''"),
        ("one,2\n3,4\n", "line 1: 'one'"),
        ("x,1\n3,4\n", "line 1: 'x'"),
        ("1_0,2\n", "line 1: '1_0'"),
        ("1_0,2_0\n3,4\n", "line 1: '1_0'"),
        ("x,y\n1,1_0\n", "line 2: '1_0'"),
        ("x,y\n\u0661,2\n", "is no number"),
        ("x,y,weight\n1,2\n", "line 2: 2 cells; expected 3, as in the header"),
        ("x,y\n1,2,3\n", "line 2: 3 cells; expected 2"),
        ("x,Weight\n1,2\n", "the column 'Weight'"),
        ("x,weights\n1,2\n", "the column 'weights'"),
        ("weight,x\n1,2\n", "the column 'weight'"),
        ("weight\n1\n", "weights alone"),
        ("x;y\n1;2\n", "line 2: '1;2'"),
        ("1,nan\n", "nan"),
        ("x,weight\n1,-2\n", "negative"),
        ("x,weight\n1,0\n", "sum to 0"),
        ("\x00\x01", "cloud.csv"),
    ],
)
def test_wrong_csv_is_one_line(here, content, words):
    Path("cloud.csv").write_text(content, encoding="utf-8")
    assert words in refused("flow", "cloud.csv")
    assert os.listdir() == ["cloud.csv"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--heads", 0], "num_particles is 0"),
        (["--depth", -1], "num_cells is -1"),
        (["--particles", "p.npz", "--heads", 3], "--heads"),
        (["--out", "."], "holds other files"),
        (["--seed", "x"], "x"),
    ],
)
def test_wrong_flow_call_is_one_line(here, args, words):
    file = write_cloud("npy")
    assert words in refused("flow", file, *args)
    assert os.listdir() == [file]


def test_flow_wants_one_cloud_of_a_known_kind(here):
    np.save("batch.npy", np.ones((2, 3, 2)))
    assert "2 clouds" in refused("flow", "batch.npy")
    Path("cloud.txt").write_text("1 2\n")
    assert ".npy, .npz or .csv" in refused("flow", "cloud.txt")
    np.save("objects.npy", object_array(), allow_pickle=True)
    assert "pickle" in refused("flow", "objects.npy")
    np.save("narrow.npy", np.ones((3, 5)))
    assert "width" in refused("flow", "narrow.npy", "--particles", save())
