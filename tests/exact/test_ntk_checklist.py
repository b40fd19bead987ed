"""Every line of the checklist of control cases, in d = 2, 1, 3, 5: the predicted nullities."""

import numpy as np
import pytest

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
