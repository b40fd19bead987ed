"""Joint limits, stability, long depth, causality at toy size: claims that hold and can fail."""

from typing import Any

import numpy as np
import pytest

import meanfield as mf
from meanfield._commands import catalogue
from tests.workflow.command_line import process
from tests.workflow.small_runs import WITHOUT_JAX, SmallRuns, states_headlines

SMALL: dict[str, dict[str, Any]] = {
    "joint_limit": {
        "depths": (4, 8, 16, 32),
        "widths": (4, 8, 16, 32),
        "num_replicates": 32,
        "num_tokens": 3,
        "dim": 2,
    },
    "stability": {
        "num_replicates": 4,
        "num_tokens": 5,
        "num_probes": 2,
        "num_heads": 4,
        "num_cells": 2,
        "num_steps": (2, 4, 8, 16),
        "training_time": 1.0,
        "num_problems": 2,
    },
    "clustering": {
        "betas": (0.5, 8.0, 16.0, 32.0, 64.0),
        "pair_betas": (3.0, 4.0, 5.0, 6.0),
        "num_tokens": 24,
        "num_replicates": 3,
        "horizon": 48.0,
        "num_cells": 192,
    },
    "embedding_and_heads": {
        "sizes": (8, 16, 32, 64),
        "square_sizes": (4, 6, 8, 12),
        "num_replicates": 32,
        "num_cells": 2,
        "value_scale": 4.0,
        "num_samples": 10_000,
        "num_tokens": 2,
    },
    "adjoint_order": {
        "sizes": (4, 8, 16, 32),
        "num_tokens": 3,
        "num_heads": 2,
        "num_replicates": 2,
    },
    "causal": {
        "sizes": (4, 8, 16, 32),
        "num_contexts": 3,
        "num_tokens": 3,
        "num_heads": 8,
        "num_replicates": 2,
        "num_steps": 60,
    },
}


def prepare(name, module, directory):
    if name == "joint_limit":
        module.NUM_BOOTSTRAP = 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return SmallRuns(tmp_path_factory.mktemp("limits"), SMALL, prepare)


def verdicts_of(claims: list[mf.Claim]) -> dict[str, str]:
    return {claim.quantity: claim.verdict for claim in claims}


def wrong(verdicts: dict[str, str]) -> set[str]:
    return {quantity for quantity, verdict in verdicts.items() if verdict == "inconsistent"}


@pytest.mark.parametrize("name", SMALL)
def test_no_claim_is_refuted_and_a_control_is_among_them(runs, name):
    _, _, claims = runs(name)
    verdicts = {quantity: claim.verdict for quantity, claim in claims.items()}
    assert not wrong(verdicts), claims
    # in joint_limit the law of the other family is the control, named in the quantity
    assert any("control" in quantity or " over a/L" in quantity for quantity in verdicts)


def test_joint_laws_are_those_of_the_stored_cells_and_swapped_families_fail(runs, tmp_path):
    _, directory, claims = runs("joint_limit")
    stored = directory.load("grid")
    deviations = directory.cached("independent,L=8,M=16", dict)["deviations"]
    assert deviations.shape == (32, 6)
    error = np.sqrt((deviations**2).sum(axis=1).mean())
    assert stored["independent_errors"][1, 2] == pytest.approx(error, rel=1e-12)
    a, b = stored["independent_squares_independent"]
    depth, width = np.meshgrid(stored["depths"], stored["widths"], indexing="ij")
    law = np.hypot(a / depth, b / np.sqrt(depth * width))
    missed = (law / stored["independent_errors"] - 1)[~stored["seen"]]
    other = float(stored["independent_squares_constant_missed"])
    measured = np.sqrt((missed**2).mean())
    assert stored["independent_squares_independent_missed"] == pytest.approx(measured, rel=1e-9)
    quantity = (
        "new heads in every layer: held-out error, a/L + b/sqrt(LM) over a/L + b/sqrt(M), squares"
    )
    assert claims[quantity].measured == pytest.approx(measured / other, rel=1e-9)
    assert claims["same heads in all layers: slope of the fluctuations in L"].expected == 0
    assert claims["new heads in every layer: slope of the fluctuations in L"].expected == -0.5

    def swap(key, arrays):
        family, _, rest = key.partition(",")
        if not rest:
            return arrays
        other = {"constant": "independent", "independent": "constant"}[family]
        return directory.cached(f"{other},{rest}", dict)

    verdicts = verdicts_of(runs.again("joint_limit", tmp_path, swap))
    assert wrong(verdicts) >= {
        "same heads in all layers: slope of the fluctuations in L",
        "new heads in every layer: slope of the fluctuations in L",
        "new heads in every layer: held-out error, a/L + b/sqrt(LM) over a/L + b/sqrt(M), squares",
    }
    assert verdicts["new heads in every layer: slope of the fluctuations in M"] == "consistent"


def test_stability_is_bounded_linear_and_of_first_order_and_can_fail(runs, tmp_path):
    _, directory, claims = runs("stability")
    stored = directory.load("stability")
    assert (stored["tokens_law"] <= stored["tokens_bound"]).all()
    assert claims["heads: largest distance over Groenwall's bound"].measured == pytest.approx(
        stored["heads_quotient"].max()
    )
    training = directory.load("training")
    slopes = {
        name: np.polyfit(np.log(training["dt"]), np.log(training[name]).mean(axis=0), 1)[0]
        for name in ("euler", "heun")
    }
    assert slopes == pytest.approx({"euler": 1.0, "heun": 2.0}, abs=0.15)

    def spoil(key, arrays):
        if key == "tokens":  # beyond the bound, and Hoelder instead of Lipschitz
            arrays["quotient"] = 1e3 * arrays["quotient"]
            arrays["law"] = np.sqrt(arrays["law"])
        if key == "control":
            arrays["control"] = 0.0 * arrays["control"] + np.array([0.1, 0.03, 0.01, 0.003, 0.001])
        if key.startswith("problem"):  # two schemes with two limits
            arrays["heun"] = arrays["heun"] + 0.1
        return arrays

    assert wrong(verdicts_of(runs.again("stability", tmp_path, spoil))) >= {
        "tokens: largest distance over Groenwall's bound",
        "tokens: slope of W2 of the final laws",
        "training: order of Euler's steps in dt",
        "training: distance of the two schemes' limits over their stated errors",
        "control (attention without temperature): slope in eps",
    }


def test_clusters_are_counted_and_other_numbers_fail(runs, tmp_path):
    module, directory, _ = runs("clustering")
    angles = np.radians([0.0, 3.0, 90.0, 178.0, -178.0])
    assert module.clusters(np.stack([np.cos(angles), np.sin(angles)], axis=-1)) == 3
    assert module.clusters(np.ones((4, 2)) / np.sqrt(2)) == 1
    stored = directory.load("clustering")
    assert (stored["modes"][1:] == [4, 6, 8, 11]).all()
    assert stored["counts"].shape == (3, 5, 193)

    def spoil(key, arrays):
        if key == "exact":  # a scheme of order 3
            arrays = {name: errors * np.arange(1, 5) for name, errors in arrays.items()}
        if key == "beta=0.5":
            arrays["clusters"] = arrays["clusters"] + 1
        if key == "repelled":
            arrays["clusters"] = 0 * arrays["clusters"] + 1
        if key == "pair,beta=6":
            arrays["depth"] = 2 * arrays["depth"]
        if key == "plane":
            arrays["closure"] = 2 * arrays["closure"]
        return arrays

    failed = wrong(verdicts_of(runs.again("clustering", tmp_path, spoil, expected_rate=-1.0)))
    assert failed >= {
        "equiangular, sphere: slope in L of RK4 against the closed equation",
        "clouds in one point at the end, beta <= 1",
        "rate of the last approach",
        "two groups: largest relative error of the meeting depth",
        "R^2, V = -I: 2 beta s tr Cov / d at the end",
        "control (V = -I): clouds in one point",
    }


def test_the_gram_recursion_is_that_of_its_formula_and_other_slopes_fail(runs, tmp_path):
    module, directory, _ = runs("embedding_and_heads")
    parameters = module.Parameters(num_samples=1000, num_cells=1, score_scale=1e-9)
    gram = np.array([[1.0, 0.2], [0.2, 0.5]])
    limit = module.limits(gram, 3.0, parameters)  # without scores all weights are 1/2
    mean = np.full((2, 2), 0.5)
    squares = mean @ gram @ mean
    assert limit["gram"] == pytest.approx(gram + mean @ gram + gram @ mean + 4 * squares, rel=1e-6)
    assert limit["kernel"] == pytest.approx(squares, rel=1e-6)
    assert limit["flow"] == pytest.approx(np.eye(2) + mean, rel=1e-6)
    errors = directory.load("errors")
    assert (errors["0_heads"] == [8, 16, 32, 64]).all()
    assert (errors["1_heads"] == [4, 9, 16, 36]).all()

    def spoil(key, arrays):  # a mean field that is the limit after all
        return arrays | {"control": arrays.get("gram")} if "gram" in arrays else arrays

    failed = wrong(
        verdicts_of(runs.again("embedding_and_heads", tmp_path, spoil, expected_shift=-0.5))
    )
    assert "d/M fixed, tokens against the mean field: slope in d" in failed
    assert (
        "d/M fixed, V-kernel of the first layer against its mean (a CLT in M): slope in d" in failed
    )


def test_invariants_are_kept_and_broken_ones_fail(runs, tmp_path):
    _, directory, claims = runs("adjoint_order")
    orders = directory.load("orders")
    for scheme, gap, order in (("euler", -1, -1), ("heun", -3, -2), ("rk4", -4, -4)):
        for name, expected in (("gap", gap), ("drift", order)):
            middle = np.log(orders[f"{scheme}_{name}"]).mean(axis=0)
            slope = np.polyfit(np.log(orders["sizes"]), middle, 1)[0]
            assert slope == pytest.approx(expected, abs=0.3)
    assert claims["rk4: change of the pairing along depth"].measured < 1e-12

    def spoil(key, arrays):
        if key.startswith("euler"):
            arrays["pairing"] = arrays["pairing"] + 1e-6
            arrays["gap"] = arrays["gap"] ** 2
            arrays["varying"] = arrays["drift"]
        return arrays

    assert wrong(verdicts_of(runs.again("adjoint_order", tmp_path, spoil))) == {
        "euler: change of the pairing along depth",
        "euler: continuous against discrete adjoint, slope in L",
        "control (heads that vary with depth): slope in L of the Hamiltonian's drift",
    }


def test_prefix_laws_carry_causal_attention_and_other_kernels_fail(runs, tmp_path):
    module, directory, claims = runs("causal")
    points = np.random.default_rng(0).normal(size=(2, 3, 2))
    pairs = module.prefix_pairs(points, first=1)
    assert [law.points.shape[0] for law in pairs.laws] == [2, 3, 2, 3]
    assert np.array_equal(pairs.queries, points[:, 1:].reshape(4, 2))
    assert claims["nullity: causal, all tokens (N - d)"].measured == 1
    assert claims["nullity: full attention"].measured == 0

    def spoil(key, arrays):
        if key.startswith("adjoint"):  # an adjoint that looks ahead
            arrays["later"] = arrays["later"] + 1e-6
        if key.startswith("kernel"):
            arrays["full_nullity"] = arrays["causal_nullity"]
            arrays["causal_terminal"] = arrays["causal_terminal"] + 1e-3
        if key.startswith("training"):  # trained as full attention
            arrays["causal"] = arrays["full"]
            arrays["control"] = arrays["full_lazy"]
        return arrays

    failed = wrong(verdicts_of(runs.again("causal", tmp_path, spoil, expected_slope=-2.0)))
    assert failed == {
        "momenta of tokens after the only one with loss",
        "continuous against discrete adjoint: slope in L",
        "kernel of the whole map at V = 0 against that of prefix laws",
        "nullity: full attention",
        "lazy risk, causal, all tokens: largest error",
        "control (full attention's kernel for causal training): least error",
    }


def test_figures_draw_the_stored_arrays_without_a_solver(runs):
    for name in SMALL:
        runs(name)
    done = process("-c", WITHOUT_JAX, "figures", *SMALL, cwd=runs.folder)
    assert done.returncode == 0, done.stderr
    for name in SMALL:
        _, directory, _ = runs(name)
        figures = runs.folder / "results" / "figures"
        assert (figures / f"{name}.png").stat().st_size > 10_000
        caption = (figures / f"{name}.txt").read_text()
        assert states_headlines(caption, directory)
    figure: Any = catalogue.load(catalogue.locate("figures", "stability"), ("draw",))
    _, directory, _ = runs("stability")
    axes = figure.draw({"stability": directory}).axes
    drawn = np.sqrt((directory.load("stability")["heads_law"] ** 2).mean(axis=0))
    assert any(np.allclose(line.get_ydata(), drawn) for line in axes[0].lines)


BAD_FLAGS = {
    "joint_limit": ["--depths 8 16 32", "--widths 4 4 8 16", "--num-replicates 1", "--dim 0"],
    "stability": ["--sizes 0.1 0.2 0.3", "--num-steps 4 8 10 12", "--num-problems 1", "--seed -1"],
    "clustering": ["--betas 1.0 2.0 4.0", "--num-tokens 3", "--num-replicates 1", "--seed -1"],
    "embedding_and_heads": ["--sizes 2 4 8 16", "--square-sizes 5 6 7 8", "--num-samples 10"],
    "adjoint_order": ["--sizes 4 8 16", "--num-replicates 1", "--value-scale -1.0"],
    "causal": ["--num-contexts 2", "--num-tokens 2", "--sizes 4 8 16", "--num-replicates 1"],
}


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, lines in BAD_FLAGS.items() for line in lines]
)
def test_bad_parameters_are_refused_by_their_flag(name, line):
    module: Any = catalogue.load(catalogue.locate("experiments", name), ("Parameters",))
    flag, *values = line.split()
    field = flag.removeprefix("--").replace("-", "_")
    numbers = [float(v) if "." in v else int(v) for v in values]
    with pytest.raises(mf.MeanfieldError, match=flag):
        module.Parameters(**{field: tuple(numbers) if len(numbers) > 1 else numbers[0]})
