"""Every line of the checklist of control cases, in d = 2, 1, 3, 5: the predicted nullities."""

import numpy as np
import pytest

from meanfield import ntk
from meanfield.ntk.injectivity import predicted_nullity, reasons
from tests.checklist import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"d={case.dim} {case.name}")
def test_prediction_is_the_listed_value(case: Case):
    pairs = case.build()
    prediction = predicted_nullity(pairs)
    assert prediction.decided, f"gap {prediction.gap:.1e}"
    assert (prediction.nullity, prediction.score_nullity) == (case.value, case.score)
    assert prediction.null_vectors.shape == (pairs.num_pairs, case.value)
    if case.value:
        assert np.linalg.matrix_rank(prediction.null_vectors) == case.value
    if case.num_heads is not None:
        assert prediction.for_heads(case.num_heads) == case.few
    told = reasons(pairs, prediction, num_heads=case.num_heads)
    assert bool(told) == bool(case.value or case.few)


def heads_for(case: Case) -> dict:
    """Heads enough for every function of the line; d = 1 needs more scales than the default."""
    return {"num_heads": case.num_heads or 128, "head_dim": case.head_dim}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"d={case.dim} {case.name}")
def test_numbers_agree_with_the_listed_value(case: Case):
    """By the singular values of the factors: V in every dimension, A and full in d = 2."""
    pairs = case.build()
    expected = {"V": case.value if case.few is None else case.few}
    if case.few is None and case.dim == 2:
        expected |= {"A": case.score, "full": case.value}
    for part, value in expected.items():
        report = ntk.check(pairs, part=part, interval=False, **heads_for(case))
        found = (report.verdict, report.nullity, report.predicted_nullity)
        assert found == ("not positive" if value else "positive", value, value), (
            f"{part}: {found}, gap {report.gap:.1e}, {report.reasons}"
        )
