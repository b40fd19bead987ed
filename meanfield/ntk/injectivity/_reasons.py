"""Why a kernel is not positive, in words."""

from collections.abc import Sequence

import numpy as np

from meanfield.ntk.injectivity._independence import Relation
from meanfield.ntk.injectivity._prediction import Line, Prediction
from meanfield.ntk.pairs import Pairs

_SAME = 1e-9  # relative difference of a ratio and the number that it is called


def reasons(pairs: Pairs, prediction: Prediction, *, num_heads: int | None = None) -> list[str]:
    """Sentences for the null directions: which contexts and queries bring them, and why.

    Recognised: duplicate, translate, reflection, dilation along a line, convolution, Gaussians,
    single points, queries at 0, repeated queries, too few heads; anything else is printed as the
    combination of log-sum-exp functions itself. Contexts and queries are numbered from 1, numbers
    have 4 digits. Only relations that a null direction uses are told.

    Args:
        pairs, prediction: from `predicted_nullity`.
        num_heads: M, None for infinitely many.
    """
    names = Names(pairs)
    points: list[int] = []
    gaussians: list[int] = []
    at_zero: list[int] = []
    repeated: dict[int, list[int]] = {}
    sentences: list[str] = []
    for line in prediction.lines:
        for relation, is_active in zip(line.relations, line.active, strict=True):
            if not is_active:
                continue
            used = np.flatnonzero(relation.coefficients)
            contexts = pairs.index[line.pairs[used]]
            if not line.direction.any():
                if relation.linear.any():
                    at_zero.append(int(contexts[0]))
                else:
                    where = names.queries(line.pairs[used])
                    sentences.append(f"{_contexts(contexts)} is centred and {where} is 0")
            elif len(used) == 2 and _repeats(relation, line, used, contexts):
                first, second = line.pairs[used].tolist()
                repeated.setdefault(first, [first]).append(second)
            elif len(used) == 1:
                (gaussians if relation.quadratic.any() else points).append(int(contexts[0]))
            else:
                sentences.append(_sentence(names, line, relation, used))
    for members in repeated.values():
        sentences.append(f"{names.queries(np.array(members), own=True)} are the same")
    dim = pairs.dim
    if points:
        what = "a single point (Dirac)" if len(set(points)) == 1 else "single points (Diracs)"
        sentences.append(
            f"{_contexts(points)} {_are(points)} {what}: whatever the query, heads see the atom, "
            f"and {_atoms(prediction, points)}"
        )
    if gaussians:
        quadratic = [
            int(pairs.index[line.pairs[np.flatnonzero(relation.coefficients)[0]]])
            for line in prediction.lines
            for relation in line.relations
            if relation.quadratic.any() and np.count_nonzero(relation.coefficients) == 1
        ]
        what = "Gaussian" if len(set(quadratic)) > 1 else "a Gaussian"
        sentences.append(
            f"{_contexts(quadratic)} {_are(quadratic)} {what}: a quadratic cumulant generating "
            "function shows heads no more than mean and covariance times query, and those are "
            f"dependent here (covariances span at most d(d+1)/2 = {dim * (dim + 1) // 2} "
            f"dimensions, queries at most d = {dim})"
        )
    if at_zero:
        sentences.append(
            f"the queries at 0 of {_contexts(at_zero)} see only the means, which are dependent"
        )
    if num_heads is not None and prediction.for_heads(num_heads) > prediction.nullity:
        span = prediction.span_dim
        each = "M d" if span == dim else f"M times the dimension {span} of all tokens"
        sentences.append(f"too few heads: {each} = {num_heads * span} < P = {pairs.num_pairs}")
    return list(dict.fromkeys(sentences))


def _atoms(prediction: Prediction, points: list[int]) -> str:
    """What the atoms of single points span, in words."""
    atoms = [
        relation.linear
        for line in prediction.lines
        for relation in line.relations
        if np.count_nonzero(relation.coefficients) == 1 and not relation.quadratic.any()
    ]
    rank = int(np.linalg.matrix_rank(np.array(atoms))) if atoms else 0
    if rank == 0:
        return "the atom is 0" if len(set(points)) == 1 else "the atoms are 0"
    return f"what they see spans {rank} dimension{'s' if rank > 1 else ''} only"


class Names:
    """Numbers of queries: within all contexts where they share them, else within their own."""

    def __init__(self, pairs: Pairs):
        self.pairs = pairs
        firsts = np.searchsorted(pairs.index, pairs.index)
        self.numbers = np.arange(pairs.num_pairs) - firsts + 1
        own = [pairs.queries[pairs.index == i] for i in np.unique(pairs.index)]
        self.are_shared = all(np.array_equal(one, own[0]) for one in own)

    def queries(self, members: np.ndarray, *, own: bool = False) -> str:
        """``queries 1 and 2``, ``query 1 of context 2``; with ``own`` always with the context."""
        contexts = self.pairs.index[members]
        numbers = sorted({int(number) for number in self.numbers[members]})
        text = ("query " if len(numbers) == 1 else "queries ") + _listed(numbers)
        if not own and (self.are_shared or len(self.pairs.laws) == 1):
            return text
        if len(set(contexts.tolist())) == 1:
            return f"{text} of {_contexts(contexts)}"
        return _listed(
            [f"query {self.numbers[a]} of context {self.pairs.index[a] + 1}" for a in members]
        )


def _repeats(relation: Relation, line: Line, used: np.ndarray, contexts: np.ndarray) -> bool:
    """Whether a relation says only that one context is asked twice at one query."""
    first, second = used
    return bool(
        contexts[0] == contexts[1]
        and _is(float(line.multiples[first]), float(line.multiples[second]))
        and _is(float(relation.coefficients[first]), -float(relation.coefficients[second]))
    )


def _sentence(names: Names, line: Line, relation: Relation, used: np.ndarray) -> str:
    """A relation of several functions as ``y_p = sum of dilated y_a + shift`` where it is one."""
    members = line.pairs[used]
    contexts, t = names.pairs.index[members], line.multiples[used]
    shares = relation.coefficients[used] / t  # of the CGFs
    for p in reversed(range(len(used))):
        others = [a for a in range(len(used)) if a != p]
        counts = [-shares[a] / shares[p] for a in others]
        if not all(count > 0.5 and _is(count, round(count)) for count in counts):
            continue
        parts: list[str] = []
        for a, count in zip(others, counts, strict=True):
            parts += [_dilated(int(contexts[a]), t[a] / t[p])] * round(count)
        shift = relation.linear / relation.coefficients[used[p]]
        text = _equation(int(contexts[p]), parts, shift, bool(relation.quadratic.any()))
        if len(others) == 1 and contexts[others[0]] == contexts[p] and len(parts) == 1:
            text = _own_symmetry(names, int(contexts[p]), t[others[0]] / t[p], members)
            return text + (", up to a Gaussian part" if relation.quadratic.any() else "")
        if not np.allclose(t, t[0], rtol=_SAME, atol=0):
            text += f" along the line of {names.queries(members)}"
        return text
    left = ""
    for share, context, ratio in zip(shares * t[-1], contexts, t / t[-1], strict=True):
        sign = "-" if share < 0 else "+"
        size = "" if _is(abs(share), 1) else f"{abs(share):.4g} "
        inner = "z" if _is(ratio, 1) else f"{ratio:.4g} z"
        left += f" {sign} {size}Lam_{context + 1}({inner})"
    left = left.removeprefix(" + ")
    left = f"-{left[3:]}" if left.startswith(" - ") else left
    right = f"<{_vector(relation.linear)}, z>" if relation.linear.any() else "0"
    if relation.quadratic.any():
        right += " + a quadratic form"
    return f"the log-sum-exp functions of {_contexts(contexts)} are dependent: {left} = {right}"


def _equation(context: int, parts: list[str], shift: np.ndarray, has_gaussian: bool) -> str:
    """``context 3 is the convolution of context 1 and context 2, shifted by (1, 0)``."""
    own = f"context {context + 1} is "
    if len(parts) == 1:
        text = own + parts[0]
        if not shift.any() and not has_gaussian and parts[0].count(" ") == 1:
            return own + f"a duplicate of {parts[0]} (to rounding)"
        joint = " shifted by " if parts[0].count(" ") == 1 else ", shifted by "
    else:
        if len(set(parts)) == 1:
            text = own + f"the convolution of {parts[0]} with itself"
            text += f" ({len(parts)} terms)" if len(parts) > 2 else ""
        elif all(part.count(" ") == 1 for part in parts):
            text = own + f"the convolution of contexts {_listed([p.split()[1] for p in parts])}"
        else:
            text = own + f"the convolution of {_listed(parts)}"
        joint = ", shifted by "
    if shift.any():
        text += joint + _vector(shift)
    return text + (" up to a Gaussian part" if has_gaussian else "")


def _dilated(context: int, ratio: float) -> str:
    name = f"context {context + 1}"
    if _is(ratio, 1):
        return name
    return f"the reflection of {name}" if _is(ratio, -1) else f"{name} dilated by {ratio:.4g}"


def _own_symmetry(names: Names, context: int, ratio: float, members: np.ndarray) -> str:
    """One context asked at two queries of a line."""
    where = names.queries(members)
    if _is(ratio, -1):
        return f"context {context + 1} is symmetric about its mean and {where} are opposite"
    return f"context {context + 1} is itself dilated by {ratio:.4g} along the line of {where}"


def _is(value: float | int, number: float | int) -> bool:
    return bool(abs(value - number) <= _SAME * abs(number))


def _contexts(contexts: np.ndarray | Sequence[int]) -> str:
    numbers = sorted({int(i) + 1 for i in contexts})
    return ("context " if len(numbers) == 1 else "contexts ") + _listed(numbers)


def _are(contexts: Sequence[int]) -> str:
    return "is" if len(set(contexts)) == 1 else "are"


def _listed(items: Sequence[object]) -> str:
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _vector(values: np.ndarray) -> str:
    return f"({', '.join(f'{value:.4g}' for value in values + 0.0)})"
