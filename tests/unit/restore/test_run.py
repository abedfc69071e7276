"""Restores that are cut short go on where they were; what can't be restored is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from partibus.client.errors import Busy, ConnectionLost, SendFailed
from partibus.client.messages import IncomingMessage
from partibus.client.sync import Sender
from partibus.errors import EntityNotFound, InvalidOperation
from partibus.message import pack, with_destination
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_file import FILE_NAME
from partibus.namespace.entities import EntityOptions, QueueDescription
from partibus.namespace.placement import Placement
from partibus.partition.protocol.keys import SubqueueKind, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import EntryState, Writes
from partibus.restore.run import RESTORED_FROM, RESTORED_NUMBER, RUN, Progress, find, make_side_entity, restore
from partibus.store.backup import LIST, back_up, store_file
from partibus.store.sqlite.directory import store_id
from partibus.store.sqlite.store import SQLiteStore
from tests.kit.plain_client import Client
from tests.unit.client.broker import TinyBroker
from tests.unit.client.test_management import QUEUE
from tests.unit.store.sqlite.places import SETTINGS, US

STORES = 16
ACTIVE, DEAD = 2 * RUN + 10, 3
"""Messages of each partition."""


def fill(data: Path, place: Placement) -> None:
    path = store_file(data, store_id(place.store_no))
    store = SQLiteStore.open(path, store_id=path.stem, owner=US, settings=SETTINGS)
    writes = Writes()
    for kind, messages in ((SubqueueKind.ACTIVE, ACTIVE), (SubqueueKind.DEAD_LETTER, DEAD)):
        for pos in range(1, messages + 1):
            number = body_key(place.partition_row, pos + kind * 10_000)
            entry = (entry_key(subqueue_key(place.partition_row, kind), pos), number, pos + kind * 10_000, 0)
            body = b"\x02xx" if pos == RUN + 50 else b"\x01x"
            writes.bodies += [number, pack(rest=b"\x00\x53\x75\xa0" + body)]
            writes.entries += [*entry, EntryState.ACTIVE, 0, None, None]
    store.commit(writes)
    store.close()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "stores").mkdir(parents=True)
    catalog = Catalog(data, STORES)
    record = catalog.create(QueueDescription("Orders", EntityOptions()), 0)
    catalog.create(QueueDescription("elsewhere", EntityOptions()), 0)
    catalog.close()
    (place,) = record.placements
    fill(data, place)
    name = store_id(place.store_no)
    back_up({name: store_file(data, name)}, data / FILE_NAME, tmp_path / "backup", [], 0, Event())
    return tmp_path / "backup"


class FakeSender:
    """Takes what it is sent, until a run at which something happens."""

    def __init__(self, trouble: Callable[[int], Exception | None] = lambda run: None) -> None:
        self._trouble = trouble
        self.runs: list[list[bytes]] = []
        self.max_message_bytes: int | None = None

    def open(self) -> None:
        """Do nothing."""

    def send(self, messages: list[bytes]) -> int:
        error = self._trouble(len(self.runs))
        if error is not None:
            raise error
        self.runs.append(messages)
        return len(messages)

    def numbers(self) -> list[int]:
        found = [IncomingMessage(message).annotations for run in self.runs for message in run]
        return [cast(int, annotations[RESTORED_NUMBER]) for annotations in found]


def run(backup: Path, path: Path, sender: FakeSender, which: str = "") -> int:
    return restore(find(backup, "orders"), cast(Sender, sender), Progress(path, {}), which, lambda _: None)


ALL = [*range(1, ACTIVE + 1), *range(10_001, 10_001 + DEAD)]


def test_messages_come_in_order_and_dead_letters_last(backup: Path, tmp_path: Path) -> None:
    sender = FakeSender()
    assert run(backup, tmp_path / "p", sender) == ACTIVE + DEAD
    assert sender.numbers() == ALL
    assert [len(messages) for messages in sender.runs] == [RUN, RUN, 10, DEAD]
    last = IncomingMessage(sender.runs[-1][-1])
    assert last.annotations[RESTORED_FROM] == "Orders/$DeadLetterQueue"
    assert run(backup, tmp_path / "p", sender) == 0


@pytest.mark.parametrize(("which", "numbers"), [("active", ALL[:ACTIVE]), ("dead-letter", ALL[ACTIVE:])])
def test_only_some(backup: Path, tmp_path: Path, which: str, numbers: list[int]) -> None:
    sender = FakeSender()
    run(backup, tmp_path / "p", sender, which)
    assert sender.numbers() == numbers


@pytest.mark.parametrize("at", range(4))
def test_one_that_was_cut_short_goes_on_behind_what_is_stored(backup: Path, tmp_path: Path, at: int) -> None:
    first = FakeSender(lambda run: ConnectionLost("gone") if run == at else None)
    with pytest.raises(ConnectionLost):
        run(backup, tmp_path / "p", first)
    second = FakeSender()
    run(backup, tmp_path / "p", second)
    assert first.numbers() + second.numbers() == ALL


def test_what_was_stored_of_a_run_before_one_that_was_refused_is_not_sent_again(backup: Path, tmp_path: Path) -> None:
    refused = SendFailed([(7, Busy("later"))], RUN)
    with pytest.raises(SendFailed):
        run(backup, tmp_path / "p", FakeSender(lambda run: refused))
    second = FakeSender()
    run(backup, tmp_path / "p", second)
    assert second.numbers() == ALL[7:]


def test_what_is_not_in_the_backup_is_refused(backup: Path) -> None:
    with pytest.raises(EntityNotFound):
        find(backup, "nobody")
    with pytest.raises(InvalidOperation, match="not in"):
        find(backup, "elsewhere")


def test_the_backup_is_left_as_it_is(backup: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    run(backup, tmp_path / "p", FakeSender())
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before


# -- the queue that they go to -----------------------------------------------------------------------------------------


def test_a_queue_that_is_missing_is_made_like_the_one_in_the_backup(
    backup: Path, broker: TinyBroker, client: Client
) -> None:
    made: list[dict[str, Any]] = []

    def create(body: dict[str, Any]) -> Any:
        made.append(body)
        return (200, None, "OK", QUEUE)

    broker.answers["partibus:get-entity"] = lambda _: (404, "amqp:not-found", "not there", None)
    broker.answers["partibus:create-entity"] = create
    assert make_side_entity(client, find(backup, "orders"), "side", Progress(backup / "p", {}))
    (body,) = made
    assert body["name"] == "side"
    assert body["properties"]["LockDuration"] == "PT1M"
    assert body["properties"]["RequiresDuplicateDetection"] is False


def test_a_queue_that_requires_sessions_is_refused_where_there_were_none(
    backup: Path, broker: TinyBroker, client: Client
) -> None:
    answer = {**QUEUE, "properties": {"RequiresSession": True}}
    broker.answers["partibus:get-entity"] = lambda _: (200, None, "OK", answer)
    with pytest.raises(InvalidOperation, match="requires sessions"):
        make_side_entity(client, find(backup, "orders"), "side", Progress(backup / "p", {}))
    broker.answers["partibus:get-entity"] = lambda _: (200, None, "OK", QUEUE)
    assert not make_side_entity(client, find(backup, "orders"), "side", Progress(backup / "p", {}))


def test_a_queue_that_is_gone_since_messages_were_sent_to_it_is_not_made_anew(
    backup: Path, tmp_path: Path, broker: TinyBroker, client: Client
) -> None:
    """Its messages are gone with it, and the progress says that they need not be sent."""
    run(backup, tmp_path / "p", FakeSender())
    broker.answers["partibus:get-entity"] = lambda _: (404, "amqp:not-found", "not there", None)
    with pytest.raises(InvalidOperation, match=r"p says that 413 messages were sent to 'side'.*Take the file away"):
        make_side_entity(client, find(backup, "orders"), "side", Progress(tmp_path / "p", {}))


# -- what the entity had to transfer -----------------------------------------------------------------------------------


@pytest.fixture
def transferring(backup: Path) -> Path:
    """The backup with one message of each kind of transfer."""
    (place,) = find(backup, "orders").record.placements
    path = store_file(backup, store_id(place.store_no))
    store = SQLiteStore.open(path, store_id=path.stem, owner=US, settings=SETTINGS)
    writes = Writes()
    for kind in (SubqueueKind.TRANSFER_DEAD_LETTER, SubqueueKind.TRANSFER):
        number = body_key(place.partition_row, kind * 10_000 + 1)
        data = pack(rest=b"\x00\x53\x75\xa0\x01x")
        writes.bodies += [number, with_destination(data, "there") if kind == SubqueueKind.TRANSFER else data]
        entry = (entry_key(subqueue_key(place.partition_row, kind), 1), number, kind * 10_000 + 1, 0)
        writes.entries += [*entry, EntryState.ACTIVE, 0, None, None]
    store.commit(writes)
    store.close()
    listing = backup / LIST
    document = json.loads(listing.read_text())
    document["stores"][path.stem] = path.stat().st_size
    listing.write_text(json.dumps(document))
    return backup


def test_transfer_dead_letters_and_waiting_transfers_are_restored_last(transferring: Path, tmp_path: Path) -> None:
    sender = FakeSender()
    assert run(transferring, tmp_path / "p", sender) == ACTIVE + DEAD + 2
    assert sender.numbers() == [*ALL, 20_001, 30_001]
    (dead,), (waiting,) = sender.runs[-2:]
    assert IncomingMessage(dead).annotations[RESTORED_FROM] == "Orders/$Transfer/$DeadLetterQueue"
    assert IncomingMessage(waiting).annotations[RESTORED_FROM] == "Orders/$Transfer"
    assert IncomingMessage(waiting).annotations["x-opt-partibus-destination"] == "there"


@pytest.mark.parametrize(("which", "number"), [("transfer-dead-letter", 20_001), ("transfer", 30_001)])
def test_only_one_kind_of_transfer(transferring: Path, tmp_path: Path, which: str, number: int) -> None:
    sender = FakeSender()
    run(transferring, tmp_path / "p", sender, which)
    assert sender.numbers() == [number]


def test_a_message_that_is_too_large_is_named_and_nothing_behind_it_is_sent(backup: Path, tmp_path: Path) -> None:
    sender = FakeSender()
    run(backup, tmp_path / "all", sender)
    sizes = [len(message) for one in sender.runs for message in one]
    large = next(index for index, size in enumerate(sizes) if size > sizes[0])
    small, second = FakeSender(), FakeSender()
    small.max_message_bytes = sizes[0]
    for _ in range(2):
        with pytest.raises(
            InvalidOperation, match=f"The message {ALL[large]} of 'Orders' .* MaxMessageSizeInKilobytes"
        ):
            run(backup, tmp_path / "p", small)
    assert small.numbers() == ALL[:large]
    run(backup, tmp_path / "p", second)
    assert second.numbers() == ALL[large:]
