"""Changes of the flow under changes of tokens and heads, training curves under finer steps."""

import numpy as np

from meanfield import fit_rate, plotting, richardson

EXPERIMENTS = ("stability",)


def draw(runs):
    """(a) Distances after against before, with Groenwall's bounds; (b), (c) training time."""
    run = runs["stability"]
    stored, training = run.load("stability"), run.load("training")
    sizes = stored["sizes"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=1.06)
        ax = axes[0, 0]
        for which, words, color, marker in (
            ("tokens", "tokens moved", plotting.BLUE, "o"),
            ("heads", "heads moved", plotting.RED, "s"),
        ):
            plotting.rate_plot(
                ax, sizes, stored[f"{which}_law"], label=words, color=color, marker=marker
            )
            bound = np.sqrt((stored[f"{which}_bound"] ** 2).mean(axis=0))
            ax.plot(sizes, bound, ":", color=color, label="its bound")
        plotting.rate_plot(
            ax,
            sizes,
            stored["control"],
            label="no temperature",
            color=plotting.GREY,
            marker="v",
        )
        ax.set_xlabel(r"distance before, $\epsilon$")
        ax.set_ylabel("$W_2$ of the final laws")
        plotting.panel_label(ax, "a", "changed data and heads")
        plotting.legend_below(ax, num_columns=2)

        ax, dt = axes[0, 1], training["dt"]
        order = np.argsort(dt)
        for name, color, marker in (("euler", plotting.BLUE, "o"), ("heun", plotting.RED, "s")):
            plotting.rate_plot(
                ax,
                dt[order],
                training[name][:, order],
                label=name.title(),
                rate=fit_rate(dt[order], training[name][:, order]),
                color=color,
                marker=marker,
            )
        gap = float(np.sqrt((training["gap"] ** 2).mean()))
        plotting.level_lines(ax, {"gap of the two limits": gap})
        ax.set_xlabel("step $dt$ in training time")
        ax.set_ylabel("distance of final heads")
        plotting.panel_label(ax, "b", "finer training steps")
        plotting.legend_below(ax)

        ax, limit = axes[0, 2], richardson(training["risk"], order=1).value
        for step, risk, color in zip(dt, training["risk"], plotting.PALETTE, strict=False):
            gap = np.abs(risk - limit)[1:]
            plotting.training_curve(
                ax,
                training["time"][1:],
                gap,
                label=f"$dt = {step:g}$",
                color=color,
                name="risk, distance from its limit",
            )
        plotting.panel_label(ax, "c", "training curves, Euler")
        plotting.legend_below(ax, num_columns=2)
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["stability"]
    chosen, training = run.configuration["parameters"], run.load("training")
    return (
        "Well-posedness. (a) W2 between final clouds of"
        f" {chosen['num_tokens']} tokens (d = 2, exact assignment) after a displacement of all"
        f" tokens, or of all heads (M = {chosen['num_heads']}, L = {chosen['num_cells']}; distance"
        " before: conditional W2), root mean squares and 10-90% bands over"
        f" {chosen['num_replicates']} draws; dotted: Groenwall's bounds; grey: a query beside a tie"
        " in attention without temperature. (b) Heads after training time"
        f" {chosen['training_time']:g} against Heun's extrapolated limit,"
        f" {len(training['euler'])} problems. (c) Risk of the first problem, which falls"
        f" from {training['risk'][-1, 0]:.3g} to {training['risk'][-1, -1]:.3g}: distance of each"
        f" curve from the one extrapolated to dt = 0."
    )
