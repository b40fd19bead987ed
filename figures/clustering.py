"""Tokens at long depth: clusters on the circle by temperature, their lifetimes, and the plane."""

import numpy as np
from matplotlib.ticker import (
    FixedLocator,
    LogLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)

from meanfield import fit_rate, plotting

EXPERIMENTS = ("clustering",)


def draw(runs):
    """Six panels: one cloud, the diagram, how many clusters, how long, the last approach, R^2."""
    stored = runs["clustering"].load("clustering")
    depths, betas, counts = stored["depths"], stored["betas"], stored["counts"]
    with plotting.paper_style():
        figure, axes = plotting.new_figure(2, 3, aspect=0.84)

        ax, path = axes[0, 0], stored["path"]
        angles = np.degrees(np.arctan2(path[..., 1], path[..., 0]))
        jumps = np.abs(np.diff(angles, axis=0, prepend=angles[:1])) > 180
        ax.plot(
            depths[1:],
            np.where(jumps, np.nan, angles)[1:],
            color=plotting.BLUE,
            linewidth=0.5,
            alpha=0.6,
        )
        ax.set_xscale("log")
        ax.set_yticks([-180, -90, 0, 90, 180])
        ax.set_xlabel("depth $s$")
        ax.set_ylabel("angle of tokens (degrees)")
        plotting.panel_label(ax, "a", rf"circle, $\beta = {float(stored['shown']):g}$")

        ax = axes[0, 1]
        times = np.geomspace(depths[1], depths[-1], 60)
        mean = counts.mean(axis=0)  # [B, L+1]
        seen = np.stack([np.interp(times, depths, row) for row in mean])
        plotting.heat_strip(
            ax,
            np.log2(seen),
            name=r"$\log_2$ of clusters",
            extent=(np.log10(times[0]), np.log10(times[-1]), -0.5, len(betas) - 0.5),
        )
        powers = np.arange(np.ceil(np.log10(times[0])), np.log10(times[-1]) + 1e-9)
        ax.set_xticks(powers, [rf"$10^{{{int(p)}}}$" for p in powers])
        ax.set_yticks(np.arange(len(betas)), [f"{beta:g}" for beta in betas])
        ax.set_xlabel("depth $s$")
        ax.set_ylabel(r"inverse temperature $\beta$")
        plotting.panel_label(ax, "b", "temperature diagram")

        ax = axes[0, 2]
        chosen = betas >= runs["clustering"].configuration["parameters"]["many"]
        rate = fit_rate(betas[chosen], counts[:, chosen, -1], aggregate="mean")
        plotting.rate_plot(
            ax,
            betas[chosen],
            counts[:, chosen, -1].astype(float),
            label="counted",
            rate=rate,
            color=plotting.BLUE,
        )
        ax.plot(betas[chosen], stored["modes"][chosen], "s", color=plotting.RED, label="mode $k^*$")
        ax.autoscale_view()
        ax.set_xlabel(r"inverse temperature $\beta$")
        ax.set_ylabel(f"clusters at depth {depths[-1]:g}")
        plotting.panel_label(ax, "c", "how many")
        ax.legend(loc="upper left")

        ax = axes[1, 0]
        pair = stored["pair_betas"]
        ax.plot(pair, stored["predicted"], "-", color=plotting.RED, label="quadrature")
        ax.plot(pair, stored["meeting"], "o", color=plotting.BLUE, label="simulated")
        ax.plot(pair, np.exp(pair) / (2 * pair), ":", color="0.3", label=r"$e^\beta/(2\beta)$")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_locator(FixedLocator(list(pair)))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel(r"inverse temperature $\beta$")
        ax.set_ylabel("depth where two groups meet")
        plotting.panel_label(ax, "d", "how long")
        ax.legend(loc="upper left")

        ax = axes[1, 1]
        spread = np.where(stored["spread"] > 1e-14, stored["spread"], np.nan)
        for rows, beta, color in zip(
            spread, betas[betas <= 1], (plotting.BLUE, plotting.GREEN), strict=False
        ):
            ax.plot(depths, rows.T, color=color, linewidth=0.6, alpha=0.7)
            ax.plot([], [], color=color, label=rf"$\beta = {beta:g}$")
        near = depths <= 8
        ax.plot(depths[near], 1e-4 * np.exp(-2 * depths[near]), "--", color="0.3", label="rate −2")
        ax.set_yscale("log")
        ax.set_ylim(1e-10, 3)
        ax.set_xlim(0, min(40.0, depths[-1]))
        ax.set_xlabel("depth $s$")
        ax.set_ylabel(r"mean of $1 - \langle x_a, x_b\rangle$")
        plotting.panel_label(ax, "e", "the last approach")
        ax.legend(loc="upper right")

        ax = axes[1, 2]
        late = stored["plane_depths"]
        variance = stored["variance"]
        ax.plot(late, variance.T, color=plotting.BLUE, linewidth=0.6, alpha=0.6)
        ax.plot([], [], color=plotting.BLUE, label="variance")
        ax.plot(late, 1 / (2 * late), "--", color="0.3", label=r"$1/(2\beta s)$")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("depth $s$")
        ax.set_ylabel("variance of a coordinate")
        plotting.panel_label(ax, "f", r"$\mathbb{R}^2$, $V = -I$, $\beta = 1$")
        ax.legend(loc="lower left")
    return figure


def caption(runs):
    """What is measured, from stored numbers."""
    run = runs["clustering"]
    chosen = run.configuration["parameters"]
    return (
        f"Long depth, one head A = beta I, V = I (V = -I in f), {chosen['num_tokens']} independent"
        f" tokens, {chosen['num_replicates']} clouds. (a) Angles of one cloud: clusters form, last,"
        " merge. (b) Mean number of clusters (groups separated by gaps above 0.1 radians) by depth"
        " and inverse temperature. (c) Number at the last depth, band from the 10% to the 90%"
        " quantile, with the fastest growing mode of the uniform law. (d) Two groups at a right"
        " angle: depth at which their correlation is 1/2. (e) All pairs of a cloud, beta <= 1."
        f" (f) Contraction in the plane."
    )
