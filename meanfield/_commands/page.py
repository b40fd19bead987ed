"""The HTML of ``meanfield report``: one page without scripts or anything from outside.

Whatever comes from a file is escaped here, by `text` and by nothing else.
"""

import base64
import dataclasses
import html
from collections.abc import Iterable, Sequence

from meanfield._commands.summary import Summary
from meanfield.records import CONSISTENT, INCONSISTENT, UNDECIDED, Claim, row

DOTS_PER_INCH = 200  # of the pictures,
PIXELS_PER_INCH = 140  # shown at this size, a little larger than in print
VERDICTS = (CONSISTENT, INCONSISTENT, UNDECIDED)

GENERATOR = '<meta name="generator" content="meanfield report">'

_HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
{GENERATOR}
"""

# A verdict is told by its word and by its mark's shape; colour (Okabe and Ito's) only repeats it.
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --pale: #5a5a5a; --line: #d0d0d0;
  --band: #f4f4f2; --link: #005a8e; --consistent: #00805d; --inconsistent: #c44f00;
  --undecided: #7a5c00; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e6e4e0; --pale: #a9a7a2;
  --line: #43464a; --band: #202326; --link: #7cc4f0; --consistent: #2fc79a;
  --inconsistent: #ff8a3d; --undecided: #e8b93a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.4rem 0; }
h2 { font-size: 1.25rem; margin: 0 0 0.3rem; }
section { border-top: 2px solid var(--line); margin-top: 2.2rem; padding-top: 1rem; }
a { color: var(--link); }
.pale { color: var(--pale); font-size: 0.9rem; }
.scroll { overflow-x: auto; margin: 0.8rem 0; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; overflow-wrap: break-word; }
th, td { text-align: left; vertical-align: top; padding: 0.28rem 0.7rem 0.28rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; }
td.wide, .pairs td { min-width: 13rem; overflow-wrap: anywhere; }
td.line { min-width: 21rem; }
.whole { white-space: nowrap; }
table.pairs { width: auto; }
th.number, td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.inconsistent td, tr.undecided td { background: var(--band); font-weight: 600; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.85rem; }
pre { background: var(--band); padding: 0.6rem 0.8rem; margin: 0.6rem 0; white-space: pre-wrap; }
pre.theory { white-space: pre; overflow-x: auto; }
details { margin: 0.6rem 0; }
summary { cursor: pointer; }
figure { margin: 1rem 0; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; padding: 0.4rem; }
.zoom { display: block; position: relative; overflow-x: auto; cursor: zoom-in; }
.zoom input { position: absolute; opacity: 0; }
.zoom input:checked + img { width: auto; max-width: none; cursor: zoom-out; }
.zoom input:focus-visible + img { outline: 2px solid var(--link); outline-offset: -2px; }
figcaption { font-size: 0.85rem; color: var(--pale); margin-top: 0.4rem; }
.mark { width: 0.8em; height: 0.8em; margin-right: 0.35em; vertical-align: -0.04em; }
.mark.consistent { fill: var(--consistent); }
.mark.inconsistent { fill: none; stroke: var(--inconsistent); stroke-width: 3; }
.mark.undecided { fill: none; stroke: var(--undecided); stroke-width: 2; }
@media screen and (max-width: 44rem) {
  body { padding: 0.8rem; }
  table, tbody, tr, td { display: block; width: 100%; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tr { border-bottom: 1px solid var(--line); padding: 0.4rem 0.2rem; }
  td, td.number { border: 0; padding: 0.05rem 0 0.05rem 7.5rem; text-align: left; min-height: 1em;
    position: relative; }
  td::before { content: attr(data-label); position: absolute; left: 0; width: 7rem;
    color: var(--pale); font-weight: 400; }
  td:first-child { padding-left: 0; font-weight: 600; }
  td:first-child::before { content: none; }
  td:empty { display: none; }
  td.wide, .pairs td, td.line { min-width: 0; }
  td.line { overflow-wrap: anywhere; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --pale: #333; --line: #bbb; --band: #f4f4f2; --link: #000;
    --consistent: #00805d; --inconsistent: #c44f00; --undecided: #7a5c00; }
  @page { margin: 15mm; }
  html { font-size: 9pt; }
  body { padding: 0; max-width: none; }
  a { text-decoration: none; }
  .scroll { overflow: visible; }
  td.wide, .pairs td { min-width: 0; }
  td.line { min-width: 17rem; }
  pre.theory { white-space: pre-wrap; }
  h2, .keep, summary { break-after: avoid; }
  tr, figure, pre { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; opacity: 1; }
  .screen { display: none; }
  .zoom { overflow: visible; }
  .zoom input:checked + img { max-width: 100%; }
}
"""

_SHAPES = """<svg width="0" height="0" style="position: absolute" aria-hidden="true">
<symbol id="consistent" viewBox="0 0 10 10"><circle cx="5" cy="5" r="4.4"/></symbol>
<symbol id="inconsistent" viewBox="0 0 10 10"><path d="M1.2 1.2L8.8 8.8M8.8 1.2L1.2 8.8"/></symbol>
<symbol id="undecided" viewBox="0 0 10 10"><path d="M5 1.4L9 8.8H1z"/></symbol>
</svg>
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """What the page shows of one run.

    Args:
        summary: its claims, preset, seconds and command.
        place: its folder.
        started: when, as the run wrote it.
        made_with: versions and device, a line.
        claim: what the experiment claims, in a sentence; "" if that is not known.
        theory: the equations of the experiment, lines of plain text; "" if not known.
        picture: PNG, or None with a `reason`.
        described: the picture in a few words.
        caption: the picture's caption.
        reason: why there is no picture; "" if there is one, or none is meant to be.
        animations: GIF files by name.
        remarks: what else a reader should know.
        settings: (name, value) of parameters and seeds.
        files: (name, size) of what is stored.
    """

    summary: Summary
    place: str
    started: str
    made_with: str
    claim: str
    theory: str
    picture: bytes | None
    described: str
    caption: str
    reason: str
    animations: Sequence[tuple[str, bytes]]
    remarks: Sequence[str]
    settings: Sequence[tuple[str, str]]
    files: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Page:
    """The whole page.

    Args:
        folder: the results' folder, as the user gave it.
        sections: a run each.
        others: (folder, experiment, preset, status, started, command) of runs not shown in full.
        damaged: folders whose manifest cannot be read.
        closed: folders that cannot be entered.
    """

    folder: str
    sections: Sequence[Section]
    others: Sequence[tuple[str, ...]]
    damaged: Sequence[str]
    closed: Sequence[str]


def text(value: str) -> str:
    """``value`` as text of the page, whatever it holds."""
    return html.escape(value, quote=True)


def render(page: Page) -> str:
    """The page; the same results give the same characters."""
    title = f"Results in {text(page.folder)}"
    return "".join(
        [
            _HEAD,
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
            _SHAPES,
            f"<header>\n<h1>{title}</h1>\n{_origin(page.sections)}</header>\n<main>\n",
            _overview(page.sections),
            *(_section(section, number) for number, section in enumerate(page.sections, 1)),
            _others(page),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _origin(sections: Sequence[Section]) -> str:
    """When, with what: one line where all runs agree, else a line for each kind."""
    if not sections:
        return "<p>No finished run.</p>\n"
    started = sorted(section.started for section in sections)
    counts = ", ".join(
        f"{sum(section.summary.count(verdict) for section in sections)} {verdict}"
        for verdict in VERDICTS
    )
    plural = "s" if len(sections) > 1 else ""
    when = started[0] if started[0] == started[-1] else f"{started[0]} to {started[-1]}"
    lines = [
        f"The newest finished runs of {len(sections)} experiment{plural}. Claims: {counts}.",
        f"Started {when}.",
    ]
    kinds: dict[str, list[str]] = {}
    for section in sections:
        kinds.setdefault(section.made_with, []).append(section.summary.name)
    for kind, names in kinds.items():
        lines.append(f"{kind}." if len(kinds) == 1 else f"{', '.join(names)}: {kind}.")
    return "".join(f'<p class="pale">{text(line)}</p>\n' for line in lines)


def _overview(sections: Sequence[Section]) -> str:
    if not sections:
        return ""
    rows = []
    for number, section in enumerate(sections, 1):
        summary = section.summary
        cells = [
            f'<td class="whole"><a href="#run-{number}">{text(summary.name)}</a></td>',
            f"<td>{text(summary.preset or '')}</td>",
            f'<td class="whole">{_verdict(summary.verdict)}</td>',
            *(f'<td class="number">{summary.count(verdict)}</td>' for verdict in VERDICTS),
            f'<td class="number">{summary.seconds:.1f}</td>',
            f'<td class="line">{_code(summary.command)}</td>',
        ]
        rows.append((summary.verdict, cells))
    header = ["experiment", "preset", "verdict", *(f"#{v}" for v in VERDICTS), "#seconds"]
    return _table("Overview", [*header, "command"], rows) + (
        '<p class="pale">A run is as good as its worst claim. Not the interval decides but'
        " the band that an experiment sets around the expected value. Intervals are Student's 95 %"
        " intervals over replicates, or of the fit where a curve is deterministic. In a control"
        " something is wrong on purpose, and the check has to notice it.</p>\n"
    )


def _section(section: Section, number: int) -> str:
    summary = section.summary
    facts = [
        f"preset {summary.preset}" if summary.preset else "no preset",
        f"started {section.started}",
        f"{summary.seconds:.1f} s",
        section.place,
    ]
    parts = [f'<section id="run-{number}">\n<h2>{text(summary.name)}</h2>\n']
    if section.claim:
        parts.append(f"<p>Claim: {text(section.claim)}.</p>\n")
    parts.append(f'<p class="keep">{_verdict(summary.verdict)}</p>\n')
    parts.append(f'<p class="pale">{text(" · ".join(facts))}</p>\n')
    parts += [f"<p>{text(remark)}</p>\n" for remark in section.remarks]
    parts.append(_claims(f"Claims of {summary.name}", summary.claims))
    parts.append(_picture(section))
    for name, data in section.animations:
        image = _image("gif", data, f"Animation {name}")
        parts.append(
            f'<details class="screen"><summary>Animation: {text(name)}</summary>\n'
            f"<figure>{image}</figure>\n</details>\n"
        )
    parts.append(f"<pre>{_code(summary.command)}</pre>\n")
    if section.theory:
        theory = f'<pre class="theory" tabindex="0">{text(section.theory)}</pre>'
        parts.append(_hidden("What is claimed, with equations", theory))
    parts.append(_hidden("Configuration", _pairs("parameter", "value", section.settings)))
    parts.append(_hidden("Stored files", _pairs("file", "size", section.files)))
    parts.append("</section>\n")
    return "".join(parts)


def _claims(label: str, claims: Iterable[Claim]) -> str:
    rows = []
    for claim in claims:
        quantity, expected, measured, interval, verdict = row(claim)
        cells = [
            f'<td class="wide">{text(quantity)}</td>',
            f'<td class="{"whole" if len(expected) < 25 else ""}">{text(expected)}</td>',
            f'<td class="number">{text(measured)}</td>',
            f'<td class="number">{text(interval)}</td>',
            f'<td class="whole">{_verdict(claim.verdict, verdict)}</td>',
        ]
        rows.append((claim.verdict, cells))
    if not rows:
        return "<p>This run claims nothing.</p>\n"
    header = ["quantity", "expected", "#measured", "#95 % interval", "verdict"]
    return _table(label, header, rows)


def _picture(section: Section) -> str:
    if section.picture is None:
        reason = f'<p class="pale">No picture: {text(section.reason)}</p>\n'
        return reason if section.reason else ""
    image = _image("png", section.picture, section.described)
    caption = f"<figcaption>{text(section.caption)}</figcaption>"
    zoom = f'<input type="checkbox" aria-label="full size">{image}'
    return f'<figure><label class="zoom">{zoom}</label>\n{caption}</figure>\n'


def _others(page: Page) -> str:
    parts = []
    if page.others:
        rows = []
        for folder, name, preset, status, started, command in page.others:
            line = _code(command) if command else ""
            cells = [f"<td>{text(word)}</td>" for word in (folder, name, preset, status, started)]
            rows.append(("", [*cells, f'<td class="line">{line}</td>']))
        header = ["folder", "experiment", "preset", "status", "started", "goes on with"]
        parts.append("<section>\n<h2>Older and unfinished runs</h2>\n")
        parts.append(_table("Older and unfinished runs", header, rows))
        parts.append("</section>\n")
    if page.damaged:
        items = "".join(f"<li>{text(folder)}</li>\n" for folder in page.damaged)
        parts.append(
            "<section>\n<h2>Left out</h2>\n<p>The manifest of these cannot be read.</p>\n"
            f"<ul>\n{items}</ul>\n</section>\n"
        )
    if page.closed:
        items = "".join(f"<li>{text(folder)}</li>\n" for folder in page.closed)
        parts.append(
            "<section>\n<h2>Closed folders</h2>\n<p>These cannot be entered.</p>\n"
            f"<ul>\n{items}</ul>\n</section>\n"
        )
    return "".join(parts)


def _verdict(verdict: str, words: str = "") -> str:
    mark = f'<svg class="mark {verdict}" aria-hidden="true"><use href="#{verdict}"/></svg>'
    return f"{mark}{words or verdict}"


def _code(line: str) -> str:
    """A command; a break may stand before a flag, not within its dashes."""
    words = (
        f'<span class="whole">{text(word)}</span>' if word.startswith("--") else text(word)
        for word in line.split(" ")
    )
    return f"<code>{' '.join(words)}</code>"


def _table(
    label: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], kind: str = ""
) -> str:
    """A table that scrolls by itself, on narrow screens a list; # marks a column of numbers."""
    heads = "".join(
        f'<th scope="col" class="number">{text(word[1:])}</th>'
        if word.startswith("#")
        else f'<th scope="col">{text(word)}</th>'
        for word in header
    )
    names = [text(word.removeprefix("#")) for word in header]
    body = "".join(
        f'<tr class="{look}">{"".join(map(_labelled, names, cells))}</tr>\n' for look, cells in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">\n'
        f'<table class="{kind}">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def _labelled(name: str, cell: str) -> str:
    """A cell that knows its column's name: narrow screens show rows as lists."""
    return cell.replace("<td", f'<td data-label="{name}"', 1)


def _pairs(first: str, second: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = [("", [f"<td>{text(name)}</td>", f"<td>{text(value)}</td>"]) for name, value in rows]
    return _table(f"{first}, {second}", [first, second], cells, "pairs")


def _hidden(label: str, content: str) -> str:
    return f"<details><summary>{text(label)}</summary>\n{content}\n</details>\n"


def _image(kind: str, data: bytes, described: str) -> str:
    scale = 1.0 if kind == "gif" else PIXELS_PER_INCH / DOTS_PER_INCH
    width, height = (round(scale * size) for size in _size(kind, data))
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    return f'<img src="{source}" width="{width}" height="{height}" alt="{text(described)}">'


def _size(kind: str, data: bytes) -> tuple[int, int]:
    """Pixels across and down, from the file's own header."""
    if kind == "png":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
