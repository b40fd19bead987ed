"""Training where the kernel is positive and where it is not: claims, figures, spoiled cells."""

from typing import Any

import numpy as np
import pytest

import meanfield as mf
from tests.workflow.command_line import call, refused
from tests.workflow.small_runs import SmallRuns, states_headlines

SMALL: dict[str, dict[str, Any]] = {
    "linear_rate": {
        "num_seeds": 4,
        "num_contexts": 2,
        "num_tokens": 2,
        "num_cells": 2,
        "heads": (4, 8),
        "risks": (1e-5, 1e-2, 1e3),
        "num_gradients": 100,
        "num_points": 4,
        "num_eigenvalues": 2,
        "num_records": 3,
    },
    "failure_modes": {
        "num_draws": 2,
        "num_cells": 2,
        "num_heads": 16,
        "num_queries": 2,
        "num_gradients": 250,
        "num_gaussian_gradients": 250,
        "escape_steps": 100,
    },
    "training_limit": {
        "sizes": (8, 16, 32, 64),
        "num_reference": 256,
        "num_cells": 2,
        "num_steps": 4,
        "num_records": 2,
        "depths": (8, 16, 32, 64),
    },
    "lazy_to_rich": {"num_draws": 16, "num_cells": 2, "num_steps": 60},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return SmallRuns(tmp_path_factory.mktemp("convergence"), SMALL)


def wrong(claims: list[mf.Claim]) -> set[str]:
    """Which quantities are inconsistent, up to the first colon."""
    return {c.quantity.split(":")[0] for c in claims if c.verdict == "inconsistent"}


@pytest.mark.parametrize("name", SMALL)
def test_all_claims_hold_and_are_drawn(runs, name, here):
    _, directory, claims = runs(name)
    assert {claim.verdict for claim in claims.values()} == {"consistent"}, claims
    assert any("control" in quantity for quantity in claims)
    code, _, err = call("figures", name, "--results", directory.path, "--out", here, "--check")
    assert (code, err) == (0, "")
    caption = (here / f"{name}.txt").read_text()
    assert states_headlines(caption, directory)


def test_rates_are_those_of_the_stored_risks(runs):
    _, directory, claims = runs("linear_rate")
    rates = directory.load("rates")
    fall = np.log(rates["risk"][..., :-1] / rates["risk"][..., 1:]) / np.diff(rates["time"])
    assert (fall / 2 > 0.999 * rates["least"][..., 1:]).all()  # a Rayleigh quotient
    assert (rates["least"] > rates["kappa"]).all()  # the V-part alone bounds both from below
    found = claims["late rate / 2 lambda_min(K_t), full"].measured
    assert found == pytest.approx(np.mean(fall[0, :, -1] / (2 * rates["least"][0, :, -1])))
    excited = directory.load("excited")
    gaps = np.abs(excited["rate"] / (2 * excited["eigenvalue"][..., None]) - 1)
    assert gaps.max() < 0.2
    assert gaps[..., 0].mean() < gaps[..., -1].mean() / 4


def test_linear_rate_fails_where_its_numbers_are_others(runs, tmp_path):
    def spoil(key, arrays):
        if key == "rates":
            arrays["kappa"] = 100 * arrays["kappa"]
            arrays["predicted"] = arrays["predicted"] ** 1.1
        if key == "excited":
            arrays["eigenvalue"] = 2 * arrays["eigenvalue"]
        if key.startswith("ball"):
            arrays["least"] = 0 * arrays["least"]
        if key.startswith("map"):
            arrays["gradients"] = np.full_like(arrays["gradients"], np.inf)
        if key == "control":  # a duplicated context that converges
            arrays["gradients"] = np.ones_like(arrays["gradients"])
            arrays["ratio"] = 1e-3 * arrays["ratio"]
        return arrays

    claims = runs.again("linear_rate", tmp_path, spoil)
    assert len([claim for claim in claims if claim.verdict == "inconsistent"]) >= 9
    assert "control (duplicate)" in wrong(claims)


def test_plateaus_fail_where_they_are_others(runs, tmp_path):
    def spoil(key, arrays):
        if key.startswith(("duplicates", "translates")):
            arrays["ratio"] = 1.5 * arrays["ratio"] + 1
        if key.startswith("gaussian"):
            arrays["final"] = 0.9 * arrays["affine"]
        return arrays

    claims = runs.again("failure_modes", tmp_path, spoil, expected_slope=1.0)
    right = [claim.quantity for claim in claims if claim.verdict != "inconsistent"]
    assert [quantity for quantity in right if "null directions" not in quantity] == []


def test_training_limit_is_fitted_from_stored_distances_and_can_fail(runs, tmp_path):
    _, directory, claims = runs("training_limit")
    stored = directory.load("crowds")
    errors = np.sqrt(np.mean(stored["heads"][..., -1] ** 2, axis=0))
    slope = np.polyfit(np.log(stored["sizes"]), np.log(errors), 1)[0]
    assert claims["heads, end of training: slope in M"].measured == pytest.approx(slope)
    assert np.all(stored["heads"][..., 0] == 0)  # the same heads at the start

    def spoil(key, arrays):
        if key.startswith("M="):  # a control that the check cannot tell from the claim
            arrays["control"] = arrays["heads"]
            arrays["assigned"] = 2 + arrays["assigned"]
        return arrays

    claims = runs.again("training_limit", tmp_path, spoil, expected_slope=-1.0, expected_depth=-2.0)
    right = [claim.quantity for claim in claims if claim.verdict != "inconsistent"]
    assert right == ["risk of the limit, end / start", "control (copies of four heads): slope in M"]
    (tmp_path / "again").rename(tmp_path / "first")
    assert wrong(runs.again("training_limit", tmp_path, spoil)) == {
        "conditional Wasserstein / labelled distance, largest over M",
        "control (copies of four heads)",
    }


def test_lazy_to_rich_is_fitted_from_stored_movements_and_can_fail(runs, tmp_path):
    _, directory, claims = runs("lazy_to_rich")
    stored = directory.load("scale")
    num = int(stored["num_fitted"])
    for quantity, name in (("A", "scores"), ("V", "values")):
        middle = np.log(stored[name][:, :num]).mean(axis=0)
        slope = np.polyfit(np.log(stored["sizes"][:num]), middle, 1)[0]
        assert claims[f"movement of {quantity}: slope in eps"].measured == pytest.approx(slope)
    assert np.abs(stored["risk"] - stored["lazy"])[:, 0].max() < 0.02  # the kernel regime
    assert np.abs(stored["risk"] - stored["lazy"])[:, -1].max() > 0.02

    def spoil(key, arrays):
        if key == "control":  # pairs that the check cannot tell from V = 0
            arrays["scores"] = arrays["scores"] ** 2
        if key == "scale":
            arrays = {name: values**1.5 for name, values in arrays.items()}
            arrays["aligned_after"] = arrays["aligned_before"] - 1
        if "gamma" in key:  # nothing depends on M as it should
            arrays["scores"] = arrays["scores"] * np.array([1.0, 5.0, 25.0, 125.0])
            arrays["kernel"] = arrays["kernel"] * np.array([1.0, 5.0, 25.0, 125.0])
        return arrays

    claims = runs.again("lazy_to_rich", tmp_path, spoil)
    assert {claim.verdict for claim in claims} == {"inconsistent"}


@pytest.mark.parametrize(
    "line",
    [
        "linear_rate --heads 16 24",
        "linear_rate --risks 1",
        "linear_rate --num-seeds 1",
        "failure_modes --num-queries 1",
        "failure_modes --residuals 0.1 0.1 1",
        "failure_modes --num-gaussian-queries 3",
        "training_limit --sizes 8 16 24 64",
        "training_limit --chunk 5",
        "training_limit --num-records 3",
        "lazy_to_rich --heads 4 6 8",
        "lazy_to_rich --step 3",
    ],
)
def test_bad_parameters_are_one_line(here, line):
    name, flag, *values = line.split()
    assert flag in refused("run", name, flag, *values)
