"""Digits: kernel spectrum with intervals, lambda_min against their number, the planted copy."""

from meanfield import plotting
from meanfield.records import shown_result

EXPERIMENTS = ("ntk_digits",)
CLAIMS = ()  # the caption says them in words
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
        ax.legend(loc="upper right", handlelength=0.7, handletextpad=0.4, borderaxespad=0.0)
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
    chosen, sweep, proof = run.configuration["parameters"], run.load("sweep"), run.load("proof")
    control = run.load("control")
    most, (low, high) = int(sweep["sizes"][-1]), sweep["interval"][-1]
    last = shown_result(float(sweep["lambda_min"][-1]), (float(low), float(high)), "above 0")
    proved = (
        f"independence of all {most} cumulant generating functions is certified in ball arithmetic"
        if proof["certified"]
        else "no certificate was found"
    )
    refused = "its certificate is refused" if proof["control"] else "its certificate is not refused"
    reason = str(control["reasons"][0]) if len(control["reasons"]) else "nothing"
    return (
        f"Tangent kernel of handwritten digits in d = {chosen['dim']} at"
        f" {chosen['num_queries']} shared queries, V-part, M = {chosen['num_heads']} heads. (a)"
        f" Spectrum with 95% intervals over heads, in blue that of {most} digits: no eigenvalue is"
        f" zero, and {proved}. In red one more context, the first digit shifted in R^d:"
        f" {float(control['nullity']):g} eigenvalues are zero to rounding (open, not to scale), and"
        f" {refused}. (b) Smallest eigenvalue against the number of digits, at last"
        f" {' '.join(last)}. (c) The null directions with the"
        f" copy, over the pairs of the first and last {SEEN} contexts: only the digit and its copy"
        f" take part. The report says: {reason}."
    )
