"""Laws in ball arithmetic: they enclose the truth, agree with float64, and travel as exact data."""

import decimal
import json
import math
from decimal import Decimal
from fractions import Fraction

import flint
import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield import MeanfieldError
from meanfield.laws import AbstractLaw, AffineImage, Convolution, Laplace, Product
from meanfield.ntk import _balls
from meanfield.ntk._proofs import _float_below
from meanfield.ntk.pairs import evaluate

COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.6]])
GENERATOR = np.random.default_rng(0)
CLOUD = mf.TokenMeasure.from_weights(GENERATOR.normal(size=(9, 2)), np.arange(9.0))
CUBE = mf.Cube(1.5, 2, [0.1, -0.2])
LAWS = {
    "cube": CUBE,
    "laplace": Laplace(0.2 * COVARIANCE),
    "gaussian": mf.Gaussian([0.1, 0.2], COVARIANCE),
    "mixture": mf.GaussianMixture(
        [0.2, 0.0, 0.8], GENERATOR.normal(size=(3, 2)), [COVARIANCE, np.eye(2), 0.5 * COVARIANCE]
    ),
    "empirical": mf.Empirical(CLOUD),
    "affine": AffineImage(CUBE, GENERATOR.normal(size=(2, 2)), [1.0, 2.0]),
    "product": Product([mf.Cube(1.0, 1), mf.Gaussian([0.3], [[2.0]])]),
    "convolution": Convolution([CUBE, mf.Empirical(CLOUD)]),
}
POINTS = np.concatenate(
    [np.zeros((1, 2)), [[0.0, 0.7], [1e-9, -0.5]], GENERATOR.normal(size=(5, 2))]
)


def balls_of(law: AbstractLaw, z: np.ndarray, bits: int) -> list[flint.arb]:
    """Lam and its gradient at the rows of z, one after the other."""
    with _balls.precision(bits):
        points = _balls.exact(z)
        return _balls.cgf(law, points) + _balls.gradient(law, points).entries()


def misses(law: AbstractLaw, values: np.ndarray, z: np.ndarray, bits: int) -> int:
    """How many of the values lie outside their balls, widened by float64's rounding."""
    slack = flint.arb(0, 1e-14)
    return sum(
        not (ball + slack).contains(value)
        for ball, value in zip(balls_of(law, z, bits), values.tolist(), strict=True)
    )


@pytest.mark.parametrize("name", LAWS)
class TestEveryLaw:
    def test_balls_hold_the_float64_values(self, name):
        law = LAWS[name]
        values = [evaluate(law, POINTS, order).ravel() for order in (0, 1)]
        assert misses(law, np.concatenate(values), POINTS, 128) == 0
        # negative control: the same values a little off are seen in every place
        assert misses(law, np.concatenate(values) + 1e-12, POINTS, 128) == 3 * len(POINTS)

    def test_coarse_balls_hold_fine_ones(self, name):
        coarse, fine = (balls_of(LAWS[name], POINTS, bits) for bits in (40, 400))
        assert all(one.contains(other) for one, other in zip(coarse, fine, strict=True))
        assert max(float(ball.rad()) for ball in coarse) < 1e-1
        assert max(float(ball.rad()) for ball in fine) < 1e-60

    def test_data_are_exact(self, name):
        data = json.loads(json.dumps(_balls.law_to_data(LAWS[name])))
        again = _balls.law_from_data(data)
        assert type(again) is type(LAWS[name])
        assert _balls.law_to_data(again) == data
        both = zip(balls_of(LAWS[name], POINTS, 300), balls_of(again, POINTS, 300), strict=True)
        assert all(one == other or one.overlaps(other) for one, other in both)


class TestAgainstDecimals:
    """An arithmetic of its own: Python's decimal, 60 digits."""

    def test_cloud(self):
        z = GENERATOR.normal(size=2)
        points, logs = np.asarray(CLOUD.points), np.asarray(CLOUD.log_weights)
        with decimal.localcontext(prec=60):
            terms = []
            for point, log_weight in zip(points.tolist(), logs.tolist(), strict=True):
                score = Decimal(0)
                for a, b in zip(z.tolist(), point, strict=True):
                    score += Decimal(a) * Decimal(b)
                weight = Decimal(log_weight).exp() if log_weight > -math.inf else Decimal(0)
                terms.append((weight, weight * score.exp(), point))
            total = sum((term for _, term, _ in terms), Decimal(0))
            value = (total / sum((weight for weight, _, _ in terms), Decimal(0))).ln()
            means = [sum(term * Decimal(y[i]) for _, term, y in terms) / total for i in range(2)]
            expected = [str(+number) for number in (value, *means)]
        balls = balls_of(LAWS["empirical"], z[None], 256)
        with _balls.precision(256):
            gaps = [ball - flint.arb(text) for ball, text in zip(balls, expected, strict=True)]
        assert max(float(gap.abs_upper()) for gap in gaps) < 1e-56

    @pytest.mark.parametrize("z", [1e-5, 0.3, 40.0])
    def test_cube(self, z):
        radius = 1.5
        with decimal.localcontext(prec=80):
            t = Decimal(radius) * Decimal(z)
            up, down = t.exp(), (-t).exp()
            value = ((up - down) / (2 * t)).ln()
            slope = Decimal(radius) * ((up + down) / (up - down) - 1 / t)
            expected = [str(value), str(slope)]
        balls = balls_of(mf.Cube(radius, 1), np.array([[z]]), 256)
        with _balls.precision(256):
            gaps = [ball - flint.arb(text) for ball, text in zip(balls, expected, strict=True)]
        assert max(float(gap.abs_upper()) for gap in gaps) < 1e-58


class TestCubeNearZero:
    def test_ball_around_zero_is_enclosed(self):
        """Orthogonal heads: z_j is a ball that holds 0, where the closed form divides by it."""
        with _balls.precision(128):
            z = flint.arb_mat([[flint.arb(0, 1e-3), flint.arb(0.5)]])
            value, slope = _balls.cgf(CUBE, z)[0], _balls.gradient(CUBE, z)[0, 0]
        inside = np.array([[t, 0.5] for t in (-1e-3, -1e-4, 0.0, 5e-4, 1e-3)])
        for fine_value, fine_slope in zip(
            balls_of(CUBE, inside, 128)[:5], balls_of(CUBE, inside, 128)[5::2], strict=True
        ):
            assert value.contains(fine_value)
            assert slope.contains(fine_slope)
        assert float(slope.rad()) < 1e-3

    def test_exact_zero_is_exact(self):
        assert [float(ball.rad()) for ball in balls_of(mf.Cube(1.5, 2), np.zeros((1, 2)), 64)] == [
            0.0,
            0.0,
            0.0,
        ]


class TestPrecision:
    def test_comes_back(self):
        before, seen = flint.ctx.prec, []

        def fail() -> None:
            with _balls.precision(300):
                seen.append(flint.ctx.prec)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert (seen, flint.ctx.prec) == ([300], before)

    def test_inputs_are_exact(self):
        for bits in (2, 64):
            with _balls.precision(bits):
                assert float(_balls.exact([[0.1]])[0, 0].rad()) == 0.0
                assert float(_balls.exact([[0.1]])[0, 0]) == 0.1

    def test_huge_scores(self):
        """No overflow: exponents are unbounded, and too few bits show as wide balls."""
        law = mf.Empirical(mf.TokenMeasure(1e6 * np.array([[1.0, 0.2], [-1.0, 0.5], [0.3, 0.3]])))
        value, *_ = balls_of(law, np.array([[1e3, 0.0]]), 128)
        with _balls.precision(128):
            assert float((value - flint.arb(10) ** 9 + flint.arb(3).log()).abs_upper()) < 1e-25


class TestLaplaceDomain:
    def test_outside_is_an_error(self):
        with pytest.raises(mf.DomainError, match="z\\^T S z of at least 2"):
            balls_of(Laplace(np.eye(2)), np.array([[2.0, 0.0]]), 128)

    def test_undecided_boundary_is_not_finite(self):
        """1 - q is a ball around 0: no number is claimed."""
        third = math.sqrt(2 / 3)
        values = balls_of(Laplace([[3.0]]), np.array([[third]]), 30)
        assert not any(ball.is_finite() for ball in values)


class TestDecimalBounds:
    def test_outward(self):
        with _balls.precision(200):
            ball = flint.arb(1) / 3
        assert _balls.decimal_bound(ball, up=False) == "0.333333333"
        assert _balls.decimal_bound(ball, up=True) == "0.333333334"
        assert _balls.decimal_bound(-ball, up=False) == "-0.333333334"
        assert _balls.decimal_bound(flint.arb(2) ** -1000, up=True) == "9.33263619E-302"
        assert _balls.decimal_bound(flint.arb(0), up=True) == "0"

    def test_beyond(self):
        assert _balls.decimal_bound(flint.arb("inf"), up=True) is None
        assert _balls.decimal_bound(flint.arb(1e300).exp(), up=False) is None


class OwnLaw(mf.Cube):
    def __init__(self):
        super().__init__(1.0, 2)


class TestRefusals:
    def test_law_of_ones_own(self):
        with pytest.raises(MeanfieldError, match="a law of type OwnLaw"):
            _balls.law_to_data(OwnLaw())

    @pytest.mark.parametrize(
        "data",
        [
            None,
            [],
            {"law": "sphere"},
            {"law": ["cube"]},
            {"law": "cube", "radius": 1.0},
            {"law": "cube", "radius": 1.0, "center": [0.0], "more": 1},
            {"law": "cube", "radius": -1.0, "center": [0.0]},
            {"law": "cube", "radius": True, "center": [0.0]},
            {"law": "cube", "radius": "1", "center": [0.0]},
            {"law": "cube", "radius": 10**400, "center": [0.0]},
            {"law": "cube", "radius": 1.0, "center": []},
            {"law": "cube", "radius": 1.0, "center": [[0.0]]},
            {"law": "cube", "radius": float("nan"), "center": [0.0]},
            {"law": "gaussian", "mean": [0.0, 0.0], "covariance": [[1.0, 2.0], [2.0, 1.0]]},
            {"law": "gaussian", "mean": [0.0], "covariance": [[1.0, 0.0], [0.0]]},
            {"law": "empirical", "points": [[0.0], [1.0]], "log_weights": [0.0]},
            {"law": "mixture", "log_weights": [0.0], "means": [[0.0]], "covariances": [[[-1.0]]]},
            {"law": "product", "laws": []},
            {"law": "product", "laws": {"law": "cube"}},
            {"law": "affine", "inner": 3, "matrix": [[1.0]], "shift": [0.0]},
        ],
    )
    def test_hostile_data(self, data):
        with pytest.raises(MeanfieldError):
            _balls.law_from_data(data)

    def test_laws_without_end(self):
        data = {"law": "cube", "radius": 1.0, "center": [0.0]}
        for _ in range(40):
            data = {"law": "product", "laws": [data]}
        with pytest.raises(MeanfieldError, match="laws inside each other"):
            _balls.law_from_data(data)

    def test_masses_are_kept_bit_by_bit(self):
        """Normalising logarithms again moves their last bits: stored laws are not normalised."""
        logs = jnp.log(jnp.asarray(GENERATOR.uniform(size=50)))
        law = mf.Empirical(mf.TokenMeasure(GENERATOR.normal(size=(50, 1)), logs))
        again = _balls.law_from_data(_balls.law_to_data(law))
        assert isinstance(again, mf.Empirical)
        assert (np.asarray(again.log_weights) == np.asarray(law.log_weights)).all()


def test_bounds_are_rounded_down_in_both_of_their_roundings():
    """Nine decimals below the ball, then a float64 number below the decimals."""
    generator = np.random.default_rng(0)
    raised = 0
    with _balls.precision(128):
        for value in generator.uniform(1e-9, 1.0, 300):
            text = f"{value:.9g}"
            whole = Fraction(text)
            exact = flint.arb(whole.numerator) / whole.denominator
            # Just above its decimals, and below the float64 number that is nearest to them.
            above = exact + flint.arb(2) ** -100
            for ball in (flint.arb(float(text)), exact, above):
                below = _float_below(ball)
                assert below is not None
                assert not flint.arb(below) > ball.lower()
                assert below >= value * (1 - 3e-8)
            raised += bool(flint.arb(float(text)) > exact.upper())
    assert raised > 50  # float64 numbers above their decimals: the second rounding is needed
