"""Rebuild the gallery: draw every figure from stored results into figures/gallery.

    python figures/build.py [--results DIR] [--out DIR] [NAME ...]

The same as ``meanfield figures`` with the gallery as its target; any of its flags may follow. It
solves nothing. The gallery's pictures come from ``meanfield run all --preset paper --out results``.
"""

import sys
from pathlib import Path

from meanfield.__main__ import main

GALLERY = Path(__file__).resolve().parent / "gallery"

if __name__ == "__main__":
    arguments = sys.argv[1:]
    target = [] if "--out" in arguments else ["--out", str(GALLERY)]
    sys.exit(main(["figures", *target, *arguments]))
