"""The finite transformer beside the flow, at toy size: claims, figure, spoiled cells."""

from typing import Any

import numpy as np
import pytest

import meanfield as mf
from tests.workflow.command_line import process, refused
from tests.workflow.small_runs import WITHOUT_JAX, SmallRuns, states_headlines

NAME = "finite_transformer"
SMALL: dict[str, dict[str, Any]] = {NAME: {"time_steps": (8, 16, 32, 64)}}
SLOPES = {"M": "M", "L": "L", "steps": "dt", "noise": "dt"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return SmallRuns(tmp_path_factory.mktemp(NAME), SMALL)


def inconsistent(claims) -> set[str]:
    return {claim.quantity for claim in claims if claim.verdict == "inconsistent"}


def test_all_claims_hold_and_are_drawn_without_jax(runs):
    _, directory, claims = runs(NAME)
    assert {claim.verdict for claim in claims.values()} == {"consistent"}, claims
    assert sum("control" in quantity for quantity in claims) == 2
    done = process("-c", WITHOUT_JAX, "figures", NAME, "--check", cwd=runs.folder)
    assert done.returncode == 0, done.stderr
    caption = (runs.folder / "results" / "figures" / f"{NAME}.txt").read_text()
    assert states_headlines(caption, directory)


def test_slopes_are_those_of_the_stored_gaps(runs):
    _, directory, claims = runs(NAME)
    for name, letter in SLOPES.items():
        stored = directory.load(name)
        gaps = np.sqrt(np.mean(stored["heads"] ** 2, axis=0))  # [S, K+1]
        assert np.all(gaps[:, 0] == 0)  # the same heads at the start
        slope = np.polyfit(np.log(stored["sizes"]), np.log(gaps[:, -1]), 1)[0]
        kind = {"steps": "full batches: ", "noise": "minibatches: "}.get(name, "")
        quantity = f"heads at the end, {kind}slope in {letter}"
        assert claims[quantity].measured == pytest.approx(slope)
    limit, crowds = directory.load("limit"), directory.load("M")
    assert limit["difference"].max() < 1e-13
    stays = np.sqrt(np.mean(crowds["control"][..., -1] ** 2, axis=0)) / limit["travelled"]
    assert np.all(np.diff(stays) > 0)  # the wider the net, the less it moves at that rate
    assert stays[-1] < 1.1


def test_risk_and_outputs_are_those_of_the_flow_through_the_stored_heads(runs):
    module, directory, _ = runs(NAME)
    parameters = module.Parameters(**SMALL[NAME])
    batch, held_out = module.task(parameters)
    grid = mf.DepthGrid.uniform(parameters.num_layers)
    limit = directory.cached("limit", dict)
    rho = mf.ParameterMeasure(mf.AttentionQKV(*(limit[name][-1] for name in "QKV")), grid)
    risk = mf.risk(parameters.field, rho, mf.SquaredLoss(), batch)
    assert limit["risk"][-1] == pytest.approx(float(risk), rel=1e-12)
    final = mf.solve_flow(parameters.field, rho, held_out).final.points
    assert np.allclose(final, limit["output"][-1], rtol=1e-12, atol=1e-14)


def test_claims_fail_where_the_numbers_are_others(runs, tmp_path):
    def spoil(key, arrays):
        name, _, size = key.partition("=")
        if name == "flow":
            arrays["difference"] = arrays["difference"] + 1e-9
        if name == "M":  # gaps that stay, and a control that follows the flow
            arrays = {kind: gaps * float(size) ** 0.3 for kind, gaps in arrays.items()}
            arrays["control"] = arrays["heads"] / float(size) ** 0.3
        if name in ("L", "steps", "noise"):
            arrays = {kind: gaps * float(size) ** 0.5 for kind, gaps in arrays.items()}
        return arrays

    claims = runs.again(NAME, tmp_path, spoil)
    assert {c.quantity for c in claims} - inconsistent(claims) == {"risk of the limit, end / start"}
    (tmp_path / "again").rename(tmp_path / "first")
    changes = {"expected_slope": -1.0, "expected_time": 2.0, "expected_noise": 1.0}
    claims = runs.again(NAME, tmp_path, None, **changes, expected_depth=-0.5)
    slopes = {c.quantity for c in claims if "slope" in c.quantity and "control" not in c.quantity}
    assert inconsistent(claims) == slopes


def test_the_record_farthest_from_the_slope_is_told(runs):
    _, directory, claims = runs(NAME)
    expected = {"M": -0.5, "L": -1.0, "steps": 1.0, "noise": 0.5}
    kinds = {"steps": "full batches: ", "noise": "minibatches: "}
    for name, letter in SLOPES.items():
        stored = directory.load(name)
        gaps = np.sqrt(np.mean(stored["heads"] ** 2, axis=0))[:, 1:]
        slopes = np.polyfit(np.log(stored["sizes"]), np.log(gaps), 1)[0]
        off = np.abs(slopes - expected[name])
        assert np.ptp(off) > 1e-4  # else nothing is told apart
        quantity = f"heads at the record farthest from it, {kinds.get(name, '')}slope in {letter}"
        assert claims[quantity].measured == pytest.approx(slopes[off.argmax()])


@pytest.mark.parametrize("shift", [0.03, 0.1, 0.2])
def test_bands_of_the_slopes_are_as_stated(runs, shift):
    """Gaps on power laws, off by a shift: 0.06 for M and the noise, 0.15 for L and the steps."""
    module, _, _ = runs(NAME)
    parameters, found = module.Parameters(), {}
    scatter = 1 + 1e-3 * np.random.default_rng(0).normal(size=(16, 4, 5))
    for name, slope in {"M": -0.5, "L": -1.0, "steps": 1.0, "noise": 0.5}.items():
        sizes = np.array([8.0, 16, 32, 64])
        gaps = scatter * sizes[:, None] ** (slope + shift)
        kinds = ("heads", "risk", "output", "control")
        found[name] = {"sizes": sizes, **dict.fromkeys(kinds, gaps)}
    claims = module.claims_of(parameters, found, np.array([1.0, 0.1]), np.zeros(3), 1.0)
    bands = {"in M": 0.06, "minibatches: slope in dt": 0.06, "in L": 0.15, "full": 0.15}
    judged = 0
    for claim in claims:
        for words, band in bands.items():
            if words in claim.quantity and "control" not in claim.quantity:
                judged += 1
                assert (claim.verdict == "consistent") == (shift < band), claim
    assert judged == 12


@pytest.mark.parametrize(
    "line",
    [
        "--sizes 8 16 24 64",
        "--chunk 5",
        "--num-records 3",
        "--depths 2 4 6 16",
        "--minibatch 3",
        "--num-contexts 1",
        "--num-time-draws 1",
        "--sizes 64 8 16 32",
        "--time-steps 16 64 32 128",
        "--noise-steps 256 128 64 32",
        "--depths 16 2 4 8",
        "--num-reference 1",
    ],
)
def test_bad_parameters_are_one_line(here, line):
    flag, *values = line.split()
    assert flag in refused("run", NAME, flag, *values)
