"""Errors of tokens, Gram matrix and kernel as the width d and the number of heads M grow."""

from meanfield import fit_rate, plotting

EXPERIMENTS = ("embedding_and_heads",)

SERIES = {
    "tokens": ("tokens", plotting.BLUE, "o"),
    "gram": ("Gram matrix", plotting.RED, "s"),
    "kernel": ("V-kernel", plotting.GREEN, "^"),
    "control": ("Gram, mean field", plotting.GREY, "v"),
}
TITLES = ("$d/M$ fixed", "$d^2/M$ fixed")


def draw(runs):
    """(a) M proportional to d; (b) M proportional to d squared."""
    errors = runs["embedding_and_heads"].load("errors")
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=0.88)
        for index, (ax, letter) in enumerate(zip(axes[0], "ab", strict=True)):
            sizes, heads = errors[f"{index}_sizes"], errors[f"{index}_heads"]
            for name, (label, color, marker) in SERIES.items():
                values = errors[f"{index}_{name}"]
                plotting.rate_plot(
                    ax,
                    sizes,
                    values,
                    label=label,
                    rate=fit_rate(sizes, values),
                    color=color,
                    marker=marker,
                    band=name in ("tokens", "gram"),
                )
            first, last = int(heads[0]), int(heads[-1])
            plotting.panel_label(ax, letter, f"{TITLES[index]}, $M = {first}$ ... ${last}$")
            ax.set_xlabel("width $d$")
            plotting.legend_below(ax)
        axes[0, 0].set_ylabel("relative error")
        low = min(ax.get_ylim()[0] for ax in axes[0])
        high = max(ax.get_ylim()[1] for ax in axes[0])
        for ax in axes[0]:
            ax.set_ylim(low, high)
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["embedding_and_heads"]
    chosen = run.configuration["parameters"]
    return (
        f"Width and heads together: {chosen['num_tokens']} tokens with one Gram matrix for all d,"
        f" {chosen['num_cells']} layers of new heads. Root mean squares over"
        f" {chosen['num_replicates']} draws of all heads, bands from the 10% to the 90% quantile:"
        " tokens against the mean field (coupled: same start), Gram matrix of the last tokens"
        " against the recursion with the term d/M (grey: without it), V-kernel of the first layer"
        f" against its mean."
    )
