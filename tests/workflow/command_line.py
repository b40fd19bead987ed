"""Calling the command line in a test, in this process or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from meanfield.__main__ import main

ROOT = Path(__file__).parents[2]

# A small experiment: cells of a sweep, then training with checkpoints. It stops itself as Ctrl-C
# would when the file named in STOP_FILE holds the number of steps it has left.
SMALL_EXPERIMENT = '''"""A small experiment for the tests."""
import os
from dataclasses import dataclass

import jax
import numpy as np

import meanfield as mf

CLAIM = "the risk falls"
COST = "a second"
FIGURE = None
STEPS = {"left": int(os.environ.get("SMALL_STEPS", "1000000"))}


def tick():
    STEPS["left"] -= 1
    if STEPS["left"] < 0:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Parameters:
    """What it is made of."""

    num_steps: int = 6
    """Training steps."""
    sizes: tuple[int, ...] = (2, 4)
    """M."""
    bound: float = 1.0
    """The claim: final risk over first risk is below it."""
    seed: int = 3
    """Seed."""


def run(parameters, directory, progress):
    mf.use_double()
    keys = jax.random.split(jax.random.key(parameters.seed), 4)
    rows = []
    for size in progress.task(parameters.sizes, "cells"):
        tick()
        cell = lambda size=size: {"mean": jax.random.normal(keys[0], (size,)).mean()}
        rows.append(directory.cached(f"M={size}", cell)["mean"])
    field = mf.SoftmaxAttention("av")
    law = mf.EntrywiseGaussian(A=1.0, V=0.3)
    grid = mf.DepthGrid.uniform(2)
    rho = mf.sample_parameters(field, law, grid, parameters.sizes[-1], dim=2, key=keys[1])
    points = jax.random.normal(keys[2], (2, 3, 2))
    batch = mf.Batch(mf.TokenMeasure(points), 0.5 * points)

    def observe(state):
        tick()
        return 0.0

    state = mf.init_training(
        field, rho, mf.SquaredLoss(), batch, stepper=mf.AdaptiveStep(initial=0.1, tolerance=0.1)
    )
    history = mf.run_training(
        state, parameters.num_steps, directory=directory, observers={"tick": observe}
    )
    heads = history.state.rho.particles
    risk = np.asarray(history.risk)
    directory.save("result", rows=rows, A=heads.A, V=heads.V, risk=risk, time=history.time)
    ratio = float(risk[-1] / risk[0])
    verdict = "consistent" if ratio < parameters.bound else "inconsistent"
    return [mf.Claim("risk ratio", f"below {parameters.bound:g}", ratio, None, verdict)]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
'''


# An experiment that needs no solver and so starts fast; its cells can tell who computed them.
LIGHT_EXPERIMENT = '''"""A light experiment for the tests."""
import os
import time
from dataclasses import dataclass

import numpy as np

import meanfield as mf

CLAIM = "a mean is close to its expectation"
COST = "nothing"
FIGURE = "light_picture"


@dataclass(frozen=True)
class Parameters:
    """What it is made of."""

    size: int = 100
    """Draws."""
    bound: float = 1.0
    """Largest error."""
    seed: int = 0
    """Seed."""


def run(parameters, directory, progress):
    draws = np.random.default_rng(parameters.seed).normal(size=(10, parameters.size))

    def cell(number):
        time.sleep(float(os.environ.get("LIGHT_PAUSE", "0")))
        who = {"process": os.getpid()} if "LIGHT_PROCESS" in os.environ else {}
        return {"mean": draws[number].mean(), **who}

    means = [row["mean"] for row in directory.sweep("row", range(10), cell, progress)]
    directory.save("means", means=means)
    error = float(np.max(np.abs(means)))
    verdict = "consistent" if error < parameters.bound else "inconsistent"
    return [mf.Claim("largest error", f"below {parameters.bound:g}", error, None, verdict)]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
'''


# Its picture.
LIGHT_FIGURE = '''"""A picture of the light experiment's means."""

import matplotlib.figure

EXPERIMENTS = ("light",)


def draw(runs):
    figure = matplotlib.figure.Figure()
    figure.subplots().plot(runs["light"].load("means")["means"], "o")
    return figure


def caption(runs):
    return f"Ten means, {runs['light'].claims[0].sentence()}."
'''


def call(*args: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``meanfield ARGS`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in args])
    return code, out.getvalue(), err.getvalue()


def refused(*args: object) -> str:
    """The one line that a refused call leaves on standard error."""
    code, out, err = call(*args)
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert "expected" in err
    return err


def environment(**extra: str) -> dict[str, str]:
    """This process's environment with the checkout on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


def process(*args: object, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """``python ARGS`` in a process of its own."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
