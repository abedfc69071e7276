"""Names, URLs, ARNs, receipt handles and attributes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partibus.frontends.sqs.attributes import (
    Redrive,
    RedriveAllow,
    described,
    merged,
    normalised,
    read_redrive,
    read_redrive_allow,
    same_value,
)
from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.handles import Handle, read_handle, write_handles
from partibus.frontends.sqs.names import (
    Home,
    QueueName,
    arn_of,
    check_queue_name,
    entity_name,
    name_of_url,
    queue_of_arn,
    queue_of_entity,
    url_of,
)
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld

HOME = Home()
ORDERS = QueueName("us-east-1", "orders")
ABROAD = QueueName("eu-west-2", "orders.fifo")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:9324/000000000000/orders", (None, "orders")),
        ("https://sqs.us-east-1.amazonaws.com/123456789012/orders.fifo", (None, "orders.fifo")),
        ("/000000000000/orders/", (None, "orders")),
        ("orders", (None, "orders")),
        ("http://h/queue/eu-west-2/000000000000/orders", ("eu-west-2", "orders")),
        ("http://h/base/path/000000000000/orders", (None, "orders")),
    ],
)
def test_urls_are_read_from_their_end(url: str, expected: tuple[str | None, str]) -> None:
    assert name_of_url(url) == expected


@pytest.mark.parametrize("url", ["", "http://h/", "http://h/1/a b", "http://[", "x" * 3000, "http://h/1/a.b"])
def test_what_names_no_queue_is_no_queue(url: str) -> None:
    with pytest.raises(SqsError, match="does not exist"):
        name_of_url(url)


def test_queues_have_entities_and_arns() -> None:
    assert (entity_name(HOME, ORDERS), entity_name(HOME, ABROAD)) == ("orders", "eu-west-2/orders.fifo")
    for queue in (ORDERS, ABROAD):
        assert queue_of_entity(HOME, entity_name(HOME, queue)) == queue
        assert queue_of_arn(HOME, arn_of(HOME, queue)) == queue
    assert arn_of(HOME, ABROAD) == "arn:aws:sqs:eu-west-2:000000000000:orders.fifo"
    assert url_of(HOME, ORDERS, "http://h:1") == "http://h:1/000000000000/orders"
    assert url_of(Home(url="https://x/y"), ORDERS, "http://h:1") == "https://x/y/000000000000/orders"
    for name in ("a.b", "a/b/c", "us-east-1/orders", "x" * 81, ".fifo"):
        assert queue_of_entity(HOME, name) is None
    for arn in ("", "arn:aws:sqs:us-east-1:111111111111:q", "arn:aws:sns:us-east-1:000000000000:q", "a:b:c:d:e:f:g"):
        assert queue_of_arn(HOME, arn) is None


@pytest.mark.parametrize(
    ("name", "fifo"),
    [("a b", False), ("", False), ("x" * 81, False), ("a.fifo", False), ("a", True), ("a/b", False), ("é", False),
     ("x" * 76 + ".fifo", True), ("a.fifo.fifo", True)],
)  # fmt: skip
def test_a_wrong_name_is_refused(name: str, *, fifo: bool) -> None:
    with pytest.raises(SqsError) as refused:
        check_queue_name(name, fifo=fifo)
    assert refused.value.code == "InvalidParameterValue"


U64, I64 = st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)
HANDLES = st.builds(Handle, U64, I64, st.integers(0, 2**32 - 1), U64, I64, I64)


def write_handle(handle: Handle) -> str:
    """Write the handle of a message that was granted alone."""
    (text,) = write_handles(*handle[:4], [handle.pos], handle.received_ms)
    return text


@given(HANDLES)
def test_handles_are_read_back(handle: Handle) -> None:
    text = write_handle(handle)
    assert read_handle(text) == handle
    assert len(text) == 72


def test_handles_of_one_grant_differ_by_position() -> None:
    texts = write_handles(1, 2, 3, 4, range(5, 8), 9)
    assert [read_handle(text) for text in texts] == [Handle(1, 2, 3, 4, pos, 9) for pos in range(5, 8)]
    assert texts[1] == write_handle(Handle(1, 2, 3, 4, 6, 9))


@given(HANDLES, st.integers(0, 71), st.sampled_from("ABCxyz019+/=é "))
def test_a_damaged_handle_is_none(handle: Handle, at: int, other: str) -> None:
    text = write_handle(handle)
    damaged = text[:at] + other + text[at + 1 :]
    assert damaged == text or read_handle(damaged) is None


@given(st.text())
def test_any_other_text_is_no_handle(text: str) -> None:
    assert read_handle(text) is None


def code(**given: str) -> str:
    with pytest.raises(SqsError) as refused:
        normalised(given, fifo=False, creating=True)
    return refused.value.code


@pytest.mark.parametrize(
    ("name", "value"),
    [("VisibilityTimeout", "43201"), ("VisibilityTimeout", "-1"), ("DelaySeconds", "901"), ("DelaySeconds", "x"),
     ("MessageRetentionPeriod", "59"), ("MaximumMessageSize", "1048577"), ("ReceiveMessageWaitTimeSeconds", "21"),
     ("SqsManagedSseEnabled", "yes"), ("Policy", "{"), ("Policy", "[]"), ("KmsDataKeyReusePeriodSeconds", "59"),
     ("DelaySeconds", "1.0"), ("DelaySeconds", "")],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(name: str, value: str) -> None:
    assert code(**{name: value}) == "InvalidAttributeValue"


@pytest.mark.parametrize(
    "name", ["Nothing", "", "QueueArn", "ApproximateNumberOfMessages", "FifoQueue", "ContentBasedDeduplication",
             "DeduplicationScope", "VisibilityTimeout "],
)  # fmt: skip
def test_an_attribute_that_can_not_be_set_is_refused(name: str) -> None:
    assert code(**{name: "true"}) == "InvalidAttributeName"


def test_values_have_one_spelling() -> None:
    given = {"DelaySeconds": "007", "SqsManagedSseEnabled": "True"}
    assert normalised(given, fifo=False, creating=True) == {"DelaySeconds": "7", "SqsManagedSseEnabled": "true"}


def test_the_type_of_a_queue_stays() -> None:
    assert normalised({"FifoQueue": "TRUE"}, fifo=True, creating=False) == {"FifoQueue": "true"}
    with pytest.raises(SqsError, match="Modifying queue type is not supported"):
        normalised({"FifoQueue": "false"}, fifo=True, creating=False)


def test_two_kinds_of_encryption_exclude_each_other() -> None:
    assert code(KmsMasterKeyId="k", SqsManagedSseEnabled="true") == "InvalidAttributeName"
    with_key = merged({}, {"KmsMasterKeyId": "k"}, fifo=False)
    assert with_key == {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "false"}
    assert merged(with_key, {"KmsMasterKeyId": ""}, fifo=False) == {"SqsManagedSseEnabled": "false"}


def test_high_throughput_needs_deduplication_by_group() -> None:
    high = {"FifoThroughputLimit": "perMessageGroupId"}
    with pytest.raises(SqsError, match="DeduplicationScope is messageGroup"):
        merged({}, high, fifo=True)
    both = high | {"DeduplicationScope": "messageGroup"}
    assert merged({}, both, fifo=True) == both
    with pytest.raises(SqsError):
        merged(both, {"DeduplicationScope": "queue"}, fifo=True)


def test_unset_values_are_not_shown() -> None:
    shown = described(HOME, ORDERS, {})
    assert "KmsDataKeyReusePeriodSeconds" not in shown
    assert not {name for name in shown if "Fifo" in name or "Redrive" in name or "Policy" in name}
    assert shown["QueueArn"] == "arn:aws:sqs:us-east-1:000000000000:orders"
    assert described(HOME, ABROAD, {})["FifoThroughputLimit"] == "perQueue"


ARN = "arn:aws:sqs:us-east-1:000000000000:dead"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("x", "not a valid JSON map"),
        ("[]", "not a valid JSON map"),
        (json.dumps({"maxReceiveCount": 1}), "mandatory attribute: deadLetterTargetArn"),
        (json.dumps({"deadLetterTargetArn": ARN}), "mandatory attribute: maxReceiveCount"),
        (json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 0}), "Invalid value for maxReceiveCount: 0"),
        (json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1001}), "Invalid value for maxReceiveCount"),
        (json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": True}), "Invalid value for maxReceiveCount"),
        (json.dumps({"deadLetterTargetArn": f"{ARN}.fifo", "maxReceiveCount": 1}), "same type of queue"),
        (
            json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 1}),
            r"Invalid value for deadLetterTargetArn\.$",
        ),
        (json.dumps({"deadLetterTargetArn": 5, "maxReceiveCount": 1}), r"Invalid value for deadLetterTargetArn\.$"),
        (json.dumps({"deadLetterTargetArn": ARN.replace("0", "1"), "maxReceiveCount": 1}), "a queue of this account"),
        (json.dumps({"deadLetterTargetArn": ARN.replace("east", "west"), "maxReceiveCount": 1}), "account and region"),
    ],
)
def test_a_wrong_redrive_policy_is_refused(policy: str, reason: str) -> None:
    with pytest.raises(SqsError, match=reason) as refused:
        read_redrive(HOME, policy, ORDERS)
    assert str(refused.value).startswith(f"Value {policy} for parameter RedrivePolicy is invalid. Reason: ")


def test_a_redrive_policy_is_read() -> None:
    for count in (5, "5"):
        text = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": count})
        assert read_redrive(HOME, text, ORDERS) == Redrive(QueueName("us-east-1", "dead"), 5)
    assert read_redrive(HOME, "", ORDERS) is None
    assert same_value("RedrivePolicy", '{"a": "5", "b":1}', '{"b":"1","a":5}')


def test_who_may_use_a_dead_letter_queue() -> None:
    assert read_redrive_allow("").allows(ARN)
    assert not read_redrive_allow('{"redrivePermission":"denyAll"}').allows(ARN)
    by_queue = read_redrive_allow(json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN]}))
    assert by_queue == RedriveAllow("byQueue", (ARN,))
    assert by_queue.allows(ARN)
    assert not by_queue.allows(f"{ARN}2")
    for wrong in (
        {"redrivePermission": "x"},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "allowAll", "sourceQueueArns": [ARN]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [ARN] * 11},
    ):
        with pytest.raises(SqsError):
            read_redrive_allow(json.dumps(wrong))


PLAIN = {"QueueUrl": "http://localhost:9324/000000000000/q"}


@pytest.mark.parametrize(
    ("action", "members"),
    [
        ("SetQueueAttributes", {"Attributes": {"ReceiveMessageWaitTimeSeconds": "5"}}),
        ("AddPermission", {"Label": "x", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}),
        ("TagQueue", {"Tags": {"a": "b"}}),
        ("PurgeQueue", {}),
    ],
)
def test_a_queue_of_amqp_keeps_what_a_request_does_not_name(world: World, action: str, members: dict[str, Any]) -> None:
    world.queue("errors")
    world.queue("q", MaxDeliveryCount=5, ForwardDeadLetteredMessagesTo="errors", LockDuration="PT1M")
    queue, sqs = world.namespace.queue("q"), SqsWorld(world)
    names = {"AttributeNames": ["VisibilityTimeout", "MessageRetentionPeriod"]}
    before, shown = queue.description.options, sqs.call("GetQueueAttributes", **PLAIN, **names)["Attributes"]
    assert shown == {"VisibilityTimeout": "60", "MessageRetentionPeriod": "1209600"}
    sqs.call(action, **PLAIN, **members)
    after = queue.description.options
    assert after.sqs is not None
    assert replace(after, sqs=None) == before
    assert sqs.call("GetQueueAttributes", **PLAIN, **names)["Attributes"] == shown
