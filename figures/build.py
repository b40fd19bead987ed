"""Rebuild the gallery and the tables of README and docs/results.md from runs of the paper preset.

    python figures/build.py --results DIR [NAME ...]     from the newest finished runs in DIR
    python figures/build.py --tables                     only the tables, from what is stored

It solves nothing; the runs come from ``meanfield run all --preset paper --out DIR``. The claims of
all runs are kept in figures/gallery/claims.json, and both tables are made from that file alone:
experiments that have no run in DIR keep their rows. Pictures are those of ``meanfield figures``.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from meanfield.__main__ import main
from meanfield._checks import MeanfieldError
from meanfield._commands import catalogue
from meanfield._commands.summary import Summary, newest_finished, row
from meanfield._files import replacing
from meanfield.records import Claim, find_runs

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- claims: written by figures/build.py -->"
END = "<!-- claims: end -->"
HEADER = "expected | measured | verdict |"


def claims_file(root: Path) -> Path:
    """Where the claims are kept."""
    return root / "figures" / "gallery" / "claims.json"


def read_claims(root: Path) -> dict[str, Summary]:
    """The stored claims by experiment; those of experiments that are no more are left out."""
    path = claims_file(root)
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = catalogue.names("experiments")
    return {
        name: Summary.from_plain(name, stored[name]) for name in sorted(stored) if name in known
    }


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
    plain = {name: kept[name].plain() for name in sorted(kept)}
    text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False)
    _write(claims_file(root), text + "\n")
    return taken


def headline_table(summaries: Iterable[Summary]) -> str:
    """README's table: the headlines of each experiment and whatever is not consistent."""
    lines = [f"| experiment | claim | {HEADER} command |", "|---|---|---|---|---|---|"]
    for summary in summaries:
        name, command = f"`{summary.name}`", f"`{_cell(summary.command)}`"
        for claim in summary.headlines():
            lines.append(f"| {name} | {_row(claim)} | {command} |")
            name = command = ""  # once for each experiment
    return "\n".join(lines) + "\n"


def results_page(summaries: Iterable[Summary]) -> str:
    """docs/results.md: every claim of every experiment."""
    parts = [
        "# Results at the paper preset\n\n"
        "Every claim of every experiment, its controls included, as the stored runs state it.\n"
        "Made by `python figures/build.py` from [claims.json](../figures/gallery/claims.json).\n"
        "In brackets: 95 % intervals, over replicates, or of the fit of a deterministic curve.\n"
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
    """Make README's table and docs/results.md from the stored claims."""
    summaries = list(read_claims(root).values())
    readme = root / "README.md"
    text = with_table(readme.read_text(encoding="utf-8"), headline_table(summaries))
    _write(readme, text)
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
    if not chosen.tables:
        target = ["--results", str(chosen.results), "--out", str(claims_file(root).parent)]
        code = main(["figures", *chosen.names, *target, "--preset", "paper"])
        if code:
            return code
        taken = take_claims(root, chosen.results, chosen.names)
        sys.stdout.write(f"claims of {', '.join(taken)}\n")
    write_tables(root)
    sys.stdout.write("tables: README.md, docs/results.md\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(build(sys.argv[1:]))
    except MeanfieldError as error:
        sys.exit(f"figures/build.py: {error}")
