"""The checklist: singular values of every configuration, kept and dropped, beside its nullity."""

import numpy as np

from meanfield import plotting

EXPERIMENTS = ("ntk_controls",)
CLAIMS = ()  # the caption says them in words
FLOOR = 1e-19
THRESHOLD = 256 * np.finfo(float).eps  # singular values below it count as zero, docs/theory.md 3.8


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
        handles = {h.get_label(): h for ax in axes[0] for h in ax.get_legend_handles_labels()[0]}
        figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=4)
    return figure


def _column(ax, lines) -> None:
    rows = np.arange(len(lines["name"]))[::-1]
    shown = set()
    for row, values, kept in zip(rows, lines["singular_values"], lines["kept"], strict=True):
        values = values[~np.isnan(values)]
        dropped = values[kept:]
        for some, name, color, marker in (
            (values[:kept], "kept", plotting.BLUE, "|"),
            (dropped[dropped >= FLOOR], "dropped", plotting.RED, "x"),
            (dropped[dropped < FLOOR], r"exactly zero or below $10^{-19}$", plotting.RED, "<"),
        ):
            if len(some):
                label = None if name in shown else name
                shown.add(name)
                places = np.maximum(some, FLOOR), np.full(len(some), row)
                ax.plot(*places, marker, color=color, markerfacecolor="none", label=label)
        if row % 2:
            ax.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0, linewidth=0)
    ax.axvline(THRESHOLD, color="0.35", linestyle=(0, (4, 3)), linewidth=0.8, label="threshold")
    ax.set_xscale("log")
    ax.set_xlim(FLOOR / 3, 10)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_yticks(rows, [f"{t}  {n}" for n, t in zip(lines["name"], lines["title"], strict=True)])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("singular values of $F$ / size of the features")
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
    """What the lines are, how zeros are told, what the control finds."""
    run = runs["ntk_controls"]
    chosen, lines = run.configuration["parameters"], run.load("lines")
    wrong = int((lines["measured"] != lines["listed"]).sum())
    least = lines["gap"][lines["kept"] > 0].min()
    left = int(lines["control_measured"].sum())
    lost = int(lines["listed"][: len(lines["control_measured"])].sum())
    return (
        f"Nullity of the tangent kernel in {len(lines['name'])} configurations (P: positive, N:"
        " singular, Q: V-part, A-part and whole kernel), per coordinate: predicted | measured at"
        " the right. d = 2, three shared queries unless stated, M ="
        f" {chosen['num_heads']} heads. Marks are singular values of the factor F, divided by the"
        " size of the features (their rounding level of docs/theory.md 3.8, over 2.2e-16); those"
        " left of the dashed line, 256 roundings, count as zero; triangles are"
        f" exact zeros or below {FLOOR:.0e}. In all {chosen['num_replicates']} draws of clouds and"
        " heads"
        f" {'no nullity differs' if wrong == 0 else f'{wrong} nullities differ'} from the one"
        f" worked out by hand, and kept values exceed dropped ones by a factor of at least"
        f" {least:.0e}."
        " Control (not drawn): with a small random cloud added to every context of the P and N"
        f" lines, {left} of their {lost} null directions are left, those forced by dimension alone"
        " (N16', N17)."
    )
