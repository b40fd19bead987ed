import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from meanfield.records import (
    _locks,
    find_runs,
    load_checkpoint,
    overall_verdict,
    save_checkpoint,
    to_json,
)
from tests.workflow.command_line import environment

CLAIM = mf.Claim("slope", -0.5, -0.502, (-0.53, -0.47), "consistent")


@pytest.fixture
def run(tmp_path):
    return mf.RunDirectory.create(
        tmp_path / "deep" / "run", name="small", configuration={"size": 3}, seeds={"seed": 7}
    )


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?", "c16", "U3"])
def test_arrays_return_bit_for_bit(run, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    run.save(
        "arrays", values=values, file=values[0], allow_pickle=values[:, 0], scalar=values[0, 0]
    )
    found = run.load("arrays")
    assert found["values"].dtype == values.dtype
    assert found["values"].tobytes() == values.tobytes()
    assert found["scalar"].shape == ()
    assert set(found) == {"values", "file", "allow_pickle", "scalar"}


def test_checkpoint_keeps_every_bit(tmp_path):
    odd = np.array([np.nan, -0.0, np.inf, 5e-324, np.frombuffer(b"\x01" * 8)[0]])
    save_checkpoint(tmp_path / "c.npz", {"odd": odd, "key": np.array([1, 2], np.uint32)})
    found = load_checkpoint(tmp_path / "c.npz")
    assert found["odd"].tobytes() == odd.tobytes()
    assert found["key"].dtype == np.uint32


def test_checkpoint_of_a_run_is_replaced(run):
    assert run.load_checkpoint("loop") is None
    for step in range(3):
        run.save_checkpoint("loop", step=step)
    assert run.load_checkpoint("loop")["step"] == 2


def test_cell_is_computed_once(run):
    calls = []

    def compute():
        calls.append(1)
        return {"value": np.array([1 / 3])}

    first = run.cached("M=4,replicate=0", compute)
    again = mf.RunDirectory.resume(run.path).cached("M=4,replicate=0", compute)
    run.cached("M=8,replicate=0", compute)
    assert len(calls) == 2
    assert first["value"].tobytes() == again["value"].tobytes() == np.array([1 / 3]).tobytes()


def test_sweep_begins_with_the_last_value_and_computes_each_once(run):
    seen = []

    def compute(value):
        seen.append(value)
        return {"square": np.array(value**2)}

    run.cached("n=2", lambda: {"square": np.array(4.0)})
    cells = run.sweep("n", (1.0, 2, 3), compute)
    assert seen == [3, 1.0]
    assert [float(cell["square"]) for cell in cells] == [1.0, 4.0, 9.0]
    again = mf.RunDirectory.resume(run.path).sweep("n", (1.0, 2, 3), compute)
    assert seen == [3, 1.0]
    assert [cell["square"].tobytes() for cell in again] == [c["square"].tobytes() for c in cells]
    assert run.sweep("n", (), compute) == []
    with pytest.raises(mf.MeanfieldError, match="two cells of one name"):
        run.sweep("n", (1, 2), compute, key=lambda value: "same")


def test_sweep_shows_a_bar_over_what_is_missing(run):
    shown = []

    class Bars:
        def task(self, iterable, label, *, total):
            shown.append((label, total))
            return iterable

    run.sweep("n", (1, 2, 3), lambda n: {"n": n}, Bars())
    run.sweep("n", (2, 3, 4, 5), lambda n: {"n": n}, Bars())
    assert shown == [("n", 3), ("n", 2)]


def test_a_cell_that_fails_is_free_again(run):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run.cached("cell", fail)
    assert run.cached("cell", lambda: {"value": [2.0]})["value"] == [2.0]
    assert sorted(os.listdir(run.path / "cells")) == ["cell.npz"]


def test_manifest_tells_what_decided_the_result(run):
    run.finish([CLAIM])
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest == mf.RunDirectory.open(run.path).manifest
    assert manifest["configuration"] == {"size": 3}
    assert manifest["seeds"] == {"seed": 7}
    assert manifest["status"] == "finished"
    assert {"python", "jax", "numpy", "meanfield"} <= set(manifest["versions"])
    assert "cpu" in manifest["device"]
    assert manifest["seconds"] >= 0
    assert mf.RunDirectory.open(run.path).claims == [CLAIM]


def test_finished_run_is_never_written_to_again(run):
    run.save("arrays", values=[1.0])
    run.finish([CLAIM])
    before = {file: Path(file).read_bytes() for file in run.files}
    again = mf.RunDirectory.open(run.path)
    for write in (
        lambda: again.save("arrays", values=[2.0]),
        lambda: again.cached("cell", lambda: {"values": np.ones(1)}),
        lambda: again.save_checkpoint("loop", step=1),
        lambda: again.finish([]),
        lambda: again.abandon("failed"),
        lambda: mf.RunDirectory.resume(run.path),
        lambda: mf.RunDirectory.create(run.path, name="other", configuration={}),
    ):
        with pytest.raises(mf.MeanfieldError, match="finished"):
            write()
    assert {file: Path(file).read_bytes() for file in run.files} == before


def test_unfinished_run_asks_to_be_resumed(run):
    run.abandon("interrupted")
    with pytest.raises(mf.MeanfieldError, match=r"interrupted.*replace --out by --resume"):
        mf.RunDirectory.create(run.path, name="small", configuration={})
    assert mf.RunDirectory.resume(run.path).status == "running"


def test_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(mf.MeanfieldError, match="holds other files"):
        mf.RunDirectory.create(tmp_path, name="small", configuration={})
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_only_a_run_without_results_is_discarded(run):
    run.save("arrays", values=[1.0])
    with pytest.raises(mf.MeanfieldError, match="holds results"):
        run.discard()
    (run.path / "arrays.npz").unlink()
    run.discard()
    assert not run.path.exists()


@dataclass(frozen=True)
class Settings:
    limit: float
    path: Path
    sizes: tuple[int, ...]


def test_json_is_strict():
    settings = Settings(float("inf"), Path("a/b"), (1, 2))
    text = to_json({"s": settings, "a": np.array([1.5, np.nan]), "n": np.int64(3), "b": True})
    found = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    assert found == {
        "s": {"limit": "inf", "path": "a/b", "sizes": [1, 2]},
        "a": [1.5, "nan"],
        "n": 3,
        "b": True,
    }
    with pytest.raises(mf.MeanfieldError, match="function"):
        to_json({"f": lambda: 0})


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 300, "a.npz", "a\nb"])
def test_names_stay_inside_the_folder(run, name):
    for use in (run.load, lambda n: run.save(n, a=1), lambda n: run.cached(n, dict)):
        with pytest.raises(mf.MeanfieldError, match="name"):
            use(name)


def test_objects_are_refused(run):
    for value in ([{"a": 1}], [None], object()):
        with pytest.raises(mf.MeanfieldError, match="expected numbers"):
            run.save("arrays", values=np.array(value, dtype=object))
    assert not list(run.path.glob("*.npz"))


def test_missing_arrays_name_those_that_exist(run):
    run.save("errors", values=[1.0])
    with pytest.raises(mf.MeanfieldError, match=r"no arrays named 'error'.*\['errors'\]"):
        run.load("error")


SOUND_CLAIM = {
    "quantity": "q",
    "expected": 1.0,
    "measured": "nan",
    "interval": [0, "inf"],
    "verdict": "consistent",
}


def sound_manifest(**changes) -> bytes:
    """The text of a manifest with some entries replaced."""
    sound = {"name": "x", "status": "interrupted", "configuration": {}, "seeds": {}}
    sound |= {"started": "2026-01-01", "claims": [SOUND_CLAIM], "seconds": 1}
    return json.dumps({**sound, **changes}).encode()


def test_control_the_sound_manifest_is_read(tmp_path):
    (tmp_path / "manifest.json").write_bytes(sound_manifest())
    (claim,) = mf.RunDirectory.open(tmp_path).claims
    assert claim.interval == (0.0, float("inf"))
    assert np.isnan(claim.measured)
    assert len(find_runs(tmp_path)) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"name": "x", "status": "done", "configuration": {}, "claims": [], "seconds": 1}',
        b'{"name": 3, "status": "finished", "configuration": {}, "claims": [], "seconds": 1}',
        b'{"name": "x", "status": "finished", "configuration": {}, "claims": [1], "seconds": 1}',
        b'{"name": "x", "status": "finished", "configuration": {}, "claims": [], "seconds": "1"}',
        sound_manifest(seconds=float("nan")),
        sound_manifest(seconds=-1.0),
        sound_manifest(seconds=True),
        sound_manifest(configuration=None),
        sound_manifest(configuration=[1]),
        sound_manifest(seeds=[1]),
        sound_manifest(started=3),
        sound_manifest(claims=[{"quantity": "q", "verdict": "consistent"}]),
        sound_manifest(claims=[{**SOUND_CLAIM, "measured": [1]}]),
        sound_manifest(claims=[{**SOUND_CLAIM, "interval": [1, None]}]),
    ],
)
def test_damaged_manifest_is_one_line(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    for read in (mf.RunDirectory.open, mf.RunDirectory.resume):
        with pytest.raises(mf.MeanfieldError, match=r"manifest.json is damaged") as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)
    assert find_runs(tmp_path) == []


def test_missing_run_is_one_line(tmp_path):
    with pytest.raises(mf.MeanfieldError, match="holds no manifest.json"):
        mf.RunDirectory.open(tmp_path / "nowhere")


def test_truncated_arrays_are_one_line(run):
    path = run.save("arrays", values=np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(mf.MeanfieldError, match="arrays.npz") as caught:
        run.load("arrays")
    assert "\n" not in str(caught.value)


def test_failed_write_leaves_the_old_file_and_nothing_else(run, monkeypatch):
    run.save("arrays", values=[1.0])
    before = set(run.path.iterdir())

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(mf.MeanfieldError, match="No space left on device"):
        run.save("arrays", values=[2.0])
    assert set(run.path.iterdir()) == before
    assert run.load("arrays")["values"] == [1.0]


def test_runs_are_found_oldest_first(tmp_path):
    for number in range(3):
        run = mf.RunDirectory.create(tmp_path / f"r{number}", name="small", configuration={})
        run._manifest["started"] = f"2026-01-0{3 - number}"
        run.finish([CLAIM])
    assert [run.path.name for run in find_runs(tmp_path)] == ["r2", "r1", "r0"]


def test_claim_reads_as_a_sentence():
    assert CLAIM.sentence() == "slope -0.502 [-0.530, -0.470], expected -0.5: consistent"
    with pytest.raises(mf.MeanfieldError, match="verdict is 'fine'"):
        mf.Claim("slope", -0.5, -0.5, None, "fine")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "undecided"),
        (["consistent"], "consistent"),
        (["consistent", "undecided"], "undecided"),
        (["undecided", "inconsistent", "consistent"], "inconsistent"),
    ],
)
def test_worst_verdict_decides(verdicts, expected):
    claims = [mf.Claim("q", 0.0, 0.0, None, verdict) for verdict in verdicts]
    assert overall_verdict(claims) == expected


def test_a_folder_that_was_taken_away_is_not_written_to(run):
    shutil.rmtree(run.path)
    for write in (
        lambda: run.save("arrays", values=[1.0]),
        lambda: run.cached("cell", lambda: {"values": [1.0]}),
        lambda: run.save_checkpoint("loop", step=1),
        lambda: run.finish([]),
    ):
        with pytest.raises(mf.MeanfieldError, match="not held by this run any more"):
            write()
    assert not run.path.exists()


def test_a_run_that_lies_in_the_place_of_another_is_left_alone(run, tmp_path):
    run.save("arrays", values=[1.0])
    shutil.copytree(run.path, tmp_path / "copy")
    (tmp_path / "copy" / ".lock").unlink()
    run.path.rename(tmp_path / "away")
    (tmp_path / "copy").rename(run.path)
    before = (run.path / "arrays.npz").read_bytes()
    with pytest.raises(mf.MeanfieldError, match="not held by this run any more"):
        run.save("arrays", values=[2.0])
    assert (run.path / "arrays.npz").read_bytes() == before


def test_a_joined_run_ends_with_its_owner(run):
    joined = mf.RunDirectory.join(run.path)
    assert float(joined.cached("first", lambda: {"value": 1.0})["value"]) == 1.0
    assert joined.num_computed == 1
    _locks.release(run.path / ".lock")
    with pytest.raises(mf.MeanfieldError, match="not held by this run any more"):
        joined.cached("second", lambda: {"value": 2.0})
    assert float(joined.cached("first", lambda: {"value": 3.0})["value"]) == 1.0
    with pytest.raises(mf.MeanfieldError, match=r"process has ended.*--resume"):
        mf.RunDirectory.join(run.path)
    assert not (run.path / "cells" / "second.npz").exists()


def test_a_joined_run_checkpoints_in_its_own_cells_only(run):
    joined = mf.RunDirectory.join(run.path)

    def compute():
        joined.save_checkpoint("inside", step=1)
        return {"value": 1.0}

    joined.cached("cell", compute)
    joined.save_checkpoint("outside", step=1)
    assert run.load_checkpoint("inside") is not None
    assert run.load_checkpoint("outside") is None


def test_a_cell_that_another_finished_under_the_lock_is_not_computed_again(run, monkeypatch):
    path = run.path / "cells" / "cell.npz"
    acquire = _locks.acquire

    def after_another(lock):
        if lock.name == ".cell.lock":
            np.savez(path, value=5.0)
        return acquire(lock)

    monkeypatch.setattr(_locks, "acquire", after_another)
    assert float(run.cached("cell", lambda: pytest.fail("computed twice"))["value"]) == 5.0


def test_a_run_without_results_is_discarded_with_its_empty_folders(run):
    with pytest.raises(ValueError, match="no"):
        run.cached("cell", lambda: (_ for _ in ()).throw(ValueError("no")))
    run.discard()
    assert not run.path.exists()


HOLD = """
import sys, time
import meanfield as mf
run = mf.RunDirectory.create("run", name="held", configuration={})
print("ready", flush=True)
time.sleep(600)
"""


def test_a_run_is_held_while_its_owner_lives_even_if_it_is_killed(tmp_path):
    line = [sys.executable, "-c", HOLD]
    owner = subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        with pytest.raises(mf.MeanfieldError, match="written by another process"):
            mf.RunDirectory.resume(tmp_path / "run")
        assert mf.RunDirectory.open(tmp_path / "run").status == "running"
    finally:
        owner.kill()
        owner.communicate()
    run = mf.RunDirectory.resume(tmp_path / "run")
    run.finish([])
    assert sorted(os.listdir(run.path)) == ["manifest.json"]


def test_status_is_read_again_before_a_run_is_closed(run):
    late = mf.RunDirectory.open(run.path)
    run.finish([CLAIM])
    for close in (lambda: late.finish([]), lambda: late.abandon("failed")):
        with pytest.raises(mf.MeanfieldError, match="finished"):
            close()
    assert mf.RunDirectory.open(run.path).claims == [CLAIM]


def test_seconds_add_up_over_resumes(run, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("meanfield.records._directory.time.monotonic", lambda: clock[0])
    for pause in (5.0, 7.0, 11.0):
        again = mf.RunDirectory.resume(run.path)
        clock[0] += pause
        again.abandon("interrupted")
        clock[0] += 1000.0  # nobody is at work
    assert again.manifest["seconds"] == mf.RunDirectory.open(run.path).manifest["seconds"] == 23.0


@pytest.mark.parametrize(
    ("relation", "holds"),
    [
        ("exactly", (False, True, False)),
        ("below", (True, False, False)),
        ("at most", (True, True, False)),
        ("at least", (False, True, True)),
        ("above", (False, False, True)),
    ],
)
def test_a_bound_is_kept_or_refuted_on_either_side_of_its_limit(relation, holds):
    claims = [mf.Claim.bound("a number", relation, 2, value) for value in (1.5, 2.0, 2.5)]
    assert tuple(claim.verdict == "consistent" for claim in claims) == holds
    assert claims[0].expected == (2.0 if relation == "exactly" else f"{relation} 2")
    assert mf.Claim.bound("a number", relation, 2, np.nan).verdict == "inconsistent"
    with pytest.raises(mf.MeanfieldError, match="relation"):
        mf.Claim.bound("a number", "about", 2, 2)


def test_a_mean_is_judged_by_its_band_and_its_interval():
    draws = 1 + 0.1 * np.random.default_rng(1).normal(size=400)
    claim = mf.Claim.mean("a mean", 1, draws, 0.05)
    assert claim.verdict == "consistent"
    assert claim.interval is not None
    low, high = claim.interval
    half = 1.9659 * draws.std(ddof=1) / 20  # Student's quantile at 399 degrees of freedom
    assert low == pytest.approx(draws.mean() - half, abs=1e-4 * half)
    assert high == pytest.approx(draws.mean() + half, abs=1e-4 * half)
    assert mf.Claim.mean("a mean", 2, draws, 0.05).verdict == "inconsistent"
    assert mf.Claim.mean("a mean", draws.mean() + 0.0501, draws, 0.05).verdict == "undecided"
    assert mf.Claim.mean("a mean", draws.mean(), draws, half / 1.51).verdict == "undecided"
    assert mf.Claim.mean("a mean", draws.mean(), draws, half / 1.49).verdict == "consistent"
    for few in ([], [1.0]):
        assert mf.Claim.mean("a mean", 1, few, 0.05).verdict == "undecided"
        assert mf.Claim.above("a mean", 0, few).verdict == "undecided"


def test_a_mean_above_a_limit_is_decided_by_the_interval():
    draws = np.array([0.9, 1.0, 1.1])  # half-width 0.2484
    verdicts = [
        mf.Claim.above("a mean", limit, draws).verdict for limit in (0.75, 0.76, 1.24, 1.25)
    ]
    assert verdicts == ["consistent", "undecided", "undecided", "inconsistent"]
    assert mf.Claim.above("a mean", 0.75, draws).expected == "above 0.75"


@pytest.mark.parametrize("num", [5, 8, 32])
def test_the_interval_of_a_mean_covers_it(num):
    draws = np.random.default_rng(num).normal(size=(1000, num))
    found = [mf.Claim.mean("a mean", 0, row, 1.0).interval or (np.nan, np.nan) for row in draws]
    covered = np.mean([low <= 0 <= high for low, high in found])
    assert 0.93 <= covered <= 0.97
    shifted = np.mean([low <= 0.8 * num**0.5 / num <= high for low, high in found])
    assert shifted < 0.93  # the same check sees a mean that is wrong by 0.8 standard errors
