"""Restoring of an entity's messages from a backup into a queue of a running broker.

Partition by partition, first the messages of the queue, then its dead letters and transfers, each in order of arrival.
So the order within a key or session is kept. Nothing in the backup is served or changed.

A small file has the progress, and is replaced as a whole after each run of messages that the broker has stored. An
interrupted restore goes on from there. It repeats the messages that were sent but not answered: at most one run of one
sub-queue.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from partibus.amqp.codec.encoder import encode, write_compound
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_header
from partibus.amqp.section_fields import iter_map
from partibus.client.errors import NotFound, SendFailed
from partibus.client.extensions.entities import Entities
from partibus.client.management import Requests
from partibus.client.sync import Sender
from partibus.durable import replace_file
from partibus.errors import InvalidOperation
from partibus.message import StoredMessage
from partibus.namespace.catalog import Catalog, EntityRecord
from partibus.namespace.durations import UNLIMITED_TEXT
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace_options import DEFAULT_NAME
from partibus.namespace.properties import properties_of
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import EntryRow
from partibus.store.backup import CATALOG, read_backup, store_file
from partibus.store.sqlite.backup import StoreCopy

MADE = "backup_made_ms"
"""The member that tells one backup from a later one in the same directory."""


class Progress:
    """Next positions by partition and sub-queue, of one restore."""

    def __init__(self, path: Path, restore: dict[str, str]) -> None:
        """Read the file at ``path``, if it exists.

        ``restore`` names the source and the destination. Raises `InvalidOperation` when the file belongs to another
        restore or is no progress file.
        """
        self.path = path
        self._document: dict[str, object] = dict(restore)
        self._next: dict[str, int] = {}
        self.sent = 0
        """Messages sent, in earlier runs too."""
        if path.exists():
            self._read(restore)

    @property
    def begun(self) -> bool:
        """Whether an earlier run has sent something."""
        return bool(self._next)

    def next_pos(self, partition_id: int, kind: int) -> int:
        """Return the position to go on from."""
        return self._next.get(f"{partition_id}/{kind}", 0)

    def note(self, partition_id: int, kind: int, next_pos: int, sent: int) -> None:
        """Record that everything below ``next_pos`` is stored in its new place.

        ``sent`` messages more than before were sent.
        """
        self._next[f"{partition_id}/{kind}"] = next_pos
        self.sent += sent
        document = self._document | {"sent": self.sent, "next": self._next}
        replace_file(self.path, json.dumps(document, indent=2).encode())

    def _read(self, restore: dict[str, str]) -> None:
        try:
            found = json.loads(self.path.read_text("utf-8"))
            # A file of an earlier version does not tell when its backup was made.
            is_ours = all(found.get(key) == value for key, value in restore.items() if key != MADE or key in found)
            self.sent = int(found["sent"])
            self._next = {str(place): int(pos) for place, pos in found["next"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidOperation(
                f"{self.path} is no progress of a restore ({error}). Give another file, or take it away."
            ) from error
        if not is_ours:
            raise InvalidOperation(
                f"{self.path} is the progress of another restore. Give another file, or take it away to begin anew."
            )


RESTORED_FROM = "x-opt-partibus-restored-from"
"""The entity, or its sub-queue, that the message was in."""
RESTORED_NUMBER = "x-opt-partibus-restored-sequence-number"
"""Its sequence number there. Two restored messages with the same one are the same message."""

_ANNOTATIONS = b"\x00\x53\x72"
_MAP8 = 0xC1


def outgoing(data: bytes, source: str, sequence_number: int) -> bytes:
    """Encode a stored message for sending. Raises ValueError for bytes that are no stored message."""
    stored = StoredMessage(data)
    header = encode_header(durable=stored.durable, priority=stored.priority, ttl=stored.ttl_ms)
    ours = {RESTORED_FROM: source, RESTORED_NUMBER: sequence_number}
    count, pairs = stored.annotation_count, stored.annotations
    if RESTORED_FROM.encode() in pairs:  # restored before: a map with one key twice is invalid
        kept = [(key, value) for key, value in iter_map(_annotations(count, pairs)) if key not in ours]
        count, pairs = len(kept), b"".join(encode(Symbol(key)) + value for key, value in kept)
    pairs += b"".join(encode(Symbol(key)) + encode(value) for key, value in ours.items())
    annotations = _annotations(count + len(ours), pairs)
    return b"".join((header, annotations, stored.properties, stored.application_properties, stored.rest))


def _annotations(count: int, pairs: bytes) -> bytes:
    section = bytearray(_ANNOTATIONS)
    write_compound(section, _MAP8, 2 * count, pairs)
    return bytes(section)


RUN = 200
"""Messages sent before the restore waits for their answers and records its progress."""
_COUNTER_BITS = 48
_STORES_MAX = 10_000
"""A bound that the catalog never reaches here: it needs the number of stores only to place partitions."""
_NAMED_MAX = 10
KINDS = {
    "active": (SubqueueKind.ACTIVE, ""),
    "dead-letter": (SubqueueKind.DEAD_LETTER, "/$DeadLetterQueue"),
    "transfer-dead-letter": (SubqueueKind.TRANSFER_DEAD_LETTER, "/$Transfer/$DeadLetterQueue"),
    "transfer": (SubqueueKind.TRANSFER, "/$Transfer"),
}
"""Sub-queues and the ends of their addresses by option, in the order of sending. Without an option all are sent."""

OnSent = Callable[[int], None]
"""Gets the number of messages sent so far."""


class Source(NamedTuple):
    """An entity in a backup."""

    record: EntityRecord
    files: dict[int, Path]
    """Copies of stores by number."""
    began_ms: int
    """The time of the backup."""


def find(backup: Path, name: str, namespace: str = DEFAULT_NAME) -> Source:
    """Look up an entity in a backup.

    Raises `EntityNotFound` for an unknown entity or namespace, `partition.protocol.ports.StoreError` when the directory
    is no backup, and `InvalidOperation` for a topic, or when the backup lacks a store with messages of the entity.
    """
    listed = read_backup(backup)
    with TemporaryDirectory() as folder:
        # A catalog is opened for writing. The copy allows for a backup on a read-only medium.
        shutil.copyfile(backup / CATALOG, Path(folder) / CATALOG)
        catalog = Catalog(Path(folder), _STORES_MAX)
        try:
            within = catalog.of(catalog.namespace(namespace).namespace_id)
            record = within.get(name)
            if record.description.kind is EntityKind.TOPIC:
                raise _nothing_in(record, within.subscriptions_of(record))
        finally:
            catalog.close()
    numbers = {int(store.removeprefix("store-")): store for store in listed.stores}
    missing = sorted({place.store_no for place in record.placements} - set(numbers))
    if missing:
        raise InvalidOperation(
            f"'{record.description.name}' has partitions in the stores {', '.join(map(str, missing))}, which are not "
            f"in {backup}. Use a backup of all stores."
        )
    return Source(record, {number: store_file(backup, store) for number, store in numbers.items()}, listed.began_ms)


def _nothing_in(topic: EntityRecord, subscriptions: Sequence[EntityRecord]) -> InvalidOperation:
    """Explain that the messages of a topic are in its subscriptions; only scheduled ones are still the topic's."""
    paths = [f"'{record.description.name}'" for record in subscriptions]
    named = ", ".join(paths[:_NAMED_MAX]) + (f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else "")
    what = f"Restore one of its subscriptions: {named}." if paths else "It has no subscriptions."
    return InvalidOperation(f"'{topic.description.name}' is a topic: its messages are in its subscriptions. {what}")


def make_side_entity(client: Requests, source: Source, into: str, progress: Progress) -> bool:
    """Create the queue that messages are restored into, like the one in the backup; returns False when it exists.

    It lacks what would take messages away again: times to live, deletion when idle, and forwarding. It also lacks
    duplicate detection, since old messages far apart may have the same id. Raises `InvalidOperation` when the queue is
    missing although ``progress`` has begun, and when the existing queue requires sessions and the one in the backup
    does not.
    """
    entities = Entities(client)
    options = source.record.description.options
    try:
        requires_session = entities.get(into).properties.get("RequiresSession") is True
    except NotFound:
        if progress.begun:
            raise InvalidOperation(
                f"{progress.path} says that {progress.sent:,} messages were sent to '{into}', and there is no such "
                "queue. Take the file away to begin anew."
            ) from None
        properties = dict(properties_of(EntityKind.QUEUE, options)) | {
            "DefaultMessageTimeToLive": UNLIMITED_TEXT,
            "AutoDeleteOnIdle": UNLIMITED_TEXT,
            "RequiresDuplicateDetection": False,
            "ForwardTo": "",
            "ForwardDeadLetteredMessagesTo": "",
            "Status": "Active",
        }
        entities.create_queue(into, properties)
        return True
    if requires_session and not options.requires_session:
        raise InvalidOperation(
            f"'{into}' requires sessions, and '{source.record.description.name}' does not: its messages may have none. "
            "Restore into another queue."
        )
    return False


def restore(source: Source, sender: Sender, progress: Progress, which: str, on_sent: OnSent) -> int:
    """Send the messages that are not sent yet; returns their number.

    ``which``: one of `KINDS`, or "" for all. Raises `SendFailed` and other kinds of `ClientError`, and
    `InvalidOperation` for a message that is too large for the queue; another run then goes on from there.
    """
    before = progress.sent
    name = source.record.description.name
    sender.open()  # then it knows how large a message may be
    for place in source.record.placements:
        with StoreCopy(source.files[place.store_no]) as copy:
            for kind, suffix in [KINDS[which]] if which else KINDS.values():
                first = progress.next_pos(place.partition_no, kind)
                for page in copy.pages(place.partition_row, kind, first):
                    for start in range(0, len(page), RUN):
                        _send(page[start : start + RUN], name + suffix, place.partition_no, kind, sender, progress)
                        on_sent(progress.sent)
    return progress.sent - before


def _send(
    rows: Sequence[EntryRow], origin: str, partition_id: int, kind: int, sender: Sender, progress: Progress
) -> None:
    messages = [outgoing(row.data, origin, partition_id << _COUNTER_BITS | row.sequence) for row in rows]
    most = sender.max_message_bytes
    # The messages behind one that is too large wait: they would be sent again with each attempt.
    fitting = list(takewhile(lambda message: not most or len(message) <= most, messages))
    if fitting:
        _send_run(fitting, rows, partition_id, kind, sender, progress)
    if len(fitting) < len(messages):
        row, size_bytes = rows[len(fitting)], len(messages[len(fitting)])
        raise InvalidOperation(
            f"The message {partition_id << _COUNTER_BITS | row.sequence} of '{origin}' has {size_bytes} bytes with its "
            f"origin, and the queue takes {most}. Raise the queue's MaxMessageSizeInKilobytes, before it the limits of "
            "the namespace where they are lower (docs/tiers.md), and repeat the command."
        )


def _send_run(
    messages: list[bytes], rows: Sequence[EntryRow], partition_id: int, kind: int, sender: Sender, progress: Progress
) -> None:
    try:
        sender.send(messages)
    except SendFailed as error:
        stored = error.failures[0][0]  # what comes after the first that failed is sent again
        if stored:
            progress.note(partition_id, kind, rows[stored - 1].pos + 1, stored)
        raise
    progress.note(partition_id, kind, rows[len(messages) - 1].pos + 1, len(messages))
