import base64
import contextlib
import json
import os
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meanfield as mf
from meanfield._commands import catalogue, flags, report
from meanfield._commands.summary import Summary, command_of, is_named, newest_finished
from meanfield.records import CONSISTENT, RunDirectory, find_runs, row, shown
from tests.workflow.command_line import ROOT, call, process, refused
from tests.workflow.small_runs import WITHOUT_JAX

build: Any = catalogue.load(ROOT / "figures" / "build.py", ("build", "take_claims"))
EMPTY = {"meta", "link", "img", "br", "hr", "use", "path", "circle", "input"}


class Reader(HTMLParser):
    """What a browser makes of the page: balanced tags, words, rows of tables, pictures."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.images: list[dict] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(folder: str = "results", *more: str) -> tuple[Reader, str, str]:
    """The page of a folder, its source, and what the command said."""
    code, out, err = call("report", folder, *more)
    assert (code, err) == (0, "")
    source = Path(more[-1] if more else f"{folder}/report.html").read_text(encoding="utf-8")
    return Reader(source), source, out


def altered(folder: str, **changes: Any) -> None:
    """Change entries of a manifest, in ways that meanfield itself never writes."""
    path = Path(folder) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def a_run(path: Path, name: str, claims: list[mf.Claim], *, preset="paper", **parameters: Any):
    run = RunDirectory.create(
        path, name=name, configuration={"preset": preset, "parameters": parameters}
    )
    run.finish(claims)
    return run


# The page


def test_report_shows_the_newest_run_with_claims_picture_and_command(checkout):
    call("run", "light", "--size", 50)
    call("run", "light", "--size", 60, "--seed", 4)
    page, source, said = page_of()
    assert said.startswith("results/report.html: 1 run, ")
    claim = RunDirectory.open("results/light-2").claims[0]
    assert ["largest error", "below 1", shown(claim.measured), "", "consistent"] in page.rows
    command = "meanfield run light --size 60 --seed 4"
    overview = ["light", "", "consistent", "1", "0", "0"]
    assert [found for found in page.rows if found[:6] == overview and found[-1] == command]
    assert "Claim: a mean is close to its expectation." in page.text
    assert f"Ten means, {claim.sentence()}." in page.text
    for setting in (["size", "60"], ["bound", "1.0"], ["seed", "4"]):
        assert setting in page.rows
    stored = Path("results/light-2/means.npz").stat().st_size
    assert ["means.npz", f"{stored} B"] in page.rows
    assert any(words[0] == "cells/ (10 files)" for words in page.rows)
    (image,) = page.images
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))[:4] == b"\x89PNG"
    assert image["alt"] == "A picture of the light experiment's means."
    folders = [words for words in page.rows if words[0].startswith("results/")]
    assert [words[:4] for words in folders] == [
        ["results/light", "light", "", "finished: consistent"]
    ]
    assert not {"script", "link", "iframe", "object"} & page.tags
    assert not re.search(r"https?:|url\(|@import", source)
    assert str(checkout) not in source
    assert page_of("results", "--out", "again.html")[1] == source


def test_a_page_of_mixed_verdicts_shows_each_claim_in_its_place(here):
    claims = [
        mf.Claim("slope in M", -0.5, -0.51234, (-0.53, -0.49), "consistent"),
        mf.Claim("slope in L", -1.0, -2.0, (-2.125, -1.875), "inconsistent"),
        mf.Claim("slope in n", -0.5, -0.25, (-0.9, 0.4), "undecided"),
    ]
    a_run(here / "results" / "mixed", "mixed", claims, preset="smoke")
    a_run(here / "results" / "open", "open", claims[2:])
    a_run(here / "results" / "sound", "sound", [mf.Claim("control: x", 1.0, 1.0, None, CONSISTENT)])
    page, source, _ = page_of()
    wanted = [
        ["slope in M", "-0.5", "-0.512", "[-0.530, -0.490]", "consistent"],
        ["slope in L", "-1", "-2.00", "[-2.12, -1.88]", "inconsistent"],
        ["slope in n", "-0.5", "-0.25", "[-0.90, 0.40]", "undecided"],
        ["slope in n", "-0.5", "-0.25", "[-0.90, 0.40]", "undecided"],
        ["control: x", "1", "1", "", "fails, as it should"],
    ]
    assert [words for words in page.rows if words[0].startswith(("slope in", "control"))] == wanted
    overview = [words[:6] for words in page.rows if words[0] in ("mixed", "open", "sound")]
    assert overview == [
        ["mixed", "smoke", "inconsistent", "1", "1", "1"],
        ["open", "paper", "undecided", "0", "0", "1"],
        ["sound", "paper", "consistent", "1", "0", "0"],
    ]
    assert "3 experiments. Claims: 2 consistent, 1 inconsistent, 2 undecided." in page.text
    verdicts = re.findall(r'<p class="keep">.*?href="#(\w+)"/></svg>(\w+)</p>', source)
    assert verdicts == [("inconsistent",) * 2, ("undecided",) * 2, ("consistent",) * 2]
    looks = re.findall(r'<tr class="(\w+)"><td [^>]*>slope in', source)
    assert looks == ["consistent", "inconsistent", "undecided", "undecided"]


DEEP, DEEPER = ({"a": json.loads('{"a":' * n + "1" + "}" * n)} for n in (120, 900))
HUGE = 10**399
CLAIM = {"quantity": "q", "expected": 1, "measured": 1, "interval": [0, 1], "verdict": "undecided"}


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": HUGE},
        {"seconds": float("nan")},
        {"claims": [CLAIM | {"measured": HUGE}]},
        {"claims": [CLAIM | {"expected": HUGE}]},
        {"claims": [CLAIM | {"interval": [0, HUGE]}]},
        {"claims": [CLAIM | {"interval": "no"}]},
        {"claims": [CLAIM | {"interval": [0, [1]]}]},
        {"claims": [CLAIM | {"measured": None}]},
        {"claims": [CLAIM | {"verdict": ["undecided"]}]},
        {"configuration": DEEP},  # Python could follow, but only from a shallow stack
        {"configuration": DEEPER},
        {"seeds": {"seed": [DEEPER]}},
    ],
    ids=range(12),
)
def test_a_damaged_manifest_costs_its_own_run_alone(here, changes):
    a_run(here / "results" / "sound", "sound", of_verdicts("consistent"))
    a_run(here / "results" / "bad", "bad", of_verdicts("consistent"))
    altered("results/bad", **changes)
    page, _, said = page_of()
    assert said.startswith("results/report.html: 1 run, ")
    assert "its manifest is damaged: results/bad" in said
    assert ["claim 0", "1", "1", "", "consistent"] in page.rows
    with pytest.raises(mf.MeanfieldError, match="is damaged"):
        RunDirectory.open("results/bad")


def test_a_sound_manifest_of_strange_words_is_shown(here):
    a_run(here / "results" / "odd", "odd\ud800", of_verdicts("consistent"), preset="(")
    altered("results/odd", configuration={"preset": "(", "parameters": {"seed": HUGE}})
    page, _, _ = page_of()
    assert r"odd\ud800" in page.text
    Path("results/odd").rename("results/caf\udce9\u00e9")
    done = process("-m", "meanfield", "report", cwd=here, PYTHONIOENCODING="ascii:strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"odd\ud800: no picture" in done.stdout
    Path("results/bad\udce9").mkdir()
    Path("results/bad\udce9/manifest.json").write_text("{")
    done = process("-m", "meanfield", "report", cwd=here, PYTHONIOENCODING="utf-8:strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"damaged: results/bad\udce9" in done.stdout


def test_what_could_not_be_shown_is_named(checkout):
    call("run", "light")
    call("run", "light")
    altered("results/light", status="interrupted", claims=[])
    Path("results/broken").mkdir()
    Path("results/broken/manifest.json").write_text("{")
    Path("results/light-2/means.npz").unlink()
    page, _, said = page_of()
    assert "results/light-2 holds no arrays named 'means'" in said
    assert "left out, its manifest is damaged: results/broken" in said
    assert page.images == []
    assert "No picture: results/light-2 holds no arrays named 'means'" in page.text
    assert any(words[0] == "largest error" for words in page.rows)
    resume = "meanfield run light --resume results/light"
    assert any(words[0] == "results/light" and words[-1] == resume for words in page.rows)
    assert "The manifest of these cannot be read. results/broken" in page.text


def test_a_figure_that_breaks_costs_the_picture_alone(checkout):
    call("run", "light")
    file = checkout / "figures" / "light_picture.py"
    file.write_text(file.read_text().replace("return figure", "return 1 / 0"))
    page, _, said = page_of()
    assert "light_picture cannot be drawn (ZeroDivisionError: division by zero)" in said
    assert "largest error" in page.text


def test_nothing_from_a_file_becomes_markup(checkout):
    call("run", "light")
    evil = "</pre></td><script>alert(1)</script><img src=x>\"'&"
    claim = {"quantity": evil + "\ud800", "expected": evil, "measured": evil}
    altered(
        "results/light",
        name=evil,
        started=evil,
        device=evil,
        versions={evil: evil},
        seeds={evil: evil},
        configuration={"preset": evil, "parameters": {evil: [evil]}, evil: evil},
        claims=[{**claim, "interval": ["nan", "inf"], "verdict": "undecided"}],
    )
    Path(f"results/light/{evil.replace('/', '')}.npz").write_bytes(b"")
    page, source, _ = page_of()
    assert "script" not in page.tags
    assert page.images == []
    assert evil in page.text
    assert [evil + r"\ud800", evil, evil, "[nan, inf]", "undecided"] in page.rows
    assert "<script" not in source


def test_a_small_animation_is_in_the_page_and_nothing_else(checkout):
    call("run", "light")
    gif = b"GIF89a" + (7).to_bytes(2, "little") + (5).to_bytes(2, "little") + b"\0" * 9
    Path("results/light/tokens.gif").write_bytes(gif)
    Path("results/light/large.gif").write_bytes(gif + b"\0" * report.LARGEST_ANIMATION)
    Path("results/light/false.gif").write_bytes(b"<script>")
    page, _, _ = page_of()
    (_, image) = page.images
    assert (image["width"], image["height"]) == ("7", "5")
    assert base64.b64decode(image["src"].removeprefix("data:image/gif;base64,")) == gif


def test_what_cannot_be_read_costs_itself_alone(checkout, monkeypatch):
    call("run", "light")
    Path("results/light/tokens.gif").write_bytes(b"GIF89a" + b"\0" * 20)
    Path("results/closed").mkdir()
    read, scan = Path.read_bytes, os.scandir

    def refusing(what, name):
        def act(path="."):
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", str(path))
            return what(path)

        return act

    monkeypatch.setattr(Path, "read_bytes", refusing(read, ".gif"))
    monkeypatch.setattr(os, "scandir", refusing(scan, "closed"))
    page, _, said = page_of()
    assert len(page.images) == 1
    assert "tokens.gif cannot be read." in page.text
    assert "left out, it cannot be entered: results/closed" in said
    assert "These cannot be entered. results/closed" in page.text


def test_an_experiment_that_means_to_have_no_figure_is_not_blamed(checkout):
    file = checkout / "experiments" / "light.py"
    file.write_text(file.read_text().replace('FIGURE = "light_picture"', "FIGURE = None"))
    call("run", "light")
    page, _, said = page_of()
    assert page.images == []
    assert "picture" not in (page.text + said).replace("light_picture", "").lower()


def test_a_run_of_an_unknown_experiment_is_shown_without_a_picture(here):
    a_run(here / "results" / "mine", "my_limit", [mf.Claim("slope", -0.5, -0.51, (-0.53, -0.49))])
    page, _, _ = page_of()
    assert ["slope", "-0.5", "-0.510", "[-0.530, -0.490]", "undecided"] in page.rows
    assert "meanfield run my_limit.py --preset paper" in page.text
    assert "no figure of my_limit is known" in page.text


def test_changed_parameters_are_said(checkout):
    call("run", "light")
    altered("results/light", configuration={"preset": None, "parameters": {"size": 3, "old": 1}})
    page, _, _ = page_of()
    assert "has changed since this run (bound, old, seed)" in page.text
    assert "meanfield run light --size 3 " in page.text + " "


def test_report_refuses_in_one_line(checkout):
    assert "results is no folder" in refused("report")
    Path("empty").mkdir()
    assert "empty holds no run; expected at least one" in refused("report", "empty")
    Path("empty/manifest.json").write_text("[]")
    assert "empty holds no run but empty, damaged" in refused("report", "empty", "--out", "a.html")
    call("run", "light")
    assert "ends in .html" in refused("report", "--out", "results/light/manifest.json")
    assert "never written to" in refused("report", "--out", "results/light/r.html")
    assert "never written to" in refused("report", "results/light")
    Path("link").symlink_to("results/light/cells")
    for out in ("link/r.html", "link/more/r.html"):
        assert "never written to" in refused("report", "--out", out)
    with contextlib.chdir("results/light/cells"):
        assert "never written to" in refused("report", "../..", "--out", "r.html")
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    refused("report", "--out", "a/r.html")
    Path("thesis.html").write_text("<p>mine</p>")
    assert "is no report" in refused("report", "--out", "thesis.html")
    assert Path("thesis.html").read_text() == "<p>mine</p>"
    Path("taken").write_text("")
    assert "cannot be written" in refused("report", "--out", "taken/report.html")
    assert not list(Path("results").glob("*.html"))
    call("report", "--out", "new/report.html")
    assert [path.name for path in Path("new").iterdir()] == ["report.html"]


def test_report_of_a_real_experiment_without_a_solver(here):
    rng = np.random.default_rng(0)
    sizes = np.array([16, 32, 64, 128])
    series = {
        name: sizes**-0.5 * np.exp(rng.normal(scale=0.1, size=(8, 4)))
        for name in ("gaussian", "cube", "digit", "sobol", "control")
    }
    file = catalogue.home("experiments") / "token_limit.py"
    run = RunDirectory.create(
        "results/token_limit",
        name="token_limit",
        configuration={"preset": None, "parameters": catalogue.defaults(file)},
    )
    run.save("errors", sizes=sizes, **series)
    run.finish([mf.Claim("gaussian: slope in n", -0.5, -0.5, (-0.52, -0.48), "consistent")])
    done = process("-c", WITHOUT_JAX, "report", "results", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    page = Reader(Path("results/report.html").read_text())
    assert len(page.images) == 1
    found = catalogue.constants(file)
    assert f"Claim: {found['CLAIM']}." in page.text
    assert " ".join(found["docstring"].split("\nCommands\n")[0].split()) in page.text
    assert "meanfield run token_limit --preset" not in page.text


# Rows


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-0.5, "-0.5"),
        (198.0, "198"),
        (0.0, "0"),
        (1.0, "1"),
        (1.0000001, "1.000"),
        (0.99999999, "1.000"),
        (110.5126, "110.5"),
        (12.796, "12.80"),
        (1.40417e-14, "1.404e-14"),
        (3.17477e11, "3.175e11"),
        (9.87526e-4, "9.875e-4"),
        (0.05791504, "0.05792"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("below 1", "below 1"),
    ],
)
def test_numbers_of_a_table(value, words):
    assert shown(value) == words


@pytest.mark.parametrize(
    ("measured", "interval", "words"),
    [
        (-0.51202, (-0.52739, -0.49665), ("-0.512", "[-0.527, -0.497]")),
        (-0.0053, (-0.0223, 0.0116), ("-0.005", "[-0.022, 0.012]")),
        (2.04632, (2.04619, 2.04645), ("2.046", "[2.046, 2.046]")),
        (1.0, (1.0, 1.0), ("1.000", "[1.000, 1.000]")),
        (2.516e-4, (2.178e-4, 4.024e-4), ("2.52e-4", "[2.18e-4, 4.02e-4]")),
        (-0.0004, (-0.02, 0.02), ("0.000", "[-0.020, 0.020]")),
        (0.3, (float("nan"), float("inf")), ("0.3000", "[nan, inf]")),
        ("nan", (0.5, float("inf")), ("nan", "[0.5000, inf]")),
        (123.4, (100.0, 150.0), ("123", "[100, 150]")),
        (0.0, (0.0, 1e-12), ("0", "[0, 1.00e-12]")),
        (0.0, (0.0, 1e-300), ("0", "[0, 1.00e-300]")),
        (0.0, (0.0, 0.0), ("0", "[0, 0]")),
    ],
)
def test_a_number_and_its_interval_are_rounded_alike(measured, interval, words):
    claim = mf.Claim("slope", -0.5, measured, interval, "consistent")
    assert row(claim) == ("slope", "-0.5", *words, "consistent")


@pytest.mark.parametrize(
    ("expected", "measured", "words"),
    [
        ("below 1e-12", 5.787e-16, "< 1e-15"),
        ("below 1e-12", 3.7e-16, "< 1e-15"),
        ("at most 1e-12", 1e-15, "< 1e-14"),
        ("below 1e-20 (rounding)", 6.2e-34, "< 1e-33"),
        ("below 1e-12", 2e-12, "2e-12"),
        ("below 5e-13", 1.2345e-13, "1.234e-13"),  # a power of ten would not say that it holds
        ("at least 0", 5.787e-16, "5.787e-16"),
        ("below 1", 0.0, "0"),
        (0.0, 5.787e-16, "5.787e-16"),
    ],
)
def test_numbers_at_rounding_level_are_rounded_up(expected, measured, words):
    assert row(mf.Claim("gap", expected, measured, None, "consistent")).measured == words


def test_a_control_that_does_its_work_fails_as_it_should():
    for verdict, words in (
        ("consistent", "fails, as it should"),
        ("inconsistent", "inconsistent"),
        ("undecided", "undecided"),
    ):
        assert row(mf.Claim("control (copies)", "below 1", 0.5, None, verdict)).verdict == words
        assert row(mf.Claim("gap", "below 1", 0.5, None, verdict)).verdict == verdict


def test_the_command_of_a_run_repeats_it(checkout):
    call("run", "light", "--size", 50, "--bound", 0.5)
    command = command_of(RunDirectory.open("results/light"))
    assert command == "meanfield run light --size 50 --bound 0.5"
    assert call(*shlex.split(command)[1:])[0] == 0
    first, second = (
        RunDirectory.open(f"results/{name}").configuration for name in ("light", "light-2")
    )
    assert first == second


def test_flags_of_every_kind_come_back(here):
    path = catalogue.home("experiments") / "clustering.py"
    module: Any = catalogue.load(path, ("Parameters",))
    preset = catalogue.build_parameters(
        module.Parameters, catalogue.preset_overrides(path, "paper"), "here"
    )
    for changes in (
        {},
        {"betas": (0.25, 1e-5, 2.0, 3.0), "animate": not preset.animate, "seed": 7},
    ):
        wanted = {**vars(preset), **changes}
        run = a_run(here / f"run-{len(changes)}", "clustering", [], **wanted)
        words = shlex.split(command_of(run))
        assert words[:5] == ["meanfield", "run", "clustering", "--preset", "paper"]
        found = flags.parse(module.Parameters, words[5:], prog="x", default=preset)
        assert vars(found) == wanted
        assert len(words) == 5 + (8 if changes else 0)


# README and docs/results.md


def test_readme_and_results_page_are_what_the_stored_claims_make():
    stored = build.read_claims(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == build.with_table(readme, build.headline_table(stored.values()))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == build.results_page(stored.values())
    name, summary = next(iter(stored.items()))
    first = summary.headlines()[0]
    other = mf.Claim(first.quantity, first.expected, 1.25, None, "consistent")
    claims = tuple(other if claim == first else claim for claim in summary.claims)
    spoilt = {**stored, name: Summary(name, "paper", summary.seconds, summary.command, claims)}
    assert readme != build.with_table(readme, build.headline_table(spoilt.values()))
    assert page != build.results_page(spoilt.values())


def test_stored_claims_are_of_the_paper_preset_and_name_no_machine():
    text = build.claims_file(ROOT).read_text(encoding="utf-8")
    found = json.loads(text)
    assert text == json.dumps(found, indent=1, sort_keys=True) + "\n"
    assert set(found) <= set(catalogue.names("experiments"))
    assert {entry["preset"] for entry in found.values()} == {"paper"}
    assert not re.search(r"/(home|tmp|root|work|Users)\b", text)


@pytest.mark.parametrize("name", sorted(build.read_claims(ROOT)))
def test_each_headline_names_one_claim(name):
    claims = build.read_claims(ROOT)[name].claims
    file = catalogue.home("experiments") / f"{name}.py"
    headlines = catalogue.constants(file).get("HEADLINES", (claims[0].quantity,))
    assert headlines
    for headline in headlines:
        assert sum(is_named(claim, headline) for claim in claims) == 1, headline


def headed(light: Path, headlines: str) -> None:
    """Give the light experiment headlines."""
    file = light / "experiments" / "light.py"
    file.write_text(file.read_text().replace("FIGURE =", f"HEADLINES = {headlines}\nFIGURE ="))


def of_verdicts(*verdicts: str) -> list[mf.Claim]:
    return [mf.Claim(f"claim {k}", 1.0, 1.0, None, v) for k, v in enumerate(verdicts)]


def test_what_is_not_consistent_stands_in_readme_whatever_the_headlines(checkout):
    claims = of_verdicts("consistent", "consistent", "inconsistent", "undecided", "consistent")
    a_run(checkout / "results" / "light", "light", claims)
    build.take_claims(checkout, checkout / "results")
    (summary,) = build.read_claims(checkout).values()
    assert [claim.quantity[-1] for claim in summary.headlines()] == ["0", "2", "3"]
    headed(checkout, "('claim 4',)")
    assert [claim.quantity[-1] for claim in summary.headlines()] == ["2", "3", "4"]
    lines = build.headline_table([summary]).splitlines()
    assert lines[2] == (
        "| `light` | claim 2 | 1 | 1 | inconsistent | `meanfield run light --preset paper` |"
    ).replace(" --preset paper", "")  # no such preset there: its values would be flags
    assert lines[3] == "|  | claim 3 | 1 | 1 | undecided |  |"
    assert all(f"| claim {k} |" in build.results_page([summary]) for k in range(5))


def test_building_takes_paper_runs_and_keeps_what_it_has_no_run_of(checkout, monkeypatch):
    root = checkout
    other = (root / "experiments" / "light.py").read_text().replace("light_picture", "absent")
    (root / "experiments" / "heavy.py").write_text(other)
    (root / "docs").mkdir()
    (root / "README.md").write_text(f"before\n{build.BEGIN}\nold\n{build.END}\nafter\n")
    a_run(root / "first" / "heavy", "heavy", of_verdicts("consistent"))
    a_run(root / "first" / "gone", "gone", of_verdicts("consistent"))
    assert build.take_claims(root, root / "first") == ["heavy"]
    stored = json.loads(build.claims_file(root).read_text())
    build.claims_file(root).write_text(json.dumps(stored | {"gone": stored["heavy"]}))
    run = a_run(root / "second" / "a", "light", of_verdicts("consistent", "consistent"))
    with np.load(_means(root)) as means:
        (run.path / "means.npz").write_bytes(Path(means.fid.name).read_bytes())
    (run.path / "tokens.gif").write_bytes(b"GIF89a moving")
    a_run(root / "second" / "b", "light", of_verdicts("inconsistent"), preset="smoke")
    assert build.build(["--results", str(root / "second")], root) == 0
    assert list(build.read_claims(root)) == ["heavy", "light"]
    readme = (root / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert readme.count("`heavy`") == readme.count("`light`") == 1
    assert "\nold\n" not in readme
    assert "inconsistent" not in readme
    assert (root / "figures" / "gallery" / "light_picture.png").exists()
    gallery = root / "figures" / "gallery"
    assert (gallery / "light.gif").read_bytes() == b"GIF89a moving"
    caption = (gallery / "light_picture.txt").read_text().strip()
    assert (
        f"](light_picture.png)\n\n{build._prose(caption)}\n" in (gallery / "README.md").read_text()
    )
    written = build.claims_file(root).read_bytes()
    assert build.build(["--results", str(root / "second"), "light_picture"], root) == 0
    assert build.claims_file(root).read_bytes() == written
    assert build.build(["--tables"], root) == 0
    assert (root / "README.md").read_text() == readme
    assert build.build(["--results", str(root / "nowhere")], root) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        "{",
        "null",
        '{"light": 3}',
        '{"light": {"preset": null}}',
        '{"light": {"preset": null, "seconds": 1, "command": 5, "claims": []}}',
        '{"light": {"preset": null, "seconds": 1e999, "command": "", "claims": [{}]}}',
        json.dumps({"light": {"preset": None, "seconds": HUGE, "command": "", "claims": []}}),
        json.dumps(
            {"light": dict(preset="", seconds=1, command="", claims=[CLAIM | {"interval": [1]}])}
        ),
        "{}",
    ],
)
def test_damaged_claims_are_refused_before_anything_is_written(checkout, damage):
    root = checkout
    a_run(root / "r" / "light", "light", of_verdicts("consistent"))
    (root / "README.md").write_text(f"{build.BEGIN}\nold\n{build.END}\n")
    build.claims_file(root).parent.mkdir(parents=True)
    build.claims_file(root).write_text(damage)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for arguments in (["--tables"], ["--results", str(root / "r")])[: 1 if damage == "{}" else 2]:
        with pytest.raises(mf.MeanfieldError) as caught:
            build.build(arguments, root)
        assert "claims.json" in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_intervals_that_do_not_hold_the_expected_number_are_counted():
    claims = [
        mf.Claim("inside", 1.0, 1.0, (0.9, 1.1), CONSISTENT),
        mf.Claim("at its end", 1.0, 1.1, (1.0, 1.1), CONSISTENT),
        mf.Claim("outside", 1.0, 1.1, (1.05, 1.15), CONSISTENT),
        mf.Claim("in words", "below 1", 0.5, (0.4, 0.6), CONSISTENT),
        mf.Claim("no interval", 1.0, 0.5, None, CONSISTENT),
    ]
    summaries = [Summary("x", "paper", 1.0, "x", tuple(claims))]
    words = "1 of the 3 intervals around a number do not hold it"
    assert build.apart(summaries) == words
    assert words in build.headline_table(summaries)


def test_the_gallery_has_a_page_of_all_its_pictures():
    page = (ROOT / "figures" / "gallery" / "README.md").read_text(encoding="utf-8")
    assert page == build.gallery_page(ROOT)
    shown_there = set(re.findall(r"\]\((\w+\.(?:png|gif))\)", page))
    gallery = ROOT / "figures" / "gallery"
    assert shown_there == {
        path.name for path in gallery.iterdir() if path.suffix in (".png", ".gif")
    }


def _means(root: Path) -> Path:
    np.savez(root / "means.npz", means=np.arange(10.0))
    return root / "means.npz"


def test_readme_without_its_place_is_refused():
    for text in ("", build.BEGIN, build.END + build.BEGIN, (build.BEGIN + build.END) * 2):
        with pytest.raises(mf.MeanfieldError, match="no one place"):
            build.with_table(text, "table\n")


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("|grad R|", r"\|grad R\|"),
        ("lambda_min of 5", "lambda_min of 5"),
        ("_a_ *b* `c` $d$", r"\_a\_ \*b\* \`c\` \$d\$"),
        ("<b> beta <= 1", r"\<b> beta <= 1"),
        ("[x](y)\nz", r"[x\](y) z"),
    ],
)
def test_words_in_markdown_read_the_same(text, markdown):
    assert build._prose(text) == markdown


def test_the_newest_finished_run_of_a_preset(here):
    for number, (preset, status) in enumerate(
        [("paper", "finished"), ("smoke", "finished"), ("smoke", "failed")]
    ):
        a_run(here / "r" / str(number), "x", [], preset=preset)
        altered(f"r/{number}", status=status, started=f"2026-01-0{number + 1}")
    runs = find_runs("r")
    assert newest_finished(runs)["x"].path.name == "1"
    assert newest_finished(runs, "paper")["x"].path.name == "0"
    assert newest_finished(runs, "other") == {}
