"""Certificates: what they prove, what they refuse, and that no altered one survives."""

import hashlib
import inspect
import json
import math
import re

import flint
import numpy as np
import pytest

import meanfield as mf
from meanfield import MeanfieldError
from meanfield.fields.attention import AttentionAV, AttentionQKV
from meanfield.laws import AffineImage, Convolution, Laplace
from meanfield.ntk import Pairs, _balls, _proofs, certificate, certify, evaluate, pairs_of, verify
from meanfield.ntk.certificate import Certificate

GENERATOR = np.random.default_rng(7)
COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.6]])
CUBES = [mf.Cube(radius, 2) for radius in (1.0, 1.5, 2.0)]
SHIFT = np.array([0.3, -0.2])
RADEMACHER = mf.Empirical(mf.TokenMeasure(np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])))
GAUSSIANS = [
    mf.Gaussian(np.zeros(2), matrix)
    for matrix in (COVARIANCE, np.eye(2), np.diag([2.0, 1.0]), [[1.0, -0.4], [-0.4, 2.0]])
]


def cloud(num: int = 4, dim: int = 2, seed: int = 0) -> mf.TokenMeasure:
    return mf.TokenMeasure(np.random.default_rng([seed, num, dim]).normal(size=(num, dim)))


def moved(mu: mf.TokenMeasure, matrix: np.ndarray, shift: np.ndarray) -> mf.TokenMeasure:
    """Tokens rounded to float64: not an exact image."""
    return mf.TokenMeasure(np.asarray(mu.points) @ matrix + shift)


def dirac(*point: float) -> mf.TokenMeasure:
    return mf.TokenMeasure(np.array([point]))


def heads(num: int, scale: float = 1.0, dim: int = 2, seed: int = 0) -> AttentionAV:
    matrices = scale * np.random.default_rng([seed, num]).normal(size=(num, dim, dim))
    return AttentionAV(A=matrices, V=matrices)  # type: ignore[arg-type]


def eigenvalue(pairs: Pairs, ensemble: AttentionAV) -> float:
    """lambda_min by the singular values of the features in float64."""
    matrices = np.asarray(ensemble.A)
    columns = [
        evaluate(pairs.laws[i], np.einsum("i,jik->jk", x, matrices), 1).ravel()
        for i, x in zip(pairs.index, pairs.queries, strict=True)
    ]
    values = np.linalg.svd(np.stack(columns, axis=1) / math.sqrt(len(matrices)), compute_uv=False)
    return float(values[-1] ** 2)


@pytest.fixture(scope="module")
def of_independence() -> Certificate:
    return certify(CUBES)


@pytest.fixture(scope="module")
def of_positivity() -> Certificate:
    return certify([cloud(), cloud(5)], "shared:2", kind="positivity", heads=heads(8))


class TestIndependence:
    def test_thirty_clouds(self, tmp_path):
        found = certify([cloud(64, 4, seed) for seed in range(30)])
        assert found.status == "certified"
        assert found.lower_bound is None
        assert found.enclosure is not None
        low, high = map(float, found.enclosure)
        assert low * high > 0
        assert abs(high - low) < 3e-8 * abs(low)
        assert "any two or more non-zero, pairwise non-collinear queries" in found.statement
        found.save(tmp_path / "clouds.json")
        again = verify(tmp_path / "clouds.json")
        assert again.holds, again.reason
        assert "proved again" in again.reason

    def test_determinant_by_other_means(self, of_independence):
        """Three cubes by hand: rows Lam_i, 1, z_1, z_2 at the stored points, in float64."""
        points = np.array(of_independence.inputs["points"])
        table = [*(evaluate(law, points, 0) for law in CUBES), np.ones(len(points)), *points.T]
        assert of_independence.enclosure is not None
        low, high = map(float, of_independence.enclosure)
        assert np.linalg.det(np.stack(table)) == pytest.approx((low + high) / 2, rel=1e-6)

    @pytest.mark.parametrize(
        "laws",
        [
            [Laplace(0.3 * COVARIANCE), Laplace(0.2 * np.eye(2))],
            [mf.two_component_mixture([t, 0.3], COVARIANCE) for t in (0.6, 1.2)],
            [AffineImage(CUBES[0], COVARIANCE), cloud(), CUBES[1]],
            [Convolution([CUBES[0], CUBES[1]]), CUBES[0], cloud(3)],
        ],
        ids=["laplace", "mixtures", "mixed", "convolution"],
    )
    def test_families(self, laws):
        found = certify(laws, modulo="quadratic")
        assert found.status == "certified", found.reason
        assert found.modulo == "quadratic"
        assert "at any non-zero, pairwise non-collinear queries" in found.statement

    def test_modulo_constants(self):
        """Translates are no obstruction at one query."""
        found = certify([cloud(), moved(cloud(), np.eye(2), SHIFT)], modulo="constants")
        assert found.status == "certified"
        assert "at any one query" in found.statement

    def test_gaussians_are_independent_modulo_affine_and_no_more_is_said(self):
        """N8: their kernel at three queries is singular all the same."""
        found = certify(GAUSSIANS[:2])
        assert found.status == "certified"
        assert "for the kernel of unbounded laws nothing follows" in found.statement
        assert certify(GAUSSIANS[:2], modulo="quadratic").status == "refused"

    @pytest.mark.parametrize(
        ("contexts", "words"),
        [
            ([cloud(), moved(cloud(), np.eye(2), SHIFT)], r"shifted by \(0.3, -0.2\)"),
            ([CUBES[0], cloud(), CUBES[0]], "- Lam_1 \\+ Lam_3 = 0.*duplicate"),
            ([dirac(0.3, 0.1)], r"Lam_1 = <\(0.3, 0.1\), z>"),
            ([mf.Cube(2.0, 2), CUBES[0], RADEMACHER], "Lam_1 .* Lam_2 .* Lam_3 = 0"),
            ([cloud(), Convolution([mf.Empirical(cloud())] * 2)], "Lam_1 .* Lam_2 = 0"),
            ([Laplace(COVARIANCE), Convolution([Laplace(COVARIANCE)] * 2)], "Lam_1 .* Lam_2 = 0"),
            (GAUSSIANS, "Lam_4 = 0"),
        ],
        ids=["translate", "duplicate", "Dirac", "U2=U1*R", "mu*mu", "variance-gamma", "Gaussians"],
    )
    def test_refused(self, contexts, words):
        found = certify(contexts)
        assert found.status == "refused"
        assert (found.statement, found.enclosure, found.precision) == ("", None, 0)
        assert "to rounding" in found.reason
        assert re.search(words, found.reason), found.reason


class TestPositivity:
    def test_three_cubes_beyond_float64(self, tmp_path):
        """lambda_min/lambda_max near 1e-15: an eigenvalue solver sees noise, balls do not."""
        ensemble = heads(64, 0.1)
        found = certify(CUBES, "shared:3", kind="positivity", heads=ensemble)
        assert found.status == "certified"
        assert found.lower_bound is not None
        pairs = pairs_of(CUBES, "shared:3")
        truth = eigenvalue(pairs, ensemble)  # singular values: 1e-8 of the largest, still seen
        # |K^-4|_F^(-1/4) lies within P^(1/8) of the least eigenvalue
        assert found.lower_bound <= truth * (1 + 1e-5)
        assert found.lower_bound >= truth * (1 - 1e-5) / 9 ** (1 / 8)
        assert truth < 1e-14
        found.save(tmp_path / "cubes.json")
        assert verify(tmp_path / "cubes.json").holds

    @pytest.mark.parametrize(
        ("contexts", "queries", "ensemble"),
        [
            ([Laplace(COVARIANCE), Laplace(np.eye(2))], "shared:3", heads(32, 0.12)),
            (
                [mf.two_component_mixture([t, 0.3], COVARIANCE) for t in (0.6, 1.2)],
                "shared:3",
                heads(32),
            ),
            ([cloud(4, 2, seed) for seed in range(3)], "shared:3", heads(32)),
            ([cloud(4, 2, seed) for seed in range(3)], "own", heads(32)),
            ([cloud(), moved(cloud(), np.eye(2), SHIFT)], "own", heads(32)),
            ([cloud(), moved(cloud(), np.eye(2), SHIFT)], "one", heads(32)),
            ([dirac(0.3, 0.1)], "one", heads(32)),
            (GAUSSIANS[:2], "shared:2", heads(32)),
            (
                [cloud(), mf.TokenMeasure.from_weights(cloud().points, [0.1, 0.2, 0.3, 0.4])],
                "shared:3",
                heads(32),
            ),
        ],
        ids=["P2", "P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11"],
    )
    def test_positive_controls(self, contexts, queries, ensemble):
        found = certify(contexts, queries, kind="positivity", heads=ensemble)
        assert found.status == "certified", found.reason
        truth = eigenvalue(pairs_of(contexts, queries), ensemble)
        size = len(found.inputs["index"])
        assert found.lower_bound is not None
        assert truth * (1 - 1e-4) / size ** (1 / 8) <= found.lower_bound <= truth * (1 + 1e-4)

    def test_bound_of_one_pair_is_its_square(self):
        """P = 1: K = |a|^2 for a Dirac, whatever the heads."""
        found = certify([dirac(0.5, 0.25)], "one", kind="positivity", heads=heads(3))
        assert found.lower_bound == pytest.approx(0.3125, rel=1e-8)
        assert found.lower_bound is not None
        assert found.lower_bound <= 0.3125

    @pytest.mark.parametrize(
        ("contexts", "queries", "scale"),
        [
            ([cloud(), moved(cloud(), np.eye(2), SHIFT)], "shared:3", 1.0),
            ([cloud(), cloud()], "shared:3", 1.0),
            ([dirac(0.3, 0.1)], "shared:3", 1.0),
            ([dirac(0.0, 0.0)], "shared:1", 1.0),
            ([dirac(0.3, 0.1), dirac(1.0, 0.0), dirac(0.2, -0.4)], "one", 1.0),
            (GAUSSIANS[:1], "shared:3", 1.0),
            ([CUBES[0], CUBES[2]], [np.array([[0.6, 0.2]]), np.array([[0.3, 0.1]])], 1.0),
            (GAUSSIANS, "shared:3", 1.0),
            (GAUSSIANS[:2], "shared:3", 1.0),
            (GAUSSIANS[:1], np.array([[0.6, 0.2], [1.2, 0.4]]), 1.0),
            ([CUBES[0]], np.array([[0.6, 0.2], [-0.6, -0.2]]), 1.0),
            (
                [cloud(), moved(cloud(), -np.eye(2), np.zeros(2))],
                [np.array([[0.6, 0.2]]), np.array([[-0.6, -0.2]])],
                1.0,
            ),
            ([mf.Cube(2.0, 2), CUBES[0], RADEMACHER], "shared:3", 1.0),
            ([cloud(), Convolution([mf.Empirical(cloud())] * 2)], "shared:3", 1.0),
            ([Laplace(COVARIANCE), Convolution([Laplace(COVARIANCE)] * 2)], "shared:3", 0.1),
            ([CUBES[0]], np.zeros((1, 2)), 1.0),
            ([cloud(4, 2, seed) for seed in range(3)], np.zeros((1, 2)), 1.0),
        ],
        ids=[
            *["N1", "N2", "N3", "N3 at 0", "N4", "N5", "N6", "N7", "N8", "N9", "N10", "N11"],
            *["N12", "N14", "N15", "N16", "N16 means"],
        ],
    )
    def test_negative_controls_are_refused(self, contexts, queries, scale):
        found = certify(contexts, queries, kind="positivity", heads=heads(24, scale))
        assert found.status == "refused", found
        assert (found.statement, found.lower_bound, found.precision) == ("", None, 0)
        assert found.reason

    def test_too_few_heads_are_refused(self):
        """N17: two heads, nine pairs."""
        found = certify(CUBES, "shared:3", kind="positivity", heads=heads(2))
        assert found.status == "refused"
        assert "too few heads: M d = 4 < P = 9" in found.reason

    def test_equal_heads_stay_undecided(self):
        """No relation in theory, enough heads by count, and K is singular: nothing is proved."""
        one = heads(1).A
        copies = AttentionAV(A=np.repeat(one, 8, axis=0), V=one)  # type: ignore[arg-type]
        found = certify(CUBES, "shared:3", kind="positivity", heads=copies, max_bits=512)
        assert (found.status, found.precision, found.lower_bound) == ("undecided", 512, None)
        assert "512 bits do not separate" in found.reason

    def test_query_key_heads_are_their_products(self):
        """Small integers, so that Q^T K is exact in float64; the scale multiplies."""
        generator = np.random.default_rng(3)
        q, k = generator.integers(-2, 3, size=(2, 12, 1, 2)).astype(float)
        low_rank = AttentionQKV(Q=q, K=k, V=q)  # type: ignore[arg-type]
        full = AttentionAV(A=np.einsum("mki,mkj->mij", q, k) / 4, V=q)  # type: ignore[arg-type]
        contexts = [cloud(), cloud(5)]
        one = certify(contexts, "shared:2", kind="positivity", heads=low_rank, head_scale=0.25)
        other = certify(contexts, "shared:2", kind="positivity", heads=full)
        assert one.status == "certified"
        assert one.lower_bound == other.lower_bound

    def test_query_tokens_without_mass(self):
        weighted = mf.TokenMeasure.from_weights(cloud(5).points, [0.0, 0.1, 0.2, 0.3, 0.4])
        found = certify([weighted], "own", kind="positivity", heads=heads(12))
        assert found.status == "certified"
        assert len(found.inputs["index"]) == 5
        assert len(found.inputs["laws"][0]["points"]) == 4


class TestPrecision:
    def test_doubles_until_decided(self):
        decided = certify([mf.Cube(1 + k / 8, 2) for k in range(6)])
        assert decided.status == "certified"
        assert decided.precision in (128, 256, 512)
        half = certify(
            [mf.Cube(1 + k / 8, 2) for k in range(6)], max_bits=2 * decided.precision - 1
        )
        assert half == decided
        before = certify([mf.Cube(1 + k / 8, 2) for k in range(6)], max_bits=64)
        assert (before.status, before.precision, before.enclosure) == ("undecided", 64, None)
        assert "64 bits do not separate the enclosure from 0" in before.reason

    def test_setting_comes_back(self):
        before = flint.ctx.prec
        certify(CUBES)
        with pytest.raises(mf.DomainError):
            certify([Laplace(np.eye(2))], "one", kind="positivity", heads=heads(4, 50.0))
        assert flint.ctx.prec == before


def rewritten(found: Certificate, path, change) -> str:
    data = json.loads(json.dumps(found.data))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def rehashed(data) -> None:
    text = json.dumps(data["inputs"], sort_keys=True, separators=(",", ":"))
    data["inputs_sha256"] = hashlib.sha256(text.encode()).hexdigest()


def put(*place):
    """A change of one entry: the place, then its new value or a function of the old one."""
    *way, value = place

    def change(data) -> None:
        for step in way[:-1]:
            data = data[step]
        data[way[-1]] = value(data[way[-1]]) if callable(value) else value

    return change


def last_digit_moved(text: str) -> str:
    """Of the mantissa of a decimal."""
    mantissa, letter, exponent = text.partition("E")
    return f"{mantissa[:-1]}{(int(mantissa[-1]) + 1) % 10}{letter}{exponent}"


def both(*changes):
    return lambda data: [change(data) for change in changes]


OF_BOTH = {
    "status": put("status", "refused"),
    "statement": put("statement", lambda text: text + " for all queries"),
    "no statement": put("statement", ""),
    "reason": put("reason", "as everybody knows"),
    "more bits": put("precision", lambda bits: 2 * bits),
    "fewer bits": put("precision", lambda bits: bits // 2),
    "odd bits": put("precision", 100),
    "hash": put("inputs_sha256", lambda text: text[:-1] + ("0" if text[-1] != "0" else "1")),
    "law twice": both(put("inputs", "laws", lambda laws: [laws[0], *laws[:-1]]), rehashed),
}
OF_INDEPENDENCE = {
    **OF_BOTH,
    "kind": put("kind", "positivity"),
    "modulo": put("modulo", "constants"),
    "law dropped": both(put("inputs", "laws", lambda laws: laws[:-1]), rehashed),
    "bound": put("lower_bound", 0.5),
    "low": put("enclosure", 0, last_digit_moved),
    "high": put("enclosure", 1, last_digit_moved),
    "no enclosure": put("enclosure", None),
    "radius": put("inputs", "laws", 0, "radius", 1.0000001),
    "radius, hashed": both(put("inputs", "laws", 0, "radius", 1.0000001), rehashed),
    "point, hashed": both(put("inputs", "points", 0, 0, lambda value: value * 1.001), rehashed),
    "points equal": both(put("inputs", "points", 0, lambda _: [0.0, 0.0]), rehashed),
    "point dropped": both(put("inputs", "points", lambda points: points[:-1]), rehashed),
}
OF_POSITIVITY = {
    **OF_BOTH,
    "kind": put("kind", "independence"),
    "enclosure": put("enclosure", ["1.0", "2.0"]),
    "larger bound": put("lower_bound", lambda bound: 1.001 * bound),
    "smaller bound": put("lower_bound", lambda bound: 0.999 * bound),
    "no bound": put("lower_bound", None),
    "token": put("inputs", "laws", 0, "points", 0, 0, 0.125),
    "token, hashed": both(put("inputs", "laws", 0, "points", 0, 0, 0.125), rehashed),
    "mass, hashed": both(put("inputs", "laws", 0, "log_weights", 0, -2.0), rehashed),
    "query, hashed": both(put("inputs", "queries", 0, 0, 0.125), rehashed),
    "index, hashed": both(put("inputs", "index", 0, 1), rehashed),
    "head, hashed": both(put("inputs", "heads", "A", 0, 0, 0, 0.125), rehashed),
    "scale, hashed": both(put("inputs", "scale", 1.5), rehashed),
    "zero scale": both(put("inputs", "scale", 0.0), rehashed),
}


class TestVerification:
    def test_unaltered(self, of_independence, of_positivity, tmp_path):
        for found in (of_independence, of_positivity):
            found.save(tmp_path / "one.json")
            assert Certificate.load(tmp_path / "one.json") == found
            assert verify(tmp_path / "one.json").holds
            copied = rewritten(found, tmp_path / "two.json", put("information", {"by": "hand"}))
            assert verify(copied).holds

    @pytest.mark.parametrize("name", OF_INDEPENDENCE)
    def test_altered_independence(self, name, of_independence, tmp_path):
        path = rewritten(of_independence, tmp_path / "one.json", OF_INDEPENDENCE[name])
        assert not verify(path).holds

    @pytest.mark.parametrize("name", OF_POSITIVITY)
    def test_altered_positivity(self, name, of_positivity, tmp_path):
        path = rewritten(of_positivity, tmp_path / "one.json", OF_POSITIVITY[name])
        assert not verify(path).holds

    def test_reason_is_told(self, of_positivity, tmp_path):
        altered = put("lower_bound", lambda bound: 1.001 * bound)
        answer = verify(rewritten(of_positivity, tmp_path / "one.json", altered))
        assert "lower bound is" in answer.reason
        assert "but the proof gives" in answer.reason

    def test_proof_of_rounding_errors_does_not_pass(self, tmp_path, monkeypatch):
        """A true determinant of translates, whose tokens were rounded: forged, hashed, refused."""
        contexts = [cloud(), moved(cloud(), np.eye(2), SHIFT)]
        with monkeypatch.context() as patch:
            patch.setattr(_proofs.Independence, "obstacle", lambda self: "")
            forged = certify(contexts)
        assert forged.status == "certified"  # the rounding errors do make them independent
        forged.save(tmp_path / "one.json")
        answer = verify(tmp_path / "one.json")
        assert not answer.holds
        assert "shifted by (0.3, -0.2)" in answer.reason

    def test_undecided_and_refused_claim_nothing(self, tmp_path):
        found = certify([CUBES[0], CUBES[0]])
        found.save(tmp_path / "one.json")
        assert "the file claims nothing: refused" in verify(tmp_path / "one.json").reason
        assert not verify(tmp_path / "one.json").holds

    def test_file_is_exact(self, of_positivity):
        """The numbers of the file are the numbers of the proof."""
        again = json.loads(json.dumps(of_positivity.data))["inputs"]
        assert again == of_positivity.inputs
        assert np.array_equal(np.array(again["heads"]["A"]), np.asarray(heads(8).A))
        text = json.dumps(again, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == of_positivity.inputs_sha256


class TestHostileFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\x00\xff\xfe",
            b"[]",
            b"{}",
            b"7",
            b"[" * 200_000,
            b'{"format": "meanfield certificate 1"}',
            b'{"a": 1, "a": 2}',
            b'{"a": NaN}',
            b'{"a": 1' + b"0" * 10_000 + b"}",
        ],
    )
    def test_no_certificate(self, content, tmp_path):
        path = tmp_path / "one.json"
        path.write_bytes(content)
        with pytest.raises(MeanfieldError):
            verify(path)

    @pytest.mark.parametrize(
        "change",
        [
            put("format", "meanfield certificate 0"),
            put("status", "proved"),
            put("kind", "truth"),
            put("kind", ["positivity"]),
            put("modulo", {"a": 1}),
            put("precision", "128"),
            put("precision", True),
            put("enclosure", "1.0 2.0"),
            put("enclosure", [1.0, 2.0]),
            put("lower_bound", "1"),
            put("inputs", []),
            put("information", ["x"]),
            put("inputs", "laws", {}),
            put("inputs", "laws", []),
            put("inputs", "laws", 0, None),
            put("inputs", "laws", 0, "points", [["a"]]),
            put("inputs", "laws", 0, "points", [[0.0], [1.0]]),
            put("inputs", "queries", 3),
            put("inputs", "index", 0, 0.5),
            put("inputs", "index", 0, 7),
            put("inputs", "index", 0, -1),
            put("inputs", "heads", {}),
            put("inputs", "heads", {"A": 1.0}),
            put("inputs", "heads", None),
            put("inputs", "scale", [1.0]),
            lambda data: data.update(more=1),
            lambda data: data.pop("reason"),
        ],
        ids=range(27),
    )
    def test_damaged(self, change, of_positivity, tmp_path):
        with pytest.raises(MeanfieldError):
            verify(rewritten(of_positivity, tmp_path / "one.json", change))

    def test_missing_and_large(self, of_positivity, tmp_path, monkeypatch):
        with pytest.raises(MeanfieldError, match="does not exist"):
            verify(tmp_path / "none.json")
        with pytest.raises(MeanfieldError):
            verify(tmp_path)
        of_positivity.save(tmp_path / "one.json")
        monkeypatch.setattr(certificate, "_LARGEST_FILE", 100)
        with pytest.raises(MeanfieldError, match="bytes"):
            verify(tmp_path / "one.json")

    def test_endless_work_is_refused(self, of_positivity, tmp_path, monkeypatch):
        of_positivity.save(tmp_path / "one.json")
        monkeypatch.setattr(_proofs, "_LARGEST_WORK", 100)
        answer = verify(tmp_path / "one.json")
        assert not answer.holds
        assert "exponentials" in answer.reason


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"kind": "truth"}, "kind is 'truth'"),
            ({"modulo": "cubic"}, "modulo is 'cubic'"),
            ({"max_bits": 32}, "max_bits is 32"),
            ({"max_bits": 10**9}, "max_bits is 1000000000"),
            ({"heads": heads(3)}, "certificate of independence"),
            ({"queries": "shared:2"}, "certificate of independence"),
            ({"kind": "positivity", "queries": "one"}, "heads is NoneType"),
            ({"kind": "positivity", "queries": "shared:300", "heads": heads(3)}, "900 pairs"),
            (
                {"kind": "positivity", "queries": "one", "heads": heads(3, dim=3)},
                "heads A of shape",
            ),
            (
                {"kind": "positivity", "queries": "one", "heads": heads(3), "head_scale": math.nan},
                "head_scale is nan",
            ),
            ({"kind": "positivity", "heads": heads(3)}, "queries 'own' and context 1"),
        ],
    )
    def test_one_line(self, options, words):
        with pytest.raises(MeanfieldError, match=words) as caught:
            inspect.unwrap(certify)(CUBES, **options)  # as without a type checker
        assert "\n" not in str(caught.value)

    def test_too_many_functions(self):
        with pytest.raises(MeanfieldError, match="1327 functions: 1 laws in d = 50"):
            certify([mf.Cube(1.0, 50)], modulo="quadratic")

    def test_queries_twice(self):
        with pytest.raises(MeanfieldError, match="queries beside Pairs"):
            certify(pairs_of(CUBES, "one"), "one", kind="positivity", heads=heads(4))

    def test_laplace_outside_its_domain(self):
        with pytest.raises(mf.DomainError):
            certify([Laplace(np.eye(2))], "one", kind="positivity", heads=heads(32, 3.0))

    def test_tiny_tokens_are_no_zero(self, monkeypatch):
        """lambda_min = 1e-340 is no float64 number: no bound is stated, rather than 0."""
        found = certify([dirac(1e-150, 0.0)], "one", kind="positivity", heads=heads(2))
        assert found.lower_bound == pytest.approx(1e-300, rel=1e-8)
        with pytest.raises(MeanfieldError, match="other units"):
            certify([dirac(1e-170, 0.0)], "one", kind="positivity", heads=heads(2))
        monkeypatch.setattr(_proofs.Positivity, "obstacle", lambda self: "")
        monkeypatch.setattr(certificate, "_LARGEST_SIZE", 1e200)
        beyond = certify([dirac(1e-170, 0.0)], "one", kind="positivity", heads=heads(2))
        assert beyond.status == "undecided"
        assert "beyond the range of numbers" in beyond.reason

    def test_bound_below_float64_is_none(self):
        with _balls.precision(128):
            assert _proofs._float_below(flint.arb(2) ** -2000) is None
            assert _proofs._float_below(flint.arb(0, 1)) is None
            assert _proofs._float_below(flint.arb(2) ** 2000) == float(np.finfo(float).max)
            third = _proofs._float_below(flint.arb(1) / 3)
        assert third == 0.333333333


@pytest.mark.parametrize("least", [-1e-9, -1e-300])
def test_covariances_that_are_none_exactly_get_no_certificate(least):
    """Positive semidefinite to rounding is enough for a law, not for a theorem about laws."""
    singular = mf.Laplace([[1.0, 0.5], [0.5, 0.25]])  # of rank one, exactly
    assert certify([mf.Cube(1.0, 2), singular], kind="independence").status == "certified"
    broken = mf.Laplace(np.array([[1.0, 0.5], [0.5, 0.25 + min(least, -1e-16)]]))
    for law in (mf.Gaussian(np.zeros(2), np.diag([1.0, least])), broken):
        with pytest.raises(MeanfieldError, match="exactly"):
            certify([mf.Cube(1.0, 2), law], kind="independence")
