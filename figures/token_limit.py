"""Errors of the flow map against the number of tokens n."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("token_limit",)

SERIES = {
    "gaussian": ("Gaussian", plotting.BLUE),
    "cube": ("cube", plotting.RED),
    "digit": ("digit", plotting.GREEN),
    "sobol": ("cube, Sobol", plotting.ORANGE),
    "control": ("shared shift", plotting.GREY),
}


def draw(runs):
    """Rate plot of the five series with a triangle of slope -1/2."""
    errors = runs["token_limit"].load("errors")
    sizes = errors["sizes"]
    rates = {name: fit_rate(sizes, errors[name]) for name in SERIES}
    with plotting.paper_style():
        figure, axes = plotting.new_figure(aspect=1.0)
        ax = axes[0, 0]
        for (name, (label, color)), marker in zip(SERIES.items(), plotting.MARKERS, strict=False):
            plotting.rate_plot(
                ax,
                sizes,
                errors[name],
                label=label,
                rate=rates[name],
                color=color,
                marker=marker,
                band=name in ("gaussian", "sobol", "control"),
            )
        plotting.reference_triangle(ax, -0.5, rates["digit"], start=float(sizes[-3]))
        ax.set_xlabel("tokens $n$")
        ax.set_ylabel("error of the flow map at probes")
        plotting.legend_below(ax, num_columns=2)
    return figure


def caption(runs):
    """What is measured, from which run, with which slopes."""
    run = runs["token_limit"]
    chosen = run.configuration["parameters"]
    claims = "; ".join(claim.sentence() for claim in run.claims)
    return (
        "Limit of many tokens. Largest error along depth of the flow map at"
        f" {chosen['num_probes']} probe points without mass: contexts of n tokens drawn from a"
        " Gaussian (limit in closed form), a cube (limit by Gauss-Legendre tokens) and the pixels"
        " of a handwritten 2 (limit: the whole image). Root mean squares over"
        f" {chosen['num_replicates']} contexts; bands from the 10% to the 90% quantile. No"
        f" transport between clouds is involved. {claims}."
    )
