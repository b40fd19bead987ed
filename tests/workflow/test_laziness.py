import ast
import inspect
import subprocess
import sys

import pytest

import meanfield
from tests.workflow.command_line import ROOT, environment, process

BLOCKED = "import sys; sys.modules.update(jax=None, jaxlib=None, equinox=None, diffrax=None)\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return process("-c", code, cwd=ROOT)


@pytest.mark.parametrize("room", ["records", "rates", "plotting"])
def test_room_imports_with_jax_blocked(room):
    done = run(BLOCKED + f"import meanfield.{room}; print(meanfield.{room}.__name__)")
    assert done.stdout == f"meanfield.{room}\n", done.stderr


def test_control_a_solver_does_not_import_with_jax_blocked():
    assert run(BLOCKED + "import meanfield.flow").returncode != 0


@pytest.mark.parametrize("args", [[], ["--help"], ["list"], ["run", "--help"]])
def test_command_line_without_solvers(args):
    done = run(BLOCKED + f"from meanfield.__main__ import main\nraise SystemExit(main({args!r}))")
    assert done.returncode == 0, done.stderr
    assert "list" in done.stdout or "experiments" in done.stdout


def test_import_of_the_package_imports_no_room():
    done = run("import sys, meanfield; print([m for m in sys.modules if m[:10] == 'meanfield.'])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", meanfield.__all__)
def test_public_name_resolves(name):
    value = getattr(meanfield, name)
    assert value.__doc__
    assert value.__module__.startswith("meanfield.")
    assert name in dir(meanfield)


def test_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'Softmax'"):
        _ = meanfield.Softmax
    assert "_rooms" not in dir(meanfield)


def test_table_agrees_with_the_imports_for_type_checkers():
    block = next(n for n in ast.parse(inspect.getsource(meanfield)).body if isinstance(n, ast.If))
    imported = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = {(f"meanfield.{room}", name) for name, room in meanfield._ROOM_OF_NAME.items()}
    assert imported == table
    assert sorted(meanfield.__all__) == sorted(name for _, name in table)


@pytest.mark.parametrize("room", [r for r in meanfield._NAMES_OF_ROOM if r[0] != "_"])
def test_room_is_on_the_map(room):
    assert f"\n    {room} " in str(meanfield.__doc__)
    assert getattr(meanfield, room).__name__ == f"meanfield.{room}"


def test_library_never_sets_precision_at_import():
    code = "import meanfield.training, jax; print(jax.config.jax_enable_x64)"
    assert run(code).stdout == "False\n"
    assert "JAX_ENABLE_X64" not in environment()
    assert sys.modules["jax"].config.jax_enable_x64
