"""Every form of address that the client libraries were seen to send, and nothing else."""

import pytest

from partibus.errors import ArgumentError
from partibus.namespace.names import Address, Subqueue, parse_address

DEAD = Subqueue.DEAD_LETTER
TRANSFER = Subqueue.TRANSFER_DEAD_LETTER


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("q", Address("q")),
        ("/q", Address("q")),
        ("amqps://localhost/q", Address("q")),
        ("amqps://localhost:5671/q", Address("q")),
        ("sb://ns.servicebus.windows.net/eu/q", Address("eu/q")),
        ("AMQP://[::1]:5672/q", Address("q")),
        ("q/$DeadLetterQueue", Address("q", subqueue=DEAD)),
        ("Q/$deadletterqueue", Address("Q", subqueue=DEAD)),
        ("q/$Transfer/$DeadLetterQueue", Address("q", subqueue=TRANSFER)),
        ("q/$management", Address("q", management=True)),
        ("amqps://h/q/$DeadLetterQueue/$management", Address("q", subqueue=DEAD, management=True)),
        ("t/Subscriptions/s", Address("t", "s")),
        ("eu/t/subscriptions/s/$Transfer/$DeadLetterQueue", Address("eu/t", "s", TRANSFER)),
        ("t/SUBSCRIPTIONS/s/$Management", Address("t", "s", management=True)),
        ("$cbs", Address("$cbs")),
        ("amqps://localhost:5672/$CBS", Address("$cbs")),
    ],
)
def test_accepted_forms(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//q",
        "q/",
        "amqps://localhost",
        "amqps://localhost/",
        "amqps:///q",
        "amqps://localhost:99999/q",
        "amqps://user@localhost/q",
        "ftp://localhost/q",
        "$management",
        "$DeadLetterQueue",
        "q/$cbs",
        "$cbs/$management",
        "q/$management/$DeadLetterQueue",
        "q/$Transfer",
        "q/$Unknown",
        "q/$DeadLetterQueue/$DeadLetterQueue",
        "t/Subscriptions",
        "t/Subscriptions/",
        "t/Subscriptions/s/Subscriptions/s2",
        "Subscriptions/s",
        "q?x=1",
        "q%2Fr",
        "x" * 261,
        "x/" * 1_000_000,
    ],
)
def test_refused_forms(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse_address(text)


def test_paths_of_an_address() -> None:
    address = parse_address("amqps://h:1/T/subscriptions/S/$deadletterqueue/$MANAGEMENT")
    assert address.entity_path == "T/Subscriptions/S"
    assert address.path == "T/Subscriptions/S/$DeadLetterQueue/$management"
    assert not address.is_cbs
    assert parse_address("$cbs").is_cbs
