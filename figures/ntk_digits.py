"""Digits: kernel spectrum with intervals, lambda_min against their number, the planted copy."""

from meanfield import plotting

EXPERIMENTS = ("ntk_digits",)
SEEN = 4  # first and last contexts of the strip: the copy is the last


def draw(runs):
    """(a) Spectra of the digits and of the control; (b) lambda_min; (c) the null directions."""
    run = runs["ntk_digits"]
    largest, control, sweep = (run.load(name) for name in ("largest", "control", "sweep"))
    with plotting.paper_style():
        figure, axes = plotting.new_figure(1, 3, aspect=0.9)
        ax = axes[0, 0]
        for found, label, color, marker in (
            (control, "with a shifted copy", plotting.RED, "s"),
            (largest, f"{int(sweep['sizes'][-1])} digits", plotting.BLUE, "o"),
        ):
            plotting.spectrum(
                ax,
                found["eigenvalues"],
                label=label,
                interval=found["intervals"].T,
                num_zero=int(found["nullity"]),
                color=color,
                marker=marker,
            )
        ax.set_ylabel("eigenvalues of $K$")
        ax.legend(loc="lower left")
        plotting.panel_label(ax, "a", "spectrum")

        ax = axes[0, 1]
        ax.plot(sweep["sizes"], sweep["lambda_min"], "o", color=plotting.BLUE)
        ax.vlines(sweep["sizes"], *sweep["interval"].T, color=plotting.BLUE, linewidth=0.9)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks(sweep["sizes"], [str(int(size)) for size in sweep["sizes"]])
        ax.minorticks_off()
        ax.set_xlabel("digits $N$")
        ax.set_ylabel(r"$\lambda_{\min}$")
        plotting.panel_label(ax, "b", "smallest, 95% over heads")

        ax = axes[0, 2]
        seen = (control["context"] <= SEEN) | (control["context"] > control["context"][-1] - SEEN)
        plotting.null_directions(ax, control["null_vectors"][seen], control["context"][seen])
        plotting.panel_label(ax, "c", "null directions, with a copy")
    return figure


def caption(runs):
    """What is seen, with the stored numbers."""
    run = runs["ntk_digits"]
    chosen = run.configuration["parameters"]
    control = run.load("control")
    claims = "; ".join(claim.sentence() for claim in run.claims)
    reason = str(control["reasons"][0]) if len(control["reasons"]) else "nothing"
    return (
        f"Tangent kernel of handwritten digits in d = {chosen['dim']} at"
        f" {chosen['num_queries']} shared queries, V-part, M = {chosen['num_heads']} heads. (a)"
        " Spectrum with 95% intervals over heads; red: one more context, the first digit shifted."
        " (b) Smallest eigenvalue against the number of digits. (c) The control's null directions"
        f" over the pairs of the first and last {SEEN} contexts; the report says: {reason}."
        f" {claims}."
    )
