"""Numbers, theory and what was planted: one nullity, on random problems with their parts."""

import hypothesis
import pytest

from meanfield import ntk
from tests.planted import Planted, choices, plant

counts = {"seen": 0, "undecided": 0}


def agree(problem: Planted, part: str) -> None:
    report = ntk.check(problem.pairs, part=part, interval=False)
    expected = problem.score_nullity if part == "A" else problem.nullity
    counts["seen"] += 1
    if report.verdict == "undecided":
        counts["undecided"] += 1
        assert report.gap < 1e3
        return
    assert report.nullity == report.predicted_nullity == expected, problem.kinds
    assert report.verdict == ("not positive" if expected else "positive")
    if expected:
        assert report.reasons, problem.kinds


@hypothesis.settings(max_examples=500, deadline=None, derandomize=True, database=None)
@hypothesis.given(choices())
def test_value_part_has_the_planted_nullity(chosen):
    agree(plant(**chosen), "V")


@pytest.mark.parametrize("part", ["A", "full"])
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(choices())
def test_other_parts_have_the_planted_nullity(part, chosen):
    agree(plant(**chosen), part)


def test_at_most_a_tenth_is_undecided():
    """Of those above; alone it looks at none."""
    assert counts["undecided"] <= 0.1 * counts["seen"]


def test_the_check_sees_a_wrong_nullity():
    """The control: the same problem with one nullity more planted must fail."""
    problem = plant(
        kinds=("base", "translate"),
        dim=2,
        num_queries=3,
        num_lines=3,
        are_shared=True,
        as_cloud=True,
        seed=1,
    )
    assert problem.nullity > 0
    agree(problem, "V")
    with pytest.raises(AssertionError):
        agree(problem._replace(nullity=problem.nullity + 1), "V")
