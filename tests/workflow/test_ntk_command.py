"""`meanfield ntk`: verdicts and exit codes, JSON, certificates, and input that is wrong."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meanfield as mf
from meanfield._commands import ntk
from tests.workflow.command_line import call, process, refused

# on a dyadic grid, so that the shift is exact
CLOUD = np.array([[0.5, 0.25], [-0.25, 0.75], [0.125, -0.5], [-0.625, -0.375]])
SHIFT = np.array([0.25, -0.125])
CUBES = ["cube:radius=1,dim=2", "cube:radius=2,dim=2"]
KEYS = {
    "verdict",
    "num_pairs",
    "nullity",
    "predicted_nullity",
    "lambda_min",
    "lambda_max",
    "gap",
    "reasons",
}


def translated() -> str:
    np.save("translated.npy", np.stack([CLOUD, CLOUD + SHIFT]))
    return "translated.npy"


def found(*args: object) -> tuple[int, dict[str, Any]]:
    """Exit code and the one object that --json prints."""
    code, out, err = call("ntk", *args, "--json")
    assert err == "", err
    result = json.loads(out)
    assert set(result) >= KEYS
    return code, result


def test_two_translated_clouds_are_reported_with_their_shift(here):
    code, out, err = call("ntk", translated(), "--queries", "shared:3")
    assert (code, err) == (1, "")
    assert out.startswith("not positive: ")
    assert "nullity     2 by numbers, 2 by theory" in out
    assert "context 2 is context 1 shifted by (0.25, -0.125)" in out
    assert os.listdir() == ["translated.npy"]
    code, result = found("translated.npy", "--queries", "shared:3")
    assert (code, result["verdict"], result["num_pairs"]) == (1, "not positive", 6)
    assert (result["nullity"], result["predicted_nullity"]) == (2, 2)
    assert result["reasons"] == ["context 2 is context 1 shifted by (0.25, -0.125)"]
    assert result["lambda_min"] < 1e-20 < 1e-3 < result["lambda_max"]


def test_one_query_does_not_see_a_translation_but_the_score_part_does(here):
    code, result = found(translated(), "--queries", "one")
    assert (code, result["verdict"], result["nullity"]) == (0, "positive", 0)
    assert result["gap"] >= 1e3
    low, high = result["lambda_min_interval"]
    assert 0 < low < high
    code, result = found("translated.npy", "--queries", "one", "--part", "A")
    assert (code, result["nullity"], result["predicted_nullity"]) == (1, 1, 1)
    code, result = found("translated.npy", "--queries", "one", "--part", "full")
    assert (code, result["nullity"], result["predicted_nullity"]) == (0, 0, 0)


def test_a_batch_is_its_contexts_and_laws_stand_beside_files(here):
    np.save("first.npy", CLOUD)
    np.savez("second.npz", points=CLOUD + SHIFT, weights=np.full(4, 3.0))
    rows = "\n".join(f"{x},{y}" for x, y in CLOUD + SHIFT)
    Path("second.csv").write_text(rows + "\n")
    whole = found(translated(), CUBES[0])
    assert whole == found("first.npy", "second.npz", CUBES[0])
    assert whole == found("first.npy", "second.csv", CUBES[0])
    assert whole[1]["num_contexts"] == 3
    code, result = found("first.npy", "second.csv", "--queries", "own", "--heads", 16, "--seed", 5)
    assert (code, result["num_pairs"], result["num_heads"]) == (0, 8, 16)


def test_padding_of_a_batch_is_no_query_and_a_zero_mass_token_is_one(here):
    clouds = [mf.TokenMeasure(CLOUD[:3]), mf.TokenMeasure(CLOUD + SHIFT).with_queries([[1.0, 1.0]])]
    mf.stack_contexts(clouds).save("padded.npz")
    code, result = found("padded.npz", "--queries", "own")
    assert (code, result["num_pairs"], result["nullity"]) == (0, 3 + 5, 0)


def test_queries_of_a_file_are_shared_or_one_array_for_each_context(here):
    np.save("shared.npy", [[1.0, 0.5]])
    np.save("each.npy", [[[1.0, 0.5]], [[0.5, 0.25]]])
    assert found(*CUBES, "--queries", "shared.npy")[1]["nullity"] == 0
    code, result = found(*CUBES, "--queries", "each.npy")  # the dilation between the cubes cancels
    assert (code, result["nullity"], result["predicted_nullity"]) == (1, 1, 1)
    assert "dilated" in result["reasons"][0]


def test_heads_of_rank_one_and_too_few_heads(here):
    code, result = found(*CUBES, "--head-dim", 1, "--heads", 40)
    assert (code, result["num_heads"], result["nullity"]) == (0, 40, 0)
    code, result = found(*CUBES, "--heads", 2)
    assert (code, result["nullity"], result["predicted_nullity"]) == (1, 2, 2)
    assert "too few heads" in result["reasons"][0]


def test_a_perceptron_sees_the_query_and_no_context(here):
    code, result = found(translated(), "--field", "perceptron", "--queries", "shared:2")
    assert (code, result["nullity"], result["predicted_nullity"]) == (1, 2, None)
    assert "query 1 of context 2 has the features of query 1 of context 1" in result["reasons"]


def test_beyond_float64_is_undecided_until_it_is_proved(here):
    small = [*CUBES, "cube:radius=1.5,dim=2", "--scale", 1e-4]
    code, result = found(*small)
    assert (code, result["verdict"], result["predicted_nullity"]) == (3, "undecided", 0)
    assert result["reasons"]
    code, result = found(*small, "--certify", "--out", "proof.json")
    assert (code, result["verdict"]) == (0, "positive")
    assert 0 < result["certificate"]["lower_bound"] < 1e-30
    bound = result["certificate"]["lower_bound"]
    (reason,) = result["reasons"]  # no advice that has been followed
    assert f"lambda_min >= {bound!r}: this is the value that counts" in reason
    assert result["certificate"]["path"] == "proof.json"


def test_a_certificate_is_stored_checked_again_and_fails_when_altered(here):
    code, out, err = call("ntk", *CUBES, "--certify")
    assert (code, err) == (0, "")
    assert "certified: lambda_min >= " in out
    assert call("ntk", *CUBES, "--certify")[0] == 0  # a second one stands beside the first
    path = Path("results/ntk/certificate.json")
    assert Path("results/ntk-2/certificate.json").read_bytes() == path.read_bytes()
    code, out, err = call("ntk", "--verify", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: holds: ")
    stored = json.loads(path.read_text())
    code, out, _ = call("ntk", "--verify", path, "--json")
    assert (code, json.loads(out)["lower_bound"]) == (0, stored["lower_bound"])

    heads = json.loads(json.dumps(stored["inputs"]).replace("-0.", "0.", 1))
    for name, value in {
        "lower_bound": stored["lower_bound"] * 1.001,
        "statement": stored["statement"].replace("strictly ", ""),
        "precision": 2 * stored["precision"],
        "inputs_sha256": "0" * 64,
        "inputs": heads,
    }.items():
        Path("altered.json").write_text(json.dumps({**stored, name: value}))
        code, out, err = call("ntk", "--verify", "altered.json")
        assert (code, err) == (1, ""), name
        assert "does not hold" in out
    Path("altered.json").write_text(path.read_text()[:-40])
    assert "altered.json" in refused("ntk", "--verify", "altered.json")


def test_independence_is_certified_modulo_what_the_queries_see(here):
    code, result = found(translated(), "--certify", "--kind", "independence")
    assert (code, result["certificate"]["status"], result["certificate"]["path"]) == (
        1,
        "refused",
        None,
    )
    assert "shifted by (0.25, -0.125)" in result["certificate"]["reason"]
    one = ["--queries", "one", "--certify", "--kind", "independence", "--out", "one.json"]
    code, result = found("translated.npy", *one)
    assert (code, result["certificate"]["status"]) == (0, "certified")
    assert "constant" in result["certificate"]["statement"]
    assert sorted(os.listdir()) == ["one.json", "translated.npy"]


def test_unbounded_laws_are_to_be_independent_modulo_degree_two(here):
    gaussians = ["gaussian:cov=1/0/0/1", "gaussian:cov=1/0.3/0.3/0.5"]
    prove = ["--certify", "--kind", "independence", "--out", "x.json"]
    code, result = found(*gaussians, *prove)
    proof = result["certificate"]
    assert (code, proof["status"], proof["modulo"]) == (1, "refused", "quadratic")
    code, result = found(*gaussians, *prove, "--modulo", "affine")  # true, and no positive kernel
    proof = result["certificate"]
    assert (code, proof["status"], proof["modulo"]) == (1, "certified", "affine")
    assert "for the kernel of unbounded laws nothing follows" in proof["statement"]
    laws = [CUBES[0], "laplace:cov=1/0.3/0.3/0.6"]
    code, result = found(*laws, *prove)
    assert (code, result["certificate"]["modulo"]) == (0, "quadratic")
    assert "is positive" in result["certificate"]["statement"]
    assert found(*CUBES, *prove)[1]["certificate"]["modulo"] == "affine"


def test_a_refused_certificate_leaves_the_old_file(here):
    Path("proof.json").write_text("the old proof")
    code, out, _ = call("ntk", translated(), "--certify", "--out", "proof.json")
    assert code == 1
    assert "certificate refused (positivity): " in out
    assert Path("proof.json").read_text() == "the old proof"


def test_suggestions_are_a_table_or_none_where_no_heads_can_help(here):
    code, result = found(*CUBES, "--suggest", "--heads", 32)
    suggestion = result["suggestion"]
    table = np.array(suggestion["lambda_min"], dtype=float)
    assert table.shape == (len(suggestion["scales"]), len(suggestion["head_counts"]))
    best = suggestion["scales"].index(suggestion["best_scale"])
    assert (code, table[best, -1]) == (0, np.nanmax(table[:, -1]))
    assert max(suggestion["head_counts"]) == 32
    code, out, _ = call("ntk", translated(), "--suggest")
    assert code == 1
    assert "no suggestion: theory predicts 2 null directions" in out


def test_the_picture_shows_the_spectrum_and_the_null_directions(here, monkeypatch):
    from meanfield import plotting

    kept = []
    save = plotting.save_figure
    monkeypatch.setattr(
        plotting,
        "save_figure",
        lambda figure, *a, **k: kept.append(figure) or save(figure, *a, **k),
    )
    code, result = found(translated(), "--picture", "null.png")
    assert (code, result["picture"]) == (1, "null.png")
    assert Path("null.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    spectrum, strip = kept[0].axes[:2]
    assert spectrum.get_title(loc="left") == "(a) V-part, P = 6, M = 64, d = 2"
    named = [text.get_text() for text in spectrum.get_legend().get_texts()]
    assert named == ["eigenvalues", "zero to rounding (not to scale)"]
    assert np.asarray(spectrum.lines[0].get_ydata()).tolist() == result["eigenvalues"][:4]
    assert np.asarray(strip.images[0].get_array()).shape == (2, 6)
    call("ntk", *CUBES, "--picture", "positive.pdf")
    assert Path("positive.pdf").read_bytes()[:5] == b"%PDF-"
    assert len(kept[1].axes) == 1
    assert kept[1].axes[0].get_title(loc="left") == "V-part, P = 6, M = 64, d = 2"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "no contexts"),
        (["cubes:radius=1"], "cube:radius=1,dim=2"),
        (["cube"], "'cube' is no law"),
        (["cloud.txt"], ".npy, .npz or .csv"),
        (["missing.npy"], "missing.npy does not exist"),
        (["nan.npy"], "nan"),
        (["huge.npy"], "numbers of size 1e+200"),
        ([CUBES[0], "wide.npy"], "widths [2, 5]"),
        (["gauss:cov=1/0/0/1"], "one of cube, laplace, gaussian, gmm"),
        (["missing.npz", CUBES[0], "--field", "perceptron"], "missing.npz does not exist"),
        ([CUBES[0], "--queries", "own"], "context 1, a Cube law"),
        ([CUBES[0], "--queries", "own"], "(--queries shared:3), or a file of a cloud"),
        ([CUBES[0], "--queries", "shared:0"], "shared:0"),
        ([CUBES[0], "--queries", "some"], "'some'"),
        ([CUBES[0], "--queries", "wide.npy"], "(3, 5)"),
        ([CUBES[0], "--queries", "weighted.npz"], "unequal weights"),
        ([CUBES[0], "--queries", "batch.npy"], "2 contexts, and 1"),
        ([CUBES[0], "--heads", 0], "pass --heads 64, or none"),
        ([CUBES[0], "--heads", 10**9], "1000000000 heads"),
        ([CUBES[0], "--queries", "shared:5000"], "5000 columns"),
        ([CUBES[0], "--scale", "nan"], "pass --scale 1.0, or none"),
        ([CUBES[0], "--head-dim", 0], "pass --head-dim 1, or none"),
        ([CUBES[0], "--seed", -1], "--seed -1"),
        (["laplace:cov=1/0/0/1", "--scale", 5], "Laplace law has no finite"),
        (["laplace:cov=1/0/0/1", "--scale", 5], "smaller heads (--scale)"),
        ([CUBES[0], "--kind", "positivity"], "without --certify"),
        ([CUBES[0], "--out", "x.json"], "without --certify"),
        ([CUBES[0], "--certify", "--out", "x.txt"], "--out x.txt"),
        ([CUBES[0], "--certify", "--part", "A"], "--certify with --part A; "),
        (["batch.npy", "--certify", "--field", "perceptron"], "proved of a perceptron's kernel"),
        ([CUBES[0], "--modulo", "affine"], "without --certify"),
        ([CUBES[0], "--certify", "--modulo", "affine"], "add --kind independence"),
        ([CUBES[0], "--picture", "x.gif"], "--picture x.gif"),
        ([CUBES[0], "--picture", "wide.npy/x.png"], "wide.npy is no folder"),
        ([CUBES[0], "--field", "perceptron"], "context 1, 'cube:radius=1,dim=2', with --field"),
        ([CUBES[0], "--field", "perceptron", "--suggest"], "--suggest"),
        ([CUBES[0], "--fields", "perceptron"], "--fields"),
        (["--verify", "missing.json"], "missing.json does not exist"),
        (["--verify", "wide.npy"], "wide.npy is no certificate"),
        (["--verify", "x.json", CUBES[0]], "--verify FILE alone"),
        (["--verify", "x.json", "--seed", 1], "--seed"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(here, args, words):
    np.save("wide.npy", np.ones((3, 5)))
    np.save("nan.npy", [[np.nan, 1.0]])
    np.save("huge.npy", np.full((3, 2), 1e200))
    np.save("batch.npy", np.ones((2, 3, 2)))
    np.savez("weighted.npz", points=CLOUD, weights=[1.0, 2.0, 3.0, 4.0])
    before = sorted(os.listdir())
    assert words in refused("ntk", *args)
    assert sorted(os.listdir()) == before


def test_laws_known_before_jax_are_those_of_the_parser():
    from meanfield.laws import _parse

    assert tuple(_parse._FIELDS) == ntk.LAWS


@pytest.mark.parametrize(
    "advice",
    [
        "pass a scale such as 1.0",
        "pass num_particles=1 or more",
        "pass a cloud such as law.tokens(64, key=key)",
        "take fewer queries, or certify independence",
    ],
)
def test_advice_for_python_becomes_advice_for_the_command_line(advice):
    error = ntk._for_the_command_line(mf.MeanfieldError("given", "expected", advice))
    assert error.given == "given"
    assert not re.search(r"\w=|\(", error.mend)
    assert "--" in error.mend or "file" in error.mend


def test_json_is_alone_on_standard_output_of_a_process(here):
    done = process("-m", "meanfield", "ntk", translated(), "--json", cwd=here)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["nullity"] == 2
