"""`results.jsonl`: a line about the machine, then one line per measurement, each with its part and its day."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results.jsonl"

Row = Mapping[str, object]


def replace_all(path: Path, machine: Row, rows: Iterable[Row]) -> None:
    """A run of everything that there is."""
    path.write_text("".join(json.dumps(row) + "\n" for row in (machine, *rows)))


def keep(path: Path, machine: Row, rows: Sequence[Row]) -> None:
    """A run of some parts: what it measured takes the place of the former rows of these parts."""
    measured = {row["part"] for row in rows}
    lines = path.read_text().splitlines() if path.exists() else []
    former = [row for row in map(json.loads, lines) if "machine" not in row and row["part"] not in measured]
    replace_all(path, machine, [*former, *rows])
