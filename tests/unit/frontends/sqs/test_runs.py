"""Requests that arrive in one round of the loop share commands and commits, and the work of a request is bounded."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, pairwise
from types import FrameType
from typing import Any

import pytest

from partibus.frontends.sqs.polls import ENDS_A_TURN, STEP_MS, Ends
from partibus.frontends.sqs.protocol import Parsed, Request
from partibus.limits import ElasticLimits
from partibus.partition.protocol.commands import CancelReceive, Enqueue, Receive, Settle
from partibus.partition.protocol.ports import StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.elastic import Action
from tests.robustness.work import work_of
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import Client, SqsWorld

BODY = "x" * 1024


@pytest.fixture
def sqs(world: World) -> SqsWorld:
    return SqsWorld(world)


@pytest.fixture
def clients(sqs: SqsWorld) -> list[Client]:
    return [sqs.connect() for _ in range(8)]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands that partitions got."""
    found: list[Any] = []
    submit = StoreRuntime.submit

    def noting(runtime: StoreRuntime, row: int, options: Any, command: Any, *rest: Any, **more: Any) -> None:
        found.append(command)
        submit(runtime, row, options, command, *rest, **more)

    monkeypatch.setattr(StoreRuntime, "submit", noting)
    return found


def together(sqs: SqsWorld, clients: Sequence[Client], requests: Sequence[bytes]) -> list[Any]:
    """Send a request on each connection at once; return the answers."""
    for client, request in zip(clients, requests, strict=True):
        client.send(request)
    sqs.world.wait()
    return [answer for client in clients for answer in client.answers()]


def queue_of(sqs: SqsWorld, name: str, **attributes: str) -> str:
    url: str = sqs.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def receive(sqs: SqsWorld, url: str, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        some = sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])
        assert some.get("Messages"), f"{len(found)} of {count} messages came"
        found += some["Messages"]
    return found


def test_sends_of_one_round_are_one_command_and_one_commit(
    sqs: SqsWorld, clients: list[Client], commands: list[Any]
) -> None:
    url = queue_of(sqs, "q")
    sqs.call("SendMessage", QueueUrl=url, MessageBody="first")
    before = sqs.world.store_of("q").runtime.commits
    commands.clear()
    requests = [sqs.signer.request("SendMessage", {"QueueUrl": url, "MessageBody": f"m{n}"}) for n in range(8)]
    sent = together(sqs, clients, requests)
    assert [len(command.messages) for command in commands if isinstance(command, Enqueue)] == [8]
    assert sqs.world.store_of("q").runtime.commits == before + 1
    received = receive(sqs, url, 9)
    assert {one["MessageId"]: one["Body"] for one in received[1:]} == {
        one["MessageId"]: f"m{n}" for n, one in enumerate(sent)
    }


def test_a_long_run_goes_on_in_pieces(sqs: SqsWorld, commands: list[Any]) -> None:
    url = queue_of(sqs, "q")
    entries = [{"Id": str(n), "MessageBody": "m"} for n in range(10)]
    clients = [sqs.connect() for _ in range(20)]
    sent = together(sqs, clients, [sqs.signer.request("SendMessageBatch", {"QueueUrl": url, "Entries": entries})] * 20)
    assert all(len(one["Successful"]) == 10 for one in sent)
    assert [len(command.messages) for command in commands if isinstance(command, Enqueue)] == [70, 70, 60]


def test_every_send_of_a_run_that_fails_is_refused(sqs: SqsWorld, clients: list[Client]) -> None:
    url = queue_of(sqs, "q")
    sqs.call("SendMessage", QueueUrl=url, MessageBody="first")
    sqs.world.store_of("q").fails = StoreError("the disk is away", executed=False)
    for client in clients:
        client.send(sqs.signer.request("SendMessage", {"QueueUrl": url, "MessageBody": "m"}))
    sqs.world.wait()
    for client in clients:
        (answer,) = client.transport.written
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"ServiceUnavailable" in answer


def test_every_message_of_a_batch_that_fails_is_refused_by_itself(sqs: SqsWorld) -> None:
    url = queue_of(sqs, "q")
    sqs.call("SendMessage", QueueUrl=url, MessageBody="first")
    sqs.world.store_of("q").fails = StoreError("the disk is away", executed=False)
    answer = sqs.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": one, "MessageBody": one} for one in "abc"])
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [(one, "ServiceUnavailable") for one in "abc"]
    assert "Successful" not in answer


def test_a_batch_whose_messages_differ_in_their_members_is_stored_the_same(sqs: SqsWorld) -> None:
    url = queue_of(sqs, "q")
    traced = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    entries = [
        {"Id": "plain", "MessageBody": "m1"},
        {"Id": "traced", "MessageBody": "m2", "MessageSystemAttributes": traced},
        {"Id": "accented", "MessageBody": "é"},
    ]
    alone = [sqs.call("SendMessageBatch", QueueUrl=url, Entries=[one])["Successful"][0] for one in entries]
    together = sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)["Successful"]
    unique = ("MessageId",)
    shown = [[{key: one[key] for key in one if key not in unique} for one in some] for some in (alone, together)]
    assert shown[0] == shown[1]
    assert len({one["MessageId"] for one in (*alone, *together)}) == 6
    bodies = [one["Body"] for one in receive(sqs, url, 6)]
    assert bodies == ["m1", "m2", "é"] * 2


def test_a_receive_that_gets_messages_is_one_command(sqs: SqsWorld, commands: list[Any]) -> None:
    url = queue_of(sqs, "q")
    for n in range(3):
        sqs.call("SendMessage", QueueUrl=url, MessageBody=f"m{n}")
    commands.clear()
    assert len(receive(sqs, url, 3)) == 3
    assert [type(command) for command in commands] == [Receive], "ten were asked for"
    sqs.call("SendMessage", QueueUrl=url, MessageBody="last")
    commands.clear()
    assert sqs.call("ReceiveMessage", QueueUrl=url)["Messages"][0]["Body"] == "last"
    assert [type(command) for command in commands] == [Receive]


def fifo_send(sqs: SqsWorld, url: str, group: str, key: str, body: str = "m") -> bytes:
    members = {"QueueUrl": url, "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": key}
    return sqs.signer.request("SendMessage", members)


def test_sends_to_a_fifo_queue_share_a_command_and_keep_their_order(
    sqs: SqsWorld, clients: list[Client], commands: list[Any]
) -> None:
    url = queue_of(sqs, "q.fifo", FifoQueue="true")
    sent = together(sqs, clients, [fifo_send(sqs, url, "g", f"k{n % 6}", f"m{n}") for n in range(8)])
    assert [len(command.messages) for command in commands if isinstance(command, Enqueue)] == [8]
    numbers = [one["SequenceNumber"] for one in sent]
    assert numbers[:6] == sorted(set(numbers[:6]))
    assert [(one["MessageId"], one["SequenceNumber"]) for one in sent[6:]] == [
        (one["MessageId"], one["SequenceNumber"]) for one in sent[:2]
    ], "a duplicate of another client's message in the same run"
    assert [one["Body"] for one in receive(sqs, url, 6)] == [f"m{n}" for n in range(6)]


def test_each_request_of_a_run_counts_as_load_by_itself(sqs: SqsWorld, clients: list[Client]) -> None:
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    url = queue_of(sqs, "q.fifo", FifoQueue="true", **high)
    entries = [
        {"Id": str(n), "MessageBody": "m", "MessageGroupId": f"g{n}", "MessageDeduplicationId": f"b{n}"}
        for n in range(10)
    ]
    requests = [fifo_send(sqs, url, f"g{n}", f"k{n}") for n in range(7)]
    requests.append(sqs.signer.request("SendMessageBatch", {"QueueUrl": url, "Entries": entries}))
    together(sqs, clients, requests)
    entity = sqs.world.broker.entity("q.fifo")
    assert entity.elastic is not None
    entity.elastic.limits = ElasticLimits(requests_per_s=1, messages_per_s=1, window_ms=1_000)
    assert entity.elastic.told(sqs.world.timeline.now_ms() + 1_000) == [(0, Action.SEND, 8, 17)], "requests, messages"


@pytest.mark.parametrize("fifo", [False, True])
def test_deletes_of_one_round_are_one_command_also_of_one_message_twice(
    fifo: bool, sqs: SqsWorld, clients: list[Client], commands: list[Any]
) -> None:
    url = queue_of(sqs, "q.fifo", FifoQueue="true") if fifo else queue_of(sqs, "q")
    for n in range(7):
        group = {"MessageGroupId": "g", "MessageDeduplicationId": f"k{n}"} if fifo else {}
        sqs.call("SendMessage", QueueUrl=url, MessageBody="m", **group)
    handles = [one["ReceiptHandle"] for one in receive(sqs, url, 7)]
    commands.clear()
    requests = [
        sqs.signer.request("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle})
        for handle in (*handles, handles[0])
    ]
    assert together(sqs, clients, requests) == [{}] * 8
    assert [len(command.tokens) for command in commands if isinstance(command, Settle)] == [8]
    counts = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_a_delete_too_late_fails_alone(sqs: SqsWorld, clients: list[Client]) -> None:
    url = queue_of(sqs, "q.fifo", FifoQueue="true", VisibilityTimeout="10")
    for n in range(8):
        group = {"MessageGroupId": f"g{n}", "MessageDeduplicationId": f"k{n}"}
        sqs.call("SendMessage", QueueUrl=url, MessageBody="m", **group)
    messages = receive(sqs, url, 8)
    extended = sorted(messages, key=lambda one: str(one["MessageId"]))[::2]
    for one in extended:
        sqs.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=60)
    sqs.world.wait(10_000)
    for client, one in zip(clients, messages, strict=True):
        client.send(sqs.signer.request("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": one["ReceiptHandle"]}))
    sqs.world.wait()
    for client, one in zip(clients, messages, strict=True):
        (answer,) = client.transport.written
        assert (b"The receipt handle has expired" in answer) is (one not in extended)


def test_an_older_handle_sets_the_end_of_the_present_visibility_timeout(sqs: SqsWorld) -> None:
    url = queue_of(sqs, "q", VisibilityTimeout="10")
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m")
    (older,) = receive(sqs, url, 1)
    sqs.world.wait(10_001)
    (present,) = receive(sqs, url, 1)

    def change(seconds: int) -> None:
        handle = older["ReceiptHandle"]
        sqs.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)

    change(60)
    sqs.world.wait(50_000)
    assert sqs.call("ReceiveMessage", QueueUrl=url) == {}
    sqs.world.wait(10_001)
    (third,) = receive(sqs, url, 1)
    change(0)
    (fourth,) = receive(sqs, url, 1)
    assert len({one["ReceiptHandle"] for one in (older, present, third, fourth)}) == 4
    assert fourth["Attributes"]["ApproximateReceiveCount"] == "4"


def test_pipelined_requests_are_carried_out_one_a_round_of_the_loop(sqs: SqsWorld) -> None:
    """Thousands of them in one read would hold the loop for hundreds of ms."""
    url = queue_of(sqs, "q")
    carried_out: list[str] = []
    handle = sqs.service.handle

    def noting(request: Request, parsed: Parsed, *rest: Any) -> Any:
        carried_out.append(parsed.action)
        return handle(request, parsed, *rest)

    sqs.service.handle = noting  # type: ignore[assignment, method-assign]
    client = sqs.connect()
    client.send(sqs.signer.request("ListQueues", {}) * 50 + sqs.signer.request("GetQueueUrl", {"QueueName": "q"}))
    rounds = [len(carried_out)]
    while len(carried_out) < 51:
        sqs.world.timeline.run_next()
        rounds.append(len(carried_out))
    assert {after - before for before, after in pairwise([0, *rounds])} <= {0, 1}
    answers = client.answers()
    assert len(answers) == 51
    assert answers[-1] == {"QueueUrl": url}


# -- the work of a request ---------------------------------------------------------------------------------------------

CALLS_MAX = {
    False: {"SendMessage": 91.5, "SendMessageBatch": 108.25, "ReceiveMessage": 176.75, "DeleteMessageBatch": 96.25},
    True: {
        "SendMessage": 107.875,
        "SendMessageBatch": 165.375,
        "ReceiveMessage": 363.625,
        "DeleteMessageBatch": 125.625,
    },
}
"""Calls of the broker's functions for one request, by whether the queue is a FIFO queue. Eight requests come at a time;
batches have ten entries, on a FIFO queue of one group each. A call takes about two tenths of a µs. Half a call is
spare: a call more of each request is seen, one more among the eight is not.
"""


def calls_of(run: Callable[[], object]) -> int:
    """Count the calls of the broker's functions, but for the store's."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/partibus/" in name and "/partibus/store/" not in name and "/tests/" not in name:
            found[name] += 1

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers of former tests' objects are no work of a request
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return found.total()


@pytest.mark.parametrize("fifo", [False, True])
def test_the_work_of_a_request_does_not_grow(fifo: bool, sqs: SqsWorld, clients: list[Client]) -> None:
    counted: dict[str, float] = {}
    numbers = count()

    def message(group: int) -> dict[str, str]:
        return {
            "MessageBody": BODY,
            **({"MessageGroupId": f"g{group}", "MessageDeduplicationId": f"k{next(numbers)}"} if fifo else {}),
        }

    def measured(url: str, action: str, members: Sequence[dict[str, object]]) -> list[Any]:
        requests = [sqs.signer.request(action, {"QueueUrl": url, **one}) for one in members]
        answers: list[Any] = []
        counted[action] = calls_of(lambda: answers.extend(together(sqs, clients, requests))) / len(requests)
        return answers

    for name in ("first", "q"):  # what is made on first use is there when the calls of the second are counted
        url = queue_of(sqs, f"{name}.fifo", FifoQueue="true") if fifo else queue_of(sqs, name)
        sqs.call("SendMessage", QueueUrl=url, **message(8))
        measured(url, "SendMessage", [{**message(group)} for group in range(8)])
        batches = [[{"Id": str(n), **message(group)} for n in range(10)] for group in range(8)]
        measured(url, "SendMessageBatch", [{"Entries": one} for one in batches])
        received = measured(url, "ReceiveMessage", [{"MaxNumberOfMessages": 10}] * 8)
        handles = [[message["ReceiptHandle"] for message in one["Messages"]] for one in received]
        assert [len(some) for some in handles] == [10] * 8
        entries = [[{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(some)] for some in handles]
        measured(url, "DeleteMessageBatch", [{"Entries": some} for some in entries])
    assert {action: calls for action, calls in counted.items() if calls > CALLS_MAX[fifo][action]} == {}


def test_a_long_poll_asks_once_and_withdraws_once(sqs: SqsWorld, commands: list[Any]) -> None:
    url = queue_of(sqs, "q")
    client = sqs.connect()
    commands.clear()
    client.send(sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 2}))
    sqs.world.wait(3_000)
    assert client.answers() == [{}]
    assert [type(command) for command in commands] == [Receive, CancelReceive]
    entity = sqs.world.broker.entity("q")
    assert not entity.awaited
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m")
    assert len(receive(sqs, url, 1)) == 1, "no demand is left that would take it"


def test_waits_end_in_steps_each_of_which_has_one_timer() -> None:
    now_ms = 70.0
    timers: list[tuple[float, Callable[[], None]]] = []
    ended: list[int] = []
    ends = Ends(lambda delay_ms, call: timers.append((now_ms + delay_ms, call)), lambda: now_ms)  # type: ignore[arg-type,return-value]
    waits = [20, 29, 30, 31, 129, 130]
    ending = [ends.add(wait_ms, partial(ended.append, wait_ms)) for wait_ms in waits]
    assert [due_ms for due_ms, _ in timers] == [100, 200, 300]
    ending[1].cancel()
    ending[5].cancel()
    for due_ms, call in timers:
        ended.clear()
        call()
        assert sorted(ended) == {100: [20], 200: [30, 31, 129], 300: []}[round(due_ms)]
        assert all(0 < due_ms - now_ms - wait_ms <= STEP_MS for wait_ms in ended)
    ending[0].cancel()  # after its end
    ends.add(1, partial(ended.append, 1))
    assert timers[-1][0] == 100, "the step begins anew"


def test_many_waits_that_end_together_leave_the_loop_to_others_in_between() -> None:
    timers: list[Callable[[], None]] = []
    ended: list[int] = []
    ends = Ends(lambda _, call: timers.append(call), lambda: 0.0)  # type: ignore[arg-type,return-value]
    for number in range(2 * ENDS_A_TURN + 1):
        ends.add(1, partial(ended.append, number))
    turns = []
    while timers:
        timers.pop()()
        turns.append(len(ended))
    assert turns == [ENDS_A_TURN, 2 * ENDS_A_TURN, 2 * ENDS_A_TURN + 1]


def test_a_wait_whose_end_fails_keeps_no_other_from_ending() -> None:
    timers: list[Callable[[], None]] = []
    ended: list[int] = []
    ends = Ends(lambda _, call: timers.append(call), lambda: 0.0)  # type: ignore[arg-type,return-value]
    ends.add(1, partial(ended.append, 1))
    ends.add(1, partial(ended.remove, 2))
    with pytest.raises(ValueError, match="not in list"):
        timers.pop()()
    timers.pop()()
    assert ended == [1]


def test_a_long_poll_costs_the_same_among_many(sqs: SqsWorld) -> None:
    url = queue_of(sqs, "q")
    poll = sqs.signer.request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20})

    def begin() -> Client:
        client = sqs.connect()
        client.send(poll)
        return client

    def one() -> None:
        client = begin()
        client.protocol.connection_lost(None)

    assert sqs.call("ReceiveMessage", QueueUrl=url) == {}  # loads the partition
    for _ in range(5):
        begin()
    few = min(work_of(one) for _ in range(3))
    for _ in range(300):
        begin()
    assert min(work_of(one) for _ in range(3)) <= few * 1.02
