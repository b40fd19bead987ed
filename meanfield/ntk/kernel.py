"""Factors F of the tangent kernel of one layer, K = F^T F, for laws and clouds as contexts."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from meanfield._checks import (
    MeanfieldError,
    NonFiniteError,
    require,
    require_finite,
)
from meanfield._runtime import guard_runtime
from meanfield._typing import Array
from meanfield.fields import AttentionAV, AttentionQKV, SoftmaxAttention
from meanfield.fields.base import AbstractField, require_field
from meanfield.laws import AbstractLaw, Empirical
from meanfield.laws._parameters import is_shape
from meanfield.measures import TokenMeasure
from meanfield.ntk.pairs import EPS, Pairs, evaluate, sizes_of


class Factor(NamedTuple):
    """F with K = F^T F: a feature of one particle per row, a pair (or its coordinate) per column.

    Attributes:
        matrix: ``[features, P]`` for the V-part of attention, whose kernel is scalar times the
            identity; else ``[features, P d]``, column ``a d + o`` for coordinate o of pair a.
            Rows of particle j carry ``sqrt(w_j)`` and stand together.
        noise: size of the rounding errors in each column (absolute: a kernel that is zero but for
            rounding has no other scale).
        part: "V", "A", "full", or a leaf of the field's particles.
        copies: 1 for the scalar V-part, else d: nullities are counted per coordinate.
        weights: masses of the M particles.
    """

    matrix: np.ndarray
    noise: np.ndarray
    part: str
    copies: int
    weights: np.ndarray


def factor(
    field: AbstractField,
    particles: Any,
    pairs: Pairs,
    *,
    part: str = "V",
    log_weights: Any = None,
) -> Factor:
    """Factor of the kernel ``K(a, b) = sum_j w_j D_theta phi_j(a) D_theta phi_j(b)^T`` of a layer.

    With ``m = grad Lam_i(z)``, ``C = Hess Lam_i(z)`` at ``z = A^T x`` the features of attention are
    the entries of m (part "V": a scalar kernel, times I_d), ``x_p (V C)_oq`` (part "A", score
    matrix A) or ``(V C K^T)_or x_i`` and ``(V C)_oi (Q x)_r`` (part "A", A = Q^T K), with the
    field's scale; "full" joins them. Any other field: jacobians of its velocity, "full" or the name
    of a leaf (``V``: that leaf, ``A``: all but V, where the particles have a V).

    Args:
        field, particles: leaves ``[M, ...]``.
        pairs: from `pairs_of`; another field than `SoftmaxAttention` needs clouds.
        part: see above.
        log_weights: ``[M]``, normalised here; None: 1/M each.

    Raises: `MeanfieldError` on an unknown part or wrong shapes, `DomainError` where ``A^T x``
        leaves a law's domain, `NonFiniteError`.
    Cost: V-part O(M P n d) and ``M d P`` numbers; A-part ``M d^2 P d`` numbers.
    Reference: reconstruction, docs/theory.md 3.1.
    """
    guard_runtime()
    particles, weights = checked_particles(field, particles, pairs, log_weights)
    if isinstance(field, SoftmaxAttention):
        return _attention_factor(field, particles, pairs, part, weights)
    return _jacobian_factor(field, particles, pairs, part, weights)


def gram(factor: Factor) -> np.ndarray:
    """``K = F^T F``, symmetric; never take ranks from it: it squares the condition number."""
    product = factor.matrix.T @ factor.matrix
    return (product + product.T) / 2


def gaussian_kernel(
    pairs: Pairs, *, scale: float | int, value_scale: float | int | None = None
) -> np.ndarray:
    """Kernel of infinitely many heads with independent entries ``A_ij ~ N(0, scale^2)``.

    Scalar V-part: ``K(a, b) = <k_a, k_b> + scale^2 tr(C_a C_b) <x_a, x_b>`` with the means k and
    covariances C of the contexts. With ``value_scale`` v (``V_ij ~ N(0, v^2)``, independent) the
    A-part instead, also scalar: ``v^2 tr(C_a C_b) <x_a, x_b>``. Exact for Gaussian contexts; for
    others the leading order in s: the V-part of symmetric or centred laws has error ``O(s^4)``,
    that of any law ``O(s^2)`` (third cumulants meet the means), the A-part ``O(s^2)``.

    Returns: ``[P, P]``. Reference: reconstruction, docs/theory.md 3.5.
    """
    for name, value in (("scale", scale), ("value_scale", value_scale)):
        require(
            value is None or (np.isfinite(value) and value >= 0),
            f"{name} is {value}",
            "a finite number of at least 0",
            "pass a standard deviation",
        )
    zero = np.zeros(pairs.dim)
    means = np.stack([evaluate(law, zero, 1) for law in pairs.laws])[pairs.index]
    covariances = np.stack([evaluate(law, zero, 2).ravel() for law in pairs.laws])[pairs.index]
    spread = (covariances @ covariances.T) * (pairs.queries @ pairs.queries.T)
    if value_scale is not None:
        return value_scale**2 * spread
    return means @ means.T + scale**2 * spread


def particle_names(particles: Any) -> list[str]:
    """Names of the leaves ``[M, ...]``, in their order."""
    paths = jax.tree_util.tree_flatten_with_path(particles)[0]
    return [jax.tree_util.keystr(path).strip(".[]'") for path, _ in paths]


def checked_particles(
    field: AbstractField, particles: Any, pairs: Pairs, log_weights: Any
) -> tuple[Any, np.ndarray]:
    """One cell's particles in float64 and their masses, after all checks."""
    require_field("field", field)
    wanted, wanted_tree = jax.tree.flatten(field.particle_shapes(pairs.dim), is_leaf=is_shape)
    leaves, tree = jax.tree.flatten(particles)
    num = leaves[0].shape[0] if leaves and np.ndim(leaves[0]) else 0
    shapes = [tuple(np.shape(leaf)) for leaf in leaves]
    require(
        tree == wanted_tree and num > 0 and shapes == [(num, *shape) for shape in wanted],
        f"particles of shapes {shapes} and queries of width d = {pairs.dim}",
        f"leaves [M] + {[tuple(shape) for shape in wanted]} for {type(field).__name__}",
        "pass one cell of particles, leading axis M",
    )
    for name, leaf in zip(particle_names(particles), leaves, strict=True):
        require_finite(name, leaf)
    particles = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), particles)
    if log_weights is None:
        return particles, np.full(num, 1 / num)
    require(
        np.shape(log_weights) == (num,),
        f"log_weights has shape {np.shape(log_weights)}",
        f"({num},)",
        "give one weight to each particle",
    )
    logs = np.asarray(log_weights, dtype=np.float64)
    require(
        np.isfinite(logs.max()) and not np.isnan(logs).any(),
        "log_weights holds no finite number, or NaN or inf",
        "finite numbers or -inf",
        "correct them",
    )
    weights = np.exp(logs - logs.max())
    return particles, weights / weights.sum()


def tilts(field: SoftmaxAttention, particles: Any, queries: np.ndarray) -> np.ndarray:
    """``z = scale A^T x`` of all heads at all queries, ``[M, K, d]``."""
    if isinstance(particles, AttentionAV):
        return field.scale * np.einsum("kp,mpq->mkq", queries, particles.A, optimize=True)
    return field.scale * np.einsum(
        "kp,mrp,mrq->mkq", queries, particles.Q, particles.K, optimize=True
    )


def _attention_factor(
    field: SoftmaxAttention, particles: Any, pairs: Pairs, part: str, weights: np.ndarray
) -> Factor:
    require(part in ("V", "A", "full"), f"part {part!r}", "'V', 'A' or 'full'", "pass one of them")
    num, dim, total = len(weights), pairs.dim, pairs.num_pairs
    roots = np.sqrt(weights)
    rows = _rows_per_head(particles, dim, part)
    columns = total if part == "V" else total * dim
    # Column-major: a smallest eigenvalue at large P works in the place of this very array.
    matrix = np.zeros((num * rows, columns), order="F")
    noise = np.zeros(columns)
    scores = _score_norms(field, particles)[:, None]
    of_values = 0.0 if part == "V" else _score_size(field, particles, weights)
    for number, law in enumerate(pairs.laws):
        here = np.flatnonzero(pairs.index == number)
        if not len(here):
            continue
        x = pairs.queries[here]
        z = tilts(field, particles, x)
        m = evaluate(law, z, 1)
        errors = _rounding(law, z, m, weights, scores * norms(x))
        if part == "V":
            block = roots[:, None, None] * np.moveaxis(m, 1, 2)  # [M, d, K]
            matrix[:, here] = block.reshape(num * dim, len(here))
            noise[here] = errors[0]
            continue
        value = roots[:, None, None] * particles.V
        block = _score_block(field, particles, value, x, evaluate(law, z, 2))  # [M, rows, K, d]
        chosen = (here[:, None] * dim + np.arange(dim)).ravel()
        each = of_values * norms(x) * errors[1]
        if part == "full":
            block = np.concatenate([_value_block(roots[:, None, None] * m), block], axis=1)
            each = np.hypot(each, errors[0])
        matrix[:, chosen] = block.reshape(num * rows, len(chosen))
        noise[chosen] = np.repeat(each, dim)
    with np.errstate(over="ignore"):
        is_sound = np.isfinite(np.sum(noise**2)) and np.isfinite(matrix).all()
    if not is_sound:
        raise NonFiniteError(
            "the kernel's features are not finite",
            "numbers that float64 can hold",
            "take smaller tokens, heads or queries",
        )
    copies = 1 if part == "V" else dim
    return Factor(matrix, noise, part, copies, weights)


def norms(x: np.ndarray) -> np.ndarray:
    """Lengths of the last axis."""
    return np.linalg.norm(x, axis=-1)


def _rounding(
    law: AbstractLaw, z: np.ndarray, m: np.ndarray, weights: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of m and of C at each query, ``[K]``, root mean squares over the heads.

    ``u (R + |z| R S + a S^2)`` and ``u (S^2 + |z| R S^2 + a S^3 + u R^2)``: sums of tokens of size
    R; scores <z, y> of size |z| R, which tilt masses that are S apart; errors of z itself, of size
    u a, a = |A| |x| (``scores``, larger than |z| where ``A^T x`` cancels).
    """
    reach, spread = sizes_of(law)
    reach = max(reach, float(np.abs(m).max(initial=0.0)))
    mean = np.tensordot(weights, m, 1)
    far = np.sqrt(np.tensordot(weights, np.sum((m - mean) ** 2, axis=-1), 1))
    spread = np.maximum(spread, far)
    size = np.sqrt(weights @ norms(z) ** 2)
    product = np.sqrt(weights @ scores**2)
    with np.errstate(over="ignore"):  # the caller refuses what is not finite
        of_m = reach + size * reach * spread + product * spread**2
        of_c = spread**2 * (1 + size * reach + product * spread) + EPS * reach**2
    return EPS * of_m, EPS * of_c


def _score_norms(field: SoftmaxAttention, particles: Any) -> np.ndarray:
    """``|scale A|`` of each head; for factors the product of their norms, ``[M]``."""
    leaves = [particles.A] if isinstance(particles, AttentionAV) else [particles.Q, particles.K]
    sizes = [np.linalg.norm(leaf, axis=(1, 2)) for leaf in leaves]
    return abs(field.scale) * np.prod(sizes, axis=0)


def _rows_per_head(particles: Any, dim: int, part: str) -> int:
    if part == "V":
        return dim
    score = dim**2 if isinstance(particles, AttentionAV) else 2 * particles.Q.shape[1] * dim
    return score + (dim**2 if part == "full" else 0)


def _value_block(m: np.ndarray) -> np.ndarray:
    """``d phi_o / d V_pi = delta_op m_i``: ``[M, (p, i), K, o]``."""
    num, count, dim = m.shape
    block = np.einsum("mki,po->mpiko", m, np.eye(dim))
    return block.reshape(num, dim * dim, count, dim)


def _score_block(
    field: SoftmaxAttention, particles: Any, value: np.ndarray, x: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """Derivatives of ``V m(scale A^T x)`` by the score parameters: ``[M, rows, K, o]``."""
    vc = field.scale * np.einsum("mop,mkpq->mkoq", value, c, optimize=True)
    num, count, dim, _ = vc.shape
    if isinstance(particles, AttentionAV):
        block = np.einsum("kp,mkoq->mpqko", x, vc, optimize=True)
        return block.reshape(num, -1, count, dim)
    by_query = np.einsum("mkoq,mrq,ki->mriko", vc, particles.K, x, optimize=True)
    by_key = np.einsum("mkoi,mrp,kp->mriko", vc, particles.Q, x, optimize=True)
    joined = [block.reshape(num, -1, count, dim) for block in (by_query, by_key)]
    return np.concatenate(joined, axis=1)


def _score_size(field: SoftmaxAttention, particles: Any, weights: np.ndarray) -> float:
    """Root of the heads' mean ``|scale V|^2`` (times ``|K|^2 + |Q|^2``): what multiplies C."""
    sizes = np.sum(particles.V**2, axis=(1, 2)) * field.scale**2
    if isinstance(particles, AttentionQKV):
        sizes = sizes * (np.sum(particles.K**2, axis=(1, 2)) + np.sum(particles.Q**2, axis=(1, 2)))
    return float(np.sqrt(weights @ sizes))


@eqx.filter_jit
def _jacobians(field: AbstractField, particles: Any, x: Array, mu: TokenMeasure) -> Any:
    def of_particle(theta: Any) -> Any:
        return jax.jacrev(lambda one: field(one, x, mu))(theta)

    return jax.lax.map(of_particle, particles)


def _jacobian_factor(
    field: AbstractField, particles: Any, pairs: Pairs, part: str, weights: np.ndarray
) -> Factor:
    names = particle_names(particles)
    if part == "full":
        chosen = names
    elif part == "A" and "A" not in names and "V" in names:
        chosen = [name for name in names if name != "V"]
    else:
        chosen = [part]
    require(
        set(chosen) <= set(names),
        f"part {part!r} of {type(field).__name__}",
        f"'full' or one of {', '.join(names)}",
        "pass one of them",
    )
    num, dim = len(weights), pairs.dim
    blocks = []
    for number, law in enumerate(pairs.laws):
        x = pairs.queries[pairs.index == number]
        if not isinstance(law, Empirical):
            raise MeanfieldError(
                f"{type(field).__name__} and context {number + 1}, a {type(law).__name__} law",
                "clouds: only attention's kernel is known in closed form for laws",
                "pass a cloud such as law.tokens(64, key=key)",
            )
        if not len(x):
            continue
        mu = TokenMeasure(law.points, law.log_weights)
        leaves = jax.tree.leaves(_jacobians(field, particles, jnp.asarray(x), mu))
        some = [
            np.moveaxis(np.asarray(leaf).reshape(num, len(x) * dim, -1), 1, 2)
            for name, leaf in zip(names, leaves, strict=True)
            if name in chosen
        ]
        blocks.append(np.concatenate(some, axis=1))
    order = np.argsort(np.argsort(pairs.index, kind="stable"), kind="stable")
    block = np.concatenate(blocks, axis=2)
    columns = (order[:, None] * dim + np.arange(dim)).ravel()
    block = np.sqrt(weights)[:, None, None] * block[:, :, columns]
    matrix = np.asfortranarray(block.reshape(-1, pairs.num_pairs * dim))
    require_finite("the kernel's features", matrix)
    noise = np.full(matrix.shape[1], 8 * EPS * float(np.linalg.norm(matrix)))
    return Factor(matrix, noise, part, dim, weights)
