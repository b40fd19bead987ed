"""``meanfield report``: a folder of results as one HTML page; no solver is needed."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue, page
from meanfield._commands.figures import draw
from meanfield._commands.flags import parse
from meanfield._commands.places import require_outside_runs
from meanfield._commands.run import RESULTS
from meanfield._commands.summary import (
    Summary,
    changed_parameters,
    newest_finished,
    preset_of,
    resume_command,
)
from meanfield._files import replacing
from meanfield.records import RunDirectory, find_runs

MANIFEST = "manifest.json"
LARGEST_ANIMATION = 500_000  # bytes; a larger one stays in its folder


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """A folder of results as one self-contained HTML page: the newest finished runs, with pictures.

    Pictures are drawn anew from the stored arrays.
    """

    results: tyro.conf.Positional[Path] = RESULTS
    """Folder that is searched for runs."""
    out: Path | None = None
    """The page, a .html file; an older report is replaced. Without: report.html in the results."""


def command(args: Sequence[str]) -> int:
    """Write the page; returns the exit code."""
    options: ReportOptions = parse(ReportOptions, args, prog="meanfield report")
    folder, out = options.results, options.out or options.results / "report.html"
    require(
        folder.is_dir(),
        f"{folder} is no folder",
        "a folder with runs",
        "run an experiment first: meanfield run NAME",
    )
    require(
        out.suffix in (".html", ".htm") and not out.is_dir(),
        f"--out {out}",
        "a file that ends in .html",
        "choose another name",
    )
    require_outside_runs(out.parent, "pass --out FILE.html")
    _require_ours(out)
    runs = find_runs(folder)
    found = {run.path for run in runs}
    everything = sorted(manifest.parent for manifest in folder.rglob(MANIFEST))
    damaged = [str(place) for place in everything if place not in found]
    closed = _closed(folder)
    require(
        runs,
        f"{folder} holds no run" + (f" but {', '.join(damaged)}, damaged" if damaged else ""),
        "at least one",
        "run an experiment first: meanfield run NAME",
    )
    newest = dict(sorted(newest_finished(runs).items()))
    sections = [_section(run, newest) for run in newest.values()]
    shown = {run.path for run in newest.values()}
    others = [_other(run) for run in runs if run.path not in shown]
    whole = page.render(page.Page(str(folder), sections, others, damaged, closed))
    content = whole.encode("utf-8", "backslashreplace")  # names may hold what no encoding knows
    with replacing(out) as temporary:
        temporary.write_bytes(content)
    plural = "" if len(sections) == 1 else "s"
    print(f"{out}: {len(sections)} run{plural}, {_size(len(content))}")
    for place in damaged:
        print(f"  left out, its manifest is damaged: {place}")
    for place in closed:
        print(f"  left out, it cannot be entered: {place}")
    for section in sections:
        if section.reason:
            print(f"  {section.summary.name}: no picture: {section.reason}")
    return 0


def _require_ours(out: Path) -> None:
    """Refuse to replace a file that is no report."""
    try:
        with out.open("rb") as file:
            ours = page.GENERATOR.encode() in file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        ours = False
    require(ours, f"{out} is there and is no report", "a new file", "choose another name")


def _closed(folder: Path) -> list[str]:
    """Folders below it that cannot be entered."""
    errors: list[OSError] = []
    for _ in os.walk(folder, onerror=errors.append):
        pass
    return sorted(str(error.filename) for error in errors)


def _section(run: RunDirectory, newest: dict[str, RunDirectory]) -> page.Section:
    file = catalogue.find("experiments", run.name)
    known = {} if file is None else catalogue.constants(file)
    summary, changed = Summary.of(run), changed_parameters(run)
    remarks = []
    if changed:
        remarks.append(
            f"The experiment has changed since this run ({', '.join(changed)}):"
            " the command may give other numbers."
        )
    if file is None:
        remarks.append("An experiment of your own: the command expects its file and your flags.")
    figure = known.get("FIGURE", "")
    drawn = None, "", "", ""
    if figure is not None:  # else the experiment says that it has none
        drawn = _picture(figure, run.name, newest)
    picture, described, caption, reason = drawn
    animations = _animations(run)
    remarks += [f"{name} cannot be read." for name, data in animations if not data]
    return page.Section(
        summary=summary,
        place=str(run.path),
        started=_moment(run),
        made_with=_made_with(run),
        claim=" ".join(str(known.get("CLAIM", "")).split()),
        theory=str(known.get("docstring", "")).split("\nCommands\n")[0].strip(),
        picture=picture,
        described=described,
        caption=caption,
        reason=reason,
        animations=[(name, data) for name, data in animations if data],
        remarks=remarks,
        settings=_settings(run),
        files=_files(run),
    )


def _picture(
    figure: Any, experiment: str, newest: dict[str, RunDirectory]
) -> tuple[bytes | None, str, str, str]:
    """PNG, what it shows, its caption; or None and the reason why there is none."""
    from meanfield import plotting

    file = catalogue.find("figures", figure) if isinstance(figure, str) else None
    if file is None:
        return None, "", "", f"no figure of {experiment} is known"
    try:
        module = catalogue.load(file, ("EXPERIMENTS", "draw", "caption"))
        missing = [name for name in module.EXPERIMENTS if name not in newest]
        require(
            not missing,
            f"{figure} needs a finished run of {', '.join(missing)}",
            "one of each",
            "run it",
        )
        drawn, caption = draw(module, figure, {name: newest[name] for name in module.EXPERIMENTS})
        with tempfile.TemporaryDirectory() as place:
            target = Path(place) / "figure.png"
            plotting.save_figure(drawn, target, ("png",), dots_per_inch=page.DOTS_PER_INCH)
            return target.read_bytes(), catalogue.constants(file)["title"], caption, ""
    except MeanfieldError as error:
        reason = str(error)
    except Exception as error:  # whatever stored arrays do to a drawing, the tables are still good
        reason = f"{figure} cannot be drawn ({type(error).__name__}: {error})"
    return None, "", "", " ".join(reason.split())


def _animations(run: RunDirectory) -> list[tuple[str, bytes]]:
    """GIF files by name; b"" for one that cannot be read."""
    found = []
    for path in map(Path, run.files):
        if path.suffix == ".gif":
            try:
                data = path.read_bytes() if path.stat().st_size <= LARGEST_ANIMATION else None
            except OSError:
                data = b""
            if data == b"" or (data and data[:4] == b"GIF8" and len(data) > 10):
                found.append((path.name, data))
    return found


def _other(run: RunDirectory) -> tuple[str, ...]:
    resume = "" if run.status == "finished" else resume_command(run)
    status = "running, or killed" if run.status == "running" else run.status
    if run.status == "finished":
        status = f"finished: {Summary.of(run).verdict}"
    return str(run.path), run.name, preset_of(run) or "", status, _moment(run), resume


def _moment(run: RunDirectory) -> str:
    return run.manifest["started"].replace("T", " ").replace("+0000", " UTC")


def _made_with(run: RunDirectory) -> str:
    """``python 3.11.7, jax 0.10.1, ... on 1 x cpu``."""
    versions, device = run.manifest.get("versions"), run.manifest.get("device")
    packages = versions.items() if isinstance(versions, dict) else ()
    listed = ", ".join(f"{name} {version}" for name, version in packages)
    return f"{listed or 'versions not known'} on {device or 'a device not known'}"


def _settings(run: RunDirectory) -> list[tuple[str, str]]:
    """Parameters, what else is in the configuration, and seeds that are no parameters."""
    configuration = run.configuration
    found = configuration.pop("parameters", {})
    parameters = found if isinstance(found, dict) else {"parameters": found}
    rest = {name: value for name, value in configuration.items() if name != "preset"}
    seeds = {f"seed: {name}": value for name, value in run.manifest["seeds"].items()}
    new = {name: seed for name, seed in seeds.items() if name[6:] not in parameters}
    rows = {**parameters, **rest, **new}
    return [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in rows.items()
    ]


def _files(run: RunDirectory) -> list[tuple[str, str]]:
    """Files of the run with their sizes; those of a folder in it together."""
    sizes: dict[str, list[int]] = {}
    for path in map(Path, run.files):
        inner = path.relative_to(run.path)
        name = inner.name if len(inner.parts) == 1 else f"{inner.parts[0]}/"
        sizes.setdefault(name, []).append(path.stat().st_size)
    return [
        (f"{name} ({len(found)} files)" if name.endswith("/") else name, _size(sum(found)))
        for name, found in sorted(sizes.items())
    ]


def _size(count: int) -> str:
    """Bytes in words: 512 B, 12.3 kB, 4.0 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
