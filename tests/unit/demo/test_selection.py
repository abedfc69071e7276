"""The expected content of subscriptions, computed by pandas; each fault is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from partibus.demo.flights import FLIGHT_COUNT, read_flights
from partibus.demo.proof import SELECTED, check_selection, compare, compare_selections, read_input
from partibus.demo.topology import ALL, SUBSCRIPTIONS

Frame = Any

EXPECTED = pd.DataFrame({"message_id": [f"flight-{row:06d}" for row in (0, 2, 3, 7)]})


def everything() -> Frame:
    """Messages of ten rows; the key is odd or even, the partition as the key."""
    return pd.DataFrame(
        {
            "message_id": [f"flight-{row:06d}" for row in range(10)],
            "partition_key": ["even", "odd"] * 5,
            "partition_id": [0, 1] * 5,
            "sequence_number": [row % 2 << 48 | row for row in range(10)],
            "fingerprint": [1000 + row for row in range(10)],
        }
    )


def found() -> Frame:
    return everything().iloc[[7, 0, 3, 2]].reset_index(drop=True)


def changed(column: str, value: object) -> Frame:
    """Return the frame with another value in the message of row 3."""
    frame = found()
    frame.loc[frame["message_id"] == "flight-000003", column] = value
    return frame


def test_what_should_be_there_holds_in_any_order_of_reading() -> None:
    selection = compare("some", EXPECTED, found(), everything())
    assert selection == ("some", 4, 4, 0, 0, 0, 0, 0)
    assert check_selection(selection).holds


FAULTS: dict[str, tuple[Callable[[], Frame], dict[str, int]]] = {
    "one lost": (lambda: found().iloc[1:], {"missing": 1}),
    "all lost": (lambda: found().iloc[:0], {"missing": 4}),
    "one too many": (lambda: pd.concat([found(), everything().iloc[[4]]]), {"unexpected": 1}),
    "one twice": (lambda: pd.concat([found(), found().iloc[[1]]]), {"repeated": 1}),
    "one for another": (lambda: pd.concat([found().iloc[1:], everything().iloc[[9]]]), {"missing": 1, "unexpected": 1}),
    "content": (lambda: changed("fingerprint", 7), {"altered": 1}),
    "partition": (lambda: changed("partition_id", 0), {"altered": 1}),
    "key": (lambda: changed("partition_key", "even"), {"altered": 1}),
    "order": (lambda: changed("sequence_number", 1 << 48 | 8), {"out of order": 1}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_counted_as_what_it_is(name: str) -> None:
    fault, expected = FAULTS[name]
    selection = compare("some", EXPECTED, fault(), everything())
    assert selection.faults == expected
    check = check_selection(selection)
    assert not check.holds
    assert all(f"{count} {words}" in check.found for words, count in expected.items())


def test_a_message_that_nobody_sent_is_unexpected() -> None:
    stranger = found().assign(message_id=["flight-000007", "x", "flight-000003", "flight-000002"])
    assert compare("some", EXPECTED, stranger, everything()).faults == {"missing": 1, "unexpected": 1, "altered": 1}


def test_rows_of_the_whole_input() -> None:
    flights = read_input()
    assert {name: int(selects(flights).sum()) for name, selects in SELECTED.items()} == {
        "all": FLIGHT_COUNT, "delayed": 26_581, "carrier": 58_665,
    }  # fmt: skip
    delays = [flight["dep_delay"] for flight in read_flights()]
    assert len(delays) == FLIGHT_COUNT, "all flights are there"
    late = [row for row, delay in enumerate(delays) if isinstance(delay, int) and delay > 60]
    assert list(flights.index[SELECTED["delayed"](flights)]) == late
    assert flights["message_id"].iloc[-1] == f"flight-{FLIGHT_COUNT - 1:06d}"


def test_subscriptions_are_read_from_their_part_of_the_table(tmp_path: Path) -> None:
    flights = pd.DataFrame(
        {
            "message_id": [f"flight-{row:06d}" for row in range(3)],
            "dep_delay": [61, 60, None],
            "carrier": ["UA", "B6", "B6"],
        }
    )
    table = everything().iloc[:3]
    for name, rows in {"all": table, "delayed": table.iloc[:1]}.items():
        (tmp_path / f"subscription={name}").mkdir()
        rows.to_parquet(tmp_path / f"subscription={name}" / "part.parquet")
    selections = compare_selections(flights, tmp_path)
    assert [selection.subscription for selection in selections] == list(SUBSCRIPTIONS)
    assert [selection.holds for selection in selections] == [True, True, False]
    assert (selections[2].expected, selections[2].messages) == (1, 0)
    assert selections[0].subscription == ALL
