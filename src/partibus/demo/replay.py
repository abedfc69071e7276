"""Sends the flights: several processes, each with its own unmodified azure-servicebus client.

The client, not the broker, is what limits the rate: it encodes every message in Python (the numbers are in
docs/demo.md), so work is dealt over processes. Shards are by key, so that every key has one sender.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from partibus.demo.envelopes import Envelope, envelopes
from partibus.demo.errors import DemoError
from partibus.demo.flights import read_flights
from partibus.demo.tally import KeyTallies, Tally

BATCH_MESSAGES = 250
"""Messages per batch: about 120 KB with these bodies, under the 256 KB that a Standard namespace takes."""


class Shard(NamedTuple):
    """The job of one sender process."""

    connection: str
    topic: str
    rows: int | None
    shard: int
    shards: int


class Sent(NamedTuple):
    """What one sender process, or all of them, got accepted by the broker."""

    keys: dict[str, Tally]
    body_bytes: int


def replay(connection: str, topic: str, rows: int | None, senders: int, on_sent: Callable[[int], None]) -> Sent:
    """Send everything; ``on_sent`` hears how many messages more the broker has accepted. Raises `DemoError` when a
    sender fails; the others are then stopped."""
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    try:
        for shard in range(senders):
            ours, theirs = context.Pipe(duplex=False)
            job = Shard(connection, topic, rows, shard, senders)
            process: BaseProcess = context.Process(
                target=_send_shard, args=(job, theirs), name=f"sender {shard}", daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        return _merged(list(_results(dict(processes), on_sent)))
    finally:
        for process in processes.values():
            process.terminate()
            process.join()


def _results(running: dict[Connection, BaseProcess], on_sent: Callable[[int], None]) -> Iterator[Sent]:
    """What each process ends with."""
    while running:
        for ready in wait(list(running)):
            if not isinstance(ready, Connection):
                raise TypeError(f"waited for a pipe, got {ready!r}")
            try:
                message = ready.recv()
            except EOFError:
                process = running[ready]
                process.join()
                raise DemoError(f"{process.name} ended with exit code {process.exitcode} before it was done") from None
            if isinstance(message, int):
                on_sent(message)
            elif isinstance(message, Sent):
                del running[ready]
                yield message
            else:
                raise DemoError(f"{running[ready].name} failed: {message}")


def _merged(results: list[Sent]) -> Sent:
    keys: dict[str, Tally] = {}
    for result in results:
        keys.update(result.keys)
    return Sent(keys, sum(result.body_bytes for result in results))


def _send_shard(job: Shard, pipe: Connection) -> None:
    """Body of a sender process: sends counts, then a `Sent`, or a text saying what went wrong."""
    from azure.core.exceptions import AzureError

    try:
        pipe.send(send_envelopes(job, envelopes(read_flights(job.rows), job.shard, job.shards), pipe.send))
    except (AzureError, DemoError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def send_envelopes(job: Shard, messages: Iterator[Envelope], on_sent: Callable[[int], None]) -> Sent:
    """Send in batches as the client makes them; what is counted was accepted."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    from azure.servicebus.exceptions import MessageSizeExceededError

    tallies = KeyTallies()
    body_bytes = 0
    with (
        ServiceBusClient.from_connection_string(job.connection) as client,
        client.get_topic_sender(job.topic) as sender,
    ):
        batch = sender.create_message_batch()
        count = 0
        for envelope in messages:
            message = ServiceBusMessage(
                envelope.body,
                message_id=envelope.message_id,
                partition_key=envelope.key,
                content_type="application/json",
                subject="flight",
                application_properties=envelope.properties,
            )
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                sender.send_messages(batch)
                on_sent(count)
                batch, count = sender.create_message_batch(), 0
                batch.add_message(message)
            tallies.add(envelope.key, envelope.message_id, envelope.body)
            body_bytes += len(envelope.body)
            count += 1
            if count == BATCH_MESSAGES:
                sender.send_messages(batch)
                on_sent(count)
                batch, count = sender.create_message_batch(), 0
        if count:
            sender.send_messages(batch)
            on_sent(count)
    return Sent(tallies.result(), body_bytes)
