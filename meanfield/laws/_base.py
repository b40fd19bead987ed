"""What every token law can do: the cumulant generating function, its derivatives, token clouds."""

import abc
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from meanfield._checks import (
    DomainError,
    MeanfieldError,
    is_concrete,
    require,
    require_finite,
    require_positive_integer,
)
from meanfield._typing import Array, Bool, Float, Key
from meanfield.measures import TokenMeasure

Rule = Literal["iid", "quasi", "hermite", "legendre"]
_Tree = TypeVar("_Tree")

_SOBOL_BITS = 30


def as_array(name: str, values: Any, ndim: int) -> Array:
    """An inexact jax array of ``ndim`` axes with finite entries; raises `MeanfieldError`."""
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError) as error:
        raise MeanfieldError(
            f"{name} is {type(values).__name__} ({error})",
            f"an array of real numbers with {ndim} axes",
            "pass a numeric numpy or jax array",
        ) from None
    require(
        not jnp.issubdtype(array.dtype, jnp.complexfloating),
        f"{name} is complex",
        "real numbers",
        "pass its real part",
    )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(float)
    require(
        array.ndim == ndim and 0 not in array.shape,
        f"{name} has shape {tuple(array.shape)}",
        f"{ndim} non-empty axes" if ndim else "one number",
        "reshape it",
    )
    if is_concrete(array):
        require_finite(name, array)
    return array


def as_covariance(name: str, values: Any, dim: int | None = None) -> Array:
    """A symmetric positive semidefinite matrix ``[d, d]``; raises `MeanfieldError`."""
    array = as_array(name, values, 2)
    size = array.shape[0] if dim is None else dim
    require(
        array.shape == (size, size),
        f"{name} has shape {tuple(array.shape)}",
        f"({size}, {size})",
        "pass a square matrix of the law's width",
    )
    if is_concrete(array):
        check_positive_semidefinite(name, np.asarray(array, dtype=float))
    return (array + array.T) / 2


def check_positive_semidefinite(name: str, matrix: np.ndarray) -> None:
    """Raise `MeanfieldError` unless ``matrix`` is symmetric with eigenvalues >= 0 to rounding."""
    size = float(np.max(np.abs(matrix)))
    skew = float(np.max(np.abs(matrix - matrix.T)))
    require(
        skew <= 1e-6 * size,
        f"{name} is not symmetric (largest difference {skew:.3g})",
        "a symmetric matrix",
        "pass (S + S.T) / 2",
    )
    least = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
    require(
        least >= -1e-6 * size,
        f"{name} has the negative eigenvalue {least:.3g}",
        "a positive semidefinite matrix",
        "check its entries (they are read row by row)",
    )


def square_root(matrix: Array) -> Array:
    """The symmetric ``S^{1/2}`` of a positive semidefinite matrix, singular ones included."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


def cast(tree: _Tree, dtype: Any) -> _Tree:
    """The same law with its floating leaves in ``dtype``: values keep the dtype of ``z``."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


class AbstractLaw(eqx.Module):
    """A law ``mu`` on R^d through its cumulant generating function (CGF, log-sum-exp).

    Lam(z) = log int e^{<z, y>} dmu(y),  with its gradient and its Hessian.

    Attention against ``mu`` is its gradient: ``m_A[mu](x) = grad Lam(A^T x)``, and the tilted
    covariance is ``C_A[mu](x) = Hess Lam(A^T x)``. All methods take ``z`` of shape ``[..., d]``,
    keep its dtype, and are safe under ``jax.grad``, also at ``z = 0`` and for huge ``z``.

    Reference: reconstruction, docs/theory.md 1.3 and 3.4.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """d, the width of the tokens."""

    @abc.abstractmethod
    def _cgf(self, z: Array) -> Array:
        """Lam at checked ``z``."""

    @abc.abstractmethod
    def _cgf_gradient(self, z: Array) -> Array:
        """The gradient at checked ``z``."""

    @abc.abstractmethod
    def _cgf_hessian(self, z: Array) -> Array:
        """The Hessian at checked ``z``."""

    @abc.abstractmethod
    def centred(self) -> "AbstractLaw":
        """The law of ``y - mean``, of mean 0: ``Lam(z) - <mean, z>`` without its cancellation."""

    @property
    @abc.abstractmethod
    def has_bounded_support(self) -> bool:
        """True if the tokens lie in a bounded set: then ``grad Lam`` is bounded."""

    @abc.abstractmethod
    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """``num_tokens`` independent draws, ``[n, d]``."""

    @property
    @abc.abstractmethod
    def _num_uniforms(self) -> int:
        """How many uniform variables `_from_uniform` turns into one token."""

    @abc.abstractmethod
    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        """Tokens ``[n, d]`` of this law as a function of uniforms ``[n, q]`` in (0, 1)."""

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        """Points ``[K, d]`` and weights ``[K]`` of a Gauss rule, where the law has one."""
        del num_nodes
        raise MeanfieldError(
            f"rule={rule!r} for {type(self).__name__}",
            "a law with that Gauss rule ('hermite': Gaussians and their mixtures; "
            "'legendre': cubes)",
            "pass rule='quasi' or rule='iid'",
        )

    def in_domain(self, z: Any) -> Bool[Array, "..."]:
        """True where ``Lam(z)`` is finite, shape ``[...]``; everywhere for most laws."""
        return jnp.ones(self._as_argument(z).shape[:-1], dtype=bool)

    def domain_radius(self) -> float:
        """A radius r such that ``Lam`` is finite for all ``|z| < r`` (infinite for most laws)."""
        return float("inf")

    def require_domain(self, z: Any) -> None:
        """Raise `DomainError` where concrete ``z`` leaves the domain; traced ones pass.

        A traced ``z`` outside gives ``Lam = inf`` and NaN derivatives.
        """
        z = self._as_argument(z)
        if not is_concrete(z, *jax.tree.leaves(self)) or self.domain_radius() == float("inf"):
            return
        outside = ~np.atleast_1d(np.asarray(self.in_domain(z)))
        if outside.any():
            index = [int(i) for i in np.argwhere(outside)[0]]
            length = float(np.linalg.norm(np.atleast_2d(np.asarray(z))[tuple(index)]))
            raise DomainError(
                f"z at index {index} of length {length:.4g} ({int(outside.sum())} such points) "
                f"lies where the {type(self).__name__} law has no finite cumulant generating "
                "function",
                self._domain_in_words(),
                "take smaller heads A or queries x: z = A^T x with "
                f"|z| < {self.domain_radius():.4g} is always inside",
            )

    def _domain_in_words(self) -> str:
        """The domain of finiteness, for the error message."""
        return "z in every part's domain"

    def _as_argument(self, z: Any) -> Array:
        """``z`` as a floating array ``[..., d]``."""
        z = jnp.asarray(z)
        z = z if jnp.issubdtype(z.dtype, jnp.floating) else z.astype(float)
        require(
            z.ndim >= 1 and z.shape[-1] == self.dim,
            f"z has shape {tuple(z.shape)}",
            f"[..., {self.dim}]",
            f"pass points of the law's width d = {self.dim}",
        )
        return z

    def cgf(self, z: Any) -> Float[Array, "..."]:
        """``Lam(z) = log int e^{<z, y>} dmu(y)``, ``[..., d] -> [...]``.

        Raises: `MeanfieldError` on a wrong width, `DomainError` where it is not finite.
        """
        z = self._as_argument(z)
        self.require_domain(z)
        return cast(self, z.dtype)._cgf(z)

    def cgf_gradient(self, z: Any) -> Float[Array, "... d"]:
        """``m = grad Lam(z)``, the mean of the law tilted by ``e^{<z, y>}``, ``[..., d]``.

        Raises: `MeanfieldError` on a wrong width, `DomainError` where it is not finite.
        """
        z = self._as_argument(z)
        self.require_domain(z)
        return cast(self, z.dtype)._cgf_gradient(z)

    def cgf_hessian(self, z: Any) -> Float[Array, "... d d"]:
        """``C = Hess Lam(z)``, the covariance of the tilted law, ``[..., d, d]``.

        Raises: `MeanfieldError` on a wrong width, `DomainError` where it is not finite.
        """
        z = self._as_argument(z)
        self.require_domain(z)
        return cast(self, z.dtype)._cgf_hessian(z)

    def mean(self) -> Float[Array, " d"]:
        """``int y dmu(y) = grad Lam(0)``, ``[d]``."""
        return self.cgf_gradient(jnp.zeros(self.dim))

    def covariance(self) -> Float[Array, "d d"]:
        """``Cov(mu) = Hess Lam(0)``, ``[d, d]``."""
        return self.cgf_hessian(jnp.zeros(self.dim))

    def tokens(self, num: int, *, key: Key | None = None, rule: Rule = "iid") -> TokenMeasure:
        """A cloud that stands for the law.

        Args:
            num: number of tokens; for the Gauss rules the number of nodes per axis (``num^d``
                weighted tokens for each component).
            key: randomness of "iid" and "quasi"; the Gauss rules use none.
            rule: "iid" draws, error of a mean ``O(n^-1/2)``; "quasi" scrambled Sobol points
                through the law's transform, nearly ``O(n^-1)`` (best for n a power of two);
                "hermite" Gauss-Hermite nodes (Gaussians and mixtures of them), exact for
                polynomials of degree ``2 num - 1``; "legendre" the same for cubes.

        Raises: `MeanfieldError` for a missing key or a law without that Gauss rule.
        Cost: O(n d); a Gauss rule O(num^d d). Reference: reconstruction, docs/theory.md 6.1.
        """
        require_positive_integer("num", num)
        if rule in ("hermite", "legendre"):
            points, weights = self._gauss_rule(num, rule)
            return TokenMeasure.from_weights(points, weights)
        require(
            rule in ("iid", "quasi"),
            f"rule is {rule!r}",
            "'iid', 'quasi', 'hermite' or 'legendre'",
            "pass one of them",
        )
        if key is None:
            raise MeanfieldError(
                f"rule={rule!r} without a key",
                "randomness for the tokens",
                "pass key=jax.random.key(0)",
            )
        if rule == "iid":
            return TokenMeasure(self.sample(key, num))
        return TokenMeasure(self._from_uniform(_sobol(num, self._num_uniforms, key)))


def _sobol(num: int, num_uniforms: int, key: Key) -> np.ndarray:
    """Owen-scrambled Sobol points ``[num, q]`` inside (0, 1), randomised by ``key``."""
    is_typed = jnp.issubdtype(jnp.asarray(key).dtype, jax.dtypes.prng_key)
    words = np.asarray(jax.random.key_data(key) if is_typed else key).ravel()
    generator = np.random.default_rng([int(word) for word in words])
    engine = qmc.Sobol(num_uniforms, scramble=True, bits=_SOBOL_BITS, rng=generator)
    power = max(0, int(np.ceil(np.log2(num))))
    # the middle of each dyadic cell: never 0 or 1, where an inverse distribution is infinite
    return engine.random_base2(power)[:num] + 0.5 ** (_SOBOL_BITS + 1)


def tensor_rule(
    rules: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[list[np.ndarray], np.ndarray]:
    """All combinations of several rules: the points of each ``[K, d_i]``, weights ``[K]``."""
    sizes = [len(weights) for _, weights in rules]
    index = np.stack(np.meshgrid(*[np.arange(size) for size in sizes], indexing="ij"), axis=-1)
    index = index.reshape(-1, len(rules))
    points = [rule[0][index[:, i]] for i, rule in enumerate(rules)]
    weights = np.prod([rule[1][index[:, i]] for i, rule in enumerate(rules)], axis=0)
    return points, weights
