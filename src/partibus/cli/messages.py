"""`partibus send`, `partibus receive` and `partibus peek`."""

import sys
from collections.abc import Iterator
from io import BufferedIOBase
from itertools import chain, islice, repeat

import click
from click.core import ParameterSource

from partibus.amqp.codec.types import Int
from partibus.cli.output import CONNECTION, JSON, message_json, note, open_client, print_json, print_messages
from partibus.cli.types import Seconds, duration, entity_name, key_value, moment
from partibus.client.errors import ClientError, SendFailed, TimedOut, extended
from partibus.client.management import PEEK, peek_arguments, peeked_messages
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.outcomes import NEXT_SESSION, NextSession, ReceiveMode
from partibus.client.sync import Client, Receiver, Sender
from partibus.namespace.names import DEAD_LETTER_QUEUE


@click.command()
@click.argument("entity", type=entity_name)
@click.argument("body", default="-")
@click.option("--lines", is_flag=True, help="Every line of standard input is a message.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Send each message so many times.")
@click.option("--partition-key", metavar="KEY", help="Messages with one key stay in one partition, in order.")
@click.option("--session", "--session-id", "session_id", metavar="ID", help="Session of the message.")
@click.option("--message-id", metavar="ID", help="Default: the broker gives one.")
@click.option("--correlation-id", metavar="ID")
@click.option("--subject", metavar="TEXT")
@click.option("--content-type", metavar="TYPE")
@click.option("--to", metavar="TEXT")
@click.option("--reply-to", metavar="TEXT")
@click.option("--ttl", type=duration, metavar="DURATION", help="Time to live: 90, 10m, PT1M30S.")
@click.option(
    "--schedule",
    type=moment,
    metavar="WHEN",
    help="The time at which the message becomes active (2030-01-31T12:00:00Z), or a duration from now on (10m).",
)
@click.option(
    "--force-persistence", is_flag=True, help="Have also an express entity store it before it is acknowledged."
)
@click.option(
    "--property",
    "properties",
    type=key_value,
    metavar="KEY=TEXT",
    multiple=True,
    help="Application property; KEY:=NUMBER, KEY:=true; repeatable.",
)
@CONNECTION
@JSON
def send(
    entity: str,
    body: str,
    lines: bool,
    count: int,
    partition_key: str | None,
    session_id: str | None,
    message_id: str | None,
    correlation_id: str | None,
    subject: str | None,
    content_type: str | None,
    to: str | None,
    reply_to: str | None,
    ttl: int | None,
    schedule: int | None,
    force_persistence: bool,
    properties: tuple[tuple[str, str | int | float | bool], ...],
    connection: str,
    as_json: bool,
) -> None:
    """Send BODY to ENTITY; without BODY, or with -, send standard input.

    Ends when the broker has acknowledged every message, or at the first that it refuses. With --lines each line leaves
    as soon as it has been read.
    """
    if lines and body != "-":
        raise click.UsageError("--lines reads standard input: leave BODY out")

    def message(content: bytes) -> OutgoingMessage:
        return OutgoingMessage(
            body=content,
            message_id=message_id,
            partition_key=partition_key,
            session_id=session_id,
            subject=subject,
            content_type=content_type,
            correlation_id=correlation_id,
            to=to,
            reply_to=reply_to,
            ttl_ms=ttl,
            scheduled_ms=schedule,
            force_persistence=force_persistence,
            application_properties=dict(properties),
        )

    with open_client(connection) as client:
        sender = client.sender(entity)
        runs = (run for contents in _contents(body, lines) for run in _runs(map(message, contents), count))
        sent = _send_runs(sender, runs) if lines or count > 1 else sum(map(sender.send, runs))
    if as_json:
        print_json({"entity": entity, "sent": sent})
    else:
        click.echo(f"{sent:,} {'message' if sent == 1 else 'messages'} sent to '{entity}'.")


_TOGETHER = 5_000
"""Messages that are sent at a time: so many are in memory, however long the input is."""
_READ_BYTES = 1 << 20


def _contents(body: str, lines: bool) -> Iterator[list[bytes]]:
    """Yield the bodies that are known so far, without waiting for further ones."""
    if body != "-":
        yield [body.encode("utf-8", "surrogateescape")]
        return
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: give BODY, or input")
    stream = sys.stdin.buffer
    if not lines:
        yield [stream.read()]
        return
    assert isinstance(stream, BufferedIOBase)
    begun: list[bytes] = []
    while data := stream.read1(_READ_BYTES):
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = b"".join((*begun, ended[0]))
            begun.clear()
            yield [line.rstrip(b"\r") for line in ended]
        if rest:
            begun.append(rest)
    if begun:
        yield [b"".join(begun).rstrip(b"\r")]


def _runs(messages: Iterator[OutgoingMessage], count: int) -> Iterator[list[OutgoingMessage]]:
    """Cut messages, each ``count`` times, into lists that are sent one after the other."""
    repeated = chain.from_iterable(repeat(message, count) for message in messages)
    while run := list(islice(repeated, _TOGETHER)):
        yield run


def _send_runs(sender: Sender, runs: Iterator[list[OutgoingMessage]]) -> int:
    """Send messages in order and return how many. Raises the first error, which says how many were sent."""
    sent = 0
    for run in runs:
        try:
            sent += sender.send(run)
        except ClientError as error:
            failures = error.failures if isinstance(error, SendFailed) else [(0, error)] * len(run)
            index, first = failures[0]
            number, sent = sent + index + 1, sent + len(run) - len(failures)
            refused = "" if len(failures) == 1 else f", {len(failures) - 1:,} beside it were refused as well"
            raise extended(first, f"that was message {number:,}{refused}; {sent:,} were sent") from None
    return sent


_RUN = 100
"""Messages that are locked at a time: settled before the next are asked for, well inside a lock's duration."""

_DELETE = "receive-and-delete"
_MODES = {"peek-lock": ReceiveMode.PEEK_LOCK, _DELETE: ReceiveMode.RECEIVE_AND_DELETE}
_OUTCOMES = ("complete", "abandon", "defer", "dead-letter")


@click.command()
@click.argument("entity", type=entity_name)
@click.option("--max", "most", type=click.IntRange(1), default=1, show_default=True, help="Messages at most.")
@click.option("--timeout", type=Seconds(), default=5.0, show_default=True, help="Seconds without a message.")
@click.option("--mode", type=click.Choice(list(_MODES)), default="peek-lock", show_default=True)
@click.option(
    "--settle",
    type=click.Choice(_OUTCOMES),
    default="complete",
    show_default=True,
    help="The settlement of a printed message (peek-lock).",
)
@click.option("--reason", metavar="TEXT", help="The reason, with --settle dead-letter.")
@click.option("--session", metavar="ID", help="Receive from this session, which no other receiver may hold.")
@click.option("--next-session", is_flag=True, help="Receive from any free session with messages.")
@click.option(
    "--deferred", type=int, metavar="NUMBER", multiple=True, help="The deferred message of this number; repeatable."
)
@click.option("--dead-letter-queue", is_flag=True, help="Receive from the entity's dead-letter queue.")
@CONNECTION
@JSON
@click.pass_context
def receive(
    ctx: click.Context,
    /,
    entity: str,
    most: int,
    timeout: float,
    mode: str,
    settle: str,
    reason: str | None,
    session: str | None,
    next_session: bool,
    deferred: tuple[int, ...],
    dead_letter_queue: bool,
    connection: str,
    as_json: bool,
) -> None:
    """Receive messages from ENTITY, print them, then complete them.

    A message that could not be printed is not completed and will be delivered again (peek-lock). A queue that requires
    sessions needs --session or --next-session.
    """
    if session is not None and next_session:
        raise click.UsageError("--session names a session, --next-session takes any: give one of them")
    if mode == _DELETE and ctx.get_parameter_source("settle") is not ParameterSource.DEFAULT:
        raise click.UsageError("--settle needs --mode peek-lock: receive-and-delete removes messages as it gives them")
    if reason is not None and settle != "dead-letter":
        raise click.UsageError(
            f"--reason needs --settle dead-letter: no other settlement keeps a reason, and it is {settle} here"
        )
    if sys.stdout is None:  # click prints nothing then, and the messages would be completed
        raise click.UsageError("standard output is closed, where the messages are printed")
    address = f"{entity}/{DEAD_LETTER_QUEUE}" if dead_letter_queue else entity
    wanted = NEXT_SESSION if next_session else session
    with open_client(connection) as client:
        try:
            receiver = _receiver(client, address, wanted, _MODES[mode], timeout).open()
        except TimedOut as error:
            if not next_session or error.condition is None:
                raise
            note(f"No session with messages in '{address}' within {timeout:g} s.")
            return
        if deferred:
            messages = receiver.receive_deferred(deferred)
            _print(messages, as_json)
            if mode != _DELETE:
                _settle(receiver, messages, settle, reason)
            return
        left = most
        while left and (messages := receiver.receive(min(left, _RUN), timeout)):
            _print(messages, as_json)
            if mode != _DELETE:
                _settle(receiver, messages, settle, reason)
            left -= len(messages)
    if left == most and not as_json:
        note(f"No message in '{address}' within {timeout:g} s.")


def _receiver(
    client: Client, address: str, session: str | NextSession | None, mode: ReceiveMode, timeout: float
) -> Receiver:
    if session is None:
        return client.receiver(address, mode=mode)
    return client.session_receiver(address, session, mode=mode, max_wait=timeout)


def _settle(receiver: Receiver, messages: list[IncomingMessage], how: str, reason: str | None) -> None:
    if how == "dead-letter":
        receiver.dead_letter(messages, reason)
    else:
        {"complete": receiver.complete, "abandon": receiver.abandon, "defer": receiver.defer}[how](messages)


def _print(messages: list[IncomingMessage], as_json: bool) -> None:
    if as_json:
        for message in messages:
            print_json(message_json(message))
    else:
        print_messages(messages)


@click.command()
@click.argument("entity", type=entity_name)
@click.option("--count", type=click.IntRange(1, Int.most), default=10, show_default=True, help="Messages at most.")
@click.option("--from-sequence", type=int, default=0, show_default=True, help="First sequence number looked at.")
@click.option("--session", metavar="ID", help="Only messages of this session.")
@click.option("--dead-letter-queue", is_flag=True, help="Peek in the entity's dead-letter queue.")
@CONNECTION
@JSON
def peek(
    entity: str,
    count: int,
    from_sequence: int,
    session: str | None,
    dead_letter_queue: bool,
    connection: str,
    as_json: bool,
) -> None:
    """Look at messages in ENTITY, locked ones included; nothing is locked or changed."""
    address = f"{entity}/{DEAD_LETTER_QUEUE}" if dead_letter_queue else entity
    found: list[IncomingMessage] = []
    with open_client(connection) as client:
        while len(found) < count and (page := _page(client, address, from_sequence, count - len(found), session)):
            found += page
            last = page[-1].sequence_number
            if last is None:
                break
            from_sequence = last + 1
    if as_json:
        for message in found:
            print_json(message_json(message))
    elif found:
        print_messages(found)
    else:
        note(f"No message in '{address}' from sequence number {from_sequence} on.")


def _page(client: Client, address: str, from_sequence: int, count: int, session: str | None) -> list[IncomingMessage]:
    return peeked_messages(client.request(address, PEEK, peek_arguments(from_sequence, count, session)))
