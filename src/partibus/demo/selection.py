"""What each subscription should hold, and whether it does: computed with pandas, from the input's own file and from the
table that Spark wrote, by none of the code that sends, selects or reads."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from partibus.demo.flights import flights_archive
from partibus.demo.proof import Selection
from partibus.demo.topology import ALL, SUBSCRIPTIONS

Frame = Any
"""A pandas DataFrame; pandas ships no types."""
Series = Any

SELECTED: Mapping[str, Callable[[Frame], Series]] = {
    ALL: lambda flights: pd.Series(True, flights.index),
    "delayed": lambda flights: flights["dep_delay"] > 60,
    "carrier": lambda flights: flights["carrier"] == "UA",
}
"""Subscription -> which rows of the input belong there, said in pandas. A flight that was cancelled has no delay: the
comparison is false here, and unknown in the broker's filter, which is no selection either."""

FOUND_COLUMNS = ["message_id", "partition_key", "partition_id", "sequence_number", "fingerprint"]


def read_input(rows: int | None = None) -> Frame:
    """The first ``rows`` of the input, or all; what the predicates need, and the id that each row was sent with."""
    flights = pd.read_csv(flights_archive(), nrows=rows, usecols=["carrier", "dep_delay"])
    flights["message_id"] = [f"flight-{row:06d}" for row in flights.index]
    return flights


def compare_selections(flights: Frame, table: Path) -> list[Selection]:
    """One for each subscription. ``table``: the Parquet table of all messages, by subscription."""
    found = {name: _read(table, name) for name in SUBSCRIPTIONS}
    return [compare(name, flights[SELECTED[name](flights)], found[name], found[ALL]) for name in SUBSCRIPTIONS]


def compare(name: str, expected: Frame, found: Frame, everything: Frame) -> Selection:
    """``expected``: rows of the input, in the order in which each key's were sent; ``found``: messages of the
    subscription; ``everything``: those of the subscription that gets all."""
    ids, found_ids = pd.Index(expected["message_id"]), pd.Index(found["message_id"])
    return Selection(
        name,
        expected=len(ids),
        messages=len(found_ids),
        missing=len(ids.difference(found_ids)),
        unexpected=len(found_ids.difference(ids)),
        repeated=int(found_ids.duplicated().sum()),
        altered=0 if found is everything else _altered(found, everything),
        disordered=_disordered(found),
    )


def _read(table: Path, subscription: str) -> Frame:
    return pd.read_parquet(table, columns=FOUND_COLUMNS, filters=[("subscription", "==", subscription)])


def _altered(found: Frame, everything: Frame) -> int:
    """Messages whose content, key or partition is not that of the one with the same id in ``everything``."""
    same = ["message_id", "partition_key", "partition_id", "fingerprint"]
    originals = everything.loc[everything["message_id"].isin(found["message_id"]), same]
    both = found[same].merge(originals.drop_duplicates(), how="left", indicator=True)
    return int((both["_merge"] == "left_only").sum())


def _disordered(found: Frame) -> int:
    """Messages that were sent before the one that they stand behind: ids have the number of their row."""
    in_order = found.sort_values(["partition_key", "sequence_number"])
    rows = pd.to_numeric(in_order["message_id"].str.removeprefix("flight-"), errors="coerce")
    return int((rows.groupby(in_order["partition_key"]).diff() < 0).sum())
