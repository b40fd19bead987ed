"""What finished runs say: claims as rows of a table, and the command that repeats each run.

``meanfield report`` and the tables of README and docs/results.md are made from these. Free of jax.
"""

import dataclasses
import re
import shlex
from collections.abc import Iterable
from typing import Any

from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue
from meanfield.records import (
    CONSISTENT,
    Claim,
    RunDirectory,
    overall_verdict,
    read_claim,
    to_plain,
)


@dataclasses.dataclass(frozen=True)
class Summary:
    """A finished run in short.

    Args:
        name: the experiment's name.
        preset: the preset it was started with, or None.
        seconds: how long it took.
        command: the line that repeats it.
        claims: all of them, in the experiment's order.
    """

    name: str
    preset: str | None
    seconds: float
    command: str
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, run: RunDirectory) -> "Summary":
        """The summary of a run directory."""
        seconds = float(run.manifest["seconds"])
        return cls(run.name, preset_of(run), seconds, command_of(run), tuple(run.claims))

    @classmethod
    def from_plain(cls, name: str, entry: Any) -> "Summary":
        """The summary that `plain` wrote. Raises: `MeanfieldError` on anything else."""
        kinds = {"preset": str | None, "seconds": float | int, "command": str, "claims": list}
        require(
            isinstance(entry, dict)
            and all(key in entry and isinstance(entry[key], kinds[key]) for key in kinds),
            f"the claims of {name}: {entry!r:.60}",
            f"an entry with {', '.join(kinds)}",
            "build it again from runs",
        )
        try:
            claims = tuple(map(read_claim, entry["claims"]))
            return cls(name, entry["preset"], float(entry["seconds"]), entry["command"], claims)
        except MeanfieldError as error:
            raise MeanfieldError(f"{name}: {error.given}", error.expected, error.mend) from None
        except OverflowError:
            raise MeanfieldError(
                f"{name}: {entry['seconds']!r:.60} seconds", "a number", "build it again from runs"
            ) from None

    def plain(self) -> dict[str, Any]:
        """Everything but the name, as JSON holds it."""
        return {key: value for key, value in to_plain(self).items() if key != "name"}

    @property
    def verdict(self) -> str:
        """The worst verdict of its claims."""
        return overall_verdict(self.claims)

    def count(self, verdict: str) -> int:
        """How many claims have this verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)

    def headlines(self) -> list[Claim]:
        """The claims that stand for the run in a short table, in the experiment's order.

        Those that its constant HEADLINES names (``*`` stands for what a run decides, such as a
        number), the first claim where it has none, and always each that is not consistent.
        """
        path = catalogue.find("experiments", self.name)
        found = {} if path is None else catalogue.constants(path)
        wanted = found.get("HEADLINES", tuple(claim.quantity for claim in self.claims[:1]))
        return [
            claim
            for claim in self.claims
            if claim.verdict != CONSISTENT or any(is_named(claim, name) for name in wanted)
        ]


def is_named(claim: Claim, headline: str) -> bool:
    """True if the headline names this claim."""
    pattern = ".*".join(re.escape(part) for part in headline.split("*"))
    return re.fullmatch(pattern, claim.quantity) is not None


def newest_finished(
    runs: Iterable[RunDirectory], preset: str | None = None
) -> dict[str, RunDirectory]:
    """The newest finished run of each experiment, of one preset or of any; ``runs`` by age."""
    return {
        run.name: run
        for run in runs
        if run.status == "finished" and (preset is None or preset_of(run) == preset)
    }


def preset_of(run: RunDirectory) -> str | None:
    """The preset that a run was started with."""
    preset = run.configuration.get("preset")
    return preset if isinstance(preset, str) else None


def command_of(run: RunDirectory) -> str:
    """The line that repeats a run: its preset, and a flag for each parameter that differs.

    Read from the experiment's file without running it. A file that is not in the catalogue is
    named by its stem alone, with no flags.
    """
    words, preset = ["meanfield", "run", _argument(run.name)], preset_of(run)
    path, stored = catalogue.find("experiments", run.name), _parameters(run)
    known: dict[str, Any] = {} if path is None else to_plain(catalogue.defaults(path))
    if preset is not None:
        try:
            known |= {} if path is None else to_plain(catalogue.preset_overrides(path, preset))
            words += ["--preset", preset]
        except MeanfieldError:  # a preset that is no longer there: its values become flags
            pass
    for name, value in known.items():
        if name in stored and stored[name] != value:
            words += _flag(name, stored[name])
    return shlex.join(words)


def changed_parameters(run: RunDirectory) -> list[str]:
    """Parameters that only the run has, or only its experiment as it is now."""
    path = catalogue.find("experiments", run.name)
    return [] if path is None else sorted(set(catalogue.defaults(path)) ^ set(_parameters(run)))


def resume_command(run: RunDirectory) -> str:
    """The line that goes on with an unfinished run."""
    return shlex.join(["meanfield", "run", _argument(run.name), "--resume", str(run.path)])


def _argument(name: str) -> str:
    return f"{name}.py" if catalogue.find("experiments", name) is None else name


def _parameters(run: RunDirectory) -> dict[str, Any]:
    stored = run.configuration.get("parameters")
    return stored if isinstance(stored, dict) else {}


def _flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    values = value if isinstance(value, list) else [value]
    return [f"--{flag}", *map(str, values)]
