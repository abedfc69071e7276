"""The promises of SQS about queues over time, as boto3 sees them: dead letters, deduplication, purges, move tasks."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from partibus.client.extensions.entities import Entities
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.conformance.clients.admin import Http, entry
from tests.conformance.test_sqs import client_of, delete, receive
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sqs"), arguments=("--clock", "manual")) as broker:
        yield broker


@pytest.fixture(scope="module")
def sqs(broker: BrokerProcess) -> Any:
    return client_of(broker)


def make(sqs: Any, name: str, **attributes: str) -> str:
    if name.endswith(".fifo"):
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} | attributes
    queue: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return queue


def arn(sqs: Any, queue: str) -> str:
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    return str(found["QueueArn"])


def with_dead_letters(sqs: Any, name: str, count: int = 1) -> tuple[str, str]:
    """Make a queue and its dead-letter queue; return their URLs."""
    target = make(sqs, f"dead-{name}")
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, target), "maxReceiveCount": count})
    return make(sqs, name, RedrivePolicy=policy, VisibilityTimeout="10"), target


def counts(sqs: Any, queue: str) -> tuple[int, int, int]:
    """Return how many messages are visible, in flight and delayed."""
    names = ["", "NotVisible", "Delayed"]
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    return tuple(int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)  # type: ignore[return-value]


def has_received(sqs: Any, queue: str, got: list[Any], count: int) -> bool:
    """Receive into ``got``; tell whether it has so many messages."""
    got += receive(sqs, queue, 0, MessageAttributeNames=["All"])
    return len(got) == count


def of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, str, int]:
    response = error.value.response
    return response["Error"]["Code"], response["Error"]["Message"], response["ResponseMetadata"]["HTTPStatusCode"]


# Handles after their timeout -----------------------------------------------------------------------------------------


def test_a_handle_of_a_standard_queue_works_after_its_timeout(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "late", VisibilityTimeout="10")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (first,) = receive(sqs, queue)
    broker.advance(10_001)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=60)
    assert counts(sqs, queue) == (0, 1, 0)
    assert receive(sqs, queue, 0) == []
    broker.advance(60_001)
    (second,) = receive(sqs, queue)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 0, 0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    with pytest.raises(ClientError) as gone:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=60)
    code, text, status = of(gone)
    assert (code, status) == ("InvalidParameterValue", 400)
    assert text.endswith("Message does not exist or is not available for visibility timeout change.")


def test_a_handle_of_a_fifo_queue_says_expired_or_gone(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "late.fifo", VisibilityTimeout="10")
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="g")
    (first,) = receive(sqs, queue)
    broker.advance(10_001)
    for call in (sqs.delete_message, lambda **named: sqs.change_message_visibility(VisibilityTimeout=5, **named)):
        with pytest.raises(ClientError, match=r"Reason: The receipt handle has expired\."):
            call(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    (second,) = receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    with pytest.raises(ClientError, match="does not exist"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=5)


# Dead letters --------------------------------------------------------------------------------------------------------


def test_a_dead_letter_keeps_what_it_was_and_goes_on_counting(sqs: Any, broker: BrokerProcess) -> None:
    queue, dead = with_dead_letters(sqs, "work", 2)
    attributes = {"n": {"DataType": "Number", "StringValue": "5"}}
    sent = sqs.send_message(QueueUrl=queue, MessageBody="poison", MessageAttributes=attributes, MessageGroupId="tenant")
    sqs.send_message(QueueUrl=queue, MessageBody="good")
    first = next(one for one in receive(sqs, queue) if one["Body"] == "poison")
    for _ in range(2):
        broker.advance(10_001)
        receive(sqs, queue)
    broker.advance(10_001)
    assert receive(sqs, queue, 0) == []
    got: list[Any] = []
    eventually("both are dead letters", lambda: has_received(sqs, dead, got, 2))
    (poison,) = (one for one in got if one["Body"] == "poison")
    assert poison["MessageId"] == sent["MessageId"]
    assert poison["MessageAttributes"] == attributes
    found = poison["Attributes"]
    assert found["ApproximateReceiveCount"] == "3"
    assert found["MessageGroupId"] == "tenant"
    assert found["SentTimestamp"] == first["Attributes"]["SentTimestamp"], "retention runs from the first send"
    assert found["DeadLetterQueueSourceArn"] == arn(sqs, queue)
    broker.advance(30_001)
    assert {one["Attributes"]["ApproximateReceiveCount"] for one in receive(sqs, dead)} == {"4"}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]


def test_retention_of_a_dead_letter_runs_from_its_first_send(sqs: Any, broker: BrokerProcess) -> None:
    queue, dead = with_dead_letters(sqs, "short")
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"MessageRetentionPeriod": "60"})
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    receive(sqs, queue)
    broker.advance(40_000)
    assert receive(sqs, queue, 0) == []
    eventually("it is a dead letter", lambda: counts(sqs, dead) == (1, 0, 0))
    broker.advance(21_000)
    eventually("it has expired", lambda: counts(sqs, dead) == (0, 0, 0))


def test_dead_letters_of_a_fifo_queue_keep_their_group_and_are_never_duplicates(
    sqs: Any, broker: BrokerProcess
) -> None:
    queue, dead = with_dead_letters(sqs, "work.fifo")
    ids = []
    for body in ("a", "b"):
        sent = sqs.send_message(
            QueueUrl=queue, MessageBody=body, MessageGroupId=body, MessageDeduplicationId=f"id-{body}"
        )
        ids.append(sent["MessageId"])
    sqs.send_message(QueueUrl=queue, MessageBody="a2", MessageGroupId="a")
    receive(sqs, queue, 5)
    broker.advance(10_001)
    assert receive(sqs, queue, 0) == [], "all three move"
    got: list[Any] = []
    eventually("all are dead letters", lambda: has_received(sqs, dead, got, 3))
    assert [one["Body"] for one in got if one["Attributes"]["MessageGroupId"] == "a"] == ["a", "a2"]
    for one in got:
        assert one["Attributes"]["MessageDeduplicationId"] == one["MessageId"]
        assert one["Attributes"]["ApproximateReceiveCount"] == "2"
    assert set(ids) <= {one["MessageId"] for one in got}
    again = sqs.send_message(QueueUrl=queue, MessageBody="a", MessageGroupId="a", MessageDeduplicationId="id-a")
    assert again["MessageId"] == ids[0], "the source remembers the id"


# Deduplication -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_an_id_is_unique_in_its_scope(sqs: Any, scope: str) -> None:
    queue = make(sqs, f"scope-{scope}.fifo", DeduplicationScope=scope)
    for group in ("g1", "g2"):
        sqs.send_message(QueueUrl=queue, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="same")
    assert counts(sqs, queue)[0] == (1 if scope == "queue" else 2)


def test_a_change_of_the_scope_shows_at_once_and_takes_effect_later(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "change.fifo")

    def send(group: str, number: int) -> int:
        sqs.send_message(
            QueueUrl=queue, MessageBody="x", MessageGroupId=group, MessageDeduplicationId=f"{number}-{group[:1]}"
        )
        return counts(sqs, queue)[0]

    assert send("g1", 1) == 1
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationScope": "messageGroup"})
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["DeduplicationScope"])["Attributes"]
    assert shown == {"DeduplicationScope": "messageGroup"}
    assert send("g2", 1) == 1, "unique in the queue for another minute"
    broker.advance(60_000)
    assert send("g2", 1) == 2
    assert send("g2", 1) == 2
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationScope": "queue"})
    assert send("g3", 1) == 3
    broker.advance(60_000)
    assert send("g3", 2) == 4
    assert send("g4", 2) == 4
    broker.advance(300_000)
    assert send("g4", 2) == 5, "the window is over"


def test_an_id_is_unique_in_a_queue_with_several_partitions(sqs: Any, broker: BrokerProcess) -> None:
    broker.create_queue("wide.fifo", EnablePartitioning=True, RequiresSession=True, RequiresDuplicateDetection=True)
    queue = sqs.get_queue_url(QueueName="wide.fifo")["QueueUrl"]
    sent = [
        sqs.send_message(QueueUrl=queue, MessageBody=f"m{n}", MessageGroupId=f"g{n}", MessageDeduplicationId="same")
        for n in range(20)
    ]
    assert len({one["MessageId"] for one in sent}) == len({one["SequenceNumber"] for one in sent}) == 1
    entries = [
        {"Id": str(n), "MessageBody": "x", "MessageGroupId": f"g{n}", "MessageDeduplicationId": f"{n}"}
        for n in range(10)
    ]
    assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 10
    assert counts(sqs, queue)[0] == 11


# Purges --------------------------------------------------------------------------------------------------------------


def test_a_purge_removes_everything_and_forgets_ids_once_a_minute(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "purge.fifo")
    first = sqs.send_message(QueueUrl=queue, MessageBody="a", MessageGroupId="g")
    sqs.send_message(QueueUrl=queue, MessageBody="b", MessageGroupId="h")
    receive(sqs, queue)
    sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == (0, 0, 0)
    again = sqs.send_message(QueueUrl=queue, MessageBody="a", MessageGroupId="g")
    assert again["MessageId"] != first["MessageId"]
    broker.advance(59_000)
    with pytest.raises(ClientError) as early:
        sqs.purge_queue(QueueUrl=queue)
    assert of(early) == (
        "AWS.SimpleQueueService.PurgeQueueInProgress",
        "Only one PurgeQueue operation on purge.fifo is allowed every 60 seconds.",
        403,
    )
    assert counts(sqs, queue)[0] == 1
    broker.advance(1_000)
    sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == (0, 0, 0)


# Message move tasks --------------------------------------------------------------------------------------------------


def fill_dead_letters(broker: BrokerProcess, sqs: Any, name: str, count: int) -> tuple[str, str]:
    queue, dead = with_dead_letters(sqs, name)
    for start in range(0, count, 10):
        entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(start, min(start + 10, count))]
        if name.endswith(".fifo"):
            entries = [one | {"MessageGroupId": f"g{n % 3}"} for n, one in enumerate(entries)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    taken = 0
    while taken < count:
        taken += len(receive(sqs, queue))
    broker.advance(10_001)

    def are_dead() -> bool:
        receive(sqs, queue, 0)
        return counts(sqs, dead)[0] == count

    eventually("all are dead letters", are_dead)
    return queue, dead


def task_of(sqs: Any, source: str) -> Any:
    return sqs.list_message_move_tasks(SourceArn=source)["Results"][0]


@pytest.mark.parametrize("name", ["moves", "moves.fifo"])
def test_a_move_task_gives_messages_back_as_new_ones(sqs: Any, broker: BrokerProcess, name: str) -> None:
    queue, dead = fill_dead_letters(broker, sqs, name, 10)
    source = arn(sqs, dead)
    handle = sqs.start_message_move_task(SourceArn=source)["TaskHandle"]
    assert json.loads(b64decode(handle))["sourceArn"] == source
    eventually("it is complete", lambda: task_of(sqs, source)["Status"] == "COMPLETED")
    task = task_of(sqs, source)
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (10, 10)
    assert "TaskHandle" not in task
    assert counts(sqs, dead) == (0, 0, 0)
    assert counts(sqs, queue) == (10, 0, 0)
    got = receive(sqs, queue)
    assert {one["Attributes"]["ApproximateReceiveCount"] for one in got} == {"1"}
    assert not [one for one in got if "DeadLetterQueueSourceArn" in one["Attributes"]]
    with pytest.raises(ClientError) as over:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert of(over)[0] == "ResourceNotFoundException"
    delete(sqs, queue, got)


def test_a_move_task_can_be_cancelled_and_what_was_moved_stays(sqs: Any, broker: BrokerProcess) -> None:
    queue, dead = fill_dead_letters(broker, sqs, "cancelled", 30)
    source = arn(sqs, dead)
    handle = sqs.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=2)["TaskHandle"]
    with pytest.raises(ClientError, match="There is already a task running"):
        sqs.start_message_move_task(SourceArn=source)
    eventually("some were moved", lambda: task_of(sqs, source)["ApproximateNumberOfMessagesMoved"] >= 2)
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    eventually("it is cancelled", lambda: task_of(sqs, source)["Status"] == "CANCELLED")
    task = task_of(sqs, source)
    assert 2 <= moved <= task["ApproximateNumberOfMessagesMoved"] < 30
    assert task["MaxNumberOfMessagesPerSecond"] == 2
    assert counts(sqs, queue)[0] == task["ApproximateNumberOfMessagesMoved"]
    assert sum(counts(sqs, dead)) + counts(sqs, queue)[0] == 30


def test_a_move_task_goes_on_after_a_kill_and_leaves_no_message_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        sqs = client_of(broker)
        _, dead = fill_dead_letters(broker, sqs, "killed", 40)
        source = arn(sqs, dead)
        sqs.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=10)
        queue = sqs.get_queue_url(QueueName="killed")["QueueUrl"]
        eventually("some were moved", lambda: counts(sqs, queue)[0] >= 10)
        broker.kill()
        broker.start()
        sqs = client_of(broker)
        queue, dead = (sqs.get_queue_url(QueueName=name)["QueueUrl"] for name in ("killed", "dead-killed"))

        def is_complete() -> bool:
            broker.advance(5_000)
            return bool(task_of(sqs, source)["Status"] == "COMPLETED")

        eventually("it is complete", is_complete)
        assert counts(sqs, dead) == (0, 0, 0)
        assert sum(counts(sqs, queue)) >= 40
        bodies = set()
        while got := receive(sqs, queue, 0):
            bodies |= {one["Body"] for one in got}
        assert bodies == {f"m{n}" for n in range(40)}


def test_move_tasks_name_what_is_missing(sqs: Any) -> None:
    plain = arn(sqs, make(sqs, "no-dead-letters"))
    with pytest.raises(ClientError) as no_queue:
        sqs.start_message_move_task(SourceArn=plain.replace("no-dead", "missing"))
    assert of(no_queue) == (
        "ResourceNotFoundException",
        "The resource that you specified for the SourceArn parameter doesn't exist.",
        404,
    )
    with pytest.raises(ClientError, match=r"Source queue must be configured as a Dead Letter Queue\."):
        sqs.start_message_move_task(SourceArn=plain)
    with pytest.raises(ClientError, match=r"Value for parameter TaskHandle is invalid\."):
        sqs.cancel_message_move_task(TaskHandle="nonsense")


# Fair queues ---------------------------------------------------------------------------------------------------------


def test_a_noisy_tenant_of_a_standard_queue_delays_no_other(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "tenants", VisibilityTimeout="600")

    def send(tenant: str, count: int) -> None:
        entries = [{"Id": str(n), "MessageBody": tenant, "MessageGroupId": tenant} for n in range(count)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    for _ in range(8):
        send("noisy", 10)
    taken = 0
    while taken < 30:
        taken += len(receive(sqs, queue, 0))
    send("quiet", 5)
    sqs.send_message(QueueUrl=queue, MessageBody="alone")
    assert [one["Body"] for one in receive(sqs, queue)] == ["quiet"] * 5 + ["alone"] + ["noisy"] * 4
    left = []
    while got := receive(sqs, queue, 0):
        left += got
    assert len(left) == 46, "the rest of the noisy tenant's"
    assert {one["Attributes"]["MessageGroupId"] for one in left} == {"noisy"}


# Beside other clients ------------------------------------------------------------------------------------------------

SET = {
    "VisibilityTimeout": "43200",
    "DelaySeconds": "7",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
TAGS = {"team": "a", "empty": ""}


def shown(sqs: Any, name: str) -> tuple[Any, Any]:
    """Return the attributes of a queue that say what it does, and its tags."""
    queue = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    values = {key: value for key, value in found.items() if "Approximate" not in key and "Timestamp" not in key}
    return values, sqs.list_queue_tags(QueueUrl=queue)["Tags"]


def test_an_update_by_a_client_of_service_bus_keeps_attributes_and_tags(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "shared.fifo", **SET)
    sqs.tag_queue(QueueUrl=queue, Tags=TAGS)
    before = shown(sqs, "shared.fifo")
    http = Http(broker)
    content = "<LockDuration>PT1M</LockDuration><DefaultMessageTimeToLive>P2D</DefaultMessageTimeToLive>"
    answer = http("PUT", "shared.fifo", entry("QueueDescription", content), If_Match="*")
    assert answer.status == 200
    assert answer.text("RequiresSession") == "true"
    before[0]["MessageRetentionPeriod"] = "172800"
    assert shown(sqs, "shared.fifo") == before


def test_a_description_that_was_read_can_be_sent_back(sqs: Any, broker: BrokerProcess) -> None:
    queue = make(sqs, "again.fifo", **SET)
    sqs.tag_queue(QueueUrl=queue, Tags=TAGS)
    before = shown(sqs, "again.fifo")
    http = Http(broker)
    read = http("GET", "again.fifo")
    assert http("PUT", "again.fifo", read.body, If_Match="*").status == 200
    assert shown(sqs, "again.fifo") == before


def test_a_config_file_declares_sqs_queues(sqs: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    queue = make(sqs, "declared.fifo", **SET)
    sqs.tag_queue(QueueUrl=queue, Tags=TAGS)
    before = shown(sqs, "declared.fifo")
    with connect(broker.connection_string) as client:
        config, _ = Entities(client).export()
    with BrokerProcess(tmp_path, config=json.loads(config)) as other:
        theirs = client_of(other)
        assert shown(theirs, "declared.fifo") == before
        url = theirs.get_queue_url(QueueName="declared.fifo")["QueueUrl"]
        theirs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
        assert theirs.list_queues()["QueueUrls"]


def test_a_backup_has_messages_of_sqs_whole(sqs: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    queue = make(sqs, "saved.fifo")
    into = make(sqs, "restored.fifo")
    attributes = {"n": {"DataType": "Number.int", "StringValue": "5"}}
    for body in ("a", "b"):
        sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="g", MessageAttributes=attributes)
    folder = str(tmp_path / "backup")
    connection = ("--connection", broker.connection_string)
    progress = f"--progress={tmp_path / 'progress.json'}"
    for command in (
        ("backup", folder),
        ("restore", folder, "--entity", "saved.fifo", "--into", "restored.fifo", progress),
    ):
        done = run_to_the_end(*command, *connection)
        assert done.returncode == 0, done.stderr
    got = receive(sqs, into, MessageAttributeNames=["All"])
    assert [one["Body"] for one in got] == ["a", "b"]
    assert {one["Attributes"]["MessageGroupId"] for one in got} == {"g"}
    assert all(one["MessageAttributes"] == attributes for one in got)
    original = receive(sqs, queue)
    assert [one["MessageId"] for one in got] == [one["MessageId"] for one in original]


def test_an_emulator_keeps_a_deleted_name_for_the_time_that_it_was_given(tmp_path: Path, sqs: Any) -> None:
    def make_again(client: Any) -> None:
        client.delete_queue(QueueUrl=make(client, "again"))
        make(client, "again")

    make_again(sqs)
    arguments = ("--clock", "manual", "--sqs-recreate-after", "10")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        with pytest.raises(ClientError) as refused:
            make_again(client_of(broker))
        assert of(refused)[0] == "AWS.SimpleQueueService.QueueDeletedRecently"
        broker.advance(10_001)
        make(client_of(broker), "again")
