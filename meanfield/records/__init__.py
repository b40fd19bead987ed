"""Run directories: what a run was asked, what it computed, what it claims. Free of jax.

A run directory holds everything that a figure, a report or a resumed run needs::

    manifest.json          name, status, configuration, seeds, versions, device, seconds, claims
    NAME.npz               arrays stored by `RunDirectory.save`
    cells/KEY.npz          a sweep's cells: computed once, skipped on resume
    checkpoints/NAME.npz   the state of a loop, replaced at every save
    .lock, cells/.KEY.lock held by the process that writes; the system frees it when that ends

Every file is written beside its place and then moved there, so that a killed run leaves whole
files only; a finished run is never written to again. Floats are stored bit for bit in ``.npz``
files; in the manifest a number that JSON has no word for is the string "nan", "inf" or "-inf".
"""

from meanfield.records._claims import (
    CONSISTENT,
    INCONSISTENT,
    UNDECIDED,
    Claim,
    Row,
    overall_verdict,
    row,
    worst_verdict,
)
from meanfield.records._directory import (
    RunDirectory,
    find_runs,
    load_checkpoint,
    save_checkpoint,
    versions,
)
from meanfield.records._manifest import read_claim
from meanfield.records._plain import to_json, to_plain
from meanfield.records._words import shown, shown_result

__all__ = [
    "CONSISTENT",
    "INCONSISTENT",
    "UNDECIDED",
    "Claim",
    "Row",
    "RunDirectory",
    "find_runs",
    "load_checkpoint",
    "overall_verdict",
    "read_claim",
    "row",
    "save_checkpoint",
    "shown",
    "shown_result",
    "to_json",
    "to_plain",
    "versions",
    "worst_verdict",
]
