"""Kernel spectrum along depth, the transported factor, and the rate it guarantees in training."""

import numpy as np

from meanfield import plotting
from meanfield.records import shown

EXPERIMENTS = ("ntk_depth",)
CLAIMS = ()  # the caption says them in words


def draw(runs):
    """(a) Spectrum along s; (b) what kappa is made of; (c) training against its guarantee."""
    run = runs["ntk_depth"]
    depth, training = run.load("depth"), run.load("training")
    nodes = depth["nodes"]
    middle = (nodes[:-1] + nodes[1:]) / 2
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.24)
        figure.get_layout_engine().set(w_pad=0.07)
        ax = axes[0, 0]
        values = np.log10(depth["eigenvalues"].T)
        plotting.heat_strip(
            ax,
            values,
            name=r"$\log_{10}$ eigenvalue",
            extent=(nodes[0], nodes[-1], 0.5, len(values) + 0.5),
        )
        ax.invert_yaxis()
        ax.set_yticks(np.arange(1, len(values) + 1, -(-len(values) // 8)))
        ax.set_xlabel("depth $s$")
        ax.set_ylabel("index")
        plotting.panel_label(ax, "a", "spectrum along depth")

        ax = axes[0, 1]
        for values, label, color, style in (
            (depth["transported"], r"$\tau(s)$ of the adjoint flow", plotting.BLUE, "-"),
            (depth["crude_transported"], r"bound of $\tau(s)$ from norms", plotting.GREY, "--"),
            (
                depth["lambda_min"] / depth["lambda_min"].max(),
                r"$\lambda_{\min}(s)$ over its largest value",
                plotting.RED,
                ":",
            ),
        ):
            ax.plot(middle, values, style, color=color, label=label)
        ax.set_ylim(-0.03, 1.05)
        ax.set_xlabel("depth $s$")
        ax.set_ylabel("factor")
        plotting.legend_below(ax, handle_length=2.6)
        plotting.panel_label(ax, "b", r"factors of $\kappa$")

        ax = axes[0, 2]
        start = training["risk"][0]
        for values, label, color, style in (
            (training["risk"], "risk", plotting.BLUE, "-"),
            (training["squared_norm"] / 2, r"$|\nabla R|^2/2$", plotting.GREEN, "-."),
            (training["kappa"] * training["risk"], r"$\kappa R$", plotting.RED, ":"),
        ):
            plotting.training_curve(
                ax, training["time"], values / start, label=label, color=color, line_style=style
            )
        ax.set_ylabel("risk and bounds, over the initial risk")
        plotting.legend_below(ax, handle_length=2.6)
        plotting.panel_label(ax, "c", "training")
    return figure


def caption(runs):
    """What is seen, with the constants behind it."""
    run = runs["ntk_depth"]
    chosen, depth, training = (
        run.configuration["parameters"],
        run.load("depth"),
        run.load("training"),
    )
    kappa, best = float(depth["kappa"]), float(depth["best"])
    informed = int((depth["crude_transported"] > 0).sum())
    along = (training["squared_norm"] / (2 * training["kappa"] * training["risk"])).min()
    return (
        f"Tangent kernel along depth: N = {chosen['num_contexts']} contexts of"
        f" {chosen['num_tokens']} tokens in d = {chosen['dim']}, L = {chosen['num_cells']} layers"
        f" of M = {chosen['num_heads']} heads. (a) Eigenvalues of the weighted V-part: positive in"
        " every layer. (b) The factors of kappa, the integral of lambda_min(s) tau(s):"
        " lambda_min(s) over its largest value; tau(s), the factor by which the adjoint flow"
        " shrinks momenta at most between the end and depth s, and its bound from norms, positive"
        f" in {informed} of the layers. Here kappa = {shown(kappa)}, which is"
        f" {shown(kappa / best)} of the best possible constant. (c) A training run: |grad R|^2/2"
        f" stays above kappa R, as it must; it is at least {shown(along)} times as large."
    )
