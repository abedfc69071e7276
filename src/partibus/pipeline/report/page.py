"""A page: headline, verdict, figures in tiles, sections of tables and plots.

Blocks are HTML. Every foreign value goes through `text` on its way into one.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil
from pathlib import Path
from typing import NamedTuple

CSS = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


SHORT_CODE = 32
"""Characters of code that stay on one line."""
WHOLE_NAME = 36
"""Characters of a name in a table that stays on one line of a broad screen: those of a UUID."""
TILES_IN_A_ROW = 5
"""The most figures beside each other on a broad screen."""
NARROW_TABLE = 40
"""Characters of a table's broadest row, with two for each gap, that a screen of 400 pixels shows side by side."""

_TAG = re.compile("<[^>]*>")
_UNBROKEN = re.compile(
    r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?"  # a time
    r"|(?:&lt; )?\d[\d,.]* (?:%|µs|ms|s|min|h|d|[kMGT]?B)(?!\w)"  # a number with its unit
)


class Verdict(NamedTuple):
    """The one sentence that answers the reader's question."""

    good: bool | None
    """None: neither good nor bad."""
    word: str
    sentence: str


class Section(NamedTuple):
    """A part of the page under a headline."""

    title: str
    blocks: Sequence[str]


class Page(NamedTuple):
    """A page before it is HTML. ``title``, ``lead`` and tiles are plain text."""

    title: str
    lead: str
    sections: Sequence[Section]
    verdict: Verdict | None = None
    tiles: Sequence[tuple[str, str]] = ()
    """Figures with their labels."""


def render(page: Page) -> str:
    """Return the text of the file."""
    tiles = "".join(f"<div><b>{escape(figure)}</b><span>{escape(what)}</span></div>" for figure, what in page.tiles)
    sections = "".join(
        f"<section><h2>{escape(section.title)}</h2>{''.join(section.blocks)}</section>" for section in page.sections
    )
    if tiles:  # rows of a broad screen are as long as each other, as far as they can be
        columns = ceil(len(page.tiles) / ceil(len(page.tiles) / TILES_IN_A_ROW))
        tiles = f'<div class="figures" style="--columns: {columns}">{tiles}</div>'
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(page.title)}</title><style>{CSS}</style></head><body><main>"
        f"<header><h1>{escape(page.title)}</h1><p>{_running(page.lead)}</p></header>"
        f"{_verdict(page.verdict)}{tiles}{sections}"
        f"<footer>Written by partibus, {made}. Times are UTC.</footer></main></body></html>\n"
    )


def text(value: object) -> str:
    """Return any value as HTML, in one piece: a cell of a narrow screen has one value."""
    running = _running(str(value))
    return f"<span>{running}</span>" if "<" in running else running


def code(value: object) -> str:
    """Return a foreign name as HTML code."""
    return f"<code>{escape(str(value))}</code>"


def whole(cell: str) -> str:
    """Return a cell of `text` or `code` that breaks on narrow screens only, unless it is long."""
    return f'<span class="whole">{cell}</span>' if len(_TAG.sub("", cell)) <= WHOLE_NAME else cell


def prose(sentences: str) -> str:
    """Return plain text as HTML, with what is between backticks as code."""

    def as_code(found: re.Match[str]) -> str:
        # A line break after a hyphen would tear an option apart; a long command has to break.
        kind = ' class="short"' if len(found[1]) <= SHORT_CODE else ""
        return f"<code{kind}>{found[1]}</code>"

    return re.sub(r"`([^`]+)`", as_code, _running(sentences))


def paragraph(sentences: str) -> str:
    """Return plain text as a paragraph."""
    return f"<p>{_running(sentences)}</p>"


def figure(svg: str, caption: str = "") -> str:
    """Return a plot with its caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{below}</figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """Return a table. Cells are HTML, heads are plain text, columns in ``numeric`` are aligned right.

    Without rows a note replaces the table.
    """
    right = set(numeric)

    classes = [' class="n"' if place in right else "" for place in range(len(head))]
    # A narrow screen shows a row of a broad table as a list, in which each cell has its head beside it.
    labels = [f' data-head="{escape(title)}"' for title in head]

    def row(cells: Iterable[str]) -> str:
        given = zip(classes, labels, cells, strict=True)
        return "".join(f"<td{class_}{label}>{cell}</td>" for class_, label, cell in given)

    rows = [list(cells) for cells in rows]
    if not rows:
        return "<p>None.</p>"
    breadths = [max(len(_TAG.sub("", cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    narrow = ' class="narrow"' if sum(breadths) + 2 * len(breadths) <= NARROW_TABLE else ""
    heads = "".join(f"<th{class_}>{escape(title)}</th>" for class_, title in zip(classes, head, strict=True))
    body = "".join(f"<tr>{row(cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table{narrow}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(summary: str, *blocks: str) -> str:
    """Return blocks that are shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(blocks)}</details>"


def beside(*blocks: str) -> str:
    """Return blocks next to each other where there is room."""
    return f'<div class="side">{"".join(f"<div>{block}</div>" for block in blocks)}</div>'


def mark(good: bool) -> str:
    """Return the sign of a good or bad result."""
    return '<span class="ok">✓</span>' if good else '<span class="bad">✗</span>'


def number(value: float) -> str:
    """Format a number as `12,345`, with three digits when it is small."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 message`, `2 messages`."""
    return f"{number(count)} {noun if count == 1 else plural or f'{noun}s'}"


def in_words(name: str) -> str:
    """Return a name of the wire as words: `dead-lettered` for `dead_lettered`."""
    return name.replace("dead_letter", "dead-letter").replace("_", " ")


def percent(share: float) -> str:
    """Format a share as `12.3 %`. A share above zero never shows as 0."""
    return "< 0.1 %" if 0 < share < 0.001 else f"{share:.1%}".replace("%", " %")


def range_of_times(times: Iterable[float]) -> str:
    """Return a sentence with the first and last of Unix times, with a space before it; empty without times."""
    known = list(times)
    if not known:
        return ""
    return f" From {moment(min(known))} to {moment(max(known))}."


def moment(at: float) -> str:
    """Format a Unix time as `2026-01-31 12:00:00`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment_of(at: str | None) -> str:
    """Format a time of ISO 8601 in UTC as `moment` does; an absent one is empty."""
    return (at or "")[:19].replace("T", " ")


def size(size_bytes: float) -> str:
    """Format a size as `1.5 MB`, in powers of ten."""
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= power:
            return f"{size_bytes / power:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def time_of_us(value_us: float) -> str:
    """Format a duration as `1.2 ms`, from ten minutes on as `12.5 min`, `3 h` or `4 d`."""
    for unit, power, least in (("d", 8.64e10, 2), ("h", 3.6e9, 2), ("min", 6e7, 10), ("s", 1e6, 1), ("ms", 1e3, 1)):
        if value_us >= power * least:
            value = value_us / power
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{value_us:.3g} µs"


def _running(sentences: str) -> str:
    """Return plain text as HTML in which no line ends inside a time, or between a number and its unit."""
    return _UNBROKEN.sub(r'<span class="unbroken">\g<0></span>', escape(sentences))


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    kind = "" if verdict.good is None else " ok" if verdict.good else " bad"
    return f'<p class="verdict{kind}"><b>{escape(verdict.word)}</b> {_running(verdict.sentence)}</p>'
