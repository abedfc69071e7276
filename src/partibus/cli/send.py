"""`partibus send`."""

import sys
from collections.abc import Iterator

import click

from partibus.cli.output import CONNECTION, JSON, open_client, print_json
from partibus.cli.types import duration, key_value, moment
from partibus.client.messages import OutgoingMessage


@click.command()
@click.argument("entity")
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
    help="When the message is to become active: a time (2030-01-31T12:00:00Z), or a duration from now on (10m).",
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

    Ends when the broker has acknowledged every message.
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
        sent = sender.send(message(content) for content in _contents(body, lines) for _ in range(count))
    if as_json:
        print_json({"entity": entity, "sent": sent})
    else:
        click.echo(f"{sent:,} {'message' if sent == 1 else 'messages'} sent to '{entity}'.")


def _contents(body: str, lines: bool) -> Iterator[bytes]:
    if body != "-":
        yield body.encode("utf-8", "surrogateescape")
        return
    stream = sys.stdin.buffer
    if lines:
        for line in stream:
            yield line.rstrip(b"\r\n")
    else:
        yield stream.read()
