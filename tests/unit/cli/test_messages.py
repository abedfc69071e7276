"""`send`, `receive` and `peek`: what is sent, what is printed, and in which order things happen."""

from __future__ import annotations

import base64
import json
import os
import threading
from itertools import count

from partibus.amqp import AmqpError
from partibus.amqp.section_encoding import encode_annotations
from partibus.amqp.sections import split_sections
from partibus.client.messages import IncomingMessage, OutgoingMessage
from tests.unit.cli.conftest import Run
from tests.unit.client.broker import TinyBroker


def sent(broker: TinyBroker) -> list[IncomingMessage]:
    return [IncomingMessage(payload) for payload in broker.queues["q"]]


def fill(broker: TinyBroker, *bodies: bytes) -> None:
    broker.queues["q"].extend(
        OutgoingMessage(body=body, message_id=f"m{number}").encode() for number, body in enumerate(bodies)
    )


def test_send_carries_every_property(broker: TinyBroker, run: Run) -> None:
    result = run(
        "send", "q", "hello", "--message-id", "7", "--partition-key", "k", "--subject", "s", "--ttl", "1.5",
        "--correlation-id", "c", "--content-type", "text/plain", "--to", "t", "--reply-to", "r", "--session-id", "k",
        "--property", "a=b=c", "--property", "d=e",
    )  # fmt: skip
    assert result.output == "1 message sent to 'q'.\n"
    (message,) = sent(broker)
    assert message.body == b"hello"
    assert message.header.ttl == 1_500
    assert message.application_properties == {"a": "b=c", "d": "e"}
    assert (message.message_id, message.partition_key, message.subject, message.session_id) == ("7", "k", "s", "k")
    assert (message.correlation_id, message.content_type, message.to, message.reply_to) == ("c", "text/plain", "t", "r")


def test_send_takes_standard_input_to_the_byte(broker: TinyBroker, run: Run) -> None:
    run("send", "q", input=b"\x00\xff\n")
    assert [message.body for message in sent(broker)] == [b"\x00\xff\n"]


def test_send_of_lines_repeats_each(broker: TinyBroker, run: Run) -> None:
    result = run("send", "q", "--lines", "--count", "2", "--json", input=b"a\r\nb\n")
    assert json.loads(result.output) == {"entity": "q", "sent": 4}
    assert [message.body for message in sent(broker)] == [b"a", b"a", b"b", b"b"]


def test_send_that_is_refused_exits_with_the_reason(broker: TinyBroker, run: Run) -> None:
    broker.refuse_send = lambda number: AmqpError("amqp:resource-limit-exceeded", "The queue is full.")
    result = run("send", "q", "x")
    assert result.exit_code == 1
    assert result.output == "Error: sender to 'q': The queue is full.\n"


def test_receive_prints_json_and_completes(broker: TinyBroker, run: Run) -> None:
    fill(broker, b"text", b"\xff\x00", b"left")
    result = run("receive", "q", "--max", "2", "--json")
    first, second = map(json.loads, result.output.splitlines())
    assert first["body"] == "text"
    assert base64.b64decode(second["body_base64"]) == b"\xff\x00"
    assert "body" not in second
    assert [outcome for _, outcome in broker.settled] == ["accepted", "accepted"]
    assert len(broker.queues["q"]) == 1


def test_receive_can_abandon_and_dead_letter(broker: TinyBroker, run: Run) -> None:
    fill(broker, b"1", b"2")
    run("receive", "q", "--settle", "abandon")
    run("receive", "q", "--settle", "dead-letter", "--reason", "bad")
    assert [outcome for _, outcome in broker.settled] == ["modified", "rejected"]


def test_receive_and_delete_settles_nothing(broker: TinyBroker, run: Run) -> None:
    fill(broker, b"1")
    assert "1" in run("receive", "q", "--mode", "receive-and-delete").output
    assert broker.settled == []


def test_receive_of_nothing_says_so(run: Run) -> None:
    result = run("receive", "q", "--timeout", "0")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == "No message in 'q' within 0 s.\n"
    assert run("receive", "q", "--timeout", "0", "--json").output == ""


def test_dead_letter_queue_is_another_address(broker: TinyBroker, run: Run) -> None:
    result = run("receive", "q", "--dead-letter-queue")
    assert result.exit_code == 1
    assert "'q/$DeadLetterQueue' could not be found" in result.output


def test_what_strangers_wrote_can_not_drive_the_terminal(broker: TinyBroker, run: Run) -> None:
    fill(broker, b"\x1b[2Jgone\r[bold]x[/bold]\nnext")
    output = run("receive", "q").stdout
    assert "\x1b" not in output
    assert r"\x1b[2Jgone\r[bold]x[/bold]\nnext" in output


def test_peek_pages_until_it_has_enough(broker: TinyBroker, run: Run) -> None:
    def encoded(number: int) -> dict[str, bytes]:
        sections = split_sections(OutgoingMessage(body=b"%d" % number).encode())
        sections.message_annotations = encode_annotations({"x-opt-sequence-number": number})
        return {"message": sections.join()}

    asked: list[tuple[int, int]] = []

    def answer(body: dict[str, int]) -> tuple[int, None, str, object]:
        asked.append((body["from-sequence-number"], body["message-count"]))
        number = body["from-sequence-number"]
        if number > 3:
            return 204, None, "", None
        return 200, None, "", {"messages": [encoded(number), encoded(number + 1)][: body["message-count"]]}

    broker.answers["com.microsoft:peek-message"] = answer
    result = run("peek", "q", "--from-sequence", "1", "--count", "3", "--json")
    assert [json.loads(line)["sequence_number"] for line in result.output.splitlines()] == [1, 2, 3]
    assert asked == [(1, 3), (3, 1)]
    assert run("peek", "q", "--from-sequence", "9").stderr.startswith("No message in 'q'")


def test_message_that_can_not_be_read_is_left_where_it_is(broker: TinyBroker, run: Run) -> None:
    for arguments in (["--json"], []):
        broker.queues["q"].append(b"\x00\x53\x73\xc0\x03\x01\xa1\x05")
        result = run("receive", "q", *arguments)
        assert result.exit_code == 1
        assert result.output.startswith("Error: a message can not be read")
    assert "accepted" not in [outcome for _, outcome in broker.settled]


def test_receive_refuses_settings_that_its_mode_or_settlement_would_drop(broker: TinyBroker, run: Run) -> None:
    fill(broker, b"1")
    for outcome in ("abandon", "defer", "dead-letter", "complete"):
        result = run("receive", "q", "--mode", "receive-and-delete", "--settle", outcome)
        assert result.exit_code == 2
        assert "--settle needs --mode peek-lock: receive-and-delete removes messages" in result.output
    result = run("receive", "q", "--settle", "abandon", "--reason", "bad")
    assert result.exit_code == 2
    assert "--reason needs --settle dead-letter" in result.output
    assert len(broker.queues["q"]) == 1


def test_each_line_is_sent_before_the_next_is_read(broker: TinyBroker, run: Run) -> None:
    read, written = os.pipe()
    arrived: list[list[object]] = []

    def write() -> None:
        with open(written, "wb", buffering=0) as pipe:
            for part, expected in ((b"a\nb", 1), (b"b\r\n\nc", 3)):
                pipe.write(part)
                for _ in range(1_000):
                    if len(broker.queues["q"]) >= expected or stop.wait(0.01):
                        break
                arrived.append([message.body for message in sent(broker)])

    stop = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    with open(read, "rb") as pipe:
        result = run("send", "q", "--lines", input=pipe)
    stop.set()
    writer.join()
    assert result.output == "4 messages sent to 'q'.\n"
    assert arrived == [[b"a"], [b"a", b"bb", b""]]
    assert [message.body for message in sent(broker)] == [b"a", b"bb", b"", b"c"]


def test_a_high_count_is_sent_in_runs_until_a_message_is_refused(broker: TinyBroker, run: Run) -> None:
    bound = AmqpError("amqp:resource-limit-exceeded", "The queue is full.")
    calls = count()
    broker.refuse_send = lambda number: bound if next(calls) >= 5 else None
    result = run("send", "q", "x", "--count", "200000")
    stored = len(broker.queues["q"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: sender to 'q': The queue is full; that was message ")
    assert result.output.endswith(f"; {stored:,} were sent\n")
    assert 0 < stored < 20_000


def test_a_refused_line_is_named_with_the_number_of_sent_ones(broker: TinyBroker, run: Run) -> None:
    broker.refuse_send = lambda number: AmqpError("amqp:resource-limit-exceeded", "The queue is full.")
    result = run("send", "q", "--lines", input=b"only\n")
    assert result.output == "Error: sender to 'q': The queue is full; that was message 1; 0 were sent\n"


def test_peek_bounds_its_count(run: Run) -> None:
    result = run("peek", "q", "--count", "99999999999999999999")
    assert result.exit_code == 2
    assert "'--count': 99999999999999999999 is not in the range 1<=x<=2147483647" in result.output


def test_receive_bounds_its_timeout(broker: TinyBroker, run: Run) -> None:
    for value in ("nan", "inf", "100000", "-1"):
        result = run("receive", "q", "--timeout", value)
        assert result.exit_code == 2
        assert "Invalid value for '--timeout': " in result.output
        assert "is not in the range 0<=x<=86400." in result.output
