"""Errors of the flow map against the number of tokens n: independent and Sobol tokens."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("token_limit",)

PANELS = (
    (
        "independent tokens",
        {
            "gaussian": ("Gaussian", plotting.BLUE, "o"),
            "cube": ("cube", plotting.RED, "s"),
            "digit": ("digit", plotting.GREEN, "^"),
            "control": ("shared shift", plotting.GREY, "v"),
        },
    ),
    (
        "tokens of the cube",
        {
            "cube": ("independent", plotting.RED, "s"),
            "sobol": ("scrambled Sobol", plotting.ORANGE, "D"),
        },
    ),
)


def draw(runs):
    """(a) Three laws and the control; (b) the cube by two kinds of points."""
    errors = runs["token_limit"].load("errors")
    sizes = errors["sizes"]
    rates = {name: fit_rate(sizes, errors[name]) for name in errors if name != "sizes"}
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.84)
        for ax, letter, (title, series) in zip(axes[0], "ab", PANELS, strict=True):
            for name, (label, color, marker) in series.items():
                plotting.rate_plot(
                    ax,
                    sizes,
                    errors[name],
                    label=label,
                    rate=rates[name],
                    color=color,
                    marker=marker,
                    band=letter == "b" or name == "control",
                )
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel("tokens $n$")
            plotting.legend_below(ax)
        start = float(sizes[1])
        plotting.reference_triangle(axes[0, 0], -0.5, rates["digit"], start=start, gap=0.7)
        plotting.reference_triangle(axes[0, 1], -0.5, rates["cube"], start=start, gap=0.3)
        axes[0, 0].set_ylabel("error of the flow map at probes")
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["token_limit"]
    chosen = run.configuration["parameters"]
    return (
        "Limit of many tokens. Largest error along depth of the flow map at"
        f" {chosen['num_probes']} probe points without mass: contexts of n tokens drawn from a"
        " Gaussian (limit in closed form), a cube (limit by Gauss-Legendre tokens) and the pixels"
        " of a handwritten 2 (limit: the whole image); in the control the tokens of a context share"
        " one random shift. (a) Independent tokens. (b) The cube by independent and by Sobol"
        f" points. Root mean squares over {chosen['num_replicates']} contexts; bands from the 10%"
        f" to the 90% quantile. No transport between clouds is involved."
    )
