"""`partibus cursor`: what it shows, what it warns of, and what it asks of the broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partibus.cli.cursor import warnings
from partibus.client.extensions.ranges import CursorPartition, CursorSummary
from tests.unit.cli.conftest import Run
from tests.unit.client.broker import TinyBroker

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def partition(index: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a partition's facts as the broker tells them."""
    return {
        "partition-id": index,
        "epoch": 0,
        "until": 0,
        "position": 10,
        "fate-position": -1,
        "complete-from": 0,
        "moved": NOW_MS - 60_000,
        "end-position": 15,
        "bound-bytes": 1 << 20,
        "retained": 3,
        "retained-bytes": 1_000,
        **fields,
    }


def summary(*partitions: dict[str, Any]) -> CursorSummary:
    found = [CursorPartition(**{_FIELDS[key]: value for key, value in one.items()}) for one in partitions]
    return CursorSummary("nightly", tuple(found), NOW_MS)


_FIELDS = {
    "partition-id": "partition_id",
    "epoch": "epoch",
    "until": "until_ms",
    "position": "position",
    "fate-position": "disposition_position",
    "complete-from": "complete_from",
    "moved": "moved_ms",
    "end-position": "end_pos",
    "bound-bytes": "bound_bytes",
    "retained": "retained",
    "retained-bytes": "retained_bytes",
}


def tells(broker: TinyBroker, *cursors: dict[str, Any]) -> None:
    broker.answers["partibus:cursors"] = lambda _: (200, None, "OK", {"cursors": list(cursors), "now-ms": NOW_MS})
    broker.answers["partibus:close-cursor"] = lambda _: (200, None, "OK", {})


def test_the_table_sums_partitions(broker: TinyBroker, run: Run) -> None:
    alone = partition(1, epoch=4, until=NOW_MS + 1_000, **{"end-position": 1_012})
    tells(broker, {"name": "nightly", "kind": 0, "partitions": [partition(), alone]})
    result = run("cursor", "list", "orders")
    assert result.exit_code == 0
    assert "nightly" in result.output
    assert "1,007" in result.output
    assert "2.0 KB" in result.output
    assert "2023-11-14 22:13:21 UTC" in result.output
    assert "Warning" not in result.output
    assert broker.requests == [("orders/$management", "partibus:cursors", {})]


def test_json_has_the_numbers_and_the_warnings(broker: TinyBroker, run: Run) -> None:
    tells(broker, {"name": "nightly", "kind": 0, "partitions": [partition(moved=NOW_MS - 2 * HOUR_MS)]})
    found = json.loads(run("cursor", "list", "orders", "--json").output)
    (warning,) = found.pop("warnings")
    assert "has not moved since 2023-11-14 20:13:20 UTC" in warning
    assert found == {
        "cursor": "nightly",
        "partitions": 1,
        "lag": 5,
        "retained": 3,
        "retained_bytes": 1_000,
        "moved_ms": NOW_MS - 2 * HOUR_MS,
        "exclusive_until_ms": None,
    }


def test_without_cursors(broker: TinyBroker, run: Run) -> None:
    tells(broker)
    result = run("cursor", "list", "orders")
    assert (result.exit_code, result.output) == (0, "'orders' has no cursors.\n")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("nightly", "Cursor 'nightly' of 'orders' dropped.\n"),
        ("other", "'orders' has no cursor 'nightly'.\n"),
    ],
)
def test_drop(broker: TinyBroker, run: Run, known: str, said: str) -> None:
    tells(broker, {"name": known, "kind": 0, "partitions": [partition()]})
    result = run("cursor", "drop", "orders", "nightly")
    assert (result.exit_code, result.output) == (0, said)
    assert broker.requests[-1] == ("orders/$management", "partibus:close-cursor", {"name": "nightly", "drop": True})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, []),
        ({"retained-bytes": (1 << 19) + 1}, ["cursor 'nightly' lags: 512 KB of 1 MB are kept in partition 0"]),
        ({"complete-from": 12}, ["cursor 'nightly' has lost messages in partition 0"]),
        ({"moved": NOW_MS - HOUR_MS - 1}, ["cursor 'nightly' has not moved since"]),
        ({"moved": NOW_MS - HOUR_MS - 1, "position": 15}, []),
        ({"retained-bytes": 1 << 30, "bound-bytes": 0}, []),
    ],
    ids=["all is well", "half of the bound", "cut", "silent", "silent at the end", "keeps nothing"],
)
def test_what_is_warned_of(fields: dict[str, Any], said: list[str]) -> None:
    found = list(warnings(summary(partition(**fields))))
    assert len(found) == len(said)
    assert all(text in warning for text, warning in zip(said, found, strict=True))
