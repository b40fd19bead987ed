"""Where pictures and pages may be written: never into the folder of a run."""

from pathlib import Path

from meanfield._checks import MeanfieldError, require


def require_outside_runs(folder: Path, mend: str) -> None:
    """Raise `MeanfieldError` if ``folder``, wherever it leads, lies in the folder of a run."""
    try:
        place = folder.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise MeanfieldError(f"{folder} leads nowhere ({error})", "a folder", mend) from None
    require(
        not any((run / "manifest.json").exists() for run in (place, *place.parents)),
        f"{folder} lies in the folder of a run",
        "a place outside, since a run is never written to",
        mend,
    )
