from dataclasses import fields

import pytest

from partibus.errors import ArgumentError, Unsupported
from partibus.namespace.durations import UNLIMITED_MS, UNLIMITED_TEXT
from partibus.namespace.entities import EntityStatus, QueueOptions
from partibus.namespace.properties import (
    QUEUE_PROPERTIES,
    Change,
    immutable_changes,
    queue_options,
    queue_properties,
    read_queue_options,
)


def test_every_option_is_in_the_table_once() -> None:
    assert sorted(prop.field for prop in QUEUE_PROPERTIES) == sorted(field.name for field in fields(QueueOptions))


def test_defaults_are_those_of_the_service() -> None:
    assert queue_properties(QueueOptions()) == {
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 10,
        "DefaultMessageTimeToLive": UNLIMITED_TEXT,
        "DeadLetteringOnMessageExpiration": False,
        "EnablePartitioning": False,
        "EnableBatchedOperations": True,
        "EnableExpress": False,
        "MaxSizeInMegabytes": 1024,
        "MaxMessageSizeInKilobytes": 256,
        "AutoDeleteOnIdle": UNLIMITED_TEXT,
        "Status": "Active",
        "UserMetadata": "",
        "RequiresSession": False,
        "RequiresDuplicateDetection": False,
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "ForwardTo": "",
        "ForwardDeadLetteredMessagesTo": "",
    }


def test_values_are_read_in_our_units() -> None:
    options = queue_options(
        {
            "LockDuration": "PT30S",
            "MaxDeliveryCount": 3,
            "DefaultMessageTimeToLive": "PT1H",
            "DeadLetteringOnMessageExpiration": True,
            "EnableBatchedOperations": False,
            "MaxSizeInMegabytes": 5120,
            "Status": "SendDisabled",
            "UserMetadata": "team 7",
        }
    )
    assert options == QueueOptions(
        lock_duration_ms=30_000,
        max_delivery_count=3,
        default_ttl_ms=3_600_000,
        dead_lettering_on_expiration=True,
        batched_operations=False,
        max_size_mb=5120,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="team 7",
    )
    assert queue_options(queue_properties(options)) == options


@pytest.mark.row("P25", "P7")
def test_enable_partitioning_means_sixteen_partitions() -> None:
    assert queue_options({"EnablePartitioning": True}).partition_count == 16
    assert queue_options({"EnablePartitioning": False}).partition_count == 1
    assert queue_properties(QueueOptions(partitioned=True))["EnablePartitioning"] is True


@pytest.mark.parametrize(("text", "ms"), [("PT5S", 5_000), ("PT5M", 300_000)])
def test_bounds_of_a_lock_duration_are_allowed(text: str, ms: int) -> None:
    assert queue_options({"LockDuration": text}).lock_duration_ms == ms


@pytest.mark.parametrize(
    ("name", "raw", "bound"),
    [
        ("LockDuration", "PT4.999S", "an XML duration from PT5S to PT5M"),
        ("LockDuration", "PT5M1S", "an XML duration from PT5S to PT5M"),
        ("LockDuration", "one minute", "an XML duration from PT5S to PT5M"),
        ("LockDuration", 60, "an XML duration from PT5S to PT5M"),
        ("LockDuration", None, "an XML duration from PT5S to PT5M"),
        ("MaxDeliveryCount", 0, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", 2**31, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", True, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", 3.0, "an integer from 1 to 2147483647"),
        ("DefaultMessageTimeToLive", "PT0S", "an XML duration from PT0.001S to no limit"),
        ("EnablePartitioning", "true", "true or false"),
        ("EnablePartitioning", 1, "true or false"),
        ("MaxSizeInMegabytes", 3000, "one of 1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920"),
        ("MaxSizeInMegabytes", 1024.0, "one of 1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920"),
        ("MaxMessageSizeInKilobytes", 255, "an integer from 256 to 1024"),
        ("Status", "active", "one of Active, Disabled, SendDisabled, ReceiveDisabled"),
        ("Status", ["Active"], "one of Active, Disabled, SendDisabled, ReceiveDisabled"),
        ("UserMetadata", "x" * 1025, "text of at most 1024 characters"),
        ("DuplicateDetectionHistoryTimeWindow", "PT19S", "an XML duration from PT20S to P7D"),
    ],
)
def test_a_wrong_value_is_refused_with_its_bound(name: str, raw: object, bound: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        queue_options({name: raw})
    assert (caught.value.field, caught.value.value, caught.value.bound) == (name, raw, bound)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("RequiresSession", True),
        ("RequiresDuplicateDetection", True),
        ("EnableExpress", True),
        ("AutoDeleteOnIdle", "PT5M"),
        ("ForwardTo", "other"),
        ("ForwardDeadLetteredMessagesTo", "other"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(name: str, raw: object) -> None:
    with pytest.raises(
        Unsupported, match=f"{name} .* is not supported by this version. Leave {name} out, or set it to"
    ):
        queue_options({name: raw})


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("RequiresSession", False),
        ("RequiresSession", None),
        ("RequiresDuplicateDetection", False),
        ("EnableExpress", False),
        ("AutoDeleteOnIdle", "P10675199DT2H48M5.477539S"),
        ("AutoDeleteOnIdle", None),
        ("ForwardTo", ""),
        ("ForwardTo", None),
        ("ForwardDeadLetteredMessagesTo", ""),
        ("UserMetadata", None),
    ],
)
def test_a_default_is_accepted_for_them(name: str, raw: object) -> None:
    assert queue_options({name: raw}) == QueueOptions()


def test_an_unknown_property_is_refused_with_a_hint() -> None:
    with pytest.raises(ArgumentError, match=r"property is 'LockDuraton', .* Did you mean LockDuration\?"):
        queue_options({"LockDuraton": "PT1M"})
    with pytest.raises(ArgumentError, match=r"Did you mean LockDuration\?"):
        queue_options({"lockDuration": "PT1M"})


def test_all_problems_are_found_and_the_rest_is_read() -> None:
    options, problems = read_queue_options({"LockDuration": 1, "MaxDeliveryCount": 4, "Nonsense": 1})
    assert list(problems) == ["LockDuration", "Nonsense"]
    assert options == QueueOptions(max_delivery_count=4)


@pytest.mark.row("P9")
def test_partitioning_is_told_as_an_immutable_change() -> None:
    old = QueueOptions()
    new = QueueOptions(partitioned=True, lock_duration_ms=5_000)
    assert immutable_changes(old, new) == [Change("EnablePartitioning", False, True)]
    assert immutable_changes(new, new) == []


@pytest.mark.parametrize(
    ("status", "can_send", "can_receive"),
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_status_opens_directions(status: str, can_send: bool, can_receive: bool) -> None:
    assert (EntityStatus(status).can_send, EntityStatus(status).can_receive) == (can_send, can_receive)


def test_no_limit_is_one_number_of_ms() -> None:
    assert QueueOptions().default_ttl_ms == UNLIMITED_MS
