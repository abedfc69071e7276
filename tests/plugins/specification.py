"""The rows of the specification, as data: spec/rows.toml read and checked."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ROWS = PROJECT / "spec" / "rows.toml"


@dataclass(frozen=True)
class Row:
    """One capability of the specification."""

    id: str
    """Letter of the group, number within it: `K6`."""
    capability: str
    sources: tuple[str, ...]
    """Keys of the table of sources."""
    azure: str
    """Whether the cloud service has it: `has`, `partly`, `no`, `unknown`, `n/a`."""
    settled: str = ""
    """Our reading where the sources leave room; empty where the capability's sentence is the specification."""

    @property
    def group(self) -> str:
        """The letter that the id begins with."""
        return self.id[0]


@dataclass(frozen=True)
class Specification:
    """All rows in the order of the file, and what their groups and sources are called."""

    rows: tuple[Row, ...]
    groups: dict[str, str]
    sources: dict[str, str]

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of all rows."""
        return frozenset(row.id for row in self.rows)


def parse(text: str) -> Specification:
    """Read the text of a rows file.

    Raises ValueError, naming the row, for an id that is malformed, given twice or of no known group, and for
    an unknown source; TypeError for a field that no row has or a missing one.
    """
    data = tomllib.loads(text)
    groups, sources = data["groups"], data["sources"]
    rows: dict[str, Row] = {}
    for fields in data["row"]:
        row = Row(**{**fields, "sources": tuple(fields["sources"])})
        if not re.fullmatch("[A-Z][1-9][0-9]*", row.id) or row.group not in groups:
            raise ValueError(f"row {row.id!r}: an id is the letter of a group ({', '.join(groups)}) and a number")
        if row.id in rows:
            raise ValueError(f"row {row.id} is given twice")
        if unknown := set(row.sources) - set(sources):
            raise ValueError(f"row {row.id}: unknown sources {sorted(unknown)}; known are {sorted(sources)}")
        rows[row.id] = row
    return Specification(tuple(rows.values()), groups, sources)


@cache
def load() -> Specification:
    """The specification of the project."""
    return parse(ROWS.read_text(encoding="utf-8"))
