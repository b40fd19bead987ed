"""Errors of tokens, momenta and trained heads against the number of heads M."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("width_limit",)

SERIES = {
    "tokens": ("tokens", plotting.BLUE),
    "momenta": ("momenta", plotting.RED),
    "heads": ("trained heads", plotting.GREEN),
    "control": ("copies of 4 heads", plotting.GREY),
}


def draw(runs):
    """Rate plot of the four series with a triangle of slope -1/2."""
    errors = runs["width_limit"].load("errors")
    sizes = errors["sizes"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(aspect=0.86)
        ax = axes[0, 0]
        rates = {name: fit_rate(sizes, errors[name]) for name in SERIES}
        for (name, (label, color)), marker in zip(SERIES.items(), plotting.MARKERS, strict=False):
            plotting.rate_plot(
                ax,
                sizes,
                errors[name],
                label=label,
                rate=rates[name],
                color=color,
                marker=marker,
                band=name in ("tokens", "control"),
            )
        plotting.reference_triangle(ax, -0.5, rates["heads"], start=float(sizes[1]))
        ax.set_xlabel("heads per layer $M$")
        ax.set_ylabel("relative error")
        plotting.legend_below(ax, num_columns=2)
    return figure


def caption(runs):
    """What is measured, from which run, with which slopes."""
    run = runs["width_limit"]
    chosen = run.configuration["parameters"]
    replicates, sizes = run.load("errors")["tokens"].shape
    claims = "; ".join(claim.sentence() for claim in run.claims)
    return (
        f"Mean-field limit in the number of heads. Root mean squares over {replicates} draws at"
        f" {sizes} sizes M of {chosen['num_reference']} reference heads in each of"
        f" {chosen['num_cells']} layers, d = {chosen['dim']}; bands run from the 10% to the 90%"
        " quantile (tokens, control). Coupled errors: the same token, momentum or head in the"
        " network of M heads and in the limit, no transport between clouds. Heads are compared"
        f" after {chosen['num_steps']} training steps. {claims}."
    )
