"""Invariants, symmetries and bounds (docs/theory.md 1.6, 2.4, 2.6, 6.8), on drawn problems.

Hypothesis draws seeds and sizes of entries; shapes are fixed, so that each check compiles once.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meanfield as mf
from meanfield import exact
from tests.helpers import inner, random_batch, random_like, random_measure, relative_gap

AV = mf.SoftmaxAttention("av")
QKV = mf.SoftmaxAttention("qkv", head_dim=2)
NODES = (0.0, 0.2, 0.7, 1.0)
SCHEMES = {"euler": mf.Euler(), "heun": mf.Heun(), "rk4": mf.RungeKutta4()}
quick = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
scales = st.floats(0.05, 1.2)


def draw(field: Any, seed: int, scale: float, **options: Any) -> mf.ParameterMeasure:
    options = {"dim": 3, "num_particles": 4, "nodes": NODES, "weighted": True} | options
    return random_measure(field, seed=seed, scale=scale, **options)


def cloud(seed: int, num_tokens: int = 5, num_queries: int = 1) -> mf.TokenMeasure:
    batch = random_batch(
        dim=3, num_contexts=1, num_tokens=num_tokens, num_queries=num_queries, seed=seed
    )
    return jax.tree.map(lambda leaf: leaf[0], batch.contexts)


def final(field: Any, rho: mf.ParameterMeasure, mu: mf.TokenMeasure) -> np.ndarray:
    return np.asarray(mf.solve_flow(field, rho, mu).final.points)


class TestInvariants:
    @pytest.mark.parametrize("interpolation", ["constant", "linear"])
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_pairing_of_momenta_and_variations_is_constant(self, scheme, interpolation):
        """sum_a <q_a, dx_a> at every node, for any rho, by a tangent flow and the adjoint."""
        chosen = SCHEMES[scheme]

        @jax.jit
        def tangent(rho, mu, direction):
            def path(points):
                return mf.solve_flow(QKV, rho, mu.push_forward(points), scheme=chosen).path

            return jax.jvp(path, (mu.points,), (direction,))[1]

        @quick
        @given(seeds, scales)
        def check(seed, scale):
            rho = draw(QKV, seed, scale, interpolation=interpolation)
            batch = random_batch(dim=3, num_contexts=1, seed=seed)
            found = mf.conditional_gradient(QKV, rho, mf.SquaredLoss(), batch, scheme=chosen)
            mu = jax.tree.map(lambda leaf: leaf[0], batch.contexts)
            variation = tangent(rho, mu, random_like(mu.points, seed))
            terms = np.asarray(found.momenta[0] * variation)
            pairings = terms.sum(axis=(1, 2))
            rounding = 1e-12 * np.abs(terms).sum(axis=(1, 2)).max()
            assert np.max(np.abs(pairings - pairings[-1])) <= rounding
            control = (np.asarray(found.momenta[0])[:1] * variation).sum(axis=(1, 2))
            assert np.max(np.abs(control - control[-1])) > 1e3 * rounding  # with frozen momenta

        check()

    def test_dissipation_identity(self):
        """d/dt L(theta - t G) = -|G|^2 at t = 0; without the factor 1 / (ds w) it fails."""

        @jax.jit
        def slope(rho, direction, batch):
            def risk(particles):
                some = rho.with_particles(particles)
                return mf.risk(AV, some, mf.SquaredLoss(), batch, scheme=mf.Heun())

            return jax.jvp(risk, (rho.particles,), (direction,))[1]

        @quick
        @given(seeds, scales)
        def check(seed, scale):
            rho, batch = draw(AV, seed, scale), random_batch(dim=3, seed=seed)
            found = mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch, scheme=mf.Heun())
            downhill = jax.tree.map(jnp.negative, found.gradient)
            squared = float(found.norm) ** 2
            assert float(slope(rho, downhill, batch)) == pytest.approx(-squared, rel=1e-10)
            plain = float(inner(found.gradient, found.gradient))
            assert plain != pytest.approx(squared, rel=0.1)

        check()

    def test_risk_falls_for_small_steps_and_rises_uphill(self):
        risk = jax.jit(lambda rho, batch: mf.risk(AV, rho, mf.SquaredLoss(), batch))

        @quick
        @given(seeds, scales)
        def check(seed, scale):
            rho, batch = draw(AV, seed, scale), random_batch(dim=3, seed=seed)
            found = mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch)
            step = 1e-5 / (1 + float(found.norm))
            risks = []
            for sign in (-1, 1):
                move = lambda a, g, sign=sign: a + sign * step * g  # noqa: E731
                particles = jax.tree.map(move, rho.particles, found.gradient)
                risks.append(float(risk(rho.with_particles(particles), batch)))
            assert risks[0] < float(found.value) < risks[1]

        check()


class TestBounds:
    @quick
    @given(seeds, st.floats(0.05, 30.0), st.floats(0.05, 1.5))
    def test_radius(self, seed, score_scale, value_scale):
        """|x(s)| <= R_0 exp(int int |V|), whatever the scores; Euler layers obey it as well."""
        rho = draw(AV, seed, 1.0)
        particles = mf.AttentionAV(score_scale * rho.particles.A, value_scale * rho.particles.V)
        rho = rho.with_particles(particles)
        mu = cloud(seed)
        radii = np.linalg.norm(mf.solve_flow(AV, rho, mu).path, axis=-1).max(axis=-1)
        bound = exact.radius_bound(float(radii[0]), rho)
        assert np.all(radii <= bound * (1 + 1e-12))

    def test_radius_bound_is_reached_by_a_dirac(self):
        rho = mf.refine_depth(exact.constant_head(np.eye(3), 0.5 * np.eye(3)), 64)
        mu = mf.TokenMeasure(np.array([[0.6, 0.0, 0.8]]))
        end = np.linalg.norm(final(AV, rho, mu))
        assert 0.99 < end / exact.radius_bound(1.0, rho)[-1] <= 1.0

    @quick
    @given(seeds, st.floats(0.05, 30.0))
    def test_means_lie_in_the_convex_hull(self, seed, scale):
        mu = cloud(seed)
        theta = random_like(mf.AttentionAV(jnp.eye(3), jnp.eye(3)), seed, scale)
        means = np.asarray(AV(mf.AttentionAV(theta.A, jnp.eye(3)), mu.points, mu))
        directions = np.random.default_rng(seed).normal(size=(3, 20))
        tokens = np.asarray(mu.points)[np.asarray(mu.weights) > 0]
        highest = (tokens @ directions).max(axis=0)
        assert np.all(means @ directions <= highest + 1e-12)


class TestSymmetries:
    @quick
    @given(seeds, scales)
    def test_permutations_of_tokens_and_of_particles(self, seed, scale):
        rho, mu = draw(QKV, seed, scale), cloud(seed)
        generator = np.random.default_rng(seed)
        order = generator.permutation(mu.num_tokens)
        shuffled = jax.tree.map(lambda leaf: leaf[order], mu)
        assert relative_gap(final(QKV, rho, shuffled), final(QKV, rho, mu)[order]) < 1e-12
        heads = np.stack([generator.permutation(4) for _ in NODES[1:]])  # anew in every cell
        cells = np.arange(len(NODES) - 1)[:, None]
        mixed = jax.tree.map(lambda leaf: leaf[cells, heads], (rho.particles, rho.log_weights))
        other = mf.ParameterMeasure(mixed[0], rho.grid, mixed[1])
        assert relative_gap(final(QKV, other, mu), final(QKV, rho, mu)) < 1e-12

    def test_causal_attention_keeps_no_permutation(self):
        field = mf.Causal(AV)
        rho, mu = draw(AV, 1, 0.8), cloud(1, num_queries=0)
        order = np.array([4, 0, 3, 1, 2])
        carried = mf.TokenMeasure(mu.points[order], mu.log_weights[order], mu.labels[order])
        assert relative_gap(final(field, rho, carried), final(field, rho, mu)[order]) < 1e-12
        renamed = mf.TokenMeasure(mu.points[order], mu.log_weights[order])
        assert relative_gap(final(field, rho, renamed), final(field, rho, mu)[order]) > 1e-3

    def test_causal_attention_sees_no_future(self):
        field = mf.Causal(AV)
        rho, mu = draw(AV, 2, 0.8), cloud(2, num_queries=0)
        changed = mu.push_forward(mu.points.at[3:].add(1.0))
        here, there = final(field, rho, mu), final(field, rho, changed)
        assert relative_gap(there[:3], here[:3]) < 1e-14
        assert relative_gap(final(AV, rho, changed)[:3], final(AV, rho, mu)[:3]) > 1e-3

    @quick
    @given(seeds, scales)
    def test_linear_changes_of_frame(self, seed, scale):
        """x -> G x, A -> G^-T A G^-1, V -> G V G^-1."""
        rho, mu = draw(AV, seed, scale), cloud(seed)
        generator = np.random.default_rng(seed)
        left, _ = np.linalg.qr(generator.normal(size=(3, 3)))
        frame = left @ np.diag([0.6, 1.0, 1.7]) @ np.linalg.qr(generator.normal(size=(3, 3)))[0]
        back = np.linalg.inv(frame)
        particles = mf.AttentionAV(back.T @ rho.particles.A @ back, frame @ rho.particles.V @ back)
        turned = final(AV, rho.with_particles(particles), mu.push_forward(mu.points @ frame.T))
        assert relative_gap(turned, final(AV, rho, mu) @ frame.T) < 1e-9

    def test_translations_are_no_symmetry(self):
        rho, mu = draw(AV, 3, 0.8), cloud(3)
        shift = np.array([0.7, -0.4, 0.9])
        moved = final(AV, rho, mu.push_forward(mu.points + shift))
        assert relative_gap(moved, final(AV, rho, mu) + shift) > 0.05
        # It holds where A^T c = 0 and V c = 0, and A^T c = 0 alone is not enough.
        blind = np.eye(3) - np.outer(shift, shift) / (shift @ shift)
        A, V = blind @ rho.particles.A, rho.particles.V
        for values, holds in ((V @ blind, True), (V, False)):
            special = rho.with_particles(mf.AttentionAV(A, values))
            moved = final(AV, special, mu.push_forward(mu.points + shift))
            gap = relative_gap(moved, final(AV, special, mu) + shift)
            assert gap < 1e-12 if holds else gap > 1e-3


class TestMasses:
    @quick
    @given(seeds, scales, st.floats(0.01, 0.99))
    def test_splitting_a_particle_changes_nothing(self, seed, scale, part):
        rho, batch = draw(AV, seed, scale), random_batch(dim=3, seed=seed)

        def repeat(leaf):
            return jnp.concatenate([leaf, leaf[:, :1]], axis=1)

        weights = np.asarray(rho.weights)
        split = np.concatenate([weights, (1 - part) * weights[:, :1]], axis=1)
        split[:, 0] *= part
        other = mf.ParameterMeasure(jax.tree.map(repeat, rho.particles), rho.grid, np.log(split))
        whole = mf.conditional_gradient(AV, rho, mf.SquaredLoss(), batch)
        parts = mf.conditional_gradient(AV, other, mf.SquaredLoss(), batch)
        assert relative_gap(parts.value, whole.value) < 1e-13
        assert relative_gap(parts.norm, whole.norm) < 1e-12
        # Both parts move as the particle did: training keeps them together.
        assert relative_gap(parts.gradient, jax.tree.map(repeat, whole.gradient)) < 1e-11

    @quick
    @given(seeds, scales, st.floats(0.01, 0.99))
    def test_splitting_a_token_changes_nothing(self, seed, scale, part):
        rho, mu = draw(AV, seed, scale), cloud(seed)
        weights = np.asarray(mu.weights)
        split = mf.TokenMeasure.from_weights(
            jnp.concatenate([mu.points, mu.points[:1]]),
            np.concatenate([[part * weights[0]], weights[1:], [(1 - part) * weights[0]]]),
        )
        end = final(AV, rho, mu)
        assert relative_gap(final(AV, rho, split), np.concatenate([end, end[:1]])) < 1e-12

    @quick
    @given(seeds, scales)
    def test_tokens_without_mass_change_nobody(self, seed, scale):
        """Wherever they are; a token with mass at the same place is felt."""
        rho, mu = draw(AV, seed, scale), cloud(seed, num_queries=0)
        places = 1e3 * np.random.default_rng(seed).normal(size=(2, 3))
        end = final(AV, rho, mu.with_queries(places))
        np.testing.assert_array_equal(end[:5], final(AV, rho, mu.with_queries(0 * places))[:5])
        assert relative_gap(end[:5], final(AV, rho, mu)) < 1e-12
        weights = np.concatenate([np.asarray(mu.weights), [0.1, 0.1]])
        heavy = mf.TokenMeasure.from_weights(np.concatenate([mu.points, places / 1e3]), weights)
        assert relative_gap(final(AV, rho, heavy)[:5], final(AV, rho, mu)) > 1e-6

    @quick
    @given(seeds, scales)
    def test_batches_are_single_flows(self, seed, scale):
        """Padding included: contexts of 3 and 5 tokens side by side."""
        rho = draw(AV, seed, scale)
        few, many = cloud(seed, 3, 0), cloud(seed + 1, 5, 0)
        ends = final(AV, rho, mf.stack_contexts([few, many]))
        assert relative_gap(ends[0, :3], final(AV, rho, few)) < 1e-12
        assert relative_gap(ends[1], final(AV, rho, many)) < 1e-12

    @quick
    @given(seeds, scales)
    def test_depth_refinement_keeps_the_measure(self, seed, scale):
        """Euler on cells cut in two = two Euler sub-steps of each cell, by a numpy loop."""
        rho, mu = draw(AV, seed, scale), cloud(seed)
        fine = mf.refine_depth(rho, 2)
        x, masses = np.asarray(mu.points), np.asarray(mu.weights)
        for cell, length in enumerate(np.diff(NODES)):
            A, V = (np.asarray(leaf)[cell] for leaf in rho.particles)
            for _ in range(2):
                tilted = masses * np.exp(np.einsum("ai,jik,bk->jab", x, A, x))
                means = tilted / tilted.sum(axis=-1, keepdims=True) @ x
                weights = np.asarray(rho.weights)[cell]
                x = x + length / 2 * np.einsum("j,jki,jai->ak", weights, V, means)
        assert relative_gap(final(AV, fine, mu), x) < 1e-11
