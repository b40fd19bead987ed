import contextlib
import io
import re

import pytest

import meanfield as mf
from meanfield import __main__
from tests.workflow.command_line import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^meanfield (\w+)", README, re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_in_the_readme_runs(block):
    said = io.StringIO()
    names: dict = {"__name__": "readme"}
    with contextlib.redirect_stdout(said):
        exec(compile(block, "README.md", "exec"), names)
    if "history" in names:
        assert names["solution"].path.shape == (17, 32, 2)
        assert names["gradient"].gradient.V.shape == (16, 64, 2, 2)
        assert names["history"].risk[-1] < names["history"].risk[0]
    else:
        assert abs(names["solution"].final.points - 0.5).max() < 0.5 * 0.4
    assert said.getvalue()


def test_commands_in_the_readme_exist():
    assert len(BLOCKS) == 2
    assert len(COMMANDS) > 5
    assert set(COMMANDS) <= set(__main__.COMMANDS)
    targets = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert targets == {"demo", "test", "lint", "bench", "lock"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_links_in_the_readme_lead_somewhere():
    prose = re.sub(r"`[^`]*`|^    .*$", "", README, flags=re.MULTILINE)  # phi[mu](x) is no link
    links = re.findall(r"\]\(([^)]+)\)", prose)
    local = [link for link in links if "://" not in link]
    assert len(local) >= 3
    for link in local:
        assert (ROOT / link).exists(), link


def test_names_in_the_glossary_are_public():
    table = README.split("## Glossary")[1].split("\n\nAxes")[0]
    names = set(re.findall(r"`([A-Za-z]\w+)[`(]", table))
    rooms = set(re.findall(r"`(\w+)` \|$", table, re.MULTILINE))
    assert len(names) > 25
    for name in names | rooms:
        assert hasattr(mf, name), name
