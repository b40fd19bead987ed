import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from meanfield.records import find_runs
from tests.workflow.command_line import call, environment, process, refused

QUICK = ("--num-steps", 2, "--sizes", 2, 3)


def load(folder: str | Path, name: str = "result") -> dict[str, np.ndarray]:
    return mf.RunDirectory.open(folder).load(name)


def test_run_stores_and_reports(small):
    code, out, err = call("run", "small.py", *QUICK)
    assert (code, err) == (0, "")
    assert "small: consistent" in out
    assert "risk ratio 0." in out
    run = mf.RunDirectory.open("results/small")
    assert run.status == "finished"
    assert run.configuration["parameters"]["sizes"] == [2, 3]
    assert run.manifest["seeds"] == {"seed": 3}
    assert out.endswith(f"  in {run.path}\n")


def test_json_is_one_object_with_the_names_of_the_contract(light):
    code, out, err = call("run", "light.py", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"name", "preset", "verdict", "claims", "seconds", "files"}
    assert (found["name"], found["preset"], found["verdict"]) == ("light", None, "consistent")
    assert set(found["claims"][0]) == {"quantity", "expected", "measured", "interval", "verdict"}
    assert 0 < found["claims"][0]["measured"] < 1
    assert found["seconds"] > 0
    assert all(Path(file).is_file() for file in found["files"])


def test_check_turns_the_verdict_into_the_exit_code(light):
    assert call("run", "light.py", "--check")[0] == 0
    assert call("run", "light.py", "--bound", 1e-9)[0] == 0
    code, out, _ = call("run", "light.py", "--bound", 1e-9, "--check")
    assert code == 1
    assert "inconsistent" in out
    light.write_text(light.read_text().replace('"inconsistent"', '"undecided"'))
    assert call("run", "light.py", "--bound", 1e-9, "--check")[0] == 3


def test_default_folder_is_never_reused(light):
    for _ in range(3):
        call("run", "light.py")
    assert sorted(p.name for p in Path("results").iterdir()) == ["light", "light-2", "light-3"]
    first, last = load("results/light", "means"), load("results/light-3", "means")
    assert all(first[name].tobytes() == last[name].tobytes() for name in first)


def test_named_folder_is_never_overwritten(light):
    call("run", "light.py", "--out", "mine")
    before = {p: p.read_bytes() for p in Path("mine").rglob("*") if p.is_file()}
    assert "holds a run already" in refused("run", "light.py", "--out", "mine")
    assert "holds other files" in refused("run", "light.py", "--out", ".")
    assert {p: p.read_bytes() for p in Path("mine").rglob("*") if p.is_file()} == before


def test_preset_sets_parameters_and_flags_overrule_it(small):
    Path("presets").mkdir()
    Path("presets/smoke.toml").write_text("[small]\nnum_steps = 2\nsizes = [3]\nbound = 1\n")
    call("run", "small.py", "--preset", "smoke", "--sizes", 2, 3)
    stored = mf.RunDirectory.open("results/small").configuration
    assert stored["preset"] == "smoke"
    assert stored["parameters"] == {"num_steps": 2, "sizes": [2, 3], "bound": 1.0, "seed": 3}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[other]\n", "no table [small]"),
        ("[small]\nstep = 2\n", "sets step"),
        ("[small]\nnum_steps = 'two'\n", "num_steps is 'two'"),
        ("[small]\nnum_steps = 2.5\n", "num_steps is 2.5"),
        ("[small]\nsizes = 3\n", "sizes is 3"),
        ("[small\n", "is damaged"),
        (None, "there is no"),
    ],
)
def test_wrong_preset_is_one_line(small, table, words):
    if table is not None:
        Path("presets").mkdir()
        Path("presets/paper.toml").write_text(table)
    assert words in refused("run", "small.py", "--preset", "paper")
    assert not Path("results").exists()


def test_interrupted_and_resumed_run_is_bit_exact(small, monkeypatch):
    call("run", "small.py", "--out", "whole")
    line = ["run", "small.py", "--out", "cut"]
    # Stopped in the sweep, at the training's start, and twice in its middle.
    for steps in (1, 2, 4, 2):
        monkeypatch.setenv("SMALL_STEPS", str(steps))
        code, out, err = call(*line)
        assert (code, out) == (130, ""), err
        assert err == "interrupted; go on with: meanfield run small.py --resume cut\n"
        assert mf.RunDirectory.open("cut").status == "interrupted"
        line = ["run", "small.py", "--resume", "cut"]
    monkeypatch.delenv("SMALL_STEPS")
    assert call(*line)[0] == 0
    whole, cut = load("whole"), load("cut")
    assert set(whole) == {"rows", "A", "V", "risk", "time"}
    for name in whole:
        assert whole[name].dtype == cut[name].dtype == np.float64
        assert whole[name].tobytes() == cut[name].tobytes(), name
    assert len(whole["risk"]) > 5


def test_control_another_seed_gives_other_bits(small):
    call("run", "small.py", *QUICK)
    call("run", "small.py", *QUICK, "--seed", 4)
    assert load("results/small")["A"].tobytes() != load("results/small-2")["A"].tobytes()


# A child of a suite that runs in the background would inherit that Ctrl-C is ignored.
HEED_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_process_leaves_a_run_to_resume(light, number):
    line = [sys.executable, "-c", HEED_INTERRUPTS]
    line += ["-m", "meanfield", "run", "light.py", "--out", "cut"]
    slow = environment(LIGHT_PAUSE="0.3")
    child = subprocess.Popen(line, env=slow, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(Path("cut").glob("cells/row*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, number)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (
        130,
        "interrupted; go on with: meanfield run light.py --resume cut\n",
    )
    assert mf.RunDirectory.open("cut").status == "interrupted"
    assert 2 <= len(list(Path("cut").glob("cells/*"))) < 10
    assert call("run", "light.py", "--resume", "cut")[0] == 0
    call("run", "light.py", "--out", "whole")
    means = [mf.RunDirectory.open(folder).load("means")["means"] for folder in ("cut", "whole")]
    assert means[0].tobytes() == means[1].tobytes()


def test_run_leaves_the_signal_handlers_as_they_were(light):
    before = signal.getsignal(signal.SIGTERM)
    call("run", "light.py")
    refused("run", "light.py", "--bound", "high")
    assert signal.getsignal(signal.SIGTERM) is before


def test_resume_refuses_what_would_change_the_run(small):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALL_STEPS", "1")
        assert call("run", "small.py", "--out", "cut")[0] == 130
    assert "together with other" in refused("run", "small.py", "--resume", "cut", "--seed", 9)
    assert "both --out and" in refused("run", "small.py", "--resume", "cut", "--out", "x")
    other = small.with_name("other.py")
    other.write_text(small.read_text())
    assert "a run of small" in refused("run", "other.py", "--resume", "cut")
    assert "no manifest.json" in refused("run", "small.py", "--resume", "nowhere")
    code, _, err = call("run", "small.py", "--resume", "cut")
    assert (code, err) == (0, "")
    assert "finished run" in refused("run", "small.py", "--resume", "cut")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(parameters={}), "lacks size, bound, seed"),
        (lambda c: c["parameters"].pop("bound"), "lacks bound"),
        (lambda c: c.update(parameters=None), "holds None for parameters"),
        (lambda c: c.update(parameters=[3]), "holds [3] for parameters"),
        (lambda c: c.pop("parameters"), "holds None for parameters"),
        (lambda c: c["parameters"].update(size=None), "size is None"),
        (lambda c: c["parameters"].update(size=[1]), "size is [1]"),
        (lambda c: c["parameters"].update(bound=10**400), "bound is 1000"),
        (lambda c: c.update(preset={"a": 1}), "preset {'a': 1}"),
    ],
)
def test_damaged_configuration_is_not_resumed(light, change, words):
    cut_after_two_cells(light)
    file = Path("cut/manifest.json")
    manifest = json.loads(file.read_text())
    change(manifest["configuration"])
    file.write_text(json.dumps(manifest))
    assert words in refused("run", "light.py", "--resume", "cut")
    assert json.loads(file.read_text()) == manifest


def cut_after_two_cells(light: Path) -> None:
    """An interrupted run of the light experiment in the folder ``cut``: it has rows 9 and 8."""
    text = light.read_text()
    light.write_text(
        text.replace("        time.sleep(", "        stop(number)\n        time.sleep(", 1)
    )
    with light.open("a") as handle:
        handle.write(
            "\n\ndef stop(number):\n    if number == 7:\n        raise KeyboardInterrupt\n"
        )
    light.write_text(light.read_text().replace('if __name__ == "__main__":', "if False:"))
    assert call("run", "light.py", "--out", "cut")[0] == 130
    light.write_text(text)


@pytest.mark.parametrize("arrays", [{"meen": np.ones(())}, {"mean": np.ones((2, 3))}])
def test_cell_that_does_not_fit_is_one_line(light, arrays):
    cut_after_two_cells(light)
    np.savez("cut/cells/row=0.npz", **arrays)
    line = refused("run", "light.py", "--resume", "cut")
    if "meen" in arrays:
        assert "cut: stored arrays do not fit (KeyError: 'mean' at light.py:" in line


def test_run_of_a_living_owner_is_not_resumed(light):
    line = [sys.executable, "-m", "meanfield", "run", "light.py", "--out", "mine"]
    child = subprocess.Popen(line, env=environment(LIGHT_PAUSE="60"))
    try:
        deadline = time.monotonic() + 120
        while not Path("mine/manifest.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "another process" in refused("run", "light.py", "--resume", "mine")
    finally:
        child.kill()
        child.wait()
    assert call("run", "light.py", "--resume", "mine")[0] == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "nothing"], "no experiment is named 'nothing'"),
        (["run", "nothing.py"], "nothing.py does not exist"),
        (["run"], "the name of an experiment first"),
        (["run", "--check"], "the name of an experiment first"),
        (["run", "small.py", "--sise", 3], "--sise"),
        (["run", "small.py", "--num-steps", "many"], "many"),
        (["run", "small.py", "--num-steps"], "--num-steps"),
        (["run", "small.py", "--sizes"], "--sizes without values"),
        (["run", "small.py", "--jobs", 0], "--jobs 0"),
        (["run", "small.py", "--out", "small.py"], "small.py"),
        (["run", "small.py", "--out", "small.py/below"], "small.py"),
        (["run", "all", "--num-steps", 3], "--num-steps"),
        (["frobnicate"], "'frobnicate'"),
        (["--frobnicate"], "'--frobnicate'"),
        (["list", "--all"], "--all"),
        (["doctor", "now"], "now"),
    ],
)
def test_wrong_call_is_one_line(small, args, words):
    assert words in refused(*args)
    assert sorted(p.name for p in small.parent.iterdir() if p.suffix != ".pyc") in (
        ["small.py"],
        ["__pycache__", "small.py"],
    )


def test_run_that_cannot_go_on_is_one_line_and_can_be_resumed(small):
    text = small.read_text()
    small.write_text(
        text.replace("EntrywiseGaussian(A=1.0, V=0.3)", "EntrywiseGaussian(A=1.0, V=1e200)")
    )
    line = refused("run", "small.py")
    assert "not finite" in line
    assert "cell" in line
    assert mf.RunDirectory.open("results/small").status == "failed"
    small.write_text(text)
    assert call("run", "small.py", "--resume", "results/small")[0] == 0


def test_run_that_fails_at_once_leaves_no_folder(light):
    light.write_text(light.read_text().replace("draws = ", "mf.DepthGrid([0.0]); draws = "))
    assert "[L+1] with L >= 1" in refused("run", "light.py")
    assert not list(Path("results").iterdir())


def test_a_defect_in_an_experiment_shows_its_place(small):
    small.write_text(small.read_text().replace("rows = []", "rows = [] + 1"))
    code, out, err = call("run", "small.py")
    assert (code, out) == (2, "")
    assert "rows = [] + 1" in err
    assert "TypeError" in err


def test_wrong_return_value_is_one_line(small):
    small.write_text(
        small.read_text()
        .replace("return [mf.Claim", "return [].count and (mf.Claim")
        .replace("verdict)]", "verdict),)")
    )
    assert "a list of Claim" in refused("run", "small.py")


def test_file_without_the_contract_is_one_line(here):
    (here / "bare.py").write_text("x = 1\n")
    assert "defines no Parameters and no run" in refused("run", "bare.py")
    (here / "broken.py").write_text("x = (\n")
    code, _, err = call("run", "broken.py")
    assert code == 2
    assert "SyntaxError" in err


def test_experiment_runs_as_a_script(light):
    done = process(light, "--size", 10, "--json", cwd=light.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "light"
    assert done.stderr == ""


def test_progress_is_silent_off_a_terminal_and_seen_on_one(capsys):
    from meanfield._commands.flags import Progress

    silent = Progress()
    assert list(silent.task(range(3), "cells")) == list(silent(range(3))) == [0, 1, 2]
    silent.note("hidden")
    assert capsys.readouterr() == ("", "")
    seen = Progress(visible=True)
    assert list(seen.task(range(3), "cells")) == [0, 1, 2]
    seen.note("shown")
    assert "cells" in (err := capsys.readouterr().err)
    assert "shown" in err


@pytest.fixture
def two_experiments(light, monkeypatch):
    """A checkout whose experiments are two copies of the light one, for `run all`."""
    from meanfield._commands import catalogue

    folder = light.parent / "experiments"
    (folder / "presets").mkdir(parents=True)
    text = light.read_text()
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(text)
    presets = "".join(f"[{name}]\nsize = 10\n" for name in ("first", "second"))
    (folder / "presets" / "smoke.toml").write_text(presets)
    monkeypatch.setattr(catalogue, "home", lambda kind: light.parent / kind)
    site = light.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "from pathlib import Path\nfrom meanfield._commands import catalogue\n"
        f"catalogue.home = lambda kind: Path({str(light.parent)!r}) / kind\n"
    )
    path = f"{site}{os.pathsep}{environment()['PYTHONPATH']}"
    monkeypatch.setenv("PYTHONPATH", path)
    return folder


def test_a_background_run_all_ends_its_children(two_experiments):
    """Children of a job that ignores Ctrl-C (``nohup ... &``) are ended by SIGTERM all the same."""
    line = [sys.executable, "-m", "meanfield", "run", "all", "--jobs", "2", "--out", "res"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            line, env={**os.environ, "LIGHT_PAUSE": "2"}, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while len(list(Path("res").glob("*/cells/row*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    started = time.monotonic()
    child.terminate()
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert time.monotonic() - started < 15  # whole runs would take 20 s
    assert {run.status for run in find_runs("res")} == {"interrupted"}


def test_run_all_runs_resumes_and_reports(two_experiments):
    code, out, err = call("run", "all", "--preset", "smoke", "--jobs", 2, "--out", "res", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"name", "preset", "verdict", "claims", "seconds", "files"} <= set(found)
    assert (found["name"], found["preset"], found["verdict"]) == ("all", "smoke", "consistent")
    assert sorted(claim["experiment"] for claim in found["claims"]) == ["first", "second"]
    before = {p: p.read_bytes() for p in Path("res").rglob("*") if p.is_file()}
    code, out, _ = call("run", "all", "--resume", "res")
    assert code == 0
    assert out.count("consistent (") == 2
    assert {p: p.read_bytes() for p in Path("res").rglob("*") if p.is_file()} == before


def test_run_all_tells_the_worst(two_experiments):
    file = two_experiments / "second.py"
    file.write_text(file.read_text().replace("bound: float = 1.0", "bound: float = 1e-9"))
    code, out, _ = call("run", "all", "--preset", "smoke", "--out", "res", "--check")
    assert code == 1
    assert "first: consistent" in out
    assert "second: inconsistent" in out
    file.write_text("def run(:\n")
    code, out, err = call("run", "all", "--preset", "smoke", "--out", "res2")
    assert code == 2
    assert "second.py cannot be read" in err


def test_terminated_run_all_passes_it_on(two_experiments):
    line = [sys.executable, "-m", "meanfield", "run", "all", "--jobs", "2", "--out", "res"]
    slow = {**os.environ, "LIGHT_PAUSE": "0.3"}
    child = subprocess.Popen(line, env=slow, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(Path("res").glob("*/cells/row*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert err.endswith("interrupted; go on with: meanfield run all --resume res\n")
    assert err.count("interrupted; go on with") == 3
    assert {run.status for run in find_runs("res")} == {"interrupted"}
    assert call("run", "all", "--resume", "res")[0] == 0
    assert [run.status for run in find_runs("res")] == ["finished", "finished"]


def test_processes_share_the_cells_of_one_run(light, monkeypatch):
    monkeypatch.setenv("LIGHT_PAUSE", "0.3")
    monkeypatch.setenv("LIGHT_PROCESS", "1")
    code, _, err = call("run", "light.py", "--jobs", 2, "--out", "two")
    assert (code, err) == (0, "")

    def processes(folder):
        files = [Path(folder, "cells", f"row={number}.npz") for number in range(10)]
        return [int(np.load(file)["process"]) for file in files]

    who = processes("two")
    assert len(set(who)) == 2
    assert os.getpid() in who
    assert not list(Path("two").rglob("*.lock"))
    monkeypatch.delenv("LIGHT_PAUSE")
    assert call("run", "light.py", "--out", "one")[0] == 0
    assert load("one", "means")["means"].tobytes() == load("two", "means")["means"].tobytes()
    assert set(processes("one")) == {os.getpid()}


def test_a_joined_process_leaves_everything_but_cells_to_the_owner(light):
    owner = mf.RunDirectory.create(
        "run", name="light", configuration={"parameters": {"size": 100, "bound": 1.0, "seed": 0}}
    )
    code, out, err = call("run", "light.py", "--join", "run")
    assert (code, err) == (0, "")
    assert out == "run: 10 cells computed here; its owner finishes it\n"
    assert len(list(Path("run/cells").iterdir())) == 10
    assert sorted(p.name for p in Path("run").iterdir() if p.name[0] != ".") == [
        "cells",
        "manifest.json",
    ]
    assert owner.status == mf.RunDirectory.open("run").status == "running"
    joined = mf.RunDirectory.join("run")
    joined.save("arrays", values=[1.0])
    joined.save_checkpoint("loop", step=1)
    joined.finish([])
    joined.abandon("failed")
    joined.discard()
    assert not Path("run/arrays.npz").exists()
    assert not Path("run/checkpoints").exists()
    owner.finish([])
    assert "is finished" in refused("run", "light.py", "--join", "run")


def test_a_run_of_other_versions_is_not_joined(light, monkeypatch):
    mf.RunDirectory.create("run", name="light", configuration={})
    monkeypatch.setattr("meanfield.records._directory.versions", lambda: {"jax": "0.0"})
    with pytest.raises(mf.MeanfieldError, match="computed by other versions"):
        mf.RunDirectory.join("run")


def test_a_cell_of_a_killed_process_is_taken_over(light):
    """The owner waits for the cell that another holds, and computes it when that one is gone."""
    run = mf.RunDirectory.create("run", name="light", configuration={})
    hold = (
        "import sys, time\nfrom pathlib import Path\nfrom meanfield.records import _locks\n"
        "assert _locks.acquire(Path('run/cells/.a.lock'))\nprint('held', flush=True)\n"
        "time.sleep(600)"
    )
    Path("run/cells").mkdir()
    line = [sys.executable, "-c", hold]
    other = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    threading.Timer(0.5, other.kill).start()
    started, order = time.monotonic(), []

    def compute(name):
        order.append((name, time.monotonic() - started > 0.4))
        return {"value": [1.0]}

    run.sweep("cells", ("b", "a"), compute, key=str)
    assert order == [("b", False), ("a", True)]
    other.wait()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--join", "run", "--jobs", 2), "--join with --jobs 2"),
        (("--join", "run", "--out", "x"), "both --out and --join"),
        (("--join", "nowhere"), "holds no manifest.json"),
        (("--join", "run", "--size", 7), "together with other parameters"),
        (("--join", "run", "--join", "other"), "one folder, given once"),
        (("--resume", ""), "holds no manifest.json"),
        (("--jobs", 10**6), "four for each core"),
    ],
)
def test_wrong_join_is_one_line(light, args, words):
    mf.RunDirectory.create(
        "run", name="light", configuration={"parameters": {"size": 100, "bound": 1.0, "seed": 0}}
    )
    assert words in refused("run", "light.py", *args)


def test_run_all_is_not_joined(two_experiments):
    assert "the name of one experiment" in refused("run", "all", "--join", "x")


def test_two_folders_are_not_resumed_as_one(light):
    for name, size in (("a", 10), ("b", 77)):
        run = mf.RunDirectory.create(
            name,
            name="light",
            configuration={"parameters": {"size": size, "bound": 1.0, "seed": 0}},
        )
        run.abandon("interrupted")
    assert "given once" in refused("run", "light.py", "--resume", "a", "--resume", "b")
    assert {run.status for run in find_runs(".")} == {"interrupted"}


def test_run_all_goes_on_with_the_preset_of_its_runs(two_experiments):
    run = mf.RunDirectory.create(
        "res/first",
        name="first",
        configuration={"preset": "smoke", "parameters": {"size": 10, "bound": 1.0, "seed": 0}},
    )
    run.abandon("interrupted")
    line = refused("run", "all", "--resume", "res", "--preset", "paper")
    assert "runs of the presets paper, smoke" in line
    code, out, _ = call("run", "all", "--resume", "res")
    assert code == 0
    assert out.endswith("2 experiments: 2 consistent\n")
    presets = {run.name: run.configuration["preset"] for run in find_runs("res")}
    assert presets == {"first": "smoke", "second": "smoke"}


@pytest.mark.parametrize("flag", ["--resume", "--out"])
def test_run_all_wants_a_folder(two_experiments, flag):
    Path("file").write_text("")
    for name in ("file", "nowhere") if flag == "--resume" else ("file",):
        assert f"{name} is no folder" in refused("run", "all", flag, name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_ends_the_processes_that_joined_it(light, number):
    line = [sys.executable, "-m", "meanfield", "run", "light.py", "--jobs", "2", "--out", "it's"]
    slow = environment(LIGHT_PAUSE="0.4", LIGHT_PROCESS="1")
    child = subprocess.Popen(line, env=slow, stderr=subprocess.PIPE, text=True)
    who: set[int] = set()
    deadline = time.monotonic() + 120
    while len(who) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        who = {int(np.load(file)["process"]) for file in Path("it's/cells").glob("row*.npz")}
    os.kill(child.pid, number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert err == """interrupted; go on with: meanfield run light.py --resume 'it'"'"'s'\n"""
    assert len(who) == 2
    for joined in who - {child.pid}:
        with pytest.raises(ProcessLookupError):
            os.kill(joined, 0)
    assert mf.RunDirectory.open("it's").status == "interrupted"
    assert not list(Path("it's").rglob("*.lock"))


def test_the_verdict_outlives_a_closed_pipe(light):
    done = subprocess.run(
        f"{sys.executable} -m meanfield run light.py --bound 1e-9 --check --out x | true;"
        " exit ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        env=environment(),
        check=False,
    )
    assert done.returncode == 1


def test_cost_is_stated_before_the_start(two_experiments):
    file = two_experiments / "first.py"
    file.write_text(file.read_text().replace('COST = "nothing"', 'COST = "smoke 3 min, paper 2 h"'))
    code, _, err = call("run", "first", "--preset", "smoke", "--out", "one")
    assert (code, err) == (0, "first at the sizes of preset smoke: about 3 min on one CPU core\n")
    code, out, err = call("run", "all", "--preset", "smoke", "--jobs", 2, "--out", "res")
    lines = err.splitlines()
    assert code == 0
    assert lines[0] == "2 experiments, about 3.3 min of one CPU core; about 1.7 min with --jobs 2"
    assert lines[1].startswith("1 of 2 done, about ")
    assert len(lines) == 2
    assert out.index("first: ") >= 0


def test_time_left_follows_what_the_finished_ones_took(monkeypatch, capsys):
    from meanfield._commands import run_all

    clock = [0.0]
    monkeypatch.setattr(run_all.time, "monotonic", lambda: clock[0])
    left = run_all.TimeLeft({"a": 100.0, "b": 50.0, "c": 50.0}, 2, visible=True)
    assert left.left == "about 1.7 min"
    clock[0] = 150.0  # it took three times as long as two processes should
    left.done("a")
    assert left.left == "about 2.5 min"
    left.done("b")
    left.done("c")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "3 experiments, about 3.3 min of one CPU core; about 1.7 min with --jobs 2"
    assert said[1] == "1 of 3 done, about 2.5 min left"
