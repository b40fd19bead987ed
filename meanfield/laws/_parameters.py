"""Laws of one parameter particle, for `measures.sample_parameters`."""

import abc
import math
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from meanfield._checks import require
from meanfield._typing import Array, Key, Particles


def is_shape(node: Any) -> bool:
    """A plain tuple of integers is a leaf; a NamedTuple of such is not."""
    return type(node) is tuple and all(isinstance(size, int) for size in node)


def _leaf_name(path: tuple[Any, ...]) -> str | None:
    """The innermost field name or dict key on a leaf's path."""
    for entry in reversed(path):
        name = getattr(entry, "name", getattr(entry, "key", None))
        if isinstance(name, str):
            return name
    return None


class AbstractParameterLaw(abc.ABC):
    """A law of one particle theta: ``law(key, shapes, M)`` draws leaves ``[M, *shape]``.

    A leaf takes its scale by its NamedTuple field or dict key; one number serves all leaves. The
    key is split by the leaf's path, so that a further leaf does not shift the others.
    """

    def __init__(
        self,
        scales: float | int | Mapping[str, float | int] | None = None,
        /,
        **by_name: float | int,
    ):
        name = type(self).__name__
        if isinstance(scales, Mapping):
            by_name = {**scales, **by_name}
            scales = None
        require(
            (scales is None) != (not by_name),
            f"{name} with {'a number and names' if by_name else 'no scale'}",
            "one number for all leaves or one for each name",
            f"write {name}(1.0) or {name}(A=1.0, V=0.3)",
        )
        for label, scale in {"scale": scales, **by_name}.items():
            if label == "scale" and scales is None:
                continue
            ok = isinstance(scale, (int, float)) and not isinstance(scale, bool)
            require(
                ok and math.isfinite(scale) and scale >= 0,
                f"{label}={scale!r} in {name}",
                "a finite number of at least 0",
                "pass a scale such as 1.0",
            )
        self.scales: float | dict[str, float] = dict(by_name) if scales is None else float(scales)

    def __repr__(self) -> str:
        if isinstance(self.scales, dict):
            inside = ", ".join(f"{name}={scale:g}" for name, scale in self.scales.items())
        else:
            inside = f"{self.scales:g}"
        return f"{type(self).__name__}({inside})"

    @abc.abstractmethod
    def _draw(self, key: Key, shape: tuple[int, ...], num: int) -> Array:
        """Draws ``[num, *shape]`` of unit scale."""

    def __call__(self, key: Key, shapes: Any, num_particles: int) -> Particles:
        """Draw M particles.

        Args: shapes, a pytree of shape tuples (`AbstractField.particle_shapes`).
        Returns: the same pytree with arrays ``[M, *shape]``.
        Raises: `MeanfieldError` if a leaf has no scale or a scale has no leaf.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=is_shape)
        names = [_leaf_name(path) for path, _ in leaves]
        if isinstance(self.scales, dict):
            require(
                set(names) == set(self.scales),
                f"{self!r} for a particle with leaves {names}",
                f"a scale for each of {sorted(str(name) for name in set(names))}",
                "name exactly these (0.0 starts a leaf at zero), or pass one number",
            )
        drawn = []
        for (path, shape), name in zip(leaves, names, strict=True):
            label = jax.tree_util.keystr(path)
            leaf_key = jax.random.fold_in(key, zlib.crc32(label.encode()))
            scale = self.scales[str(name)] if isinstance(self.scales, dict) else self.scales
            drawn.append(scale * self._draw(leaf_key, tuple(shape), num_particles))
        return jax.tree_util.tree_unflatten(structure, drawn)


class EntrywiseGaussian(AbstractParameterLaw):
    """Independent centred Gaussian entries: ``theta_ij ~ N(0, scale^2)``.

    Args: one scale for every leaf, ``EntrywiseGaussian(1.0)``, or one by name,
        ``EntrywiseGaussian(A=1.0, V=0.3)``; 0 starts a leaf at zero.
    Raises: `MeanfieldError` on scales that are negative, not finite, or do not fit the particle.
    Reference: our choice, docs/theory.md 1.2; the kernel of Gaussian heads: 6.11.
    """

    def _draw(self, key: Key, shape: tuple[int, ...], num: int) -> Array:
        return jax.random.normal(key, (num, *shape))


class UniformBall(AbstractParameterLaw):
    """Each leaf uniform in the ball ``|theta|_F < scale`` of its own space.

    Heads for laws that are finite on a domain only: ``|A^T x| <= |A|_F |x| < scale |x|``, so a
    scale of `AbstractLaw.domain_radius` over the largest ``|x|`` keeps every ``A^T x`` inside.

    Args: one radius for every leaf or one by name, ``UniformBall(A=0.3, V=1.0)``.
    Raises: `MeanfieldError` on radii that are negative, not finite, or do not fit the particle.
    Reference: our choice, docs/theory.md 3.4.
    """

    def _draw(self, key: Key, shape: tuple[int, ...], num: int) -> Array:
        size = math.prod(shape)
        direction_key, radius_key = jax.random.split(key)
        direction = jax.random.normal(direction_key, (num, size))
        direction = direction / jnp.linalg.norm(direction, axis=1, keepdims=True)
        radius = jax.random.uniform(radius_key, (num, 1)) ** (1 / max(size, 1))
        return (radius * direction).reshape(num, *shape)
