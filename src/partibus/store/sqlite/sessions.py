"""Answers the loads of the port that are about sessions: their names and their states.

Names come as one JSON array per statement, see `partibus.store.sqlite.reader`; an order of text is that of its UTF-8
bytes in SQLite, and that of its code points in Python, which is the same.
"""

import json
from collections.abc import Iterator
from sqlite3 import Connection

from partibus.partition.protocol.keys import KIND_BITS
from partibus.store.sqlite.sql import statement

_NAMES_AT_ONCE = 4_096
"""Names that one statement finds, or steps over: some 10 ms, see `partibus.store.sqlite.reader`."""

_STATES_AT_ONCE = 65_536
"""States that one statement compares with a time: some 10 ms."""


def scan_sessions(connection: Connection, subqueue: int, after: str | None, max_sessions: int) -> list[str]:
    """Sessions with active entries; see `partition.protocol.ports.Store.scan_sessions`."""
    found: list[str] = []
    start = "" if after is None else _following(after)
    while len(found) < max_sessions:
        most = min(max_sessions - len(found), _NAMES_AT_ONCE)
        (listed,) = connection.execute(statement("scan_sessions"), (subqueue, start, most)).fetchone()
        names = json.loads(listed)
        found += names
        if len(names) < most:
            break
        start = _following(names[-1])
    return found


def list_sessions(
    connection: Connection, subqueue: int, skip: int, top: int, updated_after_ms: int | None
) -> list[str]:
    """Sessions with active entries or a state; see `partition.protocol.ports.Store.list_sessions`."""
    found: list[str] = []
    skip, top = max(0, skip), max(0, top)
    if updated_after_ms is None:
        pages = _named(connection, subqueue, skip + top)
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
    """What was last set; None when nothing was."""
    row = connection.execute(statement("select_session_state"), (partition_row, session)).fetchone()
    return None if row is None else row[0]


def _named(connection: Connection, subqueue: int, most: int) -> Iterator[list[str]]:
    """The first ``most`` sessions with active entries or a state, in pages; the transaction of each is short."""
    start = ""
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
    """Sessions whose state was set after a time, in pages that may be empty."""
    start = ""
    while True:
        parameters = (partition_row, start, after_ms, _STATES_AT_ONCE)
        listed, last = connection.execute(statement("list_updated_sessions"), parameters).fetchone()
        if last is None:
            return
        yield json.loads(listed)
        start = _following(last)


def _following(session: str) -> str:
    """The text that comes directly behind another one."""
    return session + "\x00"
