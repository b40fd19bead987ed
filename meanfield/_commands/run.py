"""``meanfield run``: one experiment, or all of them, into run directories."""

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue
from meanfield._commands.flags import Progress, parse
from meanfield._commands.run_all import run_all
from meanfield._commands.runs import (
    CODE_OF_VERDICT,
    RESULTS,
    RunOptions,
    free_folder,
    in_words,
    print_result,
    result_of,
)
from meanfield.records import Claim, RunDirectory, to_json

USAGE = """usage: meanfield run NAME|all|FILE.py [flags]

Run an experiment into a run directory. `meanfield list` names them; `meanfield run NAME --help`
shows the flags of one."""


def command(args: Sequence[str]) -> int:
    """Run it; returns the exit code."""
    if args and args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, rest = (args[0], args[1:]) if args else ("", [])
    require(
        name and not name.startswith("-"),
        f"run {name}".strip(),
        "the name of an experiment first",
        "see: meanfield list",
    )
    with _termination_is_an_interrupt():
        if name != "all":
            return _run_one(catalogue.locate("experiments", name), name, rest)
        options = parse(RunOptions, rest, prog="meanfield run all")
        _check_options(options)
        require(
            options.join is None,
            "run all --join",
            "the name of one experiment with --join",
            "join each run by itself",
        )
        return run_all(options)


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C: what is stopped can be resumed."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    names = ("SIGTERM", "SIGHUP")  # a batch system's word, and a lost terminal's
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # what is ignored on purpose (nohup) stays so
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_options(options: RunOptions) -> None:
    most = 4 * (os.cpu_count() or 1)
    require(
        1 <= options.jobs <= most,
        f"--jobs {options.jobs}",
        f"1 to {most}, four for each core",
        "pass --jobs 1",
    )
    folders = [
        f"--{name}" for name in ("out", "resume", "join") if getattr(options, name) is not None
    ]
    require(
        len(folders) <= 1,
        f"both {' and '.join(folders)}",
        "one of them: a resumed or joined run stays in its folder",
        f"drop {folders[0] if folders else ''}",
    )
    require(
        options.join is None or options.jobs == 1,
        f"--join with --jobs {options.jobs}",
        "one process for each --join",
        "drop --jobs",
    )


def _flag_value(args: Sequence[str], flag: str) -> str | None:
    """The value of ``--flag value`` or ``--flag=value``, read before the full parser exists."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
    return None


def _run_one(path: Path, name: str, args: Sequence[str]) -> int:
    resumed = _flag_value(args, "--resume")
    resumed = _flag_value(args, "--join") if resumed is None else resumed
    stored = None if resumed is None else RunDirectory.open(resumed)
    experiment = catalogue.load(path, ("Parameters", "run"))
    if stored is None:
        preset = _flag_value(args, "--preset")
        values, where = catalogue.preset_overrides(path, preset), f"preset {preset}"
    else:
        preset = stored.configuration.get("preset")
        values, where = stored.configuration.get("parameters"), f"{resumed}/manifest.json"
        require(
            preset is None or isinstance(preset, str),
            f"{where} holds the preset {preset!r:.60}",
            "a name or null",
            "mend that file, or start a new run",
        )
        require(
            stored.name == path.stem,
            f"{resumed} holds a run of {stored.name}",
            f"a run of {path.stem}",
            "pass the experiment's own folder",
        )
    default = catalogue.build_parameters(
        experiment.Parameters, values, where, complete=stored is not None
    )
    both = dataclasses.make_dataclass(
        "Flags", [("options", RunOptions), ("parameters", experiment.Parameters)], frozen=True
    )
    both.__doc__ = catalogue.constants(path).get("CLAIM") or catalogue.constants(path)["title"]
    chosen: Any = parse(
        both, args, prog=f"meanfield run {name}", default=both(RunOptions(), default)
    )
    options: RunOptions = chosen.options
    _check_options(options)
    given = options.resume if options.resume is not None else options.join
    require(
        given == (None if resumed is None else Path(resumed)),
        f"--resume or --join {given} and {resumed!r}",
        "one folder, given once",
        "pass the folder of one run",
    )
    require(
        stored is None or (chosen.parameters == default and options.preset in (None, preset)),
        "a stored run together with other parameters",
        "the stored parameters, so that the run is the same bit for bit",
        "drop those flags or start a new run",
    )
    for field in dataclasses.fields(chosen.parameters):
        flag = f"--{field.name.replace('_', '-')}"
        given = getattr(chosen.parameters, field.name)
        require(given != (), f"{flag} without values", "at least one", "add some")
    if options.join is not None:
        joined = RunDirectory.join(options.join)
        experiment.run(chosen.parameters, joined, Progress(visible=False))
        print(f"{options.join}: {joined.num_computed} cells computed here; its owner finishes it")
        return 0
    seconds = catalogue.nominal_seconds(path, preset)
    if seconds is not None and not options.json:
        sizes = f"the sizes of preset {preset}" if preset else "its own sizes"
        shared = f", {in_words(seconds / options.jobs)} on {options.jobs}" * (options.jobs > 1)
        print(f"{name} at {sizes}: {in_words(seconds)} on one CPU core{shared}", file=sys.stderr)
    directory = _directory(options, path.stem, preset, chosen.parameters)
    claims = _execute(
        experiment, chosen.parameters, directory, name, options.jobs, is_resumed=stored is not None
    )
    result = result_of(directory, preset, claims)
    with contextlib.suppress(BrokenPipeError):  # whoever reads it may leave; the code stands
        if options.json:
            print(to_json(result))
        else:
            print_result(result)
    return CODE_OF_VERDICT[result["verdict"]] if options.check else 0


@contextlib.contextmanager
def _joined(number: int, name: str, directory: RunDirectory) -> Iterator[None]:
    """Processes that share the run's cells; what one of them leaves, another computes."""
    line = [sys.executable, "-m", "meanfield", "run", name, "--join", str(directory.path)]
    children: list[subprocess.Popen[bytes]] = []
    quiet = subprocess.DEVNULL
    try:
        for _ in range(number):
            # A session of its own: Ctrl-C reaches the owner alone, which ends them.
            children.append(
                subprocess.Popen(line, stdout=quiet, stderr=quiet, start_new_session=True)
            )
        yield
    finally:
        lost = [child.returncode for child in children if child.poll()]
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            child.wait()
        if lost:
            print(f"{len(lost)} processes of --jobs ended early (exit {lost[0]})", file=sys.stderr)


def _directory(options: RunOptions, name: str, preset: str | None, parameters: Any) -> RunDirectory:
    if options.resume is not None:
        return RunDirectory.resume(options.resume)
    fields = dataclasses.asdict(parameters)
    return RunDirectory.create(
        options.out or free_folder(RESULTS / name),
        name=name,
        configuration={"preset": preset, "parameters": parameters},
        seeds={key: value for key, value in fields.items() if key.endswith("seed")},
    )


def _execute(
    experiment: Any,
    parameters: Any,
    directory: RunDirectory,
    name: str,
    jobs: int,
    *,
    is_resumed: bool,
) -> list[Claim]:
    """Run the experiment; whatever stops it leaves a folder that can be resumed."""
    try:
        with _joined(jobs - 1, name, directory):
            claims = experiment.run(parameters, directory, Progress())
        sound = isinstance(claims, list) and all(isinstance(claim, Claim) for claim in claims)
        require(sound, f"run() returned {claims!r:.80}", "a list of Claim", "return the claims")
        directory.finish(claims)
        return claims
    except BaseException as error:
        error = _explained(error, directory, is_resumed)
        interrupted = isinstance(error, KeyboardInterrupt)
        with contextlib.suppress(MeanfieldError):
            if interrupted or directory.has_results:
                directory.abandon("interrupted" if interrupted else "failed")
            else:
                directory.discard()
        if interrupted:
            line = shlex.join(["meanfield", "run", name, "--resume", str(directory.path)])
            print(f"interrupted; go on with: {line}", file=sys.stderr)
            raise SystemExit(130) from None
        raise error


def _explained(error: BaseException, directory: RunDirectory, is_resumed: bool) -> BaseException:
    """In a resumed run, what does not fit is most likely a stored file: then one line names it."""
    is_misfit = isinstance(error, KeyError | ValueError | IndexError | TypeError)
    if not is_resumed or not is_misfit or isinstance(error, MeanfieldError):
        return error
    place = traceback.extract_tb(error.__traceback__)[-1]
    return MeanfieldError(
        f"{directory.path}: stored arrays do not fit"
        f" ({type(error).__name__}: {error} at {Path(place.filename).name}:{place.lineno})",
        "cells and checkpoints of this experiment as it is now",
        "remove the folder cells or checkpoints, or start a new run, which shows a defect's place",
    ).with_traceback(error.__traceback__)
