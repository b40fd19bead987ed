import json
from pathlib import Path

from meanfield._commands import catalogue
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
    assert f"{newest['claims'][0]['measured']:.4g}" in caption
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
    code, out, err = call("figures")
    assert code == 2
    assert "run: meanfield run light" in out
    assert err.count("\n") == 1
    assert "meanfield run light" in refused("figures", "light_picture")
    assert "no figure is named 'nothing'" in refused("figures", "nothing")
    call("run", "light")
    Path("results/light/means.npz").unlink()
    assert "no arrays named 'means'" in refused("figures")
    assert not Path("results/figures").exists()


def test_wheel_layout_is_found_where_no_checkout_is(tmp_path, monkeypatch):
    import meanfield

    assert catalogue.home("figures").name == "figures"
    assert catalogue.home("figures").parent == Path(meanfield.__file__).parents[1]
    monkeypatch.setattr(meanfield, "__file__", str(tmp_path / "meanfield" / "__init__.py"))
    assert catalogue.home("figures") == tmp_path / "meanfield" / "_bundled" / "figures"
