from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.namespace.durations import UNLIMITED_MS, UNLIMITED_TEXT
from partibus.namespace.entities import EntityKind, EntityOptions, EntityStatus
from partibus.namespace.properties import (
    PROBLEMS_MAX,
    PROPERTIES,
    QUEUE_PROPERTIES,
    SUBSCRIPTION_PROPERTIES,
    TOPIC_PROPERTIES,
    Change,
    changed_options,
    immutable_changes,
    options_of,
    properties_of,
    read_options,
    replaced_options,
)


def test_every_option_belongs_to_some_kind_and_to_none_twice() -> None:
    for properties in PROPERTIES.values():
        assert len({prop.field for prop in properties}) == len({prop.name for prop in properties}) == len(properties)
    every = {prop.field for properties in PROPERTIES.values() for prop in properties}
    assert every == set(EntityOptions.__struct_fields__)


def test_a_topic_has_what_takes_messages_in_and_a_subscription_what_hands_them_out() -> None:
    """Dialect section 9.3, without what is read-only there."""
    assert [prop.name for prop in TOPIC_PROPERTIES] == [
        "DefaultMessageTimeToLive",
        "EnablePartitioning",
        "EnableBatchedOperations",
        "EnableExpress",
        "PartibusExpressBoundInMilliseconds",
        "MaxSizeInMegabytes",
        "MaxMessageSizeInKilobytes",
        "AutoDeleteOnIdle",
        "Status",
        "UserMetadata",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "SupportOrdering",
    ]
    assert [prop.name for prop in SUBSCRIPTION_PROPERTIES] == [
        "LockDuration",
        "MaxDeliveryCount",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "EnableBatchedOperations",
        "AutoDeleteOnIdle",
        "Status",
        "UserMetadata",
        "RequiresSession",
        "ForwardTo",
        "ForwardDeadLetteredMessagesTo",
        "PartibusRedeliveryDelay",
        "PartibusMaxRedeliveryDelay",
    ]
    with pytest.raises(ArgumentError, match="which a topic has"):
        options_of(EntityKind.TOPIC, {"LockDuration": "PT1M"})
    with pytest.raises(ArgumentError, match="which a subscription has"):
        options_of(EntityKind.SUBSCRIPTION, {"EnablePartitioning": True})


@pytest.mark.parametrize("kind", EntityKind)
def test_the_properties_of_every_kind_are_read_back(kind: EntityKind) -> None:
    assert options_of(kind, properties_of(kind, EntityOptions())) == EntityOptions()


@pytest.mark.parametrize("field", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("other", "other"),
        ("a/b", "a/b"),
        ("sb://localhost:5671/a/b", "a/b"),
        ("sb://h/other/", "other"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_target_is_given_by_name_or_address(field: str, raw: object, name: str) -> None:
    assert properties_of(EntityKind.QUEUE, options_of(EntityKind.QUEUE, {field: raw}))[field] == name


@pytest.mark.parametrize(
    "raw", ["t/Subscriptions/s", "q/$DeadLetterQueue", "q/$management", "$cbs", "http://h/q", "sb://h/", "a//b", 7]
)
def test_what_messages_cannot_be_forwarded_to_is_refused(raw: object) -> None:
    with pytest.raises(ArgumentError, match=r"ForwardTo is .*, but must be the name of a queue or topic"):
        options_of(EntityKind.QUEUE, {"ForwardTo": raw})


def test_what_forwards_is_never_deleted_for_being_idle() -> None:
    options = options_of(EntityKind.QUEUE, {"ForwardTo": "other", "AutoDeleteOnIdle": "PT5M"})
    assert options.auto_delete_on_idle_ms == UNLIMITED_MS


def test_a_description_that_replaces_another_keeps_what_is_for_life() -> None:
    old = options_of(EntityKind.QUEUE, {"LockDuration": "PT30S", "RequiresSession": True, "EnablePartitioning": True})
    new = replaced_options(old, {"MaxDeliveryCount": 3}, EntityKind.QUEUE)
    assert new == EntityOptions(max_delivery_count=3, requires_session=True, partitioned=True)
    changed = replaced_options(old, {"RequiresSession": False}, EntityKind.QUEUE)
    assert [change.name for change in immutable_changes(old, changed)] == ["RequiresSession"]


def test_a_description_that_replaces_another_keeps_the_options_of_sqs() -> None:
    sqs = '{"attributes":{"DelaySeconds":"5"},"tags":{"a":"b"}}'
    old = options_of(EntityKind.QUEUE, {"RequiresSession": True, "PartibusSqs": sqs, "PartibusElasticPartitions": 8})
    new = replaced_options(old, {"MaxDeliveryCount": 3}, EntityKind.QUEUE)
    assert new == replace(old, max_delivery_count=3)
    assert replaced_options(old, {"PartibusSqs": ""}, EntityKind.QUEUE).sqs is None


def test_merge_threshold_has_to_be_below_the_split_threshold() -> None:
    with pytest.raises(ArgumentError, match=r"PartibusPartitionMergePercent is 60, but must be below .*Percent, 60"):
        options_of(EntityKind.QUEUE, {"PartibusPartitionSplitPercent": 60, "PartibusPartitionMergePercent": 60})


def test_defaults_are_those_of_the_service() -> None:
    assert properties_of(EntityKind.QUEUE, EntityOptions()) == {
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 10,
        "DefaultMessageTimeToLive": UNLIMITED_TEXT,
        "DeadLetteringOnMessageExpiration": False,
        "EnablePartitioning": False,
        "EnableBatchedOperations": True,
        "EnableExpress": False,
        "PartibusExpressBoundInMilliseconds": 3_000,
        "PartibusElasticPartitions": 0,
        "PartibusEnforceThroughput": False,
        "PartibusPartitionRequests": 0,
        "PartibusPartitionMessages": 0,
        "PartibusPartitionSplitPercent": 0,
        "PartibusPartitionMergePercent": 0,
        "PartibusPartitionCalm": "PT0S",
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
        "PartibusRedeliveryDelay": "PT0S",
        "PartibusMaxRedeliveryDelay": "PT10M",
        "PartibusSqs": "",
    }


def test_values_are_read_in_our_units() -> None:
    options = options_of(
        EntityKind.QUEUE,
        {
            "LockDuration": "PT30S",
            "MaxDeliveryCount": 3,
            "DefaultMessageTimeToLive": "PT1H",
            "DeadLetteringOnMessageExpiration": True,
            "EnableBatchedOperations": False,
            "MaxSizeInMegabytes": 5120,
            "Status": "SendDisabled",
            "UserMetadata": "team 7",
            "RequiresSession": True,
            "RequiresDuplicateDetection": True,
            "DuplicateDetectionHistoryTimeWindow": "P7D",
            "AutoDeleteOnIdle": "PT5M",
            "PartibusMaxRedeliveryDelay": "PT1H",
        },
    )
    assert options == EntityOptions(
        lock_duration_ms=30_000,
        max_delivery_count=3,
        default_ttl_ms=3_600_000,
        dead_lettering_on_expiration=True,
        batched_operations=False,
        max_size_mb=5120,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="team 7",
        requires_session=True,
        requires_duplicate_detection=True,
        duplicate_detection_window_ms=7 * 86_400_000,
        auto_delete_on_idle_ms=300_000,
        redelivery_delay_max_ms=3_600_000,
    )
    assert options_of(EntityKind.QUEUE, properties_of(EntityKind.QUEUE, options)) == options


@pytest.mark.row("P25")
def test_enable_partitioning_means_sixteen_partitions() -> None:
    assert options_of(EntityKind.QUEUE, {"EnablePartitioning": True}).partitioned
    assert not options_of(EntityKind.QUEUE, {"EnablePartitioning": False}).partitioned
    assert properties_of(EntityKind.QUEUE, EntityOptions(partitioned=True))["EnablePartitioning"] is True


@pytest.mark.parametrize(("text", "ms"), [("PT5S", 5_000), ("PT5M", 300_000)])
def test_bounds_of_a_lock_duration_are_allowed(text: str, ms: int) -> None:
    assert options_of(EntityKind.QUEUE, {"LockDuration": text}).lock_duration_ms == ms


@pytest.mark.parametrize(
    ("name", "raw", "bound"),
    [
        ("LockDuration", "PT4.999S", "a duration from 5 s to 5 min (PT5S to PT5M)"),
        ("LockDuration", "PT5M1S", "a duration from 5 s to 5 min (PT5S to PT5M)"),
        ("LockDuration", "one minute", "a duration from 5 s to 5 min (PT5S to PT5M)"),
        ("LockDuration", 60, "a duration from 5 s to 5 min (PT5S to PT5M)"),
        ("LockDuration", None, "a duration from 5 s to 5 min (PT5S to PT5M)"),
        ("MaxDeliveryCount", 0, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", 2**31, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", True, "an integer from 1 to 2147483647"),
        ("MaxDeliveryCount", 3.0, "an integer from 1 to 2147483647"),
        ("DefaultMessageTimeToLive", "PT0S", "a duration of at least 1 ms (PT0.001S)"),
        ("EnablePartitioning", "true", "true or false"),
        ("EnablePartitioning", 1, "true or false"),
        ("MaxSizeInMegabytes", 0, "an integer from 1 to 81920"),
        ("MaxSizeInMegabytes", 1024.0, "an integer from 1 to 81920"),
        ("MaxMessageSizeInKilobytes", 255, "an integer from 256 to 102400"),
        ("Status", "active", "one of Active, Disabled, SendDisabled, ReceiveDisabled"),
        ("Status", ["Active"], "one of Active, Disabled, SendDisabled, ReceiveDisabled"),
        ("UserMetadata", "x" * 1025, "text of at most 1024 characters"),
        ("DuplicateDetectionHistoryTimeWindow", "PT19.999S", "a duration from 20 s to 7 d (PT20S to P7D)"),
        ("DuplicateDetectionHistoryTimeWindow", "P7DT0.001S", "a duration from 20 s to 7 d (PT20S to P7D)"),
        ("AutoDeleteOnIdle", "PT4M59.999S", "a duration of at least 5 min (PT5M)"),
        ("AutoDeleteOnIdle", None, "a duration of at least 5 min (PT5M)"),
        ("RequiresSession", None, "true or false"),
        ("RequiresDuplicateDetection", "yes", "true or false"),
        ("PartibusRedeliveryDelay", "P1DT0.001S", "a duration from 0 s to 1 d (PT0S to P1D)"),
        ("PartibusMaxRedeliveryDelay", -1, "a duration from 0 s to 1 d (PT0S to P1D)"),
        ("PartibusSqs", '{"unknown":1}', "JSON of the options that only SQS has, as this broker writes it"),
        ("PartibusSqs", {"tags": {}}, "JSON of the options that only SQS has, as this broker writes it"),
    ],
)
def test_a_wrong_value_is_refused_with_its_bound(name: str, raw: object, bound: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        options_of(EntityKind.QUEUE, {name: raw})
    assert (caught.value.field, caught.value.value, caught.value.bound) == (name, raw, bound)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("RequiresSession", False),
        ("RequiresDuplicateDetection", False),
        ("EnableExpress", False),
        ("AutoDeleteOnIdle", "P10675199DT2H48M5.477539S"),
        ("ForwardTo", ""),
        ("ForwardTo", None),
        ("ForwardDeadLetteredMessagesTo", ""),
        ("UserMetadata", None),
    ],
)
def test_a_default_is_accepted_for_them(name: str, raw: object) -> None:
    assert options_of(EntityKind.QUEUE, {name: raw}) == EntityOptions()


def test_an_unknown_property_is_refused_with_a_hint() -> None:
    with pytest.raises(ArgumentError, match=r"property is 'LockDuraton', .* Did you mean LockDuration\?"):
        options_of(EntityKind.QUEUE, {"LockDuraton": "PT1M"})
    with pytest.raises(ArgumentError, match=r"Did you mean LockDuration\?"):
        options_of(EntityKind.QUEUE, {"lockDuration": "PT1M"})


def test_few_of_thousands_of_unknown_properties_are_looked_up() -> None:
    """Bound the search: a similar name takes up to 0.4 ms to find, and a request has room for some 2,500."""
    _, problems = read_options(EntityKind.QUEUE, {f"LockDuraton{n}": 1 for n in range(1_000)})
    assert len(problems) == PROBLEMS_MAX


def test_all_problems_are_found_and_the_rest_is_read() -> None:
    options, problems = read_options(EntityKind.QUEUE, {"LockDuration": 1, "MaxDeliveryCount": 4, "Nonsense": 1})
    assert list(problems) == ["LockDuration", "Nonsense"]
    assert options == EntityOptions(max_delivery_count=4)


def test_an_entity_that_requires_sessions_forwards_for_life_or_never() -> None:
    ordered = EntityOptions(requires_session=True)
    forwards = EntityOptions(requires_session=True, forward_to="a")
    for old, new in ((ordered, forwards), (forwards, ordered)):
        assert immutable_changes(old, new) == [Change("ForwardTo", old.forward_to, new.forward_to)]
        assert immutable_changes(old, new, is_new=True) == []
    assert immutable_changes(forwards, replace(forwards, forward_to="b")) == []
    assert immutable_changes(EntityOptions(), EntityOptions(forward_to="a")) == []


@pytest.mark.parametrize(
    ("properties", "field", "words"),
    [
        (
            {"PartibusRedeliveryDelay": "PT5S", "RequiresSession": True},
            "PartibusRedeliveryDelay",
            "PT0S where RequiresSession is true",
        ),
        (
            {"PartibusRedeliveryDelay": "PT20M"},
            "PartibusMaxRedeliveryDelay",
            "is 'PT10M', but must be at least PartibusRedeliveryDelay, PT20M",
        ),
        (
            {"PartibusRedeliveryDelay": "PT5S", "PartibusMaxRedeliveryDelay": "PT4S"},
            "PartibusMaxRedeliveryDelay",
            "is 'PT4S', but must be at least PartibusRedeliveryDelay, PT5S",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(properties: dict[str, object], field: str, words: str) -> None:
    _, problems = read_options(EntityKind.QUEUE, properties)
    assert list(problems) == [field]
    assert words in str(problems[field])
    with pytest.raises(ArgumentError, match=words):
        options_of(EntityKind.QUEUE, properties)


def test_a_redelivery_delay_may_be_as_long_as_its_bound() -> None:
    options = options_of(EntityKind.QUEUE, {"PartibusRedeliveryDelay": "PT5S", "PartibusMaxRedeliveryDelay": "PT5S"})
    assert (options.redelivery_delay_ms, options.redelivery_delay_max_ms) == (5_000, 5_000)


def test_changes_leave_the_other_properties_as_they_are() -> None:
    old = options_of(EntityKind.QUEUE, {"LockDuration": "PT30S", "UserMetadata": "team 7", "RequiresSession": True})
    new = changed_options(old, {"UserMetadata": "team 8", "MaxDeliveryCount": 3})
    assert new == replace(old, user_metadata="team 8", max_delivery_count=3)
    assert changed_options(old, {}) == old


def test_changes_are_checked_together_with_what_stays() -> None:
    old = options_of(EntityKind.QUEUE, {"PartibusRedeliveryDelay": "PT5M"})
    with pytest.raises(ArgumentError, match="PartibusMaxRedeliveryDelay is 'PT1M'"):
        changed_options(old, {"PartibusMaxRedeliveryDelay": "PT1M"})


@pytest.mark.row("P9")
def test_partitioning_is_told_as_an_immutable_change() -> None:
    old = EntityOptions()
    new = EntityOptions(partitioned=True, lock_duration_ms=5_000)
    assert immutable_changes(old, new) == [Change("EnablePartitioning", False, True)]
    assert immutable_changes(new, new) == []


def test_what_a_queue_requires_is_for_life() -> None:
    assert [prop.name for prop in QUEUE_PROPERTIES if not prop.mutable] == [
        "EnablePartitioning",
        "RequiresSession",
        "RequiresDuplicateDetection",
    ]
    new = EntityOptions(requires_session=True, requires_duplicate_detection=True)
    assert immutable_changes(EntityOptions(), new) == [
        Change("RequiresSession", False, True),
        Change("RequiresDuplicateDetection", False, True),
    ]


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
    assert EntityOptions().default_ttl_ms == UNLIMITED_MS


def test_the_page_of_properties_is_true() -> None:
    page = (Path(__file__).parents[3] / "docs" / "queues.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:3] == "| `"]
    shown = {UNLIMITED_TEXT: "no limit", "": "(empty)", True: "true", False: "false"}
    defaults = properties_of(EntityKind.QUEUE, EntityOptions())
    assert [(row[0].strip("`"), row[1], row[3]) for row in rows] == [
        (
            prop.name,
            str(_shown(shown, defaults[prop.name])),
            "yes" if prop.mutable else "no",
        )
        for prop in QUEUE_PROPERTIES
    ]


def _shown(words: dict[Any, str], value: Any) -> Any:
    """The page's word for a value; a number is no truth value."""
    return value if type(value) is int else words.get(value, value)
