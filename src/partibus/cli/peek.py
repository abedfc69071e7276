"""`partibus peek`."""

import click

from partibus.cli.connection import CONNECTION, JSON, open_client
from partibus.cli.message_text import message_json, print_messages
from partibus.cli.output import note, print_json
from partibus.client.management import PEEK, peek_arguments, peeked_messages
from partibus.client.messages import IncomingMessage
from partibus.client.sync import Client
from partibus.namespace.addresses import DEAD_LETTER_QUEUE


@click.command()
@click.argument("entity")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="Messages at most.")
@click.option("--from-sequence", type=int, default=0, show_default=True, help="First sequence number looked at.")
@click.option("--session", metavar="ID", help="Only messages of this session.")
@click.option("--dead-letter-queue", is_flag=True, help="In the entity's dead-letter queue.")
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
