"""Log-risk against its guarantee, rates of single eigenvectors, and the success map."""

import numpy as np

from meanfield import plotting

EXPERIMENTS = ("linear_rate",)


def draw(runs):
    """(a) Risk in training time; (b) rate against eigenvalue; (c) who converges."""
    run = runs["linear_rate"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.16)
        figure.get_layout_engine().set(w_pad=0.06)
        _curves(axes[0, 0], run.load("rates"))
        _rates(axes[0, 1], run.load("excited"))
        _map(axes[0, 2], run.load("map"))
    return figure


def _curves(ax, rates) -> None:
    """The draw of median horizon: full training, V alone, and what kappa guarantees."""
    number = np.argsort(rates["time"][0, :, -1])[rates["time"].shape[1] // 2]
    time, risk = rates["time"][0, number], rates["risk"][:, number]
    steps = np.diff(time)
    for values, label, color, style in (
        (rates["predicted"][0, number] / risk[0, 0], "spectrum of $K_0$", plotting.GREY, "-"),
        (risk[0] / risk[0, 0], "full training", plotting.BLUE, "o"),
        (risk[1] / risk[1, 0], "$V$ alone", plotting.GREEN, "s"),
    ):
        ax.plot(time, values, style, color=color, label=label)
    for name, label, color, style in (
        ("least", r"$2\lambda_{\min}(K_t)$, full", plotting.ORANGE, "--"),
        ("kappa", r"$2\kappa(t)$, full", plotting.RED, ":"),
    ):
        rate = 2 * rates[name][0, number]
        fallen = np.append(0.0, np.cumsum(steps * (rate[1:] + rate[:-1]) / 2))
        ax.plot(time, np.exp(-fallen), style, color=color, label=f"rate {label}")
    ax.set_yscale("log")
    ax.set_xlabel("training time $t$")
    ax.set_ylabel("risk / initial risk")
    plotting.legend_below(ax, num_columns=2)
    plotting.panel_label(ax, "a", "one draw")


def _rates(ax, excited) -> None:
    """Every draw and eigenvector, at the largest residual, on the diagonal."""
    expected = 2 * excited["eigenvalue"].ravel()
    ends = np.array([expected.min() / 1.5, expected.max() * 1.5])
    ax.plot(ends, ends, "-", color=plotting.GREY, linewidth=0.8, label=r"$2\lambda_j$")
    measured = excited["rate"][..., -1].ravel()
    size = f"{excited['scales'][-1]:g}"
    ax.plot(
        expected,
        measured,
        "o",
        color=plotting.BLUE,
        markersize=2.4,
        label=rf"residual along $v_j$, $\varepsilon={size}$",
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(r"$2\lambda_j$ of the excited eigenvector")
    ax.set_ylabel("measured rate")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "b", "eigenvalue excited")


def _map(ax, found) -> None:
    """Share of converged runs as colours; the thresholds of all draws as ticks on each row."""
    risks, heads = np.log10(found["risks"]), found["heads"]
    share = np.isfinite(found["gradients"]).mean(axis=1)  # [H, R]
    step = np.diff(risks).min()
    left, right = risks[0] - step / 2, risks[-1] + step / 2
    plotting.heat_strip(
        ax, share, name="share converged", extent=(left, right, -0.5, len(heads) - 0.5)
    )
    for row, threshold in enumerate(np.log10(np.maximum(found["threshold"], 1e-300))):
        shown = threshold[threshold > left]
        ax.plot(shown, np.full(len(shown), row), "|", color=plotting.RED, markersize=9)
        ax.plot([np.median(threshold)] * 2, [row - 0.5, row + 0.5], "-", color=plotting.RED)
    ax.plot([], [], "-", color=plotting.RED, label=r"threshold $\kappa_r r^2/2$: draws, median")
    ax.set_xlim(left, right)
    ax.set_ylim(-0.5, len(heads) - 0.5)
    ax.set_yticks(range(len(heads)), [f"{number:g}" for number in heads])
    ax.set_xlabel(r"$\log_{10}$ of the initial risk")
    ax.set_ylabel("heads $M$")
    plotting.legend_below(ax)
    plotting.panel_label(ax, "c", "success map")


def caption(runs):
    """What is seen, from stored numbers."""
    run = runs["linear_rate"]
    chosen = run.configuration["parameters"]
    return (
        f"Linear convergence, {chosen['num_seeds']} draws of {chosen['num_contexts']} contexts of"
        f" {chosen['num_tokens']} tokens in d = {chosen['dim']}, L = {chosen['num_cells']} layers."
        f" (a) Risk of the draw of median horizon, M = {max(chosen['heads'])}, R(0) ="
        f" {chosen['start_risk']:g}, with the curve foretold by the spectrum of the kernel at the"
        " start and those of the two lower bounds. (b) Residuals along single eigenvectors. (c)"
        f" Share of runs whose risk fell to a hundredth within {chosen['num_gradients']} gradients;"
        f" ticks: thresholds of the draws, from sampled radii."
    )
