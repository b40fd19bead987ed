"""``meanfield figures``: draw the figures from stored results; no solver is needed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import tyro

from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue
from meanfield._commands.flags import parse
from meanfield._commands.places import require_outside_runs
from meanfield._commands.run import CODE_OF_VERDICT, RESULTS
from meanfield._commands.summary import Summary, is_named, newest_finished, preset_of
from meanfield._files import replacing
from meanfield.records import CONSISTENT, RunDirectory, find_runs, overall_verdict


@dataclasses.dataclass(frozen=True)
class FigureOptions:
    """Draw figures (.png, .pdf, caption in .txt) from the newest finished runs in a folder."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Figures to draw, names or .py files. Without: all whose results are there."""
    results: Path = RESULTS
    """Folder that is searched for runs."""
    out: Path | None = None
    """Where the pictures go. Without: the folder figures inside the results."""
    preset: Literal["smoke", "paper"] | None = None
    """Only runs of this preset. Without: the newest of any."""
    check: bool = False
    """Every figure must be there; exit with 1 where a claim it rests on does not hold."""


def command(args: Sequence[str]) -> int:
    """Draw them; returns the exit code."""
    options: FigureOptions = parse(FigureOptions, args, prog="meanfield figures")
    require(
        options.results.is_dir(),
        f"--results {options.results} is no folder",
        "a folder with runs",
        "run an experiment first: meanfield run NAME",
    )
    names = options.names or tuple(catalogue.names("figures"))
    files = [catalogue.locate("figures", name) for name in names]
    out = options.out or options.results / "figures"
    require_outside_runs(out, "pass --out FOLDER")
    found = find_runs(options.results)
    newest = newest_finished(found, options.preset)
    kind = f" --preset {options.preset}" if options.preset else ""
    lacking = _lacking(found, options.preset)
    require(
        newest or options.names,
        f"{lacking} in {options.results}",
        "at least one",
        f"run an experiment first: meanfield run NAME{kind}",
    )
    complete = bool(options.names) or options.check
    claims, drawn = [], 0
    for file in files:
        module = catalogue.load(file, ("EXPERIMENTS", "draw", "caption"))
        missing = [name for name in module.EXPERIMENTS if name not in newest]
        if missing:
            mend = f"run: meanfield run {missing[0]}{kind}"
            wanted = f"finished run of {', '.join(missing)}"
            given = f"{file.stem}: {lacking.replace('finished run', wanted)} in {options.results}"
            require(not complete, given, "one of each", mend)
            print(f"{given}; {mend}")
            continue
        runs = {name: newest[name] for name in module.EXPERIMENTS}
        _write(module, file.stem, runs, out)
        drawn += 1
        claims += [claim for run in runs.values() for claim in run.claims]
    require(
        drawn,
        f"no figure has its results in {options.results}",
        "at least one finished run",
        f"run an experiment first: meanfield run NAME{kind}",
    )
    return CODE_OF_VERDICT[overall_verdict(claims)] if options.check else 0


def draw(module: ModuleType, name: str, runs: dict[str, RunDirectory]) -> tuple[Any, str]:
    """A figure and its caption in one line, without claims, from the stored arrays of its runs.

    Raises: `MeanfieldError` if a run lacks an array.
    """
    try:
        return module.draw(runs), " ".join(module.caption(runs).split())
    except KeyError as error:
        places = ", ".join(str(run.path) for run in runs.values())
        raise MeanfieldError(
            f"{name}: {places} lacks {error}", "the arrays of a whole run", "run it again"
        ) from None


def headlines(module: ModuleType, runs: dict[str, RunDirectory]) -> str:
    """The headline claims of its runs, as sentences; those that do not hold always.

    A figure's constant CLAIMS names those that it shows (``*`` stands for anything); all without.
    """
    shown = getattr(module, "CLAIMS", ("*",))
    found = [
        claim.sentence()
        for run in runs.values()
        for claim in Summary.of(run).headlines()
        if claim.verdict != CONSISTENT or any(is_named(claim, name) for name in shown)
    ]
    return f"Measured: {'; '.join(found)}." if found else ""


def _lacking(runs: list[RunDirectory], preset: str | None) -> str:
    """``no finished run of preset paper (found: smoke)``."""
    found = {preset_of(run) or "none" for run in runs if run.status == "finished"}
    words = f" of preset {preset}" if preset else ""
    others = f" (found: {', '.join(sorted(found))})" if preset and found - {preset} else ""
    return f"no finished run{words}{others}"


def _write(module: ModuleType, name: str, runs: dict[str, RunDirectory], out: Path) -> None:
    from meanfield import plotting

    figure, panels = draw(module, name, runs)
    caption = f"{panels} {headlines(module, runs)}".strip()
    written = plotting.save_figure(figure, out / name)
    with replacing(out / f"{name}.txt") as temporary:
        temporary.write_text(caption + "\n", encoding="utf-8")
    print(f"{name}: {', '.join(str(path) for path in written)}\n  {caption}")
