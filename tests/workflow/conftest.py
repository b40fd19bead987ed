from pathlib import Path

import pytest

from meanfield._commands import catalogue
from tests.workflow.command_line import LIGHT_EXPERIMENT, LIGHT_FIGURE, SMALL_EXPERIMENT


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, so that default results land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(here) -> Path:
    """The small experiment's file in the working folder."""
    file = here / "small.py"
    file.write_text(SMALL_EXPERIMENT)
    return file


@pytest.fixture
def light(here) -> Path:
    """The light experiment's file in the working folder."""
    file = here / "light.py"
    file.write_text(LIGHT_EXPERIMENT)
    return file


@pytest.fixture
def checkout(light, monkeypatch):
    """A checkout with one experiment and one figure."""
    for kind, name, text in (
        ("experiments", "light", light.read_text()),
        ("figures", "light_picture", LIGHT_FIGURE),
    ):
        (light.parent / kind).mkdir()
        (light.parent / kind / f"{name}.py").write_text(text)
    (light.parent / "figures" / "build.py").write_text('"""Builds all."""\n')
    monkeypatch.setattr(catalogue, "home", lambda kind: light.parent / kind)
    return light.parent
