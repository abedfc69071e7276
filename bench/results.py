"""`results.jsonl`: a line for each run with its machine and the parts that were measured in it, and a line for each
measurement, which names its part."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.jsonl"

Row = dict[str, Any]


def note(text: str) -> None:
    """Tell how far a part is whose first row takes long. Standard output has the rows alone."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def read(path: Path) -> tuple[list[Row], list[Row]]:
    """The runs (``machine``, ``parts``) and the measurements."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "machine" in row], [row for row in rows if "machine" not in row]


def replace_all(path: Path, machine: Row, rows: Sequence[Row]) -> None:
    """A run of everything that there is."""
    _write(path, [_run(machine, rows)], rows)


def keep(path: Path, machine: Row, rows: Sequence[Row]) -> None:
    """A run of some parts: what it measured takes the place of the former rows of these parts."""
    runs, former = read(path) if path.exists() else ([], [])
    new = _run(machine, rows)
    for run in runs:
        run["parts"] = [part for part in run["parts"] if part not in new["parts"]]
    former = [row for row in former if row["part"] not in new["parts"]]
    _write(path, [*(run for run in runs if run["parts"]), new], [*former, *rows])


def _run(machine: Row, rows: Iterable[Row]) -> Row:
    return {"machine": machine, "parts": list(dict.fromkeys(row["part"] for row in rows))}


def _write(path: Path, runs: Iterable[Row], rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in (*runs, *rows)))
