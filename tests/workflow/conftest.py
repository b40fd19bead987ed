from pathlib import Path

import pytest

from tests.workflow.command_line import LIGHT_EXPERIMENT, SMALL_EXPERIMENT


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
