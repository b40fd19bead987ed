"""Kernels too large to hold: products streamed over heads and pairs, and lambda_min by one QR."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from meanfield._checks import NonFiniteError, require
from meanfield._numerics import chunk_size
from meanfield._typing import Array, Float
from meanfield.fields import SoftmaxAttention
from meanfield.laws import AbstractLaw, Empirical
from meanfield.ntk.kernel import checked_particles, factor, tilts
from meanfield.ntk.pairs import EPS, Pairs, power_of_two, with_tokens
from meanfield.ntk.spectra import DROPPED

_SCORES = 2**21  # entries of one [heads, queries, tokens] array: 16 MiB
_RESIDUAL = 1e-3


class _Group(eqx.Module):
    """Contexts whose laws have one structure: laws stacked, queries ``[G, K, d]`` padded."""

    laws: Any
    queries: Array
    positions: Array  # [G, K]: place of the pair, P for padding

    @property
    def entries_per_head(self) -> int:
        """Scores of one head and one context."""
        tokens = self.laws.points.shape[1] if isinstance(self.laws, Empirical) else 1
        return self.queries.shape[1] * max(tokens, self.queries.shape[2])


class StreamedKernel(eqx.Module):
    """Products with the factor F ``[M d, P]`` of attention's V-part, F never held.

    ``apply(v) = F v``, ``apply_transpose(u) = F^T u``, ``product(v) = K v``; rows are (head,
    coordinate), as in `factor`. Build it with `streamed_kernel`.

    Cost of a product: O(M P n d) time; O(P d h + 2^21) numbers with h heads at a time.
    Reference: reconstruction, docs/theory.md 3.1.
    """

    groups: tuple[_Group, ...]
    heads: Any
    roots: Array  # sqrt(w_j), 0 for padding, [c, h]
    field: SoftmaxAttention
    num_heads: int = eqx.field(static=True)
    num_pairs: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def apply(self, v: Any) -> Float[Array, " Md"]:
        """``F v``, ``[P] -> [M d]``."""
        return _apply(self, self._vector(v, self.num_pairs))

    def apply_transpose(self, u: Any) -> Float[Array, " P"]:
        """``F^T u``, ``[M d] -> [P]``."""
        return _apply_transpose(self, self._vector(u, self.num_heads * self.dim))

    def product(self, v: Any) -> Float[Array, " P"]:
        """``K v = F^T F v`` in one pass over the heads, ``[P] -> [P]``."""
        return _product(self, self._vector(v, self.num_pairs))

    def _vector(self, v: Any, size: int) -> Array:
        v = jnp.asarray(v, dtype=jnp.float64)
        require(v.shape == (size,), f"a vector of shape {v.shape}", f"({size},)", "reshape it")
        return v


def streamed_kernel(
    field: SoftmaxAttention, particles: Any, pairs: Pairs, *, log_weights: Any = None
) -> StreamedKernel:
    """Prepare streamed products with the V-part's factor.

    Args: as `factor`; attention only.
    Raises: as `factor`.
    """
    require(
        isinstance(field, SoftmaxAttention),
        f"the field {type(field).__name__}",
        "softmax attention",
        "use factor for other fields",
    )
    particles, weights = checked_particles(field, particles, pairs, log_weights)
    for number, law in enumerate(pairs.laws):
        if np.isfinite(law.domain_radius()):
            law.require_domain(tilts(field, particles, pairs.queries[pairs.index == number]))
    groups = _grouped(pairs)
    num = len(weights)
    chunk = min(chunk_size(num, group.entries_per_head, _SCORES) for group in groups)
    missing = -num % chunk

    def padded(leaf: np.ndarray) -> Array:
        whole = np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]))])
        return jnp.asarray(whole.reshape(-1, chunk, *leaf.shape[1:]))

    # Values play no part in the V-part's features.
    heads = jax.tree.map(padded, particles._replace(V=np.zeros((num, 1))))
    return StreamedKernel(
        groups, heads, padded(np.sqrt(weights)), field, num, pairs.num_pairs, pairs.dim
    )


def _grouped(pairs: Pairs) -> tuple[_Group, ...]:
    kinds: dict[Any, list[tuple[AbstractLaw, np.ndarray]]] = {}
    for number, law in enumerate(pairs.laws):
        here = np.flatnonzero(pairs.index == number)
        if not len(here):
            continue
        if isinstance(law, Empirical):
            law = with_tokens(law, power_of_two(law.points.shape[0]))
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(law))
        kinds.setdefault((jax.tree.structure(law), shapes), []).append((law, here))
    return tuple(_stack(members, pairs) for members in kinds.values())


def _stack(members: Sequence[tuple[AbstractLaw, np.ndarray]], pairs: Pairs) -> _Group:
    most = max(len(here) for _, here in members)
    queries = np.zeros((len(members), most, pairs.dim))
    positions = np.full((len(members), most), pairs.num_pairs)
    for row, (_, here) in enumerate(members):
        queries[row, : len(here)] = pairs.queries[here]
        positions[row, : len(here)] = here
    laws = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[law for law, _ in members])
    return _Group(laws, jnp.asarray(queries), jnp.asarray(positions))


def _features(kernel: StreamedKernel, group: _Group, heads: Any, roots: Array) -> Array:
    """``sqrt(w_j) m_j(a)`` of some heads at a group's queries, ``[G, h, K, d]``."""

    def of_context(item: tuple[Any, Array]) -> Array:
        law, x = item
        z = jax.vmap(lambda head: kernel.field.tilts(head, x))(heads)
        return roots[:, None, None] * law.cgf_gradient(z)

    return jax.lax.map(of_context, (group.laws, group.queries))


@eqx.filter_jit
def _apply(kernel: StreamedKernel, v: Array) -> Array:
    v = jnp.append(v, 0.0)

    def on_chunk(_: None, some: Any) -> tuple[None, Array]:
        parts = [
            jnp.einsum("ghkd,gk->hd", _features(kernel, group, *some), v[group.positions])
            for group in kernel.groups
        ]
        return None, sum(parts[1:], parts[0])

    _, rows = jax.lax.scan(on_chunk, None, (kernel.heads, kernel.roots))
    return rows.reshape(-1)[: kernel.num_heads * kernel.dim]


@eqx.filter_jit
def _apply_transpose(kernel: StreamedKernel, u: Array) -> Array:
    chunks, size = kernel.roots.shape
    missing = chunks * size - kernel.num_heads
    rows = jnp.pad(u.reshape(-1, kernel.dim), ((0, missing), (0, 0)))

    def on_chunk(total: Array, some: Any) -> tuple[Array, None]:
        heads, roots, mine = some
        for group in kernel.groups:
            features = _features(kernel, group, heads, roots)
            part = jnp.einsum("ghkd,hd->gk", features, mine)
            total = total.at[group.positions].add(part)
        return total, None

    start = jnp.zeros(kernel.num_pairs + 1)
    items = (kernel.heads, kernel.roots, rows.reshape(chunks, size, kernel.dim))
    return jax.lax.scan(on_chunk, start, items)[0][:-1]


@eqx.filter_jit
def _product(kernel: StreamedKernel, v: Array) -> Array:
    v = jnp.append(v, 0.0)

    def on_chunk(total: Array, some: Any) -> tuple[Array, None]:
        features = [_features(kernel, group, *some) for group in kernel.groups]
        parts = [
            jnp.einsum("ghkd,gk->hd", one, v[group.positions])
            for one, group in zip(features, kernel.groups, strict=True)
        ]
        u = sum(parts[1:], parts[0])
        for one, group in zip(features, kernel.groups, strict=True):
            total = total.at[group.positions].add(jnp.einsum("ghkd,hd->gk", one, u))
        return total, None

    start = jnp.zeros(kernel.num_pairs + 1)
    return jax.lax.scan(on_chunk, start, (kernel.heads, kernel.roots))[0][:-1]


@dataclasses.dataclass(frozen=True)
class Smallest:
    """The smallest eigenvalue of a large kernel and how well it is known.

    Attributes:
        value: lambda_min of K.
        vector: unit eigenvector ``[P]``.
        residual: ``|K v - value v| / value``, K v by streamed products: another route than the QR.
        standard_error: of the mean over heads of ``|F_j v|^2`` at this v.
        decided: the residual is at most 1e-3 and the value above the rounding level.
    """

    value: float
    vector: np.ndarray
    residual: float
    standard_error: float
    decided: bool


def smallest_eigenvalue(
    field: SoftmaxAttention, particles: Any, pairs: Pairs, *, log_weights: Any = None
) -> Smallest:
    """lambda_min of the V-part's kernel by a QR in the place of F, for thousands of pairs.

    ``F = Q R``, R in the place of F; then Lanczos on ``K^-1 = R^-1 R^-T``. K itself, whose
    condition is the square of that of F, is never formed or factored. The residual is checked with
    products that share nothing with R.

    Args: as `factor`; attention only.
    Raises: as `factor`.
    Cost: ``M d P`` numbers held; ``2 M d P^2`` operations.
    Reference: our choice, docs/theory.md 3.8.
    """
    products = streamed_kernel(field, particles, pairs, log_weights=log_weights)
    whole = factor(field, particles, pairs, log_weights=log_weights)
    matrix, num_pairs = whole.matrix, pairs.num_pairs
    noise = float(np.linalg.norm(whole.noise))
    rows = len(matrix)
    if rows < num_pairs:  # fewer features than pairs: singular, whatever the heads
        return Smallest(0.0, np.zeros(num_pairs), 0.0, 0.0, True)
    del whole
    triangle = _triangle_in_place(matrix)
    pivots = np.abs(np.diagonal(triangle))
    if not pivots.min() > EPS * noise:
        return Smallest(0.0, np.zeros(num_pairs), np.inf, np.inf, False)

    solve: Any = get_blas_funcs("trsv", dtype=np.float64)

    def inverse(v: np.ndarray) -> np.ndarray:
        half = solve(triangle, v.ravel(), trans=1)
        return solve(triangle, half, overwrite_x=1)

    make: Any = LinearOperator  # called with what `LinearOperator` documents and its stub forgets
    operator = make((num_pairs, num_pairs), matvec=inverse, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(num_pairs)
    try:
        if num_pairs > 2:
            found: Any = eigsh(operator, k=1, which="LM", v0=start)  # to machine precision
            largest, vectors = found
            inverse_value, vector = float(largest[0]), vectors[:, 0]
        else:
            dense = np.stack([inverse(unit) for unit in np.eye(num_pairs)])
            values, columns = np.linalg.eigh((dense + dense.T) / 2)
            inverse_value, vector = float(values[-1]), columns[:, -1]
    except ArpackError:
        return Smallest(0.0, np.zeros(num_pairs), np.inf, np.inf, False)
    value = 1 / inverse_value
    features = np.asarray(products.apply(vector))
    residual = np.asarray(products.apply_transpose(features)) - value * vector
    relative = float(np.linalg.norm(residual)) / value
    if not np.isfinite(relative):
        raise NonFiniteError(
            f"the residual of lambda_min = {value:.3g}",
            "a finite number",
            "take heads or queries of moderate size",
        )
    num_heads = products.num_heads
    shares = num_heads * np.sum(features.reshape(num_heads, -1) ** 2, axis=1)
    error = float(shares.std(ddof=1) / np.sqrt(num_heads)) if num_heads > 1 else float("inf")
    decided = relative <= _RESIDUAL and np.sqrt(value) > DROPPED * noise
    return Smallest(value, vector, relative, error, bool(decided))


def _triangle_in_place(matrix: np.ndarray) -> np.ndarray:
    """R of the column-major ``matrix`` (rows >= columns), which it overwrites, ``[P, P]``."""
    rows, columns = matrix.shape
    factorize: Any = get_lapack_funcs("geqrf", dtype=np.float64)
    triangle, _, _, info = factorize(matrix, lwork=64 * columns, overwrite_a=1)
    assert info == 0
    assert np.shares_memory(triangle, matrix)
    # BLAS's triangular solver wants R contiguous; columns move down in the same memory, in order.
    flat = matrix.ravel(order="K")
    assert np.shares_memory(flat, matrix)
    for k in range(columns):
        flat[k * columns : (k + 1) * columns] = flat[k * rows : k * rows + columns]
    return flat[: columns * columns].reshape(columns, columns, order="F")
