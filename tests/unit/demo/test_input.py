"""The flights and the messages made of them."""

from __future__ import annotations

import importlib.util
import json
from itertools import islice
from pathlib import Path

import pytest

from partibus.demo.flights import FIELDS, DemoError, envelopes, key_of, read_carriers, read_flights


def test_first_flight_with_its_types() -> None:
    (flight,) = read_flights(1)
    assert list(flight) == list(FIELDS)
    assert flight == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip


def test_missing_values_are_none_and_the_key_falls_back_to_the_flight() -> None:
    cancelled = next(flight for flight in read_flights() if flight["tailnum"] is None)
    assert cancelled["dep_time"] is None
    assert key_of(cancelled) == f"{cancelled['carrier']}{cancelled['flight']}"


def test_carriers_have_names() -> None:
    assert read_carriers()["UA"] == "United Air Lines Inc."


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match=r"pip install 'partibus\[demo\]'"):
        next(read_flights())


def test_other_columns_than_known_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.demo.flights.FIELDS", {"year": "int"})
    with pytest.raises(DemoError, match="has the columns"):
        next(read_flights())


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_share_out_every_message_once_and_keep_a_key_together(shards: int) -> None:
    flights = list(read_flights(3000))
    dealt = [list(envelopes(flights, shard, shards)) for shard in range(shards)]
    ids = sorted(envelope.message_id for part in dealt for envelope in part)
    assert ids == [f"flight-{row:06d}" for row in range(3000)]
    for part in dealt:
        others = {envelope.key for other in dealt if other is not part for envelope in other}
        assert part
        assert not others & {envelope.key for envelope in part}


def test_messages_of_a_key_are_numbered_from_0_in_order_of_the_input() -> None:
    numbers: dict[str, list[int]] = {}
    for envelope in envelopes(read_flights(3000)):
        numbers.setdefault(envelope.key, []).append(envelope.n)
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert max(map(len, numbers.values())) > 5


def test_properties_are_carrier_number_and_the_delay_of_who_left() -> None:
    flights = list(read_flights(3000))
    sent = {envelope.message_id: envelope.properties for envelope in envelopes(flights)}
    assert sent["flight-000000"] == {"carrier": "UA", "n": 0, "delay": 2}
    for row, flight in enumerate(flights):
        assert sent[f"flight-{row:06d}"].get("delay") == flight["dep_delay"]
        assert ("delay" in sent[f"flight-{row:06d}"]) == (flight["dep_time"] is not None)


def test_body_is_the_flight_as_json() -> None:
    flights = list(read_flights(50))
    bodies = [json.loads(envelope.body) for envelope in islice(envelopes(flights), 50)]
    assert bodies == flights
