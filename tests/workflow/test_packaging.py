import re
import sys
import tomllib

import pytest

import meanfield
from meanfield._runtime import REQUIREMENT, is_known_bad
from tests.workflow.command_line import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def locked() -> dict[str, list[tuple[str, str]]]:
    """Package name: its (version, environment marker) lines."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in LOCK.splitlines():
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)(?: ; (.*))?", line)
        if match:
            found.setdefault(match[1], []).append((match[2], match[3] or ""))
        else:
            assert line.lstrip().startswith("#"), line
    return found


def requirements() -> list[str]:
    project = PROJECT["project"]
    return [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]


def test_every_requirement_is_locked():
    names = {re.split(r"[\[<>=!~ ]", line)[0].lower() for line in requirements()}
    assert len(names) > 20
    assert names <= set(locked())


def test_locked_jax_is_sound_on_every_python():
    lines = locked()["jax"]
    assert lines == locked()["jaxlib"]
    assert any("<" in marker for _, marker in lines)
    assert any(">=" in marker for _, marker in lines)
    assert not any(is_known_bad(version) for version, _ in lines)
    assert REQUIREMENT in requirements()


@pytest.mark.parametrize(
    ("version", "bad"),
    [("0.10.1", False), ("0.10.2", True), ("0.11.0", True), ("0.11.3", True), ("0.12.0.1", False)],
)
def test_known_bad_versions(version, bad):
    assert is_known_bad(version) is bad


def test_lock_names_no_host_and_no_path():
    assert "://" not in LOCK
    assert not re.search(r"(^|\s)(/|--)", LOCK)


def test_version_is_stated_once():
    assert PROJECT["project"]["version"] == meanfield.__version__


def test_this_python_is_supported():
    assert sys.version_info >= (3, 11)
    assert PROJECT["project"]["requires-python"] == ">=3.11"


def test_wheel_carries_experiments_and_figures():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) == {"meanfield", "experiments", "figures"}
    assert wheel["sources"] == {
        "experiments": "meanfield/_bundled/experiments",
        "figures": "meanfield/_bundled/figures",
    }


def test_layers_are_those_of_the_rooms_that_exist():
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    listed = set(re.findall(r"\w+", " ".join(contract["layers"])))
    rooms = {path.stem for path in (ROOT / "meanfield").iterdir() if path.stem[:2] != "__"}
    assert rooms <= listed


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "lock", "clean"])
def test_makefile_has_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
