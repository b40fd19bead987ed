"""Rates: slopes and intervals that hold, verdicts that reject, orders without an exact solution."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import meanfield as mf
from meanfield._checks import band_verdict

SIZES = np.array([8.0, 16.0, 32.0, 64.0, 128.0])


def _replicates(slope: float, *, num: int = 40, noise: float = 0.3, seed: int = 0) -> np.ndarray:
    """``2 K^slope`` times log-normal noise, a row per replicate."""
    generator = np.random.default_rng(seed)
    return 2 * SIZES**slope * np.exp(noise * generator.normal(size=(num, len(SIZES))))


@settings(deadline=None)
@given(slope=st.floats(-4, 4), constant=st.floats(1e-6, 1e6))
def test_exact_powers_are_recovered(slope: float, constant: float) -> None:
    rate = mf.fit_rate(SIZES, constant * SIZES**slope)
    assert rate.slope == pytest.approx(slope, abs=1e-11)
    assert rate.constant == pytest.approx(constant, rel=1e-9)
    assert rate.interval[0] <= slope + 1e-11
    assert rate.interval[1] >= slope - 1e-11
    np.testing.assert_allclose(rate.predict(SIZES), rate.errors, rtol=1e-9)
    assert rate.consistent_with(slope, 0.01)
    assert not rate.consistent_with(slope + 0.02, 0.01)
    assert not rate.consistent_with(slope - 0.02, 0.01)


@pytest.mark.parametrize("aggregate", ["rms", "mean", "geometric"])
def test_replicates_give_a_bootstrap_interval(aggregate: Any) -> None:
    rate = mf.fit_rate(SIZES, _replicates(-0.5), aggregate=aggregate)
    lower, upper = rate.interval
    assert lower < rate.slope < upper
    assert lower < -0.5 < upper
    assert 0.03 < upper - lower < 0.2
    assert rate.consistent_with(-0.5, 0.06)
    again = mf.fit_rate(SIZES, _replicates(-0.5), aggregate=aggregate)
    assert again.interval == rate.interval
    assert str(rate).startswith("slope -0.")


def test_intervals_cover_at_their_level() -> None:
    hits = 0
    for seed in range(100):
        errors = _replicates(-0.5, num=30, seed=seed)
        lower, upper = mf.fit_rate(SIZES, errors, num_bootstrap=300, aggregate="geometric").interval
        hits += lower <= -0.5 <= upper
    assert 85 <= hits <= 100  # 95 expected, a little fewer for a percentile bootstrap of 30 rows
    hits = 0
    for seed in range(200):
        errors = _replicates(-1.0, num=1, noise=0.1, seed=seed)[0]
        lower, upper = mf.fit_rate(SIZES, errors, level=0.9).interval
        hits += lower <= -1.0 <= upper
    assert 165 <= hits <= 194  # 180 expected, standard deviation 4


def test_narrower_levels_give_narrower_intervals() -> None:
    wide = mf.fit_rate(SIZES, _replicates(-0.5), level=0.99).interval
    narrow = mf.fit_rate(SIZES, _replicates(-0.5), level=0.5).interval
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_a_wrong_slope_is_rejected() -> None:
    rate = mf.fit_rate(SIZES, _replicates(-0.5))
    assert rate.verdict(-0.5, 0.06) == "consistent"
    for wrong in (-1.0, -0.75, -0.3, 0.0, 0.5):
        assert rate.verdict(wrong, 0.06) == "inconsistent"


def test_a_curve_that_is_no_line_is_rejected() -> None:
    floor = 1 / SIZES + 0.05  # an error floor bends the curve
    rate = mf.fit_rate(SIZES, floor)
    assert rate.r_squared < 0.999
    assert not rate.consistent_with(rate.slope, 0.15, min_r_squared=0.999)
    assert rate.verdict(rate.slope, 0.15, min_r_squared=0.999) == "inconsistent"
    assert mf.fit_rate(SIZES, np.full(5, 3.0)).r_squared == 0.0


def test_noise_that_hides_the_slope_is_undecided() -> None:
    noisy = mf.fit_rate(SIZES, _replicates(-0.5, num=4, noise=3.0), aggregate="geometric")
    lower, upper = noisy.interval
    assert upper - lower > 0.6
    assert noisy.verdict(noisy.slope, 0.06) == "undecided"
    assert not noisy.consistent_with(noisy.slope, 0.06)
    edge = mf.fit_rate(SIZES, _replicates(-0.5))
    off = edge.interval[1] + 0.005
    assert edge.verdict(off, 0.01) == "undecided"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mf.fit_rate([1, 2, 4], [1, 2, 3]), "3 sizes.*at least 4 distinct sizes"),
        (lambda: mf.fit_rate([1, 2, 2, 4], [1, 2, 3, 4]), "3 of them distinct"),
        (lambda: mf.fit_rate([1, 2, 4, 8], [1, 2, 3]), r"sizes has shape \(4,\)"),
        (lambda: mf.fit_rate([1, 2, 4, 8], [1, 2, 0, 3]), r"errors holds 0.0 at index \[2\]"),
        (lambda: mf.fit_rate([1, 2, 4, 8], [1, np.nan, 2, 3]), "errors holds nan"),
        (lambda: mf.fit_rate([1, 2, 4, 8], [1, 2, np.inf, 3]), "errors holds inf"),
        (lambda: mf.fit_rate([1, 2, 4, 8], [1, 2, -1, 3]), "errors holds -1.0"),
        (lambda: mf.fit_rate([0, 2, 4, 8], [1, 2, 1, 3]), "sizes holds 0.0"),
        (lambda: mf.fit_rate([1, 2, 4, 8], ["a"] * 4), "errors: could not convert"),
        (lambda: mf.fit_rate([1, 2, 4, 8], np.ones((2, 2, 4))), r"\[K\] or \[R, K\]"),
        (lambda: mf.fit_rate([1, 2], [1, 2], min_sizes=2), "min_sizes=2"),
        (lambda: mf.fit_rate(SIZES, 1 / SIZES, level=1.0), "level=1.0"),
        (lambda: mf.fit_rate(SIZES, 1 / SIZES, num_bootstrap=0), "num_bootstrap is 0"),
        (lambda: mf.fit_rate(SIZES, 1 / SIZES).verdict(-1.0, 0.0), "tolerance=0.0"),
        (lambda: mf.self_convergence_order([1.0, 2.0]), "at least 3 refinements"),
        (lambda: mf.self_convergence_order([1.0, 2.0, 2.0]), "differences holds 0.0"),
        (lambda: mf.self_convergence_order([1.0, np.nan, 2.0]), "not finite"),
        (lambda: mf.self_convergence_order([1.0, 2.0, 2.5], ratio=1.0), "ratio=1.0"),
        (lambda: mf.richardson([1.0], order=1.0), "at least 2 refinements"),
        (lambda: mf.richardson([1.0, 2.0], order=0.0), "order=0.0"),
        (lambda: mf.richardson([1.0, np.inf], order=1.0), "not finite"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable, message: str) -> None:
    with pytest.raises(mf.MeanfieldError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_three_sizes_only_on_request() -> None:
    assert mf.fit_rate([1, 2, 4], [1, 0.5, 0.25], min_sizes=3).slope == pytest.approx(-1)


def _schemes(order: int, num: int = 6) -> np.ndarray:
    """``y' = y`` on [0, 1] by the Taylor scheme of that order, steps 1/8, 1/16, ...: ``[K, 1]``."""
    coefficients = [1.0, 1.0, 1 / 2, 1 / 6, 1 / 24][: order + 1]
    counts = 8 * 2 ** np.arange(num)
    return np.array([[sum(c / n**i for i, c in enumerate(coefficients)) ** n] for n in counts])


@pytest.mark.parametrize("order", [1, 2, 4])
def test_self_convergence_finds_the_order(order: int) -> None:
    found = mf.self_convergence_order(_schemes(order, num=5))
    assert found.order == pytest.approx(order, abs=0.05)
    assert len(found.orders) == 3
    assert len(found.differences) == 4
    assert abs(found.order - (order + 1)) > 0.5, "another scheme's order must not fit"
    steps = 0.125 * 0.5 ** np.arange(4)
    rate = mf.fit_rate(steps, found.differences)
    assert rate.consistent_with(order, 0.15, min_r_squared=0.999)
    assert not rate.consistent_with(order + 1, 0.15, min_r_squared=0.999)


@pytest.mark.parametrize("order", [1, 2])
def test_richardson_removes_error_terms(order: int) -> None:
    values = _schemes(order, num=4)
    plain = abs(values[-1, 0] - np.e)
    once = mf.richardson(values[-2:], order=order)
    thrice = mf.richardson(values, order=order)
    assert once.value.shape == (1,)
    assert abs(once.value[0] - np.e) < 0.05 * plain
    assert abs(thrice.value[0] - np.e) < 1e-3 * plain
    assert abs(thrice.value[0] - np.e) <= thrice.error <= plain
    wrong = mf.richardson(values[-2:], order=order + 1)
    assert abs(wrong.value[0] - np.e) > 5 * abs(once.value[0] - np.e)


@settings(max_examples=50, deadline=None)
@given(limit=st.floats(-10, 10), leading=st.floats(0.1, 3), ratio=st.sampled_from([2.0, 3.0]))
def test_richardson_is_exact_for_two_terms(limit: float, leading: float, ratio: float) -> None:
    steps = ratio ** -np.arange(3.0)
    values = limit + leading * steps**2 - 0.7 * steps**4
    found = mf.richardson(values, order=2, ratio=ratio, increment=2)
    assert float(found.value) == pytest.approx(limit, abs=1e-12)


@pytest.mark.parametrize("num_replicates", [3, 8, 32])
def test_intervals_cover_the_true_slope_as_often_as_they_say(num_replicates):
    """95 % of 300 experiments, within 4 standard errors; percentiles cover 72 % at R = 3."""
    generator = np.random.default_rng(num_replicates)
    sizes = np.array([16.0, 32.0, 64.0, 128.0, 256.0])
    covered = 0
    for trial in range(300):
        noise = np.sqrt(generator.chisquare(4, size=(num_replicates, 5)) / 4)
        low, high = mf.fit_rate(sizes, noise * sizes**-0.5, num_bootstrap=200, seed=trial).interval
        covered += low <= -0.5 <= high
    assert abs(covered / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_replicates_are_resampled_whole():
    """What a replicate's sizes have in common cancels in its slope: no interval is left."""
    generator = np.random.default_rng(5)
    common = np.exp(generator.normal(size=(12, 1)))
    shared = mf.fit_rate(SIZES, common * SIZES**-0.5).interval
    assert shared == pytest.approx((-0.5, -0.5), abs=1e-10)
    own = mf.fit_rate(SIZES, np.exp(generator.normal(size=(12, 5))) * SIZES**-0.5).interval
    assert own[1] - own[0] > 0.1


@pytest.mark.parametrize("num", [2, 3, 6])
def test_interval_of_few_replicates_is_student_s_for_their_mean_slope(num):
    """Geometric means make the slope the mean of the rows' slopes."""
    errors = _replicates(-0.5, num=num, seed=9)
    rate = mf.fit_rate(SIZES, errors, aggregate="geometric", level=0.9, num_bootstrap=20000)
    slopes = [np.polyfit(np.log(SIZES), np.log(row), 1)[0] for row in errors]
    half = stats.t.ppf(0.95, num - 1) * np.std(slopes, ddof=1) / np.sqrt(num)
    assert rate.slope == pytest.approx(np.mean(slopes))
    assert rate.interval == pytest.approx((rate.slope - half, rate.slope + half), abs=0.03 * half)


@pytest.mark.parametrize("level", [0.5, 0.95])
@pytest.mark.parametrize("num_sizes", [4, 5])
def test_interval_of_one_curve_is_student_s_with_two_numbers_fitted(num_sizes, level):
    sizes = SIZES[:num_sizes]
    errors = _replicates(-1.0, num=1, seed=3)[0, :num_sizes]
    fit: Any = stats.linregress(np.log(sizes), np.log(errors))
    half = stats.t.ppf((1 + level) / 2, num_sizes - 2) * fit.stderr
    rate = mf.fit_rate(sizes, errors, level=level)
    assert rate.interval == pytest.approx((fit.slope - half, fit.slope + half), rel=1e-10)
    assert rate.interval[0] < rate.slope < rate.interval[1]


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (1.0, (0.9, 1.1), "consistent"),
        (1.0, (0.86, 1.14), "consistent"),  # 1.4 bands to a side
        (1.0, (0.84, 1.05), "undecided"),  # 1.6 bands below
        (1.0, (0.95, 1.16), "undecided"),  # 1.6 bands above
        (1.11, (1.05, 1.17), "undecided"),  # off the band, the interval is not
        (1.2, (1.11, 1.29), "inconsistent"),
        (0.8, (0.71, 0.89), "inconsistent"),
    ],
)
def test_a_number_is_judged_by_its_band_and_both_sides_of_its_interval(value, interval, verdict):
    assert band_verdict(value, interval, 1, 0.1) == verdict
    mirrored = (2 - interval[1], 2 - interval[0])
    assert band_verdict(2 - value, mirrored, 1, 0.1) == verdict
