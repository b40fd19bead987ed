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
from meanfield._commands.run import CODE_OF_VERDICT, RESULTS
from meanfield._commands.summary import newest_finished
from meanfield._files import replacing
from meanfield.records import RunDirectory, find_runs, overall_verdict


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
    newest = newest_finished(find_runs(options.results), options.preset)
    kind = f" --preset {options.preset}" if options.preset else ""
    complete = bool(options.names) or options.check
    claims, drawn = [], 0
    for file in files:
        module = catalogue.load(file, ("EXPERIMENTS", "draw", "caption"))
        missing = [name for name in module.EXPERIMENTS if name not in newest]
        if missing:
            mend = f"run: meanfield run {missing[0]}{kind}"
            given = f"{file.stem}: no finished run of {', '.join(missing)} in {options.results}"
            require(not complete, given, "one of each", mend)
            print(f"{given}; {mend}")
            continue
        runs = {name: newest[name] for name in module.EXPERIMENTS}
        _write(module, file.stem, runs, options.out or options.results / "figures")
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
    """A figure and its caption in one line, from the stored arrays of its runs.

    Raises: `MeanfieldError` if a run lacks an array.
    """
    try:
        return module.draw(runs), " ".join(module.caption(runs).split())
    except KeyError as error:
        places = ", ".join(str(run.path) for run in runs.values())
        raise MeanfieldError(
            f"{name}: {places} lacks {error}", "the arrays of a whole run", "run it again"
        ) from None


def _write(module: ModuleType, name: str, runs: dict[str, RunDirectory], out: Path) -> None:
    from meanfield import plotting

    figure, caption = draw(module, name, runs)
    written = plotting.save_figure(figure, out / name)
    with replacing(out / f"{name}.txt") as temporary:
        temporary.write_text(caption + "\n", encoding="utf-8")
    print(f"{name}: {', '.join(str(path) for path in written)}\n  {caption}")
