"""Laws with a closed cumulant generating function: cube, Laplace, Gaussians, empirical."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from scipy.special import ndtri, zeta

from meanfield._checks import is_concrete, require, require_positive_integer
from meanfield._numerics import softmax_weights
from meanfield._typing import Array, Bool, Float, Key
from meanfield.laws._base import (
    AbstractLaw,
    as_array,
    as_covariance,
    check_positive_semidefinite,
    square_root,
    tensor_rule,
)
from meanfield.measures import TokenMeasure

# log(sinh t / t) = sum_k c_k t^{2k}, c_k = (-1)^{k+1} zeta(2k) / (k pi^{2k}), from the product
# sinh t = t prod_n (1 + t^2 / (n pi)^2); ten terms reach rounding for |t| <= 1/2.
_ORDERS = np.arange(1, 11)
_SERIES = -((-1.0) ** _ORDERS) * zeta(2.0 * _ORDERS) / (_ORDERS * np.pi ** (2.0 * _ORDERS))
_SWITCH = 0.5


def _series(coefficients: np.ndarray, square: Array) -> Array:
    """``sum_k c_k square^k``, k = 0, 1, ..., by Horner's rule (powers have no slope at 0)."""
    total = jnp.full_like(square, coefficients[-1])
    for coefficient in coefficients[-2::-1].tolist():
        total = total * square + coefficient
    return total


def _both_branches(t: Array) -> tuple[Array, Array, Array]:
    """Whether |t| is small, ``t^2`` there (0 elsewhere), and |t| elsewhere (1 there).

    Each branch of a ``where`` sees only its own arguments, so that no derivative of the branch
    not taken is infinite.
    """
    is_small = jnp.abs(t) < _SWITCH
    square = jnp.where(is_small, t, 0.0) ** 2
    return is_small, square, jnp.where(is_small, 1.0, jnp.abs(t))


def log_sinhc(t: Array) -> Array:
    """``log(sinh t / t)``: a series near 0, ``|t| + log( (1 - e^{-2|t|}) / 2|t| )`` elsewhere."""
    is_small, square, large = _both_branches(t)
    elsewhere = large + jnp.log(-jnp.expm1(-2 * large) / (2 * large))
    return jnp.where(is_small, square * _series(_SERIES, square), elsewhere)


def langevin(t: Array) -> Array:
    """``coth t - 1/t``, the derivative of `log_sinhc`; ``t/3`` near 0, ``+-1`` far away."""
    is_small, square, large = _both_branches(t)
    elsewhere = jnp.sign(t) * (1 / jnp.tanh(large) - 1 / large)
    return jnp.where(is_small, t * _series(2 * _ORDERS * _SERIES, square), elsewhere)


def langevin_slope(t: Array) -> Array:
    """``1/t^2 - 1/sinh^2 t``, the derivative of `langevin`; 1/3 at 0."""
    is_small, square, large = _both_branches(t)
    decay = jnp.exp(-2 * large)
    elsewhere = 1 / large**2 - 4 * decay / (1 - decay) ** 2
    coefficients = 2 * _ORDERS * (2 * _ORDERS - 1) * _SERIES
    return jnp.where(is_small, _series(coefficients, square), elsewhere)


class Cube(AbstractLaw):
    """Uniform law on the cube ``center + [-radius, radius]^d``.

    Lam(z) = <center, z> + sum_j log(sinh(r z_j) / (r z_j)), finite everywhere.

    Args: radius, half the side, positive; dim, d; center ``[d]``, None for the origin.
    Raises: `MeanfieldError` on a radius that is not positive or a center of another width.
    Reference: reconstruction, docs/theory.md 3.4.
    """

    radius: Float[Array, ""]
    center: Float[Array, " d"]

    def __init__(self, radius: Any, dim: int, center: Any = None):
        require_positive_integer("dim", dim)
        self.radius = as_array("radius", radius, 0)
        if is_concrete(self.radius):
            require(
                float(self.radius) > 0,
                f"radius is {float(self.radius)}",
                "a positive number",
                "pass half the side of the cube",
            )
        self.center = as_array("center", np.zeros(dim) if center is None else center, 1)
        require(
            self.center.shape == (dim,),
            f"center has shape {tuple(self.center.shape)} and dim is {dim}",
            f"({dim},)",
            "give the center one coordinate per dimension",
        )

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.center.shape[0]

    def _cgf(self, z: Array) -> Array:
        return z @ self.center + jnp.sum(log_sinhc(self.radius * z), axis=-1)

    def _cgf_gradient(self, z: Array) -> Array:
        return self.center + self.radius * langevin(self.radius * z)

    def _cgf_hessian(self, z: Array) -> Array:
        variances = self.radius**2 * langevin_slope(self.radius * z)
        return variances[..., None] * jnp.eye(self.dim, dtype=z.dtype)

    def centred(self) -> "Cube":
        """The cube around the origin."""
        return eqx.tree_at(lambda law: law.center, self, jnp.zeros_like(self.center))

    @property
    def has_bounded_support(self) -> bool:
        """True."""
        return True

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """Independent uniform draws, ``[n, d]``."""
        unit = jax.random.uniform(
            key, (num_tokens, self.dim), self.center.dtype, minval=-1.0, maxval=1.0
        )
        return self.center + self.radius * unit

    @property
    def _num_uniforms(self) -> int:
        return self.dim

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        return np.asarray(self.center) + float(self.radius) * (2 * uniforms - 1)

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        if rule != "legendre":
            return super()._gauss_rule(num_nodes, rule)
        nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
        points, weights = tensor_rule([(nodes, weights / 2)] * self.dim)
        return np.asarray(self.center) + float(self.radius) * np.stack(points, axis=1), weights


class Laplace(AbstractLaw):
    """Symmetric multivariate Laplace law of covariance S: ``sqrt(E) S^{1/2} g``, E ~ Exp(1).

    Lam(z) = -log(1 - z^T S z / 2), finite only where ``z^T S z < 2``.

    Needs bounded heads: ``z = A^T x`` must stay inside (Gaussian A does not). Finite clouds of it
    never diverge, but Monte Carlo of m is slower than n^(-1/2) once ``(2z)^T S (2z) >= 2``.

    Args: covariance ``[d, d]``, positive semidefinite.
    Raises: `MeanfieldError` on another matrix; every method `DomainError` outside the domain.
    Reference: reconstruction, docs/theory.md 3.4.
    """

    covariance_matrix: Float[Array, "d d"]

    def __init__(self, covariance: Any):
        self.covariance_matrix = as_covariance("covariance", covariance)

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.covariance_matrix.shape[0]

    def _half_form(self, z: Array) -> Array:
        """``q = z^T S z / 2``; outside the domain 1, with a slope of 0 that meets an infinite one.

        So ``-log1p(-q)`` is infinite there and its automatic derivative NaN, never a number.
        """
        half_form = jnp.einsum("...i,ij,...j->...", z, self.covariance_matrix, z) / 2
        inside = jnp.where(half_form < 1, 1.0, 0.0).astype(half_form.dtype)
        return jnp.minimum(half_form, 2.0) * inside + (1 - inside)

    def in_domain(self, z: Any) -> Bool[Array, "..."]:
        """True where ``z^T S z < 2``."""
        z = self._as_argument(z)
        return jnp.einsum("...i,ij,...j->...", z, self.covariance_matrix, z) < 2

    def domain_radius(self) -> float:
        """``(2 / lambda_max(S))^{1/2}``."""
        largest = float(np.linalg.eigvalsh(np.asarray(self.covariance_matrix))[-1])
        return float(np.sqrt(2 / largest)) if largest > 0 else float("inf")

    def _domain_in_words(self) -> str:
        return "z^T S z < 2"

    def _cgf(self, z: Array) -> Array:
        return -jnp.log1p(-self._half_form(z))

    def _gap(self, z: Array) -> Array:
        """``1 - q`` inside, NaN outside: derivatives there must not look like numbers."""
        half_form = self._half_form(z)
        return jnp.where(half_form < 1, 1 - half_form, jnp.nan)

    def _cgf_gradient(self, z: Array) -> Array:
        return z @ self.covariance_matrix / self._gap(z)[..., None]

    def _cgf_hessian(self, z: Array) -> Array:
        gap = self._gap(z)[..., None, None]
        image = z @ self.covariance_matrix
        return self.covariance_matrix / gap + image[..., :, None] * image[..., None, :] / gap**2

    def centred(self) -> "Laplace":
        """The law itself."""
        return self

    @property
    def has_bounded_support(self) -> bool:
        """False, unless the covariance is 0."""
        return not np.any(self.covariance_matrix)

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """``sqrt(E) S^{1/2} g`` with E exponential and g standard Gaussian, ``[n, d]``."""
        scale_key, normal_key = jax.random.split(key)
        dtype = self.covariance_matrix.dtype
        scale = jax.random.exponential(scale_key, (num_tokens, 1), dtype)
        normal = jax.random.normal(normal_key, (num_tokens, self.dim), dtype)
        return jnp.sqrt(scale) * normal @ square_root(self.covariance_matrix)

    @property
    def _num_uniforms(self) -> int:
        return self.dim + 1

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        scale = np.sqrt(-np.log1p(-uniforms[:, :1]))
        return scale * ndtri(uniforms[:, 1:]) @ np.asarray(square_root(self.covariance_matrix))


class Gaussian(AbstractLaw):
    """Gaussian law ``N(a, S)``; S may be singular.

    Lam(z) = <a, z> + z^T S z / 2, finite everywhere.

    A quadratic Lam is the negative control of injectivity: many contexts share one kernel.

    Args: mean ``[d]``; covariance ``[d, d]``, positive semidefinite.
    Raises: `MeanfieldError` on other shapes or another matrix.
    Reference: reconstruction, docs/theory.md 3.4 and 6.1.
    """

    mean_vector: Float[Array, " d"]
    covariance_matrix: Float[Array, "d d"]

    def __init__(self, mean: Any, covariance: Any):
        self.mean_vector = as_array("mean", mean, 1)
        self.covariance_matrix = as_covariance("covariance", covariance, self.dim)

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.mean_vector.shape[0]

    def _cgf(self, z: Array) -> Array:
        quadratic = jnp.einsum("...i,ij,...j->...", z, self.covariance_matrix, z)
        return z @ self.mean_vector + quadratic / 2

    def _cgf_gradient(self, z: Array) -> Array:
        return self.mean_vector + z @ self.covariance_matrix

    def _cgf_hessian(self, z: Array) -> Array:
        return jnp.broadcast_to(self.covariance_matrix, (*z.shape[:-1], self.dim, self.dim))

    def centred(self) -> "Gaussian":
        """``N(0, S)``."""
        return eqx.tree_at(lambda law: law.mean_vector, self, jnp.zeros_like(self.mean_vector))

    @property
    def has_bounded_support(self) -> bool:
        """False, unless the covariance is 0."""
        return not np.any(self.covariance_matrix)

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """``a + S^{1/2} g``, ``[n, d]``."""
        normal = jax.random.normal(key, (num_tokens, self.dim), self.mean_vector.dtype)
        return self.mean_vector + normal @ square_root(self.covariance_matrix)

    @property
    def _num_uniforms(self) -> int:
        return self.dim

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        root = np.asarray(square_root(self.covariance_matrix))
        return np.asarray(self.mean_vector) + ndtri(uniforms) @ root

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        if rule != "hermite":
            return super()._gauss_rule(num_nodes, rule)
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
        points, weights = tensor_rule([(nodes, weights / weights.sum())] * self.dim)
        root = np.asarray(square_root(self.covariance_matrix))
        return np.asarray(self.mean_vector) + np.stack(points, axis=1) @ root, weights


class GaussianMixture(AbstractLaw):
    """Gaussian mixture ``sum_k w_k N(a_k, S_k)``.

    Lam(z) = log sum_k exp( log w_k + <a_k, z> + z^T S_k z / 2 ), finite everywhere.

    Args: weights ``[K]``, not negative, normalised here; means ``[K, d]``; covariances
        ``[K, d, d]`` or one ``[d, d]`` for all.
    Raises: `MeanfieldError` on other shapes, weights or matrices.
    Reference: reconstruction, docs/theory.md 3.4.
    """

    log_weights: Float[Array, " K"]
    means: Float[Array, "K d"]
    covariances: Float[Array, "K d d"]

    def __init__(self, weights: Any, means: Any, covariances: Any):
        weights = as_array("weights", weights, 1)
        self.means = as_array("means", means, 2)
        num, dim = self.means.shape
        require(
            weights.shape == (num,),
            f"weights has shape {tuple(weights.shape)} beside {num} means",
            f"({num},)",
            "give each component one weight",
        )
        if is_concrete(weights):
            values = np.asarray(weights)
            require(
                (values >= 0).all() and values.sum() > 0,
                f"weights sum to {values.sum():.4g} with least entry {values.min():.4g}",
                "weights of at least 0 with a positive sum",
                "drop the other components",
            )
        self.log_weights = jnp.log(weights) - jnp.log(jnp.sum(weights))
        covariances = jnp.asarray(covariances)
        if covariances.ndim == 2:
            covariances = jnp.broadcast_to(covariances, (num, *covariances.shape))
        covariances = as_array("covariances", covariances, 3)
        require(
            covariances.shape == (num, dim, dim),
            f"covariances has shape {tuple(covariances.shape)}",
            f"({num}, {dim}, {dim}) or ({dim}, {dim})",
            "give each component one matrix",
        )
        if is_concrete(covariances):
            for k, matrix in enumerate(np.asarray(covariances, dtype=float)):
                check_positive_semidefinite(f"covariances[{k}]", matrix)
        self.covariances = (covariances + jnp.swapaxes(covariances, 1, 2)) / 2

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.means.shape[1]

    @property
    def weights(self) -> Float[Array, " K"]:
        """``w_k``, summing to one."""
        return jnp.exp(self.log_weights)

    def _scores(self, z: Array) -> Array:
        """``log w_k + Lam_k(z)``, ``[..., K]``."""
        quadratic = jnp.einsum("...i,kij,...j->...k", z, self.covariances, z)
        return self.log_weights + z @ self.means.T + quadratic / 2

    def _component_means(self, z: Array) -> tuple[Array, Array]:
        """Tilted masses ``[..., K]`` and tilted means ``a_k + S_k z`` ``[..., K, d]``."""
        tilted = self.means + jnp.einsum("kij,...j->...ki", self.covariances, z)
        return softmax_weights(self._scores(z)), tilted

    def _cgf(self, z: Array) -> Array:
        return jsp.logsumexp(self._scores(z), axis=-1)

    def _cgf_gradient(self, z: Array) -> Array:
        masses, tilted = self._component_means(z)
        return jnp.einsum("...k,...ki->...i", masses, tilted)

    def _cgf_hessian(self, z: Array) -> Array:
        masses, tilted = self._component_means(z)
        centred = tilted - jnp.einsum("...k,...ki->...i", masses, tilted)[..., None, :]
        between = jnp.einsum("...k,...ki,...kj->...ij", masses, centred, centred)
        return jnp.einsum("...k,kij->...ij", masses, self.covariances) + between

    def centred(self) -> "GaussianMixture":
        """The mixture with its means shifted."""
        return eqx.tree_at(lambda law: law.means, self, _centre(self.means, self.log_weights))

    @property
    def has_bounded_support(self) -> bool:
        """False, unless all covariances are 0."""
        return not np.any(self.covariances)

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """A component by its weight, then a draw of it, ``[n, d]``."""
        choice_key, normal_key = jax.random.split(key)
        choice = jax.random.categorical(choice_key, self.log_weights, shape=(num_tokens,))
        normal = jax.random.normal(normal_key, (num_tokens, self.dim), self.means.dtype)
        roots = jax.vmap(square_root)(self.covariances)
        return self.means[choice] + jnp.einsum("ni,nij->nj", normal, roots[choice])

    @property
    def _num_uniforms(self) -> int:
        return self.dim + 1

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        choice = _choose(np.asarray(self.weights), uniforms[:, 0])
        roots = np.asarray(jax.vmap(square_root)(self.covariances))
        normal = ndtri(uniforms[:, 1:])
        return np.asarray(self.means)[choice] + np.einsum("ni,nij->nj", normal, roots[choice])

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        if rule != "hermite":
            return super()._gauss_rule(num_nodes, rule)
        parts = [
            Gaussian(mean, covariance)._gauss_rule(num_nodes, rule)
            for mean, covariance in zip(self.means, self.covariances, strict=True)
        ]
        masses = np.asarray(self.weights)
        weights = [mass * part[1] for mass, part in zip(masses, parts, strict=True)]
        return np.concatenate([part[0] for part in parts]), np.concatenate(weights)


def two_component_mixture(theta: Any, covariance: Any) -> GaussianMixture:
    """``(1/2) N(theta, S) + (1/2) N(-theta, S)``: ``Lam(z) = z^T S z / 2 + log cosh <theta, z>``.

    Args: theta ``[d]``, the separation; covariance ``[d, d]``.
    Reference: reconstruction, docs/theory.md 3.4.
    """
    theta = as_array("theta", theta, 1)
    return GaussianMixture(np.full(2, 0.5), jnp.stack([theta, -theta]), covariance)


class Empirical(AbstractLaw):
    """The law of a token measure, ``sum_b w_b delta_{y_b}``.

    Lam(z) = log sum_b w_b e^{<z, y_b>}  (max-shifted), finite everywhere.

    Zero-mass tokens change nothing. Cost: O(n d) per point z, O(n d) memory each for the Hessian.

    Args: measure, one `TokenMeasure` with points ``[n, d]``.
    Raises: `MeanfieldError` on a batch of measures.
    Reference: reconstruction, docs/theory.md 1.3 and 3.4.
    """

    points: Float[Array, "n d"]
    log_weights: Float[Array, " n"]

    def __init__(self, measure: TokenMeasure):
        require(
            measure.num_contexts is None,
            f"a batch of {measure.num_contexts} measures",
            "one measure [n, d]",
            "make one Empirical law for each context",
        )
        self.points = as_array("points", measure.points, 2)
        self.log_weights = measure.log_weights

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.points.shape[1]

    def _scores(self, z: Array) -> Array:
        return self.log_weights + z @ self.points.T

    def _cgf(self, z: Array) -> Array:
        return jsp.logsumexp(self._scores(z), axis=-1)

    def _cgf_gradient(self, z: Array) -> Array:
        return softmax_weights(self._scores(z)) @ self.points

    def _cgf_hessian(self, z: Array) -> Array:
        masses = softmax_weights(self._scores(z))
        centred = self.points - (masses @ self.points)[..., None, :]
        return jnp.einsum("...n,...ni,...nj->...ij", masses, centred, centred)

    def centred(self) -> "Empirical":
        """The cloud shifted to mean 0."""
        return eqx.tree_at(lambda law: law.points, self, _centre(self.points, self.log_weights))

    @property
    def has_bounded_support(self) -> bool:
        """True."""
        return True

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """Atoms drawn by their weight, with replacement, ``[n, d]``."""
        return self.points[jax.random.categorical(key, self.log_weights, shape=(num_tokens,))]

    @property
    def _num_uniforms(self) -> int:
        return 1

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        choice = _choose(np.exp(np.asarray(self.log_weights)), uniforms[:, 0])
        return np.asarray(self.points)[choice]

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        del num_nodes, rule
        return np.asarray(self.points), np.exp(np.asarray(self.log_weights))


def _centre(points: Array, log_weights: Array) -> Array:
    """Points minus their mean; twice, since the first mean of far points is only rounded."""
    for _ in range(2):
        points = points - jnp.exp(log_weights) @ points
    return points


def _choose(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Inverse distribution function of a law on 0, ..., K - 1; never an index of weight 0."""
    cumulative = np.cumsum(weights)
    choice = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return np.minimum(choice, int(np.flatnonzero(weights)[-1]))
