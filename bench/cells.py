"""How numbers and tables are written on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> Iterator[str]:
    """Nothing if there are no rows."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    if lines:
        head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        yield "\n".join([f"## {title}", "", *([note] if note else []), *head, *lines, ""])


def percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def fine(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
