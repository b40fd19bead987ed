"""The tangent kernel's experiments at toy size: claims, figures, resume, controls that can fail."""

from typing import Any

import numpy as np
import pytest

import meanfield as mf
from meanfield._commands import catalogue
from meanfield.records import shown
from tests.workflow.command_line import process
from tests.workflow.small_runs import WITHOUT_JAX, SmallRuns

SMALL: dict[str, dict[str, Any]] = {
    "ntk_families": {"most_contexts": 2, "num_replicates": 2, "num_heads": 24},
    "ntk_controls": {"num_replicates": 1, "num_heads": 32},
    "ntk_depth": {
        "sizes": (4, 8, 16, 32),
        "num_cells": 4,
        "num_contexts": 2,
        "num_tokens": 2,
        "dim": 2,
        "num_heads": 24,
        "num_targets": 4,
        "num_steps": 2,
        "record_every": 1,
    },
    "ntk_digits": {
        "sizes": (4,),
        "source": "sklearn",
        "pool": 1,
        "dim": 4,
        "num_heads": 64,
        "num_bounded": 2,
    },
}
LINES = ("P1", "N1", "N16'", "N17")  # the whole table has its own test in tests/exact


def prepare(name, module, directory):
    if name == "ntk_controls":
        module.LINES = tuple(line for line in module.LINES if line.name in LINES)
        module.PARTS = tuple(line for line in module.PARTS if line.name == "Q2")
    if name == "ntk_depth":  # five compilations that the smoke preset is there for
        for num_cells in (4, 8, 16, 32, 64):
            cell = {"kappa": np.array(0.01 + 0.001 / num_cells)}
            directory.cached(f"L={num_cells}", lambda: cell)  # noqa: B023 - used now


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return SmallRuns(tmp_path_factory.mktemp("ntk"), SMALL, prepare)


def again(runs: SmallRuns, name: str, *rest, **changes) -> dict[str, mf.Claim]:
    return {claim.quantity: claim for claim in runs.again(name, *rest, **changes)}


@pytest.mark.parametrize("name", SMALL)
def test_all_claims_hold(runs, name):
    _, _, claims = runs(name)
    verdicts = {quantity: claim.verdict for quantity, claim in claims.items()}
    assert set(verdicts.values()) == {"consistent"}, claims
    assert any("control" in quantity for quantity in verdicts)


def test_slopes_of_the_families_are_those_of_the_stored_arrays_and_can_fail(runs, tmp_path):
    _, directory, claims = runs("ntk_families")
    sweeps = directory.load("sweeps")
    for family, in_scale in {"cubes": 10, "laplace": 10, "mixtures": 10, "clouds": 2}.items():
        for name, expected in (("separation", 2), ("scale", in_scale)):
            values = np.log(sweeps[f"{family}_{name}_lambda_min"]).mean(axis=0)
            slope = np.polyfit(np.log(sweeps[name]), values, 1)[0]
            claim = claims[f"{family}: slope of lambda_min in {name}"]
            assert abs(slope - expected) < 0.3
            assert abs(claim.measured - slope) < 1e-9
    wrong = again(runs, "ntk_families", tmp_path, expected_separation_slope=1.0)
    assert wrong["cubes: slope of lambda_min in separation"].verdict == "inconsistent"
    assert wrong["cubes: slope of lambda_min in scale"].verdict == "consistent"


def test_families_and_their_controls_fail_where_nullities_are_others(runs, tmp_path):
    def spoil(key, arrays):
        if key in ("laplace", "gaussians"):
            arrays["contexts_nullity"] = arrays["contexts_nullity"] + 1
        if key == "translates":
            arrays["separation_nullity"] = 0 * arrays["separation_nullity"]
        if key == "proof_cubes":
            arrays["certified"] = np.array(0)
        return arrays

    wrong = [
        c for c in again(runs, "ntk_families", tmp_path, spoil).values() if c.verdict[0] == "i"
    ]
    assert [claim.quantity.split(" ")[0] for claim in wrong] == [
        "kernels",
        "families",
        "control:",
        "control:",
    ]


def test_a_nullity_that_is_not_listed_fails_the_controls(runs, tmp_path):
    def spoil(key, arrays):
        if key == "control":  # a check that sees the same null directions, disturbed or not
            arrays["measured"] = arrays["measured"] + 1
        else:
            arrays["predicted"] = arrays["predicted"] + (arrays["predicted"] == 2)
        return arrays

    claims = again(runs, "ntk_controls", tmp_path, spoil)
    wrong = {q: c.measured for q, c in claims.items() if c.verdict == "inconsistent"}
    assert wrong == {
        "lines whose predicted nullity is not the listed one": 1,
        "control: null directions left in all lines together": 10,
        "control: lines whose measured nullity is not the predicted one": 4,
    }


def test_the_guarantee_along_depth_is_made_of_its_parts_and_can_fail(runs, tmp_path):
    _, directory, claims = runs("ntk_depth")
    depth = directory.load("depth")
    steps = np.diff(depth["nodes"])
    kappa = np.sum(steps * depth["lambda_min"] * depth["transported"])
    assert float(depth["kappa"]) == pytest.approx(kappa, rel=1e-12)
    assert depth["eigenvalues"][:, -1] == pytest.approx(depth["lambda_min"], rel=1e-9)
    assert claims["kappa / best constant"].measured == pytest.approx(kappa / depth["best"])

    def spoil(key, arrays):
        if key == "depth":  # a kappa beyond the best constant breaks the inequality
            arrays["kappa"] = 1e3 * arrays["best"]
        return arrays

    wrong = again(runs, "ntk_depth", tmp_path, spoil, expected_slope=-2.0)
    inconsistent = {q for q, claim in wrong.items() if claim.verdict == "inconsistent"}
    assert inconsistent == {
        "least |grad R|^2 / (2 kappa R), random targets",
        "kappa / best constant",
        "slope in L of |kappa_L - kappa_2L|",
    }


def test_digits_are_certified_and_an_unnamed_copy_fails(runs, tmp_path):
    _, directory, claims = runs("ntk_digits")
    assert (directory.path / "certificate.json").exists()
    reasons = [str(reason) for reason in directory.load("control")["reasons"]]
    assert "context 5 is context 1 shifted by (0.25, -0.125, 0.25, -0.125)" in reasons
    assert claims["lambda_min of 4 digits"].interval[0] > 0

    def spoil(key, arrays):
        if key == "control":
            arrays["reasons"] = np.array([], dtype=str)
        return arrays

    wrong = again(runs, "ntk_digits", tmp_path, spoil)
    assert [q for q, claim in wrong.items() if claim.verdict == "inconsistent"] == [
        "control (a shifted copy): copies found and named"
    ]


def test_figures_draw_the_stored_arrays_without_a_solver(runs):
    for name in SMALL:
        runs(name)
    done = process("-c", WITHOUT_JAX, "figures", *SMALL, cwd=runs.folder)
    assert done.returncode == 0, done.stderr
    for name in SMALL:
        _, directory, claims = runs(name)
        figures = runs.folder / "results" / "figures"
        assert (figures / f"{name}.png").stat().st_size > 10_000
        caption = (figures / f"{name}.txt").read_text()
        assert all(claim.sentence() not in caption for claim in claims.values())
        assert 300 < len(caption) < 1200  # about eight lines, in sentences
        assert "expected at least" not in caption
    captions = {
        name: (runs.folder / "results" / "figures" / f"{name}.txt").read_text() for name in SMALL
    }
    slope = runs("ntk_families")[2]["cubes: slope of lambda_min in scale"].measured
    assert f"slopes {shown(slope)}, " in captions["ntk_families"]
    assert "no nullity differs" in captions["ntk_controls"]
    constant = runs("ntk_depth")[2]["kappa / best constant"].measured
    assert f"{shown(constant)} of the best possible constant" in captions["ntk_depth"]
    assert "context 5 is context 1 shifted by" in captions["ntk_digits"]
    figure = catalogue.load(catalogue.locate("figures", "ntk_families"), ("draw",))
    _, directory, _ = runs("ntk_families")
    sweeps = directory.load("sweeps")
    axes = figure.draw({"ntk_families": directory}).axes
    middle = np.exp(np.log(sweeps["cubes_separation_lambda_min"]).mean(axis=0))
    assert any(np.allclose(line.get_ydata(), middle) for line in axes[1].lines)
