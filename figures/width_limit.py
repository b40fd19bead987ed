"""Errors of tokens, momenta and trained heads against the number of heads M."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("width_limit",)

PANELS = (
    (
        "heads drawn from a crowd",
        {
            "tokens": ("tokens", plotting.BLUE, "o"),
            "momenta": ("momenta", plotting.RED, "s"),
            "heads": ("trained heads", plotting.GREEN, "^"),
            "control": ("copies of 4 heads", plotting.GREY, "v"),
        },
    ),
    (
        "heads chosen by points of a cube",
        {
            "gaussian_random": ("8 parameters, random", plotting.RED, "s"),
            "smooth_random": ("2 parameters, random", plotting.BLUE, "o"),
            "gaussian_sobol": ("8 parameters, Sobol", plotting.ORANGE, "D"),
            "smooth_sobol": ("2 parameters, Sobol", plotting.GREEN, "^"),
        },
    ),
)


def draw(runs):
    """(a) The four series of the limit; (b) independent against quasi-Monte Carlo heads."""
    errors = runs["width_limit"].load("errors")
    sizes = errors["sizes"]
    rates = {name: fit_rate(sizes, errors[name]) for name in errors if name != "sizes"}
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.88)
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
                    band=letter == "b" or name in ("tokens", "control"),
                )
            plotting.panel_label(ax, letter, title)
            ax.set_xlabel("heads per layer $M$")
            plotting.legend_below(ax)
        start = float(sizes[1])
        plotting.reference_triangle(axes[0, 0], -0.5, rates["heads"], start=start)
        plotting.reference_triangle(axes[0, 1], -1.0, rates["smooth_sobol"], start=start, gap=0.5)
        axes[0, 0].set_ylabel("relative error")
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["width_limit"]
    chosen = run.configuration["parameters"]
    replicates, sizes = run.load("errors")["tokens"].shape
    return (
        f"Mean-field limit in the number of heads. (a) Root mean squares over {replicates} draws at"
        f" {sizes} sizes M of {chosen['num_reference']} reference heads in each of"
        f" {chosen['num_cells']} layers, d = {chosen['dim']}; bands run from the 10% to the 90%"
        " quantile (tokens, control). Coupled errors: the same token, momentum or head in the"
        " network of M heads and in the limit, no transport between clouds. Heads are compared"
        f" after {chosen['num_steps']} training steps. (b) Final tokens in the plane under one"
        f" ensemble for {chosen['quasi_layers']} layers: independent heads and randomised"
        f" quasi-Monte Carlo (Owen-scrambled Sobol points)."
    )
