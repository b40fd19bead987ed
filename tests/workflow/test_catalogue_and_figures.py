import contextlib
import json
from pathlib import Path

import pytest

from meanfield._commands import catalogue
from meanfield.records import shown
from tests.workflow.command_line import call, refused


def test_list_names_each_with_claim_and_cost(checkout):
    code, out, err = call("list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "experiments",
        "  light  a mean is close to its expectation [nothing]",
        "figures",
        "  light_picture  A picture of the light experiment's means. [reads light]",
    ]


def test_list_of_this_project_is_a_line_each():
    code, out, _ = call("list")
    names = [*catalogue.names("experiments"), *catalogue.names("figures")]
    assert code == 0
    assert len(out.splitlines()) == len(names) + 2
    for name in names:
        assert f"  {name} " in out


def test_figures_draws_the_newest_finished_run(checkout):
    call("run", "light", "--size", 50)
    call("run", "light", "--size", 60)
    code, out, err = call("figures")
    assert (code, err) == (0, "")
    assert "light_picture: results/figures/light_picture.png" in out
    caption = Path("results/figures/light_picture.txt").read_text()
    newest = json.loads(Path("results/light-2/manifest.json").read_text())
    assert shown(newest["claims"][0]["measured"]) in caption
    assert Path("results/figures/light_picture.pdf").read_bytes()[:5] == b"%PDF-"
    code, _, _ = call("figures", "light_picture", "--out", "elsewhere")
    assert code == 0
    assert Path("elsewhere/light_picture.png").exists()


def test_figures_check_follows_the_claims(checkout):
    call("run", "light")
    assert call("figures", "--check")[0] == 0
    call("run", "light", "--bound", 1e-9)
    assert call("figures", "--check")[0] == 1
    assert call("figures")[0] == 0


def test_figures_without_results_say_what_to_run(checkout):
    assert "meanfield run NAME" in refused("figures")
    Path("results").mkdir()
    assert "no finished run in results; expected" in refused("figures")
    assert "meanfield run light" in refused("figures", "light_picture")
    assert "no figure is named 'nothing'" in refused("figures", "nothing")
    call("run", "light")
    Path("results/light/means.npz").unlink()
    assert "no arrays named 'means'" in refused("figures")
    assert not Path("results/figures").exists()


def test_runs_of_another_preset_are_named_once(checkout):
    call("run", "light")
    manifest = Path("results/light/manifest.json")
    stored = json.loads(manifest.read_text())
    stored["configuration"]["preset"] = "smoke"
    manifest.write_text(json.dumps(stored))
    said = refused("figures", "--preset", "paper")
    assert "no finished run of preset paper (found: smoke) in results; expected" in said
    said = refused("figures", "light_picture", "--preset", "paper")
    assert "light_picture: no finished run of light of preset paper (found: smoke)" in said


def test_no_picture_is_written_into_a_run(checkout):
    call("run", "light")
    Path("link").symlink_to("results/light/cells")
    before = sorted(Path("results").rglob("*"))
    for words in (
        ("--results", "results/light"),
        ("--out", "results/light"),
        ("--out", "results/light/cells/new"),
        ("--out", "link"),
    ):
        assert "never written to" in refused("figures", *words)
    with contextlib.chdir("results/light"):
        assert "never written to" in refused("figures", "--results", "..", "--out", "x")
    assert sorted(Path("results").rglob("*")) == before


def test_a_caption_ends_with_the_headlines_in_the_numbers_of_the_tables(checkout):
    file = checkout / "experiments" / "light.py"
    text = file.read_text().replace("FIGURE =", 'HEADLINES = ("slope*",)\nFIGURE =')
    file.write_text(text)
    figure = checkout / "figures" / "light_picture.py"
    source = figure.read_text().replace(
        "return f\"Ten means, {runs['light'].claims[0].sentence()}.\"", 'return "Ten means."'
    )
    figure.write_text(source)
    call("run", "light")
    manifest = Path("results/light/manifest.json")
    claim = {"expected": -1, "measured": -1.00012, "interval": [-1.001, -0.9988]}
    claims = [
        {"quantity": quantity, "verdict": verdict, **claim}
        for quantity, verdict in (
            ("slope in L", "consistent"),
            ("slope in M", "consistent"),
            ("other", "consistent"),
            ("control", "inconsistent"),
        )
    ]
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"claims": claims}))

    def caption() -> str:
        assert call("figures")[0] == 0
        return Path("results/figures/light_picture.txt").read_text()

    words = "-1.000 [-1.001, -0.999], expected -1"
    last = f"control {words}: inconsistent.\n"
    slopes = [f"slope in {size} {words}: consistent; " for size in "LM"]
    assert caption() == f"Ten means. Measured: {slopes[0]}{slopes[1]}{last}"
    figure.write_text(source.replace("EXPERIMENTS", 'CLAIMS = ("*M",)\nEXPERIMENTS'))
    assert caption() == f"Ten means. Measured: {slopes[1]}{last}"
    figure.write_text(source.replace("EXPERIMENTS", "CLAIMS = ()\nEXPERIMENTS"))
    assert caption() == f"Ten means. Measured: {last}"


@pytest.mark.parametrize(
    ("preset", "seconds"),
    [("smoke", 15.0), ("paper", 120.0), ("(", None), ("odd", None), ("", None), (None, None)],
)
def test_cost_of_a_preset_whatever_its_name(tmp_path, preset, seconds):
    file = tmp_path / "x.py"
    file.write_text('COST = "smoke 15 s, paper 2 min, odd 1.2.3 s"\n')
    assert catalogue.nominal_seconds(file, preset) == seconds


def test_wheel_layout_is_found_where_no_checkout_is(tmp_path, monkeypatch):
    import meanfield

    assert catalogue.home("figures").name == "figures"
    assert catalogue.home("figures").parent == Path(meanfield.__file__).parents[1]
    monkeypatch.setattr(meanfield, "__file__", str(tmp_path / "meanfield" / "__init__.py"))
    assert catalogue.home("figures") == tmp_path / "meanfield" / "_bundled" / "figures"
