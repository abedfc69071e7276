"""`partibus:sink` and `partibus:commit-sink` over AMQP: what is stored once, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from partibus.amqp.codec.types import Array
from partibus.amqp.section_encoding import encode_application_properties, encode_value
from partibus.client.messages import IncomingMessage
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.test_cursors import ask, refusal

LONGS = 0x81


def rows(*numbers: int) -> list[bytes]:
    return [message(b"%d" % number, partition_key=f"k{number}") for number in numbers]


def ids(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def stored(client: Client) -> int:
    return sum(one["messages"] for one in ask(client, "q", "partitions")["partitions"])


@pytest.mark.row("D5")
@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_that_come_again_are_known_by_ids_or_positions(world: World, partitioned: bool) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=partitioned)
    answer = ask(client, "q", "sink", sink=5, messages=rows(1, 2, 3), ids=ids(1, 2, 3))
    assert (answer["accepted"], answer["duplicates"]) == (3, 0)
    answer = ask(client, "q", "sink", sink=5, messages=rows(2, 3, 4), ids=ids(2, 3, 4))
    assert (answer["accepted"], answer["duplicates"]) == (1, 2)
    ask(client, "q", "commit-sink", sink=5, batch=0)

    first = Array(LONGS, [1, 2, 3])
    answer = ask(client, "q", "sink", sink=6, source=-6, messages=rows(1, 2, 3), positions=first)
    assert (answer["accepted"], answer["duplicates"]) == (3, 0)
    answer = ask(client, "q", "sink", sink=6, source=-6, messages=rows(1, 2, 3), positions=first)
    assert (answer["accepted"], answer["duplicates"]) == (0, 3)
    assert stored(client) == 7


@pytest.mark.row("D5")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_sink_goes_on_with_the_queue_that_was_made_again(world: World, partitioned: bool) -> None:
    """Its rows are stored there, since they went with the first queue."""
    client = world.client()
    session = client.session()
    world.queue("q")
    replies = client.receiver("q/$management", session)
    replies.grant(10)
    requests = client.sender("q/$management", session)

    def put(*numbers: int) -> dict[str, Any]:
        body = {"sink": 5, "messages": rows(*numbers), "ids": ids(*numbers)}
        start = len(client.deliveries(replies))
        client.send_raw(
            requests, encode_application_properties({"operation": "partibus:sink"}) + encode_value(body), start
        )
        world.wait()
        answer = IncomingMessage(client.deliveries(replies)[start].payload)
        assert answer.application_properties["statusCode"] == 200, answer.application_properties
        return cast("dict[str, Any]", answer.body)

    assert put(1, 2)["accepted"] == 2
    world.broker.delete("q")
    world.queue("q", EnablePartitioning=partitioned)
    assert (put(1, 2)["accepted"], put(2, 3)["accepted"]) == (2, 1)
    ask(client, "q", "commit-sink", sink=5, batch=0)
    assert stored(client) == 3


def test_a_sink_is_told_that_its_queue_was_deleted_while_its_rows_were_read(world: World) -> None:
    client = world.client()
    session = client.session()
    world.queue("q")
    replies = client.receiver("q/$management", session)
    replies.grant(1)
    requests = client.sender("q/$management", session)
    numbers = range(1, 2_000)
    body = {"sink": 5, "messages": rows(*numbers), "ids": ids(*numbers)}
    client.send_raw(requests, encode_application_properties({"operation": "partibus:sink"}) + encode_value(body))
    world.carry()
    world.broker.delete("q")
    world.queue("q")
    world.wait()
    (answer,) = client.deliveries(replies)
    properties = IncomingMessage(answer.payload).application_properties
    assert properties["statusCode"] == 503, "a client asks again"
    assert "the entity was deleted" in str(properties["statusDescription"])
    assert stored(client) == 0


def test_no_rows_ask_whether_one_may_send(world: World) -> None:
    client = world.client()
    world.queue("q")
    assert ask(client, "q", "sink", sink=0, messages=[]) == {"accepted": 0, "duplicates": 0}
    assert refusal(client, "q/$DeadLetterQueue", "sink", sink=0, messages=[])[1] == "amqp:not-allowed"
    world.broker.create_topic("t", {})
    world.broker.create_subscription("t", "s", {})
    assert refusal(client, "t/Subscriptions/s", "sink", sink=0, messages=[])[1] == "amqp:not-allowed"


def test_many_rows_are_looked_at_by_slices(world: World) -> None:
    """Larger than a message may be; what can't be read is known by its place in the request."""
    client = world.client()
    world.queue("q", EnablePartitioning=True)
    many = [message(b"x" * 400, partition_key=f"k{number}") for number in range(2_000)]
    answer = ask(client, "q", "sink", sink=5, messages=many, ids=ids(*range(2_000)))
    assert (answer["accepted"], answer["duplicates"]) == (2_000, 0)
    many[1_500] = b"\x00\x53\x99"
    assert "Message 1500 of the request" in refusal(client, "q", "sink", sink=6, messages=many)[2]
    assert stored(client) == 2_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": rows(1)}, "sink"),
        ({"sink": 1}, "messages"),
        ({"sink": 1, "messages": ["text"]}, "a list of encoded messages"),
        ({"sink": 1, "messages": [b"\x00\x53\x99"]}, "Message 0 of the request"),
        ({"sink": 1, "messages": rows(1), "ids": [b"short"]}, "binaries of 16 bytes"),
        ({"sink": 1, "messages": rows(1, 2), "ids": ids(1)}, "one for each of the 2 messages"),
        ({"sink": 1, "messages": rows(1), "source": 5, "positions": Array(LONGS, [1])}, "source"),
        ({"sink": 1, "messages": rows(1, 2), "source": -5, "positions": Array(LONGS, [2, 2])}, "longs that rise"),
        ({"sink": 1, "messages": rows(1, 2), "source": -5, "positions": Array(LONGS, [2])}, "for each of the 2"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_store_nothing(world: World, body: dict[str, Any], words: str) -> None:
    client = world.client()
    world.queue("q")
    status, _, text = refusal(client, "q", "sink", **body)
    assert status == 400
    assert words in text
    assert stored(client) == 0
