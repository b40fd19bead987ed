"""``meanfield run``: one experiment, or all of them, into run directories."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Literal

from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue
from meanfield._commands.flags import Progress, parse
from meanfield.records import (
    CONSISTENT,
    INCONSISTENT,
    UNDECIDED,
    Claim,
    RunDirectory,
    find_runs,
    overall_verdict,
    to_json,
    worst_verdict,
)

RESULTS = Path("results")
CODE_OF_VERDICT = {CONSISTENT: 0, INCONSISTENT: 1, UNDECIDED: 3}
USAGE = """usage: meanfield run NAME|all|FILE.py [flags]

Run an experiment into a run directory. `meanfield list` names them; `meanfield run NAME --help`
shows the flags of one."""


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where the run is kept and how it is reported."""

    preset: Literal["smoke", "paper"] | None = None
    """Take parameters from presets/PRESET.toml; flags overrule it. Without: the file's defaults."""
    out: Path | None = None
    """Folder of this run, new or empty. Without: results/NAME, numbered if that is taken."""
    resume: Path | None = None
    """Go on with an interrupted run, bit for bit, under its stored parameters."""
    jobs: int = 1
    """`run all`: how many experiments run at once."""
    check: bool = False
    """Exit with 1 where a claim does not hold, 3 where it is undecided."""
    json: bool = False
    """Print one JSON object and nothing else."""


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
        return _run_all(options)


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: what a batch system stops can be resumed."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_options(options: RunOptions) -> None:
    require(options.jobs >= 1, f"--jobs {options.jobs}", "at least 1", "pass --jobs 1")
    require(
        options.out is None or options.resume is None,
        "both --out and --resume",
        "one of them: a resumed run stays in its folder",
        "drop --out",
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
            "pass the experiment's own folder to --resume",
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
    require(
        stored is None or (chosen.parameters == default and options.preset in (None, preset)),
        "--resume together with other parameters",
        "the stored parameters, so that the run is the same bit for bit",
        "drop those flags or start a new run",
    )
    for field in dataclasses.fields(chosen.parameters):
        flag = f"--{field.name.replace('_', '-')}"
        given = getattr(chosen.parameters, field.name)
        require(given != (), f"{flag} without values", "at least one", "add some")
    directory = _directory(options, path.stem, preset, chosen.parameters)
    claims = _execute(
        experiment,
        chosen.parameters,
        directory,
        f"meanfield run {name}",
        is_resumed=stored is not None,
    )
    result = _result(directory, preset, claims)
    if options.json:
        print(to_json(result))
    else:
        _print_result(result)
    return CODE_OF_VERDICT[result["verdict"]] if options.check else 0


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


def free_folder(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, ... that is not there yet."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _execute(
    experiment: Any,
    parameters: Any,
    directory: RunDirectory,
    command_line: str,
    *,
    is_resumed: bool,
) -> list[Claim]:
    """Run the experiment; whatever stops it leaves a folder that can be resumed."""
    try:
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
            print(
                f"interrupted; go on with: {command_line} --resume {directory.path}",
                file=sys.stderr,
            )
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


def _result(directory: RunDirectory, preset: str | None, claims: list[Claim]) -> dict[str, Any]:
    return {
        "name": directory.name,
        "preset": preset,
        "verdict": overall_verdict(claims),
        "claims": claims,
        "seconds": directory.manifest["seconds"],
        "files": directory.files,
    }


def _print_result(result: dict[str, Any]) -> None:
    print(f"{result['name']}: {result['verdict']} ({result['seconds']:.1f} s)")
    for claim in result["claims"]:
        print(f"  {claim.sentence()}")
    for file in result["files"]:
        print(f"  {file}")


def _run_all(options: RunOptions) -> int:
    """Each experiment in a process of its own: precision and memory of one leave no trace."""
    root = options.resume or options.out or RESULTS
    earlier = {run.name: run for run in find_runs(root)} if options.resume else {}
    children: list[subprocess.Popen[str]] = []
    stopped, starting = threading.Event(), threading.Lock()
    results, codes = [], []

    def run(name: str) -> tuple[int, str]:
        line = [sys.executable, "-m", "meanfield", "run", name, "--json"]
        if name in earlier:
            line += ["--resume", str(earlier[name].path)]
        else:
            line += ["--out", str(free_folder(root / name))]
            line += [] if options.preset is None else ["--preset", options.preset]
        # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
        with starting:
            if stopped.is_set():
                return 130, ""
            child = subprocess.Popen(
                line, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            children.append(child)
        output, _ = child.communicate()
        return child.returncode, output

    def record(result: dict[str, Any]) -> None:
        results.append(result)
        if not options.json:
            _print_result(result)

    waiting = []
    for name in catalogue.names("experiments"):
        if name in earlier and earlier[name].status == "finished":
            done = earlier[name]
            record(_result(done, done.configuration.get("preset"), done.claims))
        else:
            waiting.append(name)
    pool = ThreadPoolExecutor(options.jobs)
    try:
        for future in as_completed([pool.submit(run, name) for name in waiting]):
            code, output = future.result()
            codes.append(code)
            if code == 0:
                found = json.loads(output)
                record({**found, "claims": [Claim(**claim) for claim in found["claims"]]})
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        with starting:
            stopped.set()
        for child in children:
            if child.poll() is None:
                child.terminate()  # SIGINT would be ignored by children of a background job
        for child in children:
            child.wait()
        print(f"interrupted; go on with: meanfield run all --resume {root}", file=sys.stderr)
        raise SystemExit(130) from None
    pool.shutdown()
    verdicts = [result["verdict"] for result in results]
    verdict = worst_verdict(verdicts + [UNDECIDED] * any(codes))
    if options.json:
        claims = [
            {"experiment": result["name"], **dataclasses.asdict(claim)}
            for result in results
            for claim in result["claims"]
        ]
        summary = {
            "name": "all",
            "preset": options.preset,
            "verdict": verdict,
            "claims": claims,
            "seconds": sum(r["seconds"] for r in results),
            "files": [file for r in results for file in r["files"]],
            "runs": results,
        }
        print(to_json(summary))
    if any(codes):
        return max(codes)
    return CODE_OF_VERDICT[verdict] if options.check else 0
