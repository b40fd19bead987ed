"""Risk, end points, momenta and gradient against stored arrays of an independent reference.

A second route recomputes everything here in plain numpy: Euler layers by a loop over tokens, and
derivatives by the complex step (exact to rounding, no automatic differentiation).
"""

from pathlib import Path

import numpy as np
import pytest

import meanfield as mf
from tests.helpers import relative_gap

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = ["flow_all_tokens", "flow_query_token"]
FIELD = mf.SoftmaxAttention("av")


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


def build(data: dict[str, np.ndarray]) -> tuple[mf.ParameterMeasure, mf.Batch]:
    particles = mf.AttentionAV(data["A"], data["V"])  # type: ignore[arg-type]
    rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(data["A"].shape[0]))
    contexts = mf.TokenMeasure.from_weights(data["x"], data["w"])
    return rho, mf.Batch(contexts, data["y"], data["lw"])


def solve(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rho, batch = build(data)
    solution = mf.conditional_gradient(FIELD, rho, mf.SquaredLoss(), batch)
    flow = mf.solve_flow(FIELD, rho, batch.contexts)
    found = {
        "risk": solution.value,
        "x1": flow.final.points,
        "q0": solution.momenta[:, 0],
        "gA": solution.gradient.A,
        "gV": solution.gradient.V,
    }
    return {key: np.asarray(value) for key, value in found.items()}


def layers_by_loops(x, w, A, V):
    """Euler layers, token by token, as in docs/theory.md 1.4; complex input is allowed."""
    num_layers, num_heads = A.shape[:2]
    x = x.astype(np.result_type(x, A, V))
    for layer in range(num_layers):
        moved = x.copy()
        for i in range(x.shape[0]):
            for a in range(x.shape[1]):
                for head in range(num_heads):
                    mass = w[i] * np.exp(x[i] @ (A[layer, head].T @ x[i, a]))
                    mean = (mass[:, None] * x[i]).sum(axis=0) / mass.sum()
                    moved[i, a] = moved[i, a] + V[layer, head] @ mean / (num_layers * num_heads)
        x = moved
    return x


def risk_by_loops(data, **changes):
    given = {key: data[key] for key in ("x", "w", "A", "V")} | changes
    gap = layers_by_loops(**given) - data["y"]
    return (data["lw"][..., None] * gap**2).sum() / (2 * gap.shape[0])


@pytest.fixture(scope="module", params=NAMES)
def problem(request):
    data = load(request.param)
    return data, solve(data)


def test_matches_the_stored_reference(problem):
    data, found = problem
    for key, value in found.items():
        assert relative_gap(value, data[key]) < 1e-12, key


def test_layers_and_risk_match_a_numpy_loop(problem):
    data, found = problem
    assert relative_gap(found["x1"], layers_by_loops(*(data[k] for k in "xwAV"))) < 1e-12
    assert relative_gap(found["risk"], risk_by_loops(data)) < 1e-12


def test_momenta_and_gradient_match_complex_steps_of_the_loop(problem):
    data, found = problem
    generator = np.random.default_rng(5)
    factor = {"x": 1.0, "A": np.prod(data["A"].shape[:2]), "V": np.prod(data["A"].shape[:2])}
    for name, gradient in (("x", "q0"), ("A", "gA"), ("V", "gV")):
        direction = generator.normal(size=data[name].shape)
        moved = data[name] + 1e-30j * direction
        slope = risk_by_loops(data, **{name: moved}).imag / 1e-30
        pairing = np.sum(found[gradient] * direction) / factor[name]
        assert abs(pairing - slope) < 1e-11 * np.abs(found[gradient] * direction).sum(), name


def test_the_comparison_can_fail():
    data = load(NAMES[0])
    moved = data | {
        "A": data["A"] + 1e-9 * (np.arange(data["A"].size) == 7).reshape(data["A"].shape)
    }
    found = solve(moved)
    assert max(relative_gap(found[key], data[key]) for key in found) > 1e-12
    cells, heads = data["A"].shape[:2]
    assert relative_gap(found["gV"] / (cells * heads), data["gV"]) > 0.9  # the factor M/ds
    assert relative_gap(np.swapaxes(found["gA"], -1, -2), data["gA"]) > 0.1  # the transpose
