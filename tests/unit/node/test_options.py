"""The options of partitions, from those of their queue."""

from __future__ import annotations

from pathlib import Path

from partibus.clock import ManualClock
from partibus.limits import Limits
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace import Namespace
from partibus.namespace.properties import options_of as checked_options
from partibus.node.options import partition_options
from partibus.partition.protocol.options import PartitionOptions


def options_of(folder: Path, **properties: object) -> PartitionOptions:
    catalog = Catalog(folder, 16)
    try:
        queue = Namespace(catalog, ManualClock()).create("q", checked_options(EntityKind.QUEUE, properties))
        return partition_options(queue, Limits(cache_ms=7))
    finally:
        catalog.close()


def test_every_property_arrives(tmp_path: Path) -> None:
    found = options_of(
        tmp_path,
        LockDuration="PT5M",
        MaxDeliveryCount=3,
        DefaultMessageTimeToLive="PT1H",
        MaxSizeInMegabytes=2048,
        DeadLetteringOnMessageExpiration=True,
        RequiresDuplicateDetection=True,
        DuplicateDetectionHistoryTimeWindow="PT20S",
        PartibusRedeliveryDelay="PT5S",
        PartibusMaxRedeliveryDelay="PT1M",
    )
    assert found == PartitionOptions(
        lock_duration_ms=300_000,
        max_delivery_count=3,
        default_ttl_ms=3_600_000,
        size_bytes_max=2048 << 20,
        dead_letter_on_expiration=True,
        requires_session=False,
        duplicate_window_ms=20_000,
        redelivery_delay_ms=5_000,
        redelivery_delay_max_ms=60_000,
        reservation_ms=7,
        limits=Limits().partition,
    )


def test_a_window_without_duplicate_detection_is_none(tmp_path: Path) -> None:
    found = options_of(tmp_path, DuplicateDetectionHistoryTimeWindow="PT20S", RequiresSession=True)
    assert (found.duplicate_window_ms, found.requires_session) == (None, True)
    assert found.default_ttl_ms is None
