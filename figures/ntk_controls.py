"""The checklist: singular values of every configuration, kept and dropped, beside its nullity."""

import numpy as np

from meanfield import plotting

EXPERIMENTS = ("ntk_controls",)
FLOOR = 1e-18
THRESHOLD = 256 * np.finfo(float).eps  # singular values below it count as zero


def draw(runs):
    """Two columns of lines; the gap between kept and dropped values runs down both."""
    lines = runs["ntk_controls"].load("lines")
    shown = {key: lines[key] for key in ("name", "title", "singular_values")}
    shown |= {key: lines[key][0] for key in ("predicted", "measured", "kept")}  # the first draw
    half = -(-len(lines["name"]) // 2)
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 2, aspect=1.36)
        for ax, part in zip(axes[0], (slice(half), slice(half, None)), strict=True):
            _column(ax, {key: values[part] for key, values in shown.items()})
        axes[0, 0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, borderaxespad=0.2)
    return figure


def _column(ax, lines) -> None:
    rows = np.arange(len(lines["name"]))[::-1]
    shown = {"kept": False, "dropped": False}
    for row, values, kept in zip(rows, lines["singular_values"], lines["kept"], strict=True):
        values = np.maximum(values[~np.isnan(values)], FLOOR)
        for some, name, color, marker in (
            (values[:kept], "kept", plotting.BLUE, "|"),
            (values[kept:], "dropped", plotting.RED, "x"),
        ):
            if len(some):
                label = None if shown[name] else f"singular values {name}"
                shown[name] = True
                ax.plot(some, np.full(len(some), row), marker, color=color, label=label)
        if row % 2:
            ax.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0, linewidth=0)
    ax.axvline(THRESHOLD, color="0.35", linestyle=(0, (4, 3)), linewidth=0.8, label="threshold")
    ax.set_xscale("log")
    ax.set_xlim(FLOOR / 3, 10)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_yticks(rows, [f"{t}  {n}" for n, t in zip(lines["name"], lines["title"], strict=True)])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("singular value of $F$ / size of the features")
    for row, predicted, measured in zip(rows, lines["predicted"], lines["measured"], strict=True):
        ax.annotate(
            f"{predicted:g} | {measured:g}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )


def caption(runs):
    """What the lines are, and the claims."""
    run = runs["ntk_controls"]
    chosen = run.configuration["parameters"]
    claims = "; ".join(claim.sentence() for claim in run.claims)
    return (
        "Predicted | measured nullity of the tangent kernel, per coordinate, in every line of the"
        " checklist (P: positive, N: singular, Q: V-part, A-part and whole kernel), with the"
        f" singular values it is read from, d = 2, K = 3 unless stated, M = {chosen['num_heads']}"
        f" heads, one of {chosen['num_replicates']} draws. {claims}."
    )
