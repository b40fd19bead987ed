"""The adjoint: discrete against continuous, and what both keep along depth.

Claim. Momenta at depth 0 of a scheme of order p have error O(L^-p). Its discrete adjoint (the exact
gradient of the discrete risk) and the continuous adjoint (the backward equation by the same scheme,
cell by cell from the stored nodes) differ by no more than that (docs/theory.md 2.6 to 2.9):

    slopes of this gap: -1 (Euler), -3 (Heun), -4 (RK4).

Heun's is one better than its order. Its transposed recursion *is* Heun's scheme for q (the tableau
b_j a_ji / b_i is its own), so both read the Jacobian twice in a cell, J at (x_k, x_k + h f_k)
against (x_{k+1} - h f_{k+1}, x_{k+1}); the two differences are +h^2/2 f'f and -h^2/2 f'f up to
O(h^3) and cancel in the mean, which leaves O(h^4) in a cell. Along depth

    sum_a <q_a, dx_a>                    is constant for any heads and any linearised flow dx; the
                                         discrete momenta keep it to rounding, step by step;
    H = sum_a <q_a, Phi_rho[mu](x_a)>    is constant if rho is the same at all depths; a scheme of
                                         order p keeps it to O(L^-p): slopes -1, -2, -4.
Negative control: heads that grow with depth, (1 + s) theta: H moves by an amount that does not fall
with L, and the check of slope -1 must reject it.

Commands
    meanfield run adjoint_order --preset smoke --check     seconds on a CPU
    meanfield run adjoint_order --preset paper             a minute
    meanfield figures adjoint_order

Cost: O(R L M n^2 d) per scheme; all L padded to the largest. Figure: figures/adjoint_order.py.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import meanfield as mf

CLAIM = "adjoints: momenta and Hamiltonian at the scheme's order, gap 1, 3, 4, exact pairing"
COST = "smoke 15 s, paper 1 min on a CPU core"
FIGURE = "adjoint_order"
HEADLINES = (
    "euler: continuous against discrete adjoint, slope in L",
    "heun: continuous against discrete adjoint, slope in L",
    "rk4: continuous against discrete adjoint, slope in L",
)

FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()
SCHEMES = {"euler": mf.Euler(), "heun": mf.Heun(), "rk4": mf.RungeKutta4()}
ORDERS = {"euler": -1.0, "heun": -2.0, "rk4": -4.0}
GAPS = {"euler": -1.0, "heun": -3.0, "rk4": -4.0}


@dataclass(frozen=True)
class Parameters:
    """What is simulated."""

    sizes: tuple[int, ...] = (4, 8, 16, 32)
    """L, cells."""
    num_replicates: int = 5
    """Problems; intervals are over them."""
    num_tokens: int = 6
    """n."""
    dim: int = 3
    """d."""
    num_heads: int = 4
    """M."""
    score_scale: float = 0.7
    """Standard deviation of the entries of A."""
    value_scale: float = 0.5
    """The same of V."""
    expected_euler: float = -1.0
    """What theory says of Euler's slopes."""
    tolerance: float = 0.15
    """Two-sided band around the slopes."""
    rounding: float = 1e-12
    """Largest relative change of the pairing."""
    seed: int = 0
    """Seed of all random streams."""

    def __post_init__(self) -> None:
        mf.check_parameters(self, at_least={"num_replicates": 2})


@partial(jax.jit, static_argnums=0)
def solve(scheme, heads, nodes, points, push):
    """Both gradients ``[2, 2, L, M, d, d]``, H and the pairing at the nodes, first momenta.

    Cells without length (beyond L) change neither tokens nor momenta; their gradients are not read.
    """
    rho = mf.ParameterMeasure(heads, mf.DepthGrid(nodes))
    batch = mf.Batch(mf.TokenMeasure(points[None]), -points[None])
    discrete, continuous = (
        mf.conditional_gradient(FIELD, rho, LOSS, batch, scheme=scheme, method=method)
        for method in (mf.DiscreteAdjoint(), mf.ContinuousAdjoint())
    )
    path, momenta = discrete.path[0], discrete.momenta[0]

    def flow(start):
        return mf.solve_flow(FIELD, rho, mf.TokenMeasure(start), scheme=scheme).path

    tangent = jax.jvp(flow, (points,), (push,))[1]

    def hamiltonian(cell, x, q):
        return jnp.sum(q * mf.velocity(FIELD, cell, x, mf.TokenMeasure(x)))

    last = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), heads)
    energy = jax.vmap(hamiltonian)(last, path, momenta)
    gradients = jnp.stack([jnp.stack(one.gradient) for one in (discrete, continuous)])
    return gradients, energy, jnp.sum(momenta * tangent, axis=(1, 2)), momenta[0]


def drift(values: np.ndarray) -> float:
    """Largest change along depth, relative to the largest value."""
    return float(np.abs(values - values[-1]).max() / np.abs(values).max())


def errors_of(name: str, parameters: Parameters) -> dict[str, np.ndarray]:
    """Gap, drift of H, change of the pairing, the control's drift ``[R, K]``; first momenta."""
    deepest = max(parameters.sizes)
    found: dict[str, list] = {key: [] for key in ("gap", "drift", "pairing", "varying")}
    momenta = []
    for replicate in range(parameters.num_replicates):
        generator = np.random.default_rng([parameters.seed, replicate])
        points, push = generator.uniform(-1, 1, (2, parameters.num_tokens, parameters.dim))
        shape = (parameters.num_heads, parameters.dim, parameters.dim)
        scales = (parameters.score_scale, parameters.value_scale)
        one = [scale * generator.normal(size=shape) for scale in scales]
        constant = mf.AttentionAV(*(np.broadcast_to(leaf, (deepest, *shape)) for leaf in one))
        rows, first = [], []
        for num_cells in parameters.sizes:
            nodes = np.minimum(np.arange(deepest + 1) / num_cells, 1.0)
            # node values of heads that grow with depth: constant in each cell
            growing = 1.0 + nodes[:-1, None, None, None]
            varying = mf.AttentionAV(*(growing * leaf for leaf in constant))
            run = partial(solve, SCHEMES[name])
            gradients, energy, _, start = (
                np.asarray(a) for a in run(constant, nodes, points, push)
            )
            _, moving, pairing, _ = (np.asarray(a) for a in run(varying, nodes, points, push))
            exact, ode = gradients[:, :, :num_cells]
            gap = np.linalg.norm(exact - ode) / np.linalg.norm(exact)
            within = slice(num_cells)  # H of a cell's heads at its left node
            first.append(start)
            rows.append([gap, drift(energy), drift(pairing), drift(moving[within])])
        momenta.append(np.stack(first))
        for key, column in zip(found, np.array(rows).T, strict=True):
            found[key].append(column)
    return {key: np.stack(values) for key, values in found.items()} | {"momenta": np.stack(momenta)}


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """All schemes, all L; fit the orders."""
    mf.use_double()
    compute = lambda name: errors_of(name, parameters)  # noqa: E731
    found = directory.sweep("schemes", SCHEMES, compute, progress, key=str)
    tables = dict(zip(SCHEMES, found, strict=True))
    finest = tables["rk4"]["momenta"][:, -1:]
    for name in ("euler", "heun"):
        distance = np.sqrt(((tables[name]["momenta"] - finest) ** 2).sum(axis=(2, 3)))
        tables[name]["error"] = distance / np.sqrt((finest**2).sum(axis=(2, 3)))
    directory.save(
        "orders",
        sizes=np.array(parameters.sizes),
        **{
            f"{name}_{key}": value for name, table in tables.items() for key, value in table.items()
        },
    )
    claims = []
    for name, table in tables.items():
        order = parameters.expected_euler if name == "euler" else ORDERS[name]
        gap = parameters.expected_euler if name == "euler" else GAPS[name]
        for key, words, expected in (
            ("error", "momenta against the finest RK4, slope in L", order),
            ("gap", "continuous against discrete adjoint, slope in L", gap),
            ("drift", "drift of the Hamiltonian, slope in L", order),
        ):
            if key not in table:  # the reference itself
                continue
            rate = mf.fit_rate(parameters.sizes, table[key], aggregate="geometric")
            verdict = rate.verdict(expected, parameters.tolerance, min_r_squared=0.999)
            claims.append(
                mf.Claim(f"{name}: {words}", expected, rate.slope, rate.interval, verdict)
            )
        change = float(table["pairing"].max())
        claims.append(
            mf.Claim(
                f"{name}: change of the pairing along depth",
                f"at most {parameters.rounding:g}",
                change,
                None,
                "consistent" if change <= parameters.rounding else "inconsistent",
            )
        )
    rate = mf.fit_rate(parameters.sizes, tables["euler"]["varying"], aggregate="geometric")
    rejected = rate.verdict(parameters.expected_euler, parameters.tolerance) == "inconsistent"
    return [
        *claims,
        mf.Claim(
            "control (heads that vary with depth): slope in L of the Hamiltonian's drift",
            f"any slope but {parameters.expected_euler:g}",
            rate.slope,
            rate.interval,
            "consistent" if rejected else "inconsistent",
        ),
    ]


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
