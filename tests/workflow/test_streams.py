"""Output that cannot be written, and Ctrl-C: no traceback, the right exit code."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from tests.workflow.command_line import call, environment


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A shell line in which MEANFIELD stands for the command line of this checkout."""
    line = command.replace("MEANFIELD", f"{sys.executable} -m meanfield")
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("command", ["list", "--help", "--version", "run --help", "flow --help"])
def test_closed_output_is_silent(here, command):
    done = shell(f"MEANFIELD {command} >&-", here)
    assert (done.returncode, done.stderr) == (0, "")
    assert shell(f"MEANFIELD {command} >&- 2>&-", here).returncode == 0


@pytest.mark.parametrize("command", ["list", "--help", "--version", "run --help", "flow --help"])
def test_full_output_is_one_line(here, command):
    done = shell(f"MEANFIELD {command} > /dev/full", here)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "No space left" in done.stderr
    assert shell(f"MEANFIELD {command} > /dev/full 2>&1", here).returncode == 2


def test_reader_that_left_is_no_error(here):
    done = shell("set -o pipefail; (sleep 1; MEANFIELD list) | true", here)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["flow", "gradient", "figures"])
def test_interrupt_of_a_command_without_a_run_is_130(here, monkeypatch, command):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    heads = np.zeros((1, 1, 2, 2))
    np.savez("problem.npz", A=heads, V=heads, x=np.ones((1, 2, 2)), y=np.ones((1, 2, 2)))
    np.save("cloud.npy", np.ones((2, 2)))
    if command == "flow":
        monkeypatch.setattr(mf, "solve_flow", interrupted)
        args = ["cloud.npy", "--heads", 1, "--depth", 1]
    elif command == "gradient":
        monkeypatch.setattr(mf, "conditional_gradient", interrupted)
        args = ["problem.npz", "--out", "result.npz"]
    else:
        monkeypatch.setattr("meanfield._commands.figures.find_runs", interrupted)
        args = ["--results", "."]
    before = sorted(here.iterdir())
    assert call(command, *args) == (130, "", "interrupted\n")
    assert sorted(here.iterdir()) == before
