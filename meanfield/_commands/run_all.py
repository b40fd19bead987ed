"""``meanfield run all``: every experiment in a process of its own, several at a time."""

import contextlib
import dataclasses
import json
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tqdm import tqdm

from meanfield._checks import require
from meanfield._commands import catalogue
from meanfield._commands.runs import (
    CODE_OF_VERDICT,
    RESULTS,
    RunOptions,
    free_folder,
    in_words,
    print_result,
    result_of,
)
from meanfield.records import (
    CONSISTENT,
    INCONSISTENT,
    UNDECIDED,
    Claim,
    RunDirectory,
    find_runs,
    to_json,
    worst_verdict,
)

VERDICTS = (CONSISTENT, UNDECIDED, INCONSISTENT)
UNSTATED = 20.0  # seconds counted for an experiment that does not state its cost


def run_all(options: RunOptions) -> int:
    """Each experiment in a process of its own: precision and memory of one leave no trace.

    The longest begin first, so that none is left for the end. What is left to do is told after
    each, from the stated costs and the time that the finished ones took.
    """
    root = options.resume or options.out or RESULTS
    is_there = root.is_dir() if options.resume else root.is_dir() or not root.exists()
    wanted = "the folder of an interrupted run all" if options.resume else "a folder, new or not"
    require(is_there, f"{root} is no folder", wanted, "pass another one")
    earlier = {run.name: run for run in find_runs(root)} if options.resume else {}
    preset = _preset(options, earlier)
    results, costs = [], {}

    def record(result: dict[str, Any]) -> None:
        results.append(result)
        if not options.json:
            with contextlib.suppress(BrokenPipeError):  # the others run on
                print_result(result)

    for name in catalogue.names("experiments"):
        done = earlier.get(name)
        if done is not None and done.status == "finished":
            record(result_of(done, preset, done.claims))
        else:
            seconds = catalogue.nominal_seconds(catalogue.locate("experiments", name), preset)
            costs[name] = UNSTATED if seconds is None else seconds
    waiting = sorted(costs, key=lambda name: -costs[name])
    left = TimeLeft(costs, options.jobs, visible=not options.json)
    codes = []
    children = _Children()

    def run(name: str) -> tuple[str, int, str]:
        line = [sys.executable, "-m", "meanfield", "run", name, "--json"]
        if name in earlier:
            line += ["--resume", str(earlier[name].path)]
        else:
            line += ["--out", str(free_folder(root / name))]
            line += [] if preset is None else ["--preset", preset]
        return name, *children.run(line)

    pool = ThreadPoolExecutor(options.jobs)
    try:
        for future in as_completed([pool.submit(run, name) for name in waiting]):
            name, code, output = future.result()
            codes.append(code)
            if code == 0:
                found = json.loads(output)
                record({**found, "claims": [Claim(**claim) for claim in found["claims"]]})
            left.done(name)
    except KeyboardInterrupt:
        children.stop()
        pool.shutdown(cancel_futures=True)
        line = shlex.join(["meanfield", "run", "all", "--resume", str(root)])
        print(f"interrupted; go on with: {line}", file=sys.stderr)
        raise SystemExit(130) from None
    pool.shutdown()
    verdict = worst_verdict([result["verdict"] for result in results] + [UNDECIDED] * any(codes))
    found = [result["verdict"] for result in results]
    told = ", ".join(f"{found.count(v)} {v}" for v in VERDICTS if v in found)
    stopped = f", {len(codes) - codes.count(0)} stopped" if any(codes) else ""
    line = f"{len(results)} experiments: {told or 'none'}{stopped}"
    with contextlib.suppress(BrokenPipeError):
        print(to_json(_summary(preset, verdict, results)) if options.json else line)
    if any(codes):
        return max(codes)
    return CODE_OF_VERDICT[verdict] if options.check else 0


def _preset(options: RunOptions, earlier: dict[str, RunDirectory]) -> str | None:
    """The preset of the whole: a resumed run all goes on with that of its runs."""
    stored = {run.configuration.get("preset") for run in earlier.values()}
    if not stored:
        return options.preset
    require(
        len(stored) == 1 and options.preset in (None, *stored),
        f"runs of the presets {', '.join(sorted(map(str, stored | {options.preset} - {None})))}",
        "one preset",
        "resume with the preset of these runs, or choose another folder",
    )
    return stored.pop()


class _Children:
    """Child processes that are ended together, each of them able to resume."""

    def __init__(self):
        self.processes: list[subprocess.Popen[str]] = []
        self.stopped, self.starting = threading.Event(), threading.Lock()

    def run(self, line: list[str]) -> tuple[int, str]:
        """Exit code and standard output; what it says on standard error is passed on whole."""
        with self.starting:
            if self.stopped.is_set():
                return 130, ""
            # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
            child = subprocess.Popen(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.processes.append(child)
        output, said = child.communicate()
        if said:
            print(said, end="", file=sys.stderr, flush=True)
        return child.returncode, output

    def stop(self) -> None:
        """End them; no other is started."""
        with self.starting:
            self.stopped.set()
        for child in self.processes:
            if child.poll() is None:
                child.terminate()  # SIGINT would be ignored by children of a background job
        for child in self.processes:
            child.wait()


class TimeLeft:
    """States the cost before the start, and after each experiment the time left.

    Args:
        costs: nominal seconds by experiment.
        jobs: how many run at once.
        visible: False says nothing.
    """

    def __init__(self, costs: dict[str, float], jobs: int, *, visible: bool):
        self.costs, self.visible = dict(costs), visible
        self.number, self.started, self.finished = len(costs), time.monotonic(), 0.0
        self.rate = 1.0 / max(min(jobs, self.number), 1)  # seconds of the clock per nominal one
        if visible and costs:
            words = f"{self.number} experiments, {in_words(sum(costs.values()))} of one CPU core"
            with_jobs = f"; {self.left} with --jobs {jobs}" if jobs > 1 else ""
            print(f"{words}{with_jobs}", file=sys.stderr, flush=True)
        self.bar = tqdm(
            total=self.number, desc="experiments", leave=False, disable=None if visible else True
        )

    @property
    def left(self) -> str:
        """The time left, in words: at least what the longest one needs."""
        return in_words(max(sum(self.costs.values()) * self.rate, 0.0))

    def done(self, name: str) -> None:
        """One more is finished."""
        self.finished += self.costs.pop(name)
        self.rate = (time.monotonic() - self.started) / self.finished
        self.bar.update()
        if self.visible and self.costs:
            number = self.number - len(self.costs)
            text = f"{number} of {self.number} done, {self.left} left"
            self.bar.set_postfix_str(f"{self.left} left")
            if self.bar.disable:
                print(text, file=sys.stderr, flush=True)
        if not self.costs:
            self.bar.close()


def _summary(preset: str | None, verdict: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "all",
        "preset": preset,
        "verdict": verdict,
        "claims": [
            {"experiment": result["name"], **dataclasses.asdict(claim)}
            for result in results
            for claim in result["claims"]
        ],
        "seconds": sum(result["seconds"] for result in results),
        "files": [file for result in results for file in result["files"]],
        "runs": results,
    }
