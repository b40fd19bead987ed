"""Benchmark: lambda_min of a large tangent kernel, in the place of its factor and by dense SVD.

Own tokens of N contexts are the pairs, P = N n. The results are compared first: the smallest
eigenvalue by one QR and Lanczos against the SVD of the same factor, and streamed products against
the factor. ``--large`` runs P = 20,000 with 4,096 heads in d = 8 instead, where only the first
route fits: the factor has 5.2 GB.

Commands
    python experiments/bench/tangent_kernel.py             about a minute on two cores
    python experiments/bench/tangent_kernel.py --large     about ten minutes, 6 GiB

Reported: seconds of one streamed product ``K v``, of lambda_min by QR, of the dense SVD, the gaps,
the residual of the eigenpair by streamed products, and the largest memory of the process.
"""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import meanfield as mf
from meanfield import ntk

SMALL, LARGE = ((10, 100, 8, 1024), (20, 100, 8, 1024)), (200, 100, 8, 4096)  # N, n, d, M


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Result and seconds."""
    start = time.perf_counter()
    found = call()
    return found, time.perf_counter() - start


def measure(num_contexts: int, num_tokens: int, dim: int, num_heads: int, *, dense: bool) -> str:
    """One row of the table."""
    generator = np.random.default_rng(0)
    clouds = mf.TokenMeasure(generator.normal(size=(num_contexts, num_tokens, dim)))
    pairs = ntk.pairs_of(clouds, "own")
    heads = mf.AttentionAV(
        0.25 * generator.normal(size=(num_heads, dim, dim)), np.zeros((num_heads, dim, dim))
    )
    field, v = mf.SoftmaxAttention("av"), generator.normal(size=pairs.num_pairs)
    kernel = ntk.streamed_kernel(field, heads, pairs)
    np.asarray(kernel.product(v))  # compiled
    product, product_seconds = timed(lambda: np.asarray(kernel.product(v)))
    smallest, smallest_seconds = timed(lambda: ntk.smallest_eigenvalue(field, heads, pairs))
    row = f"{pairs.num_pairs:6d} {num_heads:5d} {product_seconds:8.1f} {smallest_seconds:8.1f}"
    if dense:
        matrix = ntk.factor(field, heads, pairs).matrix
        gap = np.linalg.norm(matrix.T @ (matrix @ v) - product) / np.linalg.norm(product)
        values, svd_seconds = timed(lambda: np.linalg.svd(matrix, compute_uv=False))
        other = abs(smallest.value / values[-1] ** 2 - 1)
        row += f" {svd_seconds:8.1f} {gap:9.1e} {other:9.1e}"
    else:
        row += "        -         -         -"
    word = "decided" if smallest.decided else "undecided"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row + f" {smallest.value:11.4e} {smallest.residual:9.1e} {peak:6.2f} {word}"


if __name__ == "__main__":
    mf.use_double()
    print(
        "     P     M    K v/s     QR/s    SVD/s   gap K v  gap lmin  lambda_min  residual    GiB",
        flush=True,
    )
    if "--large" in sys.argv[1:]:
        print(measure(*LARGE, dense=False), flush=True)
    else:
        for size in SMALL:
            print(measure(*size, dense=True), flush=True)
