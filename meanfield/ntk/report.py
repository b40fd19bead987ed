"""Is the tangent kernel positive for these contexts and queries, and which heads suit it best?"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from meanfield._checks import require, require_positive_integer
from meanfield.fields import AttentionAV, AttentionQKV, SoftmaxAttention
from meanfield.fields.base import AbstractField
from meanfield.laws import EntrywiseGaussian, UniformBall
from meanfield.ntk.injectivity import Prediction, predicted_nullity, reasons
from meanfield.ntk.injectivity._reasons import Names
from meanfield.ntk.kernel import checked_particles, factor
from meanfield.ntk.pairs import Pairs, evaluate, moderate, pairs_of
from meanfield.ntk.spectra import DROPPED, Spectrum, decide_rank, spectrum

_LARGEST_HEADS = 2**28  # numbers: 2 GiB
_INSIDE = 0.9  # of the domain's radius: where a law is finite on a ball only
_SCORE = 2.0  # s R |x|: the head scale at which few contexts are best told apart


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads for a check, and where they came from.

    ``law`` says in words how they were drawn; ``scale`` is the standard deviation of the entries of
    A, or the radius of the ball for laws that are finite on a domain only.
    """

    field: AbstractField
    particles: Any
    log_weights: Any
    num_heads: int
    scale: float | None
    law: str


def default_scale(pairs: Pairs) -> float:
    """s such that ``s R |x|`` is about 2: R the contexts' spread, |x| the queries' length.

    R is the geometric mean of the contexts' root mean square distances from their means (single
    points left out), |x| the queries' root mean square length. Where a law is finite on a ball
    only, 0.9 times the largest radius that keeps every ``A^T x`` inside.
    """
    length = float(np.sqrt(np.mean(np.sum(pairs.queries**2, axis=1)))) or 1.0
    radius = min(law.domain_radius() for law in pairs.laws)
    if math.isfinite(radius):
        longest = float(np.max(np.linalg.norm(pairs.queries, axis=1))) or 1.0
        return _INSIDE * radius / longest
    zero = np.zeros(pairs.dim)
    spreads = [math.sqrt(max(np.trace(evaluate(law, zero, 2)), 0.0)) for law in pairs.laws]
    sizes = [float(np.linalg.norm(evaluate(law, zero, 1))) for law in pairs.laws]
    extent = max([*spreads, *sizes])
    spreads = [spread for spread in spreads if spread > 1e-7 * extent]
    typical = math.exp(np.mean(np.log(spreads))) if spreads else extent or 1.0
    return _SCORE / (typical * length)


def default_num_heads(pairs: Pairs) -> int:
    """M = max(64, ceil(2 P / d)): twice what the rank needs at least, where tokens span R^d."""
    return max(64, -(-2 * pairs.num_pairs // pairs.dim))


def draw_heads(
    pairs: Pairs,
    *,
    num_heads: int | None = None,
    scale: float | int | None = None,
    head_dim: int | None = None,
    seed: int = 0,
) -> Heads:
    """Seeded heads of attention for these pairs.

    ``A_ij ~ N(0, s^2)``; with ``head_dim`` k, ``A = Q^T K`` and entries of Q and K of variance
    ``s / sqrt(k)``, so that those of A keep the variance s^2. Laws that are finite on a domain
    only: A uniform in the Frobenius ball of radius s (Q and K: of radius sqrt(s)).
    ``V_ij ~ N(0, 1/d)``, which only the A-part and the full kernel see.

    Args:
        num_heads: M; None: ``max(64, ceil(2 P / d))``.
        scale: s; None: `default_scale`.

    Raises: `MeanfieldError` on a scale that is not positive.
    Reference: our choice, docs/theory.md 3.8.
    """
    dim = pairs.dim
    num_heads = default_num_heads(pairs) if num_heads is None else num_heads
    require_positive_integer("num_heads", num_heads)
    if head_dim is not None:
        require_positive_integer("head_dim", head_dim)
    numbers = num_heads * (head_dim or dim) * dim
    require(
        numbers <= _LARGEST_HEADS,
        f"{num_heads} heads of dimension {head_dim or dim} in d = {dim}: {numbers:.3g} numbers",
        f"at most {_LARGEST_HEADS}",
        "take fewer heads or a smaller head dimension",
    )
    require(
        isinstance(seed, int | np.integer) and 0 <= seed < 2**63,
        f"seed {seed!r}",
        "an integer from 0 to 2^63 - 1",
        "pass seed=0",
    )
    scale = default_scale(pairs) if scale is None else float(scale)
    require(
        math.isfinite(scale) and scale > 0,
        f"the head scale {scale}",
        "a positive finite number",
        "pass scale=1.0, or none for the default",
    )
    is_bounded = any(math.isfinite(law.domain_radius()) for law in pairs.laws)
    kind = UniformBall if is_bounded else EntrywiseGaussian
    if head_dim is None:
        field, scales = SoftmaxAttention("av"), {"A": scale}
        law = (
            f"A uniform in the ball |A| < {scale:.4g}"
            if is_bounded
            else f"A_ij ~ N(0, {scale:.4g}^2)"
        )
    else:
        field = SoftmaxAttention("qkv", head_dim=head_dim)
        each = math.sqrt(scale) if is_bounded else math.sqrt(scale / math.sqrt(head_dim))
        scales = {"Q": each, "K": each}
        law = f"A = Q^T K, head dimension {head_dim}, " + (
            f"|Q|, |K| < {each:.4g}" if is_bounded else f"entries of Q, K ~ N(0, {each:.4g}^2)"
        )
    key = jax.random.key(seed)
    shapes = field.particle_shapes(dim)
    particles = kind(**scales, V=0.0)(key, shapes, num_heads)
    values = EntrywiseGaussian(1 / math.sqrt(dim))(key, {"V": shapes.V}, num_heads)["V"]
    return Heads(field, particles._replace(V=values), None, num_heads, scale, law)


@dataclasses.dataclass(frozen=True)
class PositivityReport:
    """Answer of `check`.

    ``verdict`` is "positive", "not positive" or "undecided". Nullities and eigenvalues are those of
    the scalar V-Gram, unweighted; for the other parts those of the kernel with P d columns, the
    nullities divided by d. ``predicted_nullity`` is the larger of Theorem A's and of what M heads
    can reach at most, or None for fields that no theorem covers; ``gap`` belongs to the numerical
    rank.
    """

    verdict: str
    part: str
    nullity: int | float
    predicted_nullity: int | float | None
    reasons: list[str]
    spectrum: Spectrum
    prediction: Prediction | None
    pairs: Pairs
    heads: Heads

    @property
    def num_pairs(self) -> int:
        """P."""
        return self.pairs.num_pairs

    @property
    def lambda_min(self) -> float:
        """Smallest eigenvalue of this ensemble's kernel."""
        return self.spectrum.lambda_min

    @property
    def lambda_max(self) -> float:
        """Largest eigenvalue."""
        return self.spectrum.lambda_max

    @property
    def interval(self) -> tuple[float, float]:
        """95% Monte-Carlo interval of lambda_min over heads."""
        return self.spectrum.interval

    @property
    def gap(self) -> float:
        """Smallest kept over largest dropped singular value: the worse of numbers and theory."""
        theory = float("inf") if self.prediction is None else self.prediction.gap
        return min(self.spectrum.gap, theory)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings; what is not finite becomes None."""

        def plain(value: Any) -> Any:
            return float(value) if math.isfinite(value) else None

        return {
            "verdict": self.verdict,
            "part": self.part,
            "num_contexts": len(self.pairs.laws),
            "num_pairs": self.num_pairs,
            "dim": self.pairs.dim,
            "num_heads": self.heads.num_heads,
            "heads": self.heads.law,
            "scale": self.heads.scale,
            "nullity": self.nullity,
            "predicted_nullity": self.predicted_nullity,
            "lambda_min": self.lambda_min,
            "lambda_min_interval": [plain(end) for end in self.interval],
            "lambda_max": self.lambda_max,
            "condition": plain(self.spectrum.condition),
            "gap": plain(self.gap),
            "reasons": self.reasons,
            "eigenvalues": [float(value) for value in self.spectrum.eigenvalues],
        }

    def text(self) -> str:
        """The report as lines for a terminal."""
        pairs, heads = self.pairs, self.heads
        low, high = self.interval
        ranged = f" (95% over heads: {low:.3g} to {high:.3g})" if math.isfinite(high) else ""
        lines = [
            f"{self.verdict}: the {_PART_WORDS.get(self.part, self.part + '-part of the')} tangent"
            f" kernel at {pairs.num_pairs} pair{'s' if pairs.num_pairs > 1 else ''}",
            f"  contexts    {len(pairs.laws)} in d = {pairs.dim}",
            f"  heads       {heads.num_heads}: {heads.law}",
            f"  nullity     {self.nullity:g} by numbers"
            + (
                f", {self.predicted_nullity:g} by theory"
                if self.predicted_nullity is not None
                else ", no theorem for this field"
            ),
            f"  spectrum    lambda_min {self.lambda_min:.4g}{ranged}, lambda_max"
            f" {self.lambda_max:.4g}",
            f"  gap         {self.gap:.3g} between singular values kept and dropped"
            " (a decision needs 1e3)",
        ]
        return "\n".join(lines + [f"  because     {reason}" for reason in self.reasons])


_PART_WORDS = {"full": "whole"}


def check(
    contexts: Any,
    queries: Any = "shared:3",
    *,
    num_heads: int | None = None,
    scale: float | int | None = None,
    head_dim: int | None = None,
    seed: int = 0,
    part: str = "V",
    field: AbstractField | None = None,
    particles: Any = None,
    log_weights: Any = None,
    interval: bool = True,
) -> PositivityReport:
    """Whether the tangent kernel of one layer is positive at these pairs: numbers beside theory.

    "positive" and "not positive" are said only where the numerical rank has a gap of 1e3 and
    equals what Theorem A predicts (attention); otherwise the verdict is "undecided" and the reasons
    say why. A kernel beyond float64 may still be certified: `certify`.

    Args:
        contexts, queries: as in `pairs_of`, which also uses ``seed``.
        num_heads, scale, head_dim, seed: as in `draw_heads`.
        part: "V", "A" or "full"; of another field also the name of a leaf.
        interval: False leaves out the Monte-Carlo interval (16 further factorizations).
        field, particles, log_weights: your own heads, leaves ``[M, ...]``; another field than
            attention is checked by its jacobians and has no prediction.

    Raises: `MeanfieldError` on bad input, `DomainError` where heads leave a law's domain.
    Cost: O(M P n d + M d P^2). Reference: reconstruction, docs/theory.md 3.1, 3.2 and 3.8.
    """
    pairs = moderate(pairs_of(contexts, queries, seed=seed))
    if particles is None:
        require(
            field is None,
            f"a field {type(field).__name__} without particles",
            "both or neither",
            "pass particles with leading axis M",
        )
        heads = draw_heads(pairs, num_heads=num_heads, scale=scale, head_dim=head_dim, seed=seed)
    else:
        heads = _given_heads(field, particles, log_weights, pairs, num_heads, scale, head_dim)
    whole = factor(heads.field, heads.particles, pairs, part=part, log_weights=heads.log_weights)
    found = spectrum(whole, interval=interval)
    nullity = found.nullity_per_coordinate
    if not isinstance(heads.field, SoftmaxAttention):
        verdict = (
            ("not positive" if found.nullity else "positive") if found.decided else "undecided"
        )
        said = [] if found.decided else [_no_gap(found)]
        said += _equal_features(whole.matrix, found, pairs)
        return PositivityReport(verdict, part, nullity, None, said, found, None, pairs, heads)

    prediction = predicted_nullity(pairs, seed=seed)
    predicted = _predicted(prediction, heads, pairs, part)
    said = reasons(pairs, _for_part(prediction, part), num_heads=heads.num_heads)
    if not found.decided:
        verdict = "undecided"
        said.append(_no_gap(found))
    elif not prediction.decided:
        verdict = "undecided"
        said.append(
            f"theory's own decisions have a gap of {prediction.gap:.3g} only: functions or lines of"
            " queries are nearly dependent"
        )
    elif nullity == predicted:
        verdict = "not positive" if nullity else "positive"
    else:
        # Theory's nullity holds for any heads; M heads below P - nullity may have a larger one.
        few = heads.num_heads < pairs.num_pairs - prediction.nullity and nullity > predicted
        verdict = "not positive" if few and predicted else "undecided"
        said.append(_disagreement(nullity, predicted, few))
    return PositivityReport(
        verdict, part, nullity, predicted, said, found, prediction, pairs, heads
    )


def _given_heads(field: Any, particles: Any, log_weights: Any, pairs: Pairs, *drawn: Any) -> Heads:
    require(
        all(one is None for one in drawn),
        "particles together with num_heads, scale or head_dim",
        "your own particles or drawn ones",
        "drop one of them",
    )
    if field is None:
        is_qkv = isinstance(particles, AttentionQKV)
        require(
            is_qkv or isinstance(particles, AttentionAV),
            f"particles of type {type(particles).__name__} without a field",
            "AttentionAV or AttentionQKV",
            "pass field=... as well",
        )
        head_dim = np.shape(particles.Q)[-2] if is_qkv else None
        field = SoftmaxAttention("qkv" if is_qkv else "av", head_dim=head_dim)
    particles, weights = checked_particles(field, particles, pairs, log_weights)
    return Heads(field, particles, log_weights, len(weights), None, "given particles")


def _for_part(prediction: Prediction, part: str) -> Prediction:
    """Every relation is one of the A-part, which does not see the constants."""
    if part != "A":
        return prediction
    every = [dataclasses.replace(one, active=(True,) * one.nullity) for one in prediction.lines]
    return dataclasses.replace(prediction, lines=tuple(every))


def _predicted(prediction: Prediction, heads: Heads, pairs: Pairs, part: str) -> int | float:
    """The larger of Theorem A's nullity and what M generic heads leave at least."""
    dim, span, num = pairs.dim, prediction.span_dim, heads.num_heads
    if part == "V":
        return prediction.for_heads(num)
    # Dimension of the directions dA x that one head offers, A of rank k where it is factorised.
    seen = int(np.linalg.matrix_rank(pairs.queries))
    rank = dim if isinstance(heads.particles, AttentionAV) else heads.particles.Q.shape[-2]
    offered = seen * span if rank >= min(seen, span) else rank * (seen + span - rank)
    infinite = prediction.score_nullity if part == "A" else prediction.nullity
    offered += dim * span if part == "full" else 0
    short = pairs.num_pairs * dim - num * offered
    if short <= infinite * dim:
        return infinite
    return short // dim if short % dim == 0 else short / dim


def _disagreement(nullity: int | float, predicted: int | float, few: bool) -> str:
    said = f"numbers see nullity {nullity:g} and theory {predicted:g}: "
    if few:
        return said + "so few heads may leave more than theory's bound; take as many as pairs"
    if nullity > predicted:
        return said + (
            "the kernel is positive beyond float64, or nearly dependent; try another scale,"
            " more heads, or a certificate"
        )
    return said + "a dependence holds to rounding only"


def _no_gap(found: Spectrum) -> str:
    return (
        f"no gap: singular values fall to {found.singular_values[-1]:.2g} without a jump of 1e3"
        f" above rounding ({found.noise:.2g}); try another scale, more heads, fewer pairs, or a"
        " certificate"
    )


def _equal_features(matrix: np.ndarray, found: Spectrum, pairs: Pairs) -> list[str]:
    """In words: pairs whose features vanish or coincide (what a field without theory can show)."""
    if not found.nullity:
        return []
    columns = matrix.reshape(len(matrix), pairs.num_pairs, -1)
    said, names = [], Names(pairs)
    level = DROPPED * found.noise
    for b in range(pairs.num_pairs):
        name = names.queries(np.array([b]), own=True)
        if np.linalg.norm(columns[:, b]) <= level:
            said.append(f"{name} has no features")
            continue
        for a in range(b):
            if np.linalg.norm(columns[:, a] - columns[:, b]) <= level:
                said.append(f"{name} has the features of {names.queries(np.array([a]), own=True)}")
                break
    return said or ["a combination of several pairs has no features; see the null directions"]


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """Answer of `suggest`: lambda_min over head scales and numbers of heads.

    ``lambda_min [S, H]`` for ``scales [S]`` and ``head_counts [H]``; NaN where the kernel is
    singular to rounding.
    """

    scales: np.ndarray
    head_counts: np.ndarray
    lambda_min: np.ndarray
    best_scale: float
    best_heads: int

    def text(self) -> str:
        """The curve as a table, the best scale and number of heads below it."""
        header = "  scale s \\ heads M " + "".join(f"{count:>11d}" for count in self.head_counts)
        rows = []
        for scale, values in zip(self.scales, self.lambda_min, strict=True):
            cells = "".join(
                f"{value:>11.3g}" if value == value else "          -" for value in values
            )
            mark = "  <-" if scale == self.best_scale else ""
            rows.append(f"  {scale:<18.4g}{cells}{mark}")
        best = (
            f"  best: scale {self.best_scale:.4g}; {self.best_heads} heads keep at least 90% of the"
            f" lambda_min of {self.head_counts[-1]}"
        )
        if self.best_scale in (self.scales[0], self.scales[-1]) and len(self.scales) > 1:
            best += "; at the end of the scales tried, so a still better one may lie beyond"
        return "\n".join(
            ["lambda_min of the V-part (- = singular to rounding)", header, *rows, best]
        )

    def as_json(self) -> dict[str, Any]:
        """Plain lists."""
        table = [[None if math.isnan(v) else v for v in row] for row in self.lambda_min.tolist()]
        return {
            "scales": self.scales.tolist(),
            "head_counts": self.head_counts.tolist(),
            "lambda_min": table,
            "best_scale": self.best_scale,
            "best_heads": self.best_heads,
        }


def suggest(
    contexts: Any,
    queries: Any = "shared:3",
    *,
    max_heads: int | None = None,
    head_dim: int | None = None,
    seed: int = 0,
    num_scales: int = 9,
) -> Suggestion:
    """Head scale and number of heads that maximise lambda_min of the V-part within a budget.

    The same unit heads are scaled over two decades around `default_scale` (for laws that are finite
    on a domain: below the largest admissible radius), and cut to fewer heads by halving; so the
    curve differs by scale and number alone. The best scale maximises lambda_min at ``max_heads``;
    the best number is the smallest listed one that keeps 90% of that.

    Args: max_heads, the budget; None: 4 times the default number of heads.
    Raises: as `check`; `MeanfieldError` where every kernel is singular to rounding.
    Cost: ``num_scales`` factors of ``max_heads`` heads.
    Reference: our choice, docs/theory.md 3.8.
    """
    pairs = moderate(pairs_of(contexts, queries, seed=seed))
    most = 4 * default_num_heads(pairs) if max_heads is None else max_heads
    require_positive_integer("max_heads", most)
    require_positive_integer("num_scales", num_scales)
    is_bounded = any(math.isfinite(law.domain_radius()) for law in pairs.laws)
    centre = default_scale(pairs)
    exponents = np.linspace(-2, 0, num_scales) if is_bounded else np.linspace(-1, 1, num_scales)
    scales = centre * 10.0**exponents
    counts = sorted({max(1, most >> shift) for shift in range(5)})
    table = np.full((len(scales), len(counts)), np.nan)
    for row, scale in enumerate(scales):
        heads = draw_heads(pairs, num_heads=most, scale=float(scale), head_dim=head_dim, seed=seed)
        whole = factor(heads.field, heads.particles, pairs)
        for column, count in enumerate(counts):
            part = whole.matrix[: count * pairs.dim] * math.sqrt(most / count)
            if len(part) < pairs.num_pairs:
                continue
            values = np.linalg.svd(part, compute_uv=False)
            if decide_rank(values, float(np.linalg.norm(whole.noise)))[0] == 0:
                table[row, column] = values[-1] ** 2
    require(
        np.isfinite(table[:, -1]).any(),
        f"a kernel that is singular to rounding at every scale with {most} heads",
        "contexts and queries with a positive kernel",
        "see the report for the null directions, or allow more heads",
    )
    best = int(np.nanargmax(table[:, -1]))
    enough = np.flatnonzero(table[best] >= 0.9 * table[best, -1])
    return Suggestion(scales, np.array(counts), table, float(scales[best]), counts[int(enough[0])])
