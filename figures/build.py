"""Rebuild the gallery and the tables of README and docs/results.md from runs of the paper preset.

    python figures/build.py --results DIR [NAME ...]     from the newest finished runs in DIR
    python figures/build.py --tables                     only the tables, from what is stored

It solves nothing; the runs come from ``meanfield run all --preset paper --out DIR``. The claims of
all runs are kept in figures/gallery/claims.json, and both tables are made from that file alone:
experiments that have no run in DIR keep their rows. Pictures are those of ``meanfield figures``,
animations the runs' own; figures/gallery/README.md shows what is there.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from meanfield.__main__ import main
from meanfield._checks import MeanfieldError, require
from meanfield._commands import catalogue
from meanfield._commands.summary import Summary, newest_finished
from meanfield._files import replacing
from meanfield.records import Claim, find_runs, row

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- claims: written by figures/build.py -->"
END = "<!-- claims: end -->"
HEADER = "expected | measured | verdict |"


def claims_file(root: Path) -> Path:
    """Where the claims are kept."""
    return root / "figures" / "gallery" / "claims.json"


def read_claims(root: Path) -> dict[str, Summary]:
    """The stored claims by experiment; those of experiments that are no more are left out.

    Raises: `MeanfieldError` if the file is damaged.
    """
    path, mend = claims_file(root), "restore that file, or remove it and build from all runs"
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise MeanfieldError(
            f"{path} is damaged ({type(error).__name__}: {error})", "JSON", mend
        ) from None
    require(isinstance(stored, dict), f"{path} is damaged: {stored!r:.60}", "an object", mend)
    known = catalogue.names("experiments")
    try:
        return {
            name: Summary.from_plain(name, stored[name]) for name in sorted(stored) if name in known
        }
    except MeanfieldError as error:
        raise MeanfieldError(f"{path}: {error.given}", error.expected, mend) from None


def take_claims(root: Path, results: Path, figures: Sequence[str] = ()) -> list[str]:
    """Store the claims of the newest finished runs of the paper preset; returns their names.

    Args: figures, only experiments that these figures show (default: all).
    """
    kept, taken = read_claims(root), []
    for name, run in newest_finished(find_runs(results), "paper").items():
        file = catalogue.find("experiments", name)
        if file and (not figures or catalogue.constants(file).get("FIGURE") in figures):
            kept[name] = Summary.of(run)
            taken.append(name)
            _take_animation(root, name, run.path / "tokens.gif")
    plain = {name: kept[name].plain() for name in sorted(kept)}
    text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False)
    _write(claims_file(root), text + "\n")
    return taken


def _take_animation(root: Path, name: str, file: Path) -> None:
    """Copy a run's animation into the gallery."""
    if file.is_file():
        with replacing(claims_file(root).with_name(f"{name}.gif")) as temporary:
            temporary.write_bytes(file.read_bytes())


def gallery_page(root: Path) -> str:
    """figures/gallery/README.md: every picture that is there, with its caption."""
    gallery = claims_file(root).parent
    parts = [
        "# Gallery\n\n"
        "Figures of the paper preset with their captions, made by `python figures/build.py`; each\n"
        "is here as .pdf as well. The numbers: [docs/results.md](../../docs/results.md).\n"
    ]
    for name in catalogue.names("figures"):
        if not all((gallery / f"{name}.{kind}").exists() for kind in ("png", "txt")):
            continue
        title = catalogue.constants(catalogue.home("figures") / f"{name}.py")["title"]
        caption = (gallery / f"{name}.txt").read_text(encoding="utf-8")
        parts.append(f"\n## {name}\n\n{_picture(title, f'{name}.png')}\n{_prose(caption)}\n")
        if (gallery / f"{name}.gif").exists():
            parts.append(f"\n{_picture(f'{name}, animated', f'{name}.gif')}")
    return "".join(parts)


def _picture(title: str, file: str) -> str:
    return f"![{_prose(title)}]({file})\n"


def apart(summaries: Iterable[Summary]) -> str:
    """How many intervals do not hold the expected number, in a sentence."""
    with_both = [
        (claim.interval, claim.expected)
        for summary in summaries
        for claim in summary.claims
        if claim.interval is not None
        and isinstance(claim.expected, float | int)
        and all(map(math.isfinite, (*claim.interval, claim.expected)))
    ]
    outside = sum(not low <= expected <= high for (low, high), expected in with_both)
    return f"{outside} of the {len(with_both)} intervals around a number do not hold it"


def headline_table(summaries: Sequence[Summary]) -> str:
    """README's table: the headlines of each experiment and what is not consistent."""
    lines = [f"| experiment | claim | {HEADER} command |", "|---|---|---|---|---|---|"]
    for summary in summaries:
        name, command = f"`{summary.name}`", f"`{_cell(summary.command)}`"
        for claim in summary.headlines():
            lines.append(f"| {name} | {_row(claim)} | {command} |")
            name = command = ""  # once for each experiment
    words = (
        "The band decides, not the interval: *consistent* says that the measured number lies in\n"
        f"the experiment's band around the expected one. {apart(summaries)}\n"
        "([docs/results.md](docs/results.md)): an interval tells how far chance moves a slope;\n"
        "terms of higher order, still seen at these sizes, often move it further. A control is\n"
        "wrong on purpose: it *fails, as it should*."
    )
    return "\n".join(lines) + f"\n\n{words}\n"


def results_page(summaries: Sequence[Summary]) -> str:
    """docs/results.md: every claim of every experiment."""
    parts = [
        "# Results at the paper preset\n\n"
        "Every claim of every experiment, its controls included, as the stored runs state it.\n"
        "Made by `python figures/build.py` from [claims.json](../figures/gallery/claims.json).\n"
        "In brackets: 95 % intervals, over replicates, or of the fit of a deterministic curve.\n"
        "The experiment's band around the expected number decides, not the interval:\n"
        f"{apart(summaries)}.\n"
    ]
    for summary in summaries:
        found = catalogue.constants(catalogue.home("experiments") / f"{summary.name}.py")
        seconds = f"{summary.seconds:.0f} s"
        parts.append(f"\n## {summary.name}\n\n{_prose(found.get('CLAIM', ''))}.\n\n")
        parts.append(f"    {summary.command}\n\n{summary.verdict}, {seconds}")
        if isinstance(found.get("FIGURE"), str):
            picture = f"../figures/gallery/{found['FIGURE']}.png"
            parts.append(f", [picture]({picture})")
        parts.append(f"\n\n| claim | {HEADER}\n|---|---|---|---|\n")
        parts += [f"| {_row(claim)} |\n" for claim in summary.claims]
    return "".join(parts)


def with_table(readme: str, table: str) -> str:
    """README's text with the table between its two comments.

    Raises: `MeanfieldError` if it has not one of each.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise MeanfieldError(
            "README.md has no one place for the table", f"{BEGIN} ... {END}", "put them back"
        )
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def write_tables(root: Path) -> None:
    """Make README's table, docs/results.md and the gallery's page from what is stored."""
    summaries = list(read_claims(root).values())
    require(
        summaries,
        f"{claims_file(root)} holds no claims",
        "those of one experiment at least",
        "build from runs: pass --results DIR",
    )
    readme = root / "README.md"
    text = with_table(readme.read_text(encoding="utf-8"), headline_table(summaries))
    _write(readme, text)
    _write(claims_file(root).with_name("README.md"), gallery_page(root))
    _write(root / "docs" / "results.md", results_page(summaries))


def _row(claim: Claim) -> str:
    quantity, expected, measured, interval, verdict = row(claim)
    words = (quantity, expected, f"{measured} {interval}", verdict)
    return " | ".join(_prose(word) for word in words)


def _prose(text: str) -> str:
    """``text`` as Markdown that reads the same: no emphasis, code, links, tags or formulas."""
    text = re.sub(
        r"[\\`*~$]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|\](?=[(\[])", r"\\\g<0>", text
    )
    return _cell(text)


def _cell(text: str) -> str:
    """``text`` as it may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def build(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Pictures, then claims, then tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="figures/build.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures; all without")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of runs")
    parser.add_argument("--tables", action="store_true", help="from the stored claims alone")
    chosen = parser.parse_args(arguments)
    read_claims(root)  # what is damaged is refused before anything is written
    with_table((root / "README.md").read_text(encoding="utf-8"), "")
    if not chosen.tables:
        target = ["--results", str(chosen.results), "--out", str(claims_file(root).parent)]
        code = main(["figures", *chosen.names, *target, "--preset", "paper"])
        if code:
            return code
        taken = take_claims(root, chosen.results, chosen.names)
        sys.stdout.write(f"claims of {', '.join(taken)}\n")
    write_tables(root)
    sys.stdout.write("tables: README.md, docs/results.md, figures/gallery/README.md\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(build(sys.argv[1:]))
    except MeanfieldError as error:
        sys.exit(f"figures/build.py: {error}")
