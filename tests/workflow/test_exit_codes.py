"""How the command line ends: exit code and what stands on standard error."""

import importlib

import pytest

import meanfield as mf
from tests.workflow.command_line import call


def stopped_by(monkeypatch, error: BaseException) -> tuple[int, str, str]:
    def command(args):
        raise error

    monkeypatch.setattr(importlib.import_module("meanfield._commands.listing"), "command", command)
    return call("list")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "x"), "Permission denied"),
        (MemoryError(), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating"), "RESOURCE_EXHAUSTED"),
        (mf.MeanfieldError("depth=0", "at least 1", "pass 1"), "depth=0; expected at least 1"),
    ],
)
def test_what_the_machine_or_the_user_lacks_is_one_line_and_code_2(monkeypatch, error, words):
    code, out, err = stopped_by(monkeypatch, error)
    assert (code, out) == (2, "")
    assert err.startswith("meanfield list: ")
    assert err.count("\n") == 1
    assert words in err
    assert "expected" in err
    assert "Traceback" not in err


def test_a_defect_shows_its_traceback_with_code_2(monkeypatch):
    code, _, err = stopped_by(monkeypatch, ZeroDivisionError("a defect"))
    assert code == 2
    assert "Traceback" in err
    assert err.endswith("meanfield list: stopped by ZeroDivisionError\n")


def test_an_interrupt_is_code_130(monkeypatch):
    assert stopped_by(monkeypatch, KeyboardInterrupt()) == (130, "", "interrupted\n")


def test_code_of_a_command_that_exits_itself(monkeypatch):
    assert stopped_by(monkeypatch, SystemExit(3))[0] == 3
