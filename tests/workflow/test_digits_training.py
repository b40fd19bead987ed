"""The digits experiment at toy size: its claims, its resume, its figure, its failing control."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from tests.workflow.small_runs import QUIET

ROOT = Path(__file__).parents[2]
SMALL = {
    "source": "sklearn",
    "pool": 1,
    "dim": 4,
    "num_cells": 2,
    "num_heads": 12,
    "num_fit": 4,
    "fit_steps": 80,
    "fit_target": 0.05,
    "fit_record_every": 10,
    "num_train": 60,
    "num_test": 40,
    "minibatch": 20,
    "num_steps": 30,
    "record_every": 10,
    "expected_accuracy": 0.15,
    "num_paths": 3,
}


def load(folder: str):
    path = ROOT / folder / "digits_training.py"
    name = f"tested_{folder}_digits"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    experiment = load("experiments")
    parameters = experiment.Parameters(**SMALL)
    directory = mf.RunDirectory.create(
        tmp_path_factory.mktemp("digits") / "run",
        name="digits_training",
        configuration={"parameters": parameters},
    )
    claims = experiment.run(parameters, directory, QUIET)
    directory.finish(claims)
    return experiment, directory, {claim.quantity: claim for claim in claims}


def test_the_fit_reaches_its_target_without_a_rise(small):
    _, directory, claims = small
    fit = directory.load("fit")
    assert (np.diff(fit["risk"]) <= 0).all()
    assert fit["risk"][-1] < 0.05 * fit["risk"][0]
    assert claims["fit: final risk / initial risk"].verdict == "consistent"
    assert claims["fit: largest rise of the risk"].verdict == "consistent"


def test_the_kernel_along_the_flow_predicts_the_decay_and_the_frozen_one_does_worse(small):
    experiment, directory, claims = small
    assert claims["fit: gap of log-risk, kernel along the flow"].verdict == "consistent"
    fit = directory.load("fit")
    along, frozen = (experiment.log_gap(fit[name], fit["risk"]) for name in ("along", "frozen"))
    assert along < frozen
    np.testing.assert_allclose(fit["along"][0], fit["risk"][0], rtol=1e-12)


def test_classification_beats_chance_and_stores_what_the_figure_needs(small):
    _, directory, claims = small
    assert claims["classify: test accuracy"].verdict == "consistent"
    assert directory.load("classify")["risk"].dtype == np.float32
    figure = load("figures")
    runs = {"digits_training": mf.RunDirectory.open(directory.path)}
    axes = figure.draw(runs).axes
    ratio = directory.load("fit")["risk"] / directory.load("fit")["risk"][0]
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), ratio)
    assert f"{ratio[-1]:.2g}" in figure.caption(runs)


def test_an_accuracy_that_is_not_reached_is_inconsistent(small, tmp_path):
    experiment, _, _ = small
    parameters = dataclasses.replace(
        experiment.Parameters(**SMALL), expected_accuracy=1.01, num_steps=1, fit_steps=5
    )
    directory = mf.RunDirectory.create(tmp_path / "run", name="x", configuration={})
    claims = experiment.run(parameters, directory, QUIET)
    verdicts = {claim.quantity: claim.verdict for claim in claims}
    assert verdicts["classify: test accuracy"] == "inconsistent"
    assert verdicts["fit: final risk / initial risk"] == "inconsistent"


def test_baselines_know_their_trade(small):
    _, directory, _ = small
    accuracies = {k: float(v) for k, v in directory.load("baselines").items()}
    assert set(accuracies) == {"nearest_class_mean", "logistic_regression", "kernel_ridge"}
    assert all(0.3 < value <= 1 for value in accuracies.values())
