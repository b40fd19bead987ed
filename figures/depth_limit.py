"""Errors of depth schemes and of layers against the number of layers L."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("depth_limit",)

PANELS = (
    (
        "schemes, Gaussian tokens",
        {
            "euler": ("Euler", plotting.BLUE, -1.0),
            "heun": ("Heun", plotting.RED, -2.0),
            "rk4": ("RK4", plotting.GREEN, -4.0),
        },
    ),
    (
        "Euler layers",
        {
            "smooth": ("smooth heads", plotting.BLUE, -1.0),
            "adjoint_gap": ("adjoint gap", plotting.ORANGE, None),
            "independent": ("independent layers", plotting.GREY, -0.5),
        },
    ),
)


def draw(runs):
    """(a) Three schemes against the closed form; (b) layers against their limits."""
    errors = runs["depth_limit"].load("errors")
    sizes = errors["sizes"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.78)
        for ax, letter, (title, series) in zip(axes[0], "ab", PANELS, strict=True):
            for (name, (label, color, order)), marker in zip(
                series.items(), plotting.MARKERS, strict=False
            ):
                rate = fit_rate(sizes, errors[name])
                plotting.rate_plot(
                    ax, sizes, errors[name], label=label, rate=rate, color=color, marker=marker
                )
                if order is not None:
                    gap = 0.3 if letter == "a" else 0.6
                    plotting.reference_triangle(
                        ax, order, rate, start=float(sizes[-3]), gap=gap, color=color
                    )
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel("layers $L$")
            plotting.legend_below(ax)
        axes[0, 0].set_ylabel("error of coupled tokens")
        axes[0, 1].set_ylabel("error")
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["depth_limit"]
    chosen = run.configuration["parameters"]
    return (
        "Limit of many layers. (a) Largest error along depth of coupled Gaussian tokens"
        f" ({chosen['num_nodes']}^2 Gauss-Hermite points) against the closed-form flow map."
        " (b) Euler layers: tokens under smoothly varying heads against a fine RK4 solution;"
        " relative gap between the continuous adjoint and the exact gradient of the discrete risk;"
        f" tokens under {chosen['num_heads']} heads drawn anew in every layer against their mean"
        f" field (root mean square and 10-90% band of {chosen['num_replicates']} draws)."
    )
