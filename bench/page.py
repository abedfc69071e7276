"""docs/benchmarks.md from results.jsonl."""

from __future__ import annotations

from pathlib import Path


def write_page(results: Path, page: Path) -> None:
    raise NotImplementedError
