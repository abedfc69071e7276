"""Serves the port's session loads: names and states.

Names come as one JSON array per statement, see `partibus.store.sqlite.reader`. SQLite orders text by its UTF-8 bytes
and Python by its code points, which is the same order.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from sqlite3 import Connection

from partibus.partition.protocol.keys import KIND_BITS
from partibus.store.sqlite.sql import padded_keys, statement, values_form

_NAMES_AT_ONCE = 4_096
"""The names that one statement finds or skips: some 10 ms, see `partibus.store.sqlite.reader`."""

_STATES_AT_ONCE = 65_536
"""The states that one statement compares with a time: some 10 ms."""


def scan_sessions(
    connection: Connection, subqueue: int, after: str | None, max_sessions: int, state: int = 0
) -> list[str]:
    """Return sessions with entries in a state (`queries.SessionsBehind`)."""
    found: list[str] = []
    start = "" if after is None else _following(after)
    while len(found) < max_sessions:
        most = min(max_sessions - len(found), _NAMES_AT_ONCE)
        (listed,) = connection.execute(statement("scan_sessions"), (subqueue, start, most, state)).fetchone()
        names = json.loads(listed)
        found += names
        if len(names) < most:
            break
        start = _following(names[-1])
    return found


def absent_sessions(connection: Connection, subqueue: int, sessions: Sequence[str]) -> list[str]:
    """Return the sessions without entries (`queries.AbsentSessions`)."""
    present: set[int] = set()
    for chunk in padded_keys(list(enumerate(sessions))):
        form = values_form("find_sessions", len(chunk))
        (listed,) = connection.execute(form, (subqueue, *chain.from_iterable(chunk))).fetchone()
        present.update(json.loads(listed))
    return [session for place, session in enumerate(sessions) if place not in present]


def list_sessions(
    connection: Connection, subqueue: int, skip: int, top: int, updated_after_ms: int | None, after: str | None
) -> list[str]:
    """Return sessions with active entries or a state (`queries.SessionList`)."""
    found: list[str] = []
    skip, top = max(0, skip), max(0, top)
    if updated_after_ms is None:
        pages = _named(connection, subqueue, skip + top, after)
    else:
        pages = _updated(connection, subqueue >> KIND_BITS, updated_after_ms)
    if top == 0:
        return found
    for names in pages:
        found += names[skip:]
        skip = max(0, skip - len(names))
        if len(found) >= top:
            break
    return found[:top]


def session_state(connection: Connection, partition_row: int, session: str) -> bytes | None:
    """Return the state that was last set; None if none was."""
    row = connection.execute(statement("select_session_state"), (partition_row, session)).fetchone()
    return None if row is None else row[0]


def _named(connection: Connection, subqueue: int, most: int, after: str | None) -> Iterator[list[str]]:
    """Yield the first ``most`` sessions with active entries or a state, in pages; each transaction is short."""
    start = "" if after is None else _following(after)
    while most > 0:
        wanted = min(most, _NAMES_AT_ONCE)
        parameters = (subqueue, subqueue >> KIND_BITS, start, wanted)
        (listed,) = connection.execute(statement("list_sessions"), parameters).fetchone()
        names = json.loads(listed)
        yield names
        if len(names) < wanted:
            return
        most -= wanted
        start = _following(names[-1])


def _updated(connection: Connection, partition_row: int, after_ms: int) -> Iterator[list[str]]:
    """Yield sessions whose state was set after a time, in pages that may be empty."""
    start = ""
    while True:
        parameters = (partition_row, start, after_ms, _STATES_AT_ONCE)
        listed, last = connection.execute(statement("list_updated_sessions"), parameters).fetchone()
        if last is None:
            return
        yield json.loads(listed)
        start = _following(last)


def _following(session: str) -> str:
    """Return the text that follows directly after ``session``."""
    return session + "\x00"
