"""A broker creates the entities that the demo asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.client.extensions.entities import Entities
from partibus.demo.topology import (
    PARTITION_COUNT,
    SUBSCRIPTIONS,
    TOPIC,
    config,
    demo_broker,
    filters_at,
    left_at,
    path_of,
)
from tests.kit.plain_client import connect


def test_file_declares_the_topic_and_the_subscriptions() -> None:
    (topic,) = config()["UserConfig"]["Namespaces"][0]["Topics"]
    assert topic["Name"] == TOPIC
    assert [subscription["Name"] for subscription in topic["Subscriptions"]] == list(SUBSCRIPTIONS)


@pytest.mark.row("P27")
def test_broker_has_the_topic_with_the_filters(tmp_path: Path) -> None:
    with demo_broker(tmp_path, tmp_path / "telemetry") as connection:
        with connect(connection) as client:
            entities = {info.name: info for info in Entities(client).list()}
        filters = filters_at(connection)
        assert left_at(connection) == dict.fromkeys(SUBSCRIPTIONS, 0)
    assert set(entities) == {TOPIC, *map(path_of, SUBSCRIPTIONS)}
    assert entities[TOPIC].partitions == PARTITION_COUNT
    assert filters == {
        "all": ("everything", "1=1"),
        "delayed": ("SQL", "delay > 60"),
        "carrier": ("correlation", "carrier = 'UA'"),
    }
