"""The limit experiments as a user runs them: claims, --check, resume, figures, the template."""

import ast
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from meanfield._commands import catalogue
from meanfield.records import Claim, RunDirectory
from tests.workflow.command_line import ROOT, call, process, refused
from tests.workflow.small_runs import WITHOUT_JAX, states_headlines

EXPERIMENTS = catalogue.names("experiments")
LIMITS = {
    # claims that must lie in a band around a slope, series of the control, replicates of the preset
    "width_limit": ({"tokens": -0.5, "momenta": -0.5, "heads": -0.5}, "control", 64),
    "depth_limit": (
        {"euler": -1.0, "heun": -2.0, "rk4": -4.0, "smooth": -1.0, "adjoint_gap": -1.0},
        "independent",
        32,
    ),
    "token_limit": ({"gaussian": -0.5, "cube": -0.5, "digit": -0.5}, "control", 128),
}
TOY = {  # flags over the smoke preset, which continuous integration runs as it stands
    "width_limit": "--sizes 8 16 32 64 128 --num-reference 512 --num-steps 2 --num-tokens 4 --dim 2"
    " --num-cells 2 --quasi-layers 2 --num-replicates 64",
    "depth_limit": "--sizes 4 8 16 32 64 --num-reference 256 --num-nodes 10 --num-tokens 4 --dim 2"
    " --num-heads 2",
    "token_limit": "--sizes 8 16 32 64 128 --num-probes 4 --num-heads 1",
}
WRONG = {"width_limit": "expected_slope", "depth_limit": "expected_euler"}


def slope(sizes, errors):
    errors = np.sqrt((np.atleast_2d(errors) ** 2).mean(axis=0))
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LIMITS)
def test_limits_hold_are_drawn_resume_and_can_fail(name, here):
    expected, control, replicates = LIMITS[name]
    code, out, err = call("run", name, "--preset", "smoke", *TOY[name].split(), "--check", "--json")
    result = json.loads(out)
    assert (code, result["verdict"]) == (0, "consistent"), result["claims"]
    assert all(claim["verdict"] == "consistent" for claim in result["claims"])

    # the stored arrays say the same without the library's fit
    run = RunDirectory.open(Path("results") / name)
    errors = run.load("errors")
    tolerance = run.configuration["parameters"]["tolerance"]
    claimed = [claim["measured"] for claim in result["claims"]]
    assert tolerance == (0.15 if name == "depth_limit" else 0.06)
    assert len(errors["sizes"]) >= 5
    for series, value in expected.items():
        measured = slope(errors["sizes"], errors[series])
        assert abs(measured - value) <= tolerance
        assert min(abs(measured - number) for number in claimed) < 1e-9
    assert errors[control].shape == (replicates, len(errors["sizes"]))
    assert abs(slope(errors["sizes"], errors[control]) - min(expected.values())) > 2 * tolerance

    # the figure draws these numbers and its caption states them
    code, out, err = call("figures", name, "--check")
    assert (code, err) == (0, "")
    caption = Path(f"results/figures/{name}.txt").read_text()
    assert states_headlines(caption, run)
    module = catalogue.load(catalogue.locate("figures", name), ("draw",))
    figure = module.draw({name: run})
    drawn = [line for ax in figure.axes for line in ax.lines if line.get_linestyle() == "None"]
    for series in (*expected, control):
        means = np.sqrt((np.atleast_2d(errors[series]) ** 2).mean(axis=0))
        assert any(np.allclose(line.get_ydata(), means, rtol=1e-12) for line in drawn), series

    # a resumed run reads its cells; another expectation of the same numbers is refused by --check
    again = Path("again")
    shutil.copytree(run.path, again)
    (again / "errors.npz").unlink()
    manifest = json.loads((again / "manifest.json").read_text())
    manifest["status"] = "interrupted"
    wrong = WRONG.get(name, "expected_slope")
    manifest["configuration"]["parameters"][wrong] -= 0.5
    (again / "manifest.json").write_text(json.dumps(manifest))
    before = {path: path.stat().st_mtime_ns for path in (again / "cells").iterdir()}
    code, out, err = call("run", name, "--resume", again, "--check")
    assert code == 1, out + err
    assert "inconsistent" in out
    assert {path: path.stat().st_mtime_ns for path in (again / "cells").iterdir()} == before
    for series, values in RunDirectory.open(again).load("errors").items():
        assert np.array_equal(values, errors[series])


BAD_FLAGS = {
    "width_limit": [
        "--quasi-layers 0",
        "--sizes 16 32 64",
        "--sizes 16 32 32 64",
        "--sizes 0 16 32 64",
        "--sizes",
        "--num-reference 0",
        "--num-replicates 1",
        "--num-tokens -1",
        "--dim 0",
        "--num-cells 0",
        "--score-scale 0",
        "--value-scale nan",
        "--num-steps 0",
        "--training-dt inf",
        "--expected-slope nan",
        "--tolerance -1",
        "--seed -1",
        f"--seed {2**63}",
        f"--dim {10**30}",
    ],
    "depth_limit": [
        "--sizes 8 9 10 12",
        "--sizes 2 4 8",
        "--num-reference 0",
        "--num-heads 0",
        "--num-nodes 0",
        "--num-nodes 1000",
        "--num-tokens 0",
        "--num-replicates 1",
        "--seed -3",
    ],
    "token_limit": [
        "--sizes 16 32",
        "--num-replicates 1",
        "--num-heads 0",
        "--num-probes 0",
        "--shift nan",
        "--seed -1",
    ],
    "template": ["--sizes 0.1 0.2", "--sizes 0.1 0.2 0.3 -0.4", "--num-heads 0", "--seed -1"],
    "digits_training": [
        "--pool 3",
        "--pool 0",
        "--source sklearn --pool 3",
        "--dim 1",
        "--minibatch 3000",
        "--num-train 0",
        "--fit-steps 0",
        "--fit-target 0",
        "--dt nan",
        "--record-every 0",
        f"--seed {2**63 - 1}",
    ],
    "ntk_families": [
        "--most-contexts 1",
        "--most-contexts 9",
        "--separations 0.1 0.2 0.3",
        "--scales 0.1 0.1 0.2 0.3",
        "--num-heads 0",
        "--num-replicates 1",
        "--head-scale inf",
        "--tolerance 0",
        "--seed -1",
    ],
    "ntk_controls": [
        "--num-tokens 2",
        "--num-heads 8",
        "--num-replicates 0",
        "--disturbance 0",
        f"--seed {2**63 - 1}",
    ],
    "ntk_depth": [
        "--sizes 8 16 32",
        "--sizes 8 16 32 2048",
        "--num-contexts 1",
        "--num-tokens 1",
        "--dim 1",
        "--num-targets 0",
        "--record-every 0",
        "--value-scale nan",
        "--seed -1",
    ],
    "ntk_digits": [
        "--sizes 5 5",
        "--sizes 1000",
        "--source mnist --pool 3",
        "--dim 1",
        "--num-queries 1",
        "--num-bounded 17",
        "--num-heads 0",
        "--seed -1",
    ],
}


@pytest.mark.parametrize(
    ("name", "flags"), [(name, flags) for name, lines in BAD_FLAGS.items() for flags in lines]
)
def test_bad_parameters_are_one_line_before_any_work(here, monkeypatch, name, flags):
    module = catalogue.load(catalogue.locate("experiments", name), ("Parameters", "run"))
    monkeypatch.setattr(module, "run", lambda *args: pytest.fail("work was begun"))
    monkeypatch.setattr(catalogue, "load", lambda path, needed: module)
    line = refused("run", name, *flags.split())
    flag = [word for word in flags.split() if word.startswith("--")][-1]
    assert flag in line
    assert list(here.iterdir()) == []


def test_bad_parameters_of_a_preset_and_of_a_stored_run_are_one_line(here):
    text = (ROOT / "experiments" / "template.py").read_text()
    (here / "mine.py").write_text(text)
    (here / "presets").mkdir()
    (here / "presets" / "smoke.toml").write_text("[mine]\nnum_heads = 0\n")
    assert "--num-heads 0" in refused("run", "mine.py", "--preset", "smoke")
    assert not Path("results").exists()
    values = {"sizes": [0.1, 0.2], "num_heads": 4, "expected_slope": 1.0, "seed": 0}
    RunDirectory.create("run", name="mine", configuration={"parameters": values}).abandon("failed")
    assert "--sizes 0.1 0.2" in refused("run", "mine.py", "--resume", "run")


def test_the_template_works_as_a_file_of_ones_own(here):
    mine = here / "mine.py"
    shutil.copy(ROOT / "experiments" / "template.py", mine)
    done = process(mine, "--num-heads", 2, "--check", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["name"] == "mine"
    (claim,) = result["claims"]
    assert abs(claim["measured"] - 1) < 0.15
    assert Path("results/mine/errors.npz").exists()
    code, out, _ = call("run", mine, "--expected-slope", 2, "--check")
    assert code == 1
    assert "expected 2: inconsistent" in out


def test_the_template_is_forty_lines_of_code():
    tree = ast.parse((ROOT / "experiments" / "template.py").read_text())
    docstrings = (ast.Module, ast.ClassDef, ast.FunctionDef)
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            end = node.body[0].lineno - 1 if isinstance(node, docstrings) else node.end_lineno
            lines |= set(range(node.lineno, (end or node.lineno) + 1))
    text = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    assert len(lines - text) <= 40


@pytest.mark.parametrize("preset", ["smoke", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_presets_fit_their_experiments(name, preset):
    path = catalogue.locate("experiments", name)
    module = catalogue.load(path, ("Parameters", "run", "CLAIM", "COST", "FIGURE"))
    values = catalogue.preset_overrides(path, preset)
    parameters = catalogue.build_parameters(module.Parameters, values, f"preset {preset}")
    for key, value in values.items():
        found = getattr(parameters, key)
        assert (list(found) if isinstance(found, tuple) else found) == value
    assert module.FIGURE is None or (ROOT / "figures" / f"{module.FIGURE}.py").exists()
    assert "\n" not in module.CLAIM + module.COST


def test_figures_of_the_limits_need_no_solver(here):
    claims = []
    for name, (series, control, replicates) in LIMITS.items():
        module = catalogue.load(catalogue.locate("experiments", name), ("Parameters", "HEADLINES"))
        parameters, headline = module.Parameters, module.HEADLINES[0]
        run = RunDirectory.create(
            Path("results") / name, name=name, configuration={"parameters": parameters()}
        )
        sizes = np.array([8, 16, 32, 64, 128])
        noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((replicates, 5)))
        arrays = {key: 2.0 * sizes**value for key, value in series.items()}
        if name != "depth_limit":
            arrays = {key: noise * value for key, value in arrays.items()}
        quasi = {
            "token_limit": ("sobol",),
            "width_limit": ("smooth_random", "smooth_sobol", "gaussian_random", "gaussian_sobol"),
        }
        extra = {key: noise / sizes for key in quasi.get(name, ())}
        run.save("errors", sizes=sizes, **arrays, **extra, **{control: noise})
        claims.append(Claim(headline, -0.5, -0.51, (-0.52, -0.5), "consistent"))
        run.finish([claims[-1], Claim("no headline", -0.5, -0.51, None, "consistent")])
    done = process("-c", WITHOUT_JAX, "figures", *LIMITS, cwd=here)
    assert done.returncode == 0, done.stderr
    for name, claim in zip(LIMITS, claims, strict=True):
        assert Path(f"results/figures/{name}.png").stat().st_size > 10_000
        caption = Path(f"results/figures/{name}.txt").read_text()
        assert claim.sentence() in caption
        assert "no headline" not in caption


def test_the_gallery_is_built_by_one_command(here):
    build = ROOT / "figures" / "build.py"
    done = process(build, "--results", here, cwd=here)
    assert done.returncode == 2  # nothing to draw yet, which it says in one line
    assert done.stderr.count("\n") == 1
    assert "run an experiment first" in done.stderr
