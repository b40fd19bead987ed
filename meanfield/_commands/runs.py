"""What `run` and `run all` share: their flags, where runs lie, how a result is told."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from meanfield.records import (
    CONSISTENT,
    INCONSISTENT,
    UNDECIDED,
    Claim,
    RunDirectory,
    overall_verdict,
)

RESULTS = Path("results")
CODE_OF_VERDICT = {CONSISTENT: 0, INCONSISTENT: 1, UNDECIDED: 3}


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where the run is kept and how it is reported."""

    preset: Literal["smoke", "paper"] | None = None
    """Take parameters from presets/PRESET.toml; flags overrule it. Without: the file's defaults."""
    out: Path | None = None
    """Folder of this run, new or empty. Without: results/NAME, numbered if that is taken."""
    resume: Path | None = None
    """Go on with an interrupted run, bit for bit, under its stored parameters."""
    join: Path | None = None
    """Compute cells of a run that another process owns: what --jobs starts, on this machine."""
    jobs: int = 1
    """Processes that share the cells of one run; of `run all`: experiments at once."""
    check: bool = False
    """Exit with 1 where a claim does not hold, 3 where it is undecided."""
    json: bool = False
    """Print one JSON object and nothing else."""


def free_folder(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, ... that is not there yet."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def in_words(seconds: float) -> str:
    """``about 40 s``, ``about 12 min``, ``about 1.5 h``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.2g} {unit}"
    return f"about {seconds:.0f} s"


def result_of(directory: RunDirectory, preset: str | None, claims: list[Claim]) -> dict[str, Any]:
    """What `--json` prints of one run."""
    return {
        "name": directory.name,
        "preset": preset,
        "verdict": overall_verdict(claims),
        "claims": claims,
        "seconds": directory.manifest["seconds"],
        "files": directory.files,
    }


def print_result(result: dict[str, Any]) -> None:
    """The same in words."""
    print(f"{result['name']}: {result['verdict']} ({result['seconds']:.1f} s)")
    for claim in result["claims"]:
        print(f"  {claim.sentence()}")
    folders = [Path(file).parent for file in result["files"] if Path(file).name == "manifest.json"]
    print(f"  in {min(folders, key=lambda folder: len(folder.parts))}")
