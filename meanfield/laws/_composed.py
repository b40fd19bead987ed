"""Laws made of laws: affine images, products of independent blocks, convolutions."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from meanfield._checks import require
from meanfield._typing import Array, Bool, Float, Key
from meanfield.laws._base import AbstractLaw, as_array, tensor_rule


class AffineImage(AbstractLaw):
    """The law of ``B y + b`` for y of another law: ``Lam(z) = <b, z> + Lam_y(B^T z)``.

    Args: law on R^e; matrix B ``[d, e]``; shift b ``[d]``, None for 0.
    Raises: `MeanfieldError` on shapes that do not fit; `DomainError` where Lam_y is not finite.
    Reference: reconstruction, docs/theory.md 3.4 and 6.8.
    """

    law: AbstractLaw
    matrix: Float[Array, "d e"]
    shift: Float[Array, " d"]

    def __init__(self, law: AbstractLaw, matrix: Any, shift: Any = None):
        self.law = law
        self.matrix = as_array("matrix", matrix, 2)
        require(
            self.matrix.shape[1] == law.dim,
            f"matrix has shape {tuple(self.matrix.shape)}",
            f"[d, {law.dim}]",
            "give it one column per coordinate of the law",
        )
        self.shift = as_array("shift", np.zeros(self.dim) if shift is None else shift, 1)
        require(
            self.shift.shape == (self.dim,),
            f"shift has shape {tuple(self.shift.shape)}",
            f"({self.dim},)",
            "give it one entry per row of matrix",
        )

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.matrix.shape[0]

    def in_domain(self, z: Any) -> Bool[Array, "..."]:
        """True where ``B^T z`` lies in the law's domain."""
        return self.law.in_domain(self._as_argument(z) @ self.matrix)

    def domain_radius(self) -> float:
        """The law's radius over the spectral norm of B."""
        norm = float(np.linalg.norm(np.asarray(self.matrix), 2))
        return self.law.domain_radius() / norm if norm > 0 else float("inf")

    def _cgf(self, z: Array) -> Array:
        return z @ self.shift + self.law._cgf(z @ self.matrix)

    def _cgf_gradient(self, z: Array) -> Array:
        return self.shift + self.law._cgf_gradient(z @ self.matrix) @ self.matrix.T

    def _cgf_hessian(self, z: Array) -> Array:
        return self.matrix @ self.law._cgf_hessian(z @ self.matrix) @ self.matrix.T

    def centred(self) -> "AffineImage":
        """``B (y - mean)``."""
        shifted = (self.law.centred(), jnp.zeros_like(self.shift))
        return eqx.tree_at(lambda image: (image.law, image.shift), self, shifted)

    @property
    def has_bounded_support(self) -> bool:
        """True if the law's is."""
        return self.law.has_bounded_support

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """``B y + b``, ``[n, d]``."""
        return self.law.sample(key, num_tokens) @ self.matrix.T + self.shift

    @property
    def _num_uniforms(self) -> int:
        return self.law._num_uniforms

    def _image(self, points: np.ndarray) -> np.ndarray:
        return points @ np.asarray(self.matrix).T + np.asarray(self.shift)

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        return self._image(self.law._from_uniform(uniforms))

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        points, weights = self.law._gauss_rule(num_nodes, rule)
        return self._image(points), weights


class _Independent(AbstractLaw):
    """Independent parts: their samples, uniforms and Gauss rules, before they are joined."""

    laws: tuple[AbstractLaw, ...]

    def __init__(self, laws: Sequence[AbstractLaw]):
        self.laws = tuple(laws)
        require(self.laws, "no laws", "at least one", "pass a list of laws")
        require(
            all(isinstance(law, AbstractLaw) for law in self.laws),
            f"laws of types {[type(law).__name__ for law in self.laws]}",
            "a list of laws",
            "wrap a token measure as Empirical(measure)",
        )

    def centred(self) -> AbstractLaw:
        """The same of the centred parts."""
        return eqx.tree_at(lambda law: law.laws, self, tuple(law.centred() for law in self.laws))

    @property
    def has_bounded_support(self) -> bool:
        """True if every part's is."""
        return all(law.has_bounded_support for law in self.laws)

    def _draws(self, key: Key, num_tokens: int) -> list[Array]:
        return [
            law.sample(jax.random.fold_in(key, i), num_tokens) for i, law in enumerate(self.laws)
        ]

    @property
    def _num_uniforms(self) -> int:
        return sum(law._num_uniforms for law in self.laws)

    def _transforms(self, uniforms: np.ndarray) -> list[np.ndarray]:
        cuts = np.cumsum([law._num_uniforms for law in self.laws])[:-1]
        blocks = np.split(uniforms, cuts, axis=1)
        return [law._from_uniform(block) for law, block in zip(self.laws, blocks, strict=True)]

    def _joint_rule(self, num_nodes: int, rule: str) -> tuple[list[np.ndarray], np.ndarray]:
        return tensor_rule([law._gauss_rule(num_nodes, rule) for law in self.laws])


class Product(_Independent):
    """Independent blocks side by side, ``y = (y_1, ..., y_B)``: ``Lam(z) = sum_b Lam_b(z_b)``.

    Args: laws of widths d_1, ..., d_B; the width is their sum.
    Raises: `MeanfieldError` on an empty list; `DomainError` where a block is not finite.
    Reference: reconstruction, docs/theory.md 3.4.
    """

    def __init__(self, laws: Sequence[AbstractLaw]):
        super().__init__(laws)

    @property
    def dim(self) -> int:
        """``d_1 + ... + d_B``."""
        return sum(law.dim for law in self.laws)

    def _blocks(self, z: Array) -> list[tuple[AbstractLaw, Array]]:
        cuts = np.cumsum([law.dim for law in self.laws])[:-1].tolist()
        return list(zip(self.laws, jnp.split(z, cuts, axis=-1), strict=True))

    def in_domain(self, z: Any) -> Bool[Array, "..."]:
        """True where every block lies in its law's domain."""
        inside = [law.in_domain(block) for law, block in self._blocks(self._as_argument(z))]
        return jnp.all(jnp.stack(inside), axis=0)

    def domain_radius(self) -> float:
        """The least of the blocks' radii."""
        return min(law.domain_radius() for law in self.laws)

    def _cgf(self, z: Array) -> Array:
        parts = [law._cgf(block) for law, block in self._blocks(z)]
        return jnp.sum(jnp.stack(parts), axis=0)

    def _cgf_gradient(self, z: Array) -> Array:
        return jnp.concatenate([law._cgf_gradient(block) for law, block in self._blocks(z)], -1)

    def _cgf_hessian(self, z: Array) -> Array:
        blocks = [law._cgf_hessian(block) for law, block in self._blocks(z)]
        flat = [block.reshape(-1, *block.shape[-2:]) for block in blocks]
        joined = jax.vmap(jsl.block_diag)(*flat)
        return joined.reshape(*z.shape[:-1], self.dim, self.dim)

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """Independent draws of the blocks, ``[n, d]``."""
        return jnp.concatenate(self._draws(key, num_tokens), axis=1)

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        return np.concatenate(self._transforms(uniforms), axis=1)

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        points, weights = self._joint_rule(num_nodes, rule)
        return np.concatenate(points, axis=1), weights


class Convolution(_Independent):
    """The law of a sum of independent tokens, ``y = y_1 + ... + y_B``: ``Lam = sum_b Lam_b``.

    The multiplicative relations of moment generating functions, hence the negative controls of
    injectivity, come from here: ``mu`` and ``mu * mu`` are dependent.

    Args: laws of one width d.
    Raises: `MeanfieldError` on an empty list or different widths; `DomainError` as its parts.
    Reference: reconstruction, docs/theory.md 3.3 and 3.4.
    """

    def __init__(self, laws: Sequence[AbstractLaw]):
        super().__init__(laws)
        widths = sorted({law.dim for law in self.laws})
        require(len(widths) == 1, f"laws of widths {widths}", "one width", "use Product instead")

    @property
    def dim(self) -> int:
        """The width d of the tokens."""
        return self.laws[0].dim

    def in_domain(self, z: Any) -> Bool[Array, "..."]:
        """True where z lies in every part's domain."""
        z = self._as_argument(z)
        return jnp.all(jnp.stack([law.in_domain(z) for law in self.laws]), axis=0)

    def domain_radius(self) -> float:
        """The least of the parts' radii."""
        return min(law.domain_radius() for law in self.laws)

    def _cgf(self, z: Array) -> Array:
        return jnp.sum(jnp.stack([law._cgf(z) for law in self.laws]), axis=0)

    def _cgf_gradient(self, z: Array) -> Array:
        return jnp.sum(jnp.stack([law._cgf_gradient(z) for law in self.laws]), axis=0)

    def _cgf_hessian(self, z: Array) -> Array:
        return jnp.sum(jnp.stack([law._cgf_hessian(z) for law in self.laws]), axis=0)

    def sample(self, key: Key, num_tokens: int) -> Float[Array, "n d"]:
        """Sums of independent draws, ``[n, d]``."""
        return jnp.sum(jnp.stack(self._draws(key, num_tokens)), axis=0)

    def _from_uniform(self, uniforms: np.ndarray) -> np.ndarray:
        return np.sum(self._transforms(uniforms), axis=0)

    def _gauss_rule(self, num_nodes: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
        points, weights = self._joint_rule(num_nodes, rule)
        return np.sum(points, axis=0), weights
