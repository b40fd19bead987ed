"""The measuring tools of the suite must fail on what is wrong."""

import numpy as np
import pytest

from tests.helpers import assert_order, fitted_order, relative_gap, richardson_slope

STEPS = 2.0 ** -np.arange(5)


def test_order_helper_accepts_clean_data_on_both_sides():
    for order in (1.0, 2.0, 4.0):
        assert_order(STEPS, 0.3 * STEPS**order * (1 + 0.01 * STEPS), order)
    assert fitted_order(STEPS, STEPS**3)[0] == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize("found", [1.8, 2.2, 1.0, 3.0, 0.0])
def test_order_helper_rejects_wrong_slopes_above_and_below(found):
    with pytest.raises(AssertionError, match="slope"):
        assert_order(STEPS, STEPS**found * (1 + 1e-9 * np.arange(5)), 2.0)


def test_order_helper_rejects_scatter_and_too_few_sizes():
    with pytest.raises(AssertionError, match="R"):
        assert_order(STEPS, STEPS**2 * np.array([1.0, 1.3, 1.0, 0.75, 1.1]), 2.0)
    with pytest.raises(AssertionError, match="four"):
        assert_order(STEPS[:4], STEPS[:4] ** 2, 2.0)


def test_relative_gap_sees_one_entry_and_refuses_shapes():
    values = {"a": np.ones((3, 2)), "b": 1e-8 * np.ones(2)}
    moved = {"a": np.ones((3, 2)), "b": np.array([1e-8, 1.01e-8])}
    assert relative_gap(values, values) == 0.0
    assert relative_gap(moved, values) == pytest.approx(0.01)
    with pytest.raises(AssertionError):
        relative_gap(np.ones(3), np.ones((3, 1)))


def test_richardson_is_of_fourth_order():
    errors = [abs(richardson_slope(lambda t: np.exp(3 * t), h) - 3) for h in STEPS / 4]
    assert_order(STEPS, errors, 4.0)
