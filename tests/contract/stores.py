"""The stores that the contract is asked of, each at a place where its rows outlive it; and rows to put there."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from partibus.namespace.catalog_database import FORMAT_VERSION, schema_steps
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import EntryState, Store, Writes
from partibus.store.generations import Owner
from partibus.store.postgresql import Address, PostgreSQLStore, parse_address
from partibus.store.postgresql.catalog import CatalogSchema, prepare_catalog
from partibus.store.sqlite import SQLiteStore, StoreSettings
from tests.kit.postgresql_server import new_schema, shared_server
from tests.kit.stores.faulty import FaultSource, FaultyStore
from tests.kit.stores.memory import MemoryDisk, MemoryStore

Opener = Callable[[], Store]
"""Opens the store of one place; again and again, with the rows that are there."""

SETTINGS = StoreSettings(reserved_bytes=16_384, min_free_bytes=0)


def memory(_directory: Path) -> Opener:
    """A disk in memory."""
    disk = MemoryDisk()
    return lambda: MemoryStore(disk)


def sqlite(directory: Path) -> Opener:
    """A file; each opening is another run of the same broker."""
    runs = iter(range(1, 1_000))

    def open_store() -> Store:
        owner = Owner("broker-1", f"run-{next(runs)}")
        return SQLiteStore.open(directory / "store-00.db", store_id="store-00", owner=owner, settings=SETTINGS)

    return open_store


def new_address() -> Address:
    """Make an unused schema."""
    (address,) = parse_address(shared_server().url(parameters=f"schema={new_schema()}"))
    return address


def new_catalog() -> Callable[[], CatalogSchema]:
    """Opens a catalog, of its own, in a real server."""
    address = new_address()
    prepare_catalog(address, FORMAT_VERSION, partial(schema_steps, "postgresql"))
    return lambda: CatalogSchema(address, "a test")


def postgresql(_directory: Path) -> Opener:
    """A schema of its own in a real server; each opening is another run of the same broker."""
    runs = count(1)
    address = new_address()

    def open_store() -> Store:
        owner = Owner("broker-1", f"run-{next(runs)}")
        return PostgreSQLStore.open(address, store_id="store-00", owner=owner)

    return open_store


def faulty(inside: Callable[[Path], Opener]) -> Callable[[Path], Opener]:
    """The wrapper without faults must change nothing."""

    def place(directory: Path) -> Opener:
        open_inner = inside(directory)
        return lambda: FaultyStore(open_inner(), FaultSource(seed=1))

    return place


PLACES: dict[str, Callable[[Path], Opener]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "faulty-memory": faulty(memory),
    "faulty-sqlite": faulty(sqlite),
}

PARTITION = 5
QUEUE = subqueue_key(PARTITION, 0)
DEAD_LETTERS = subqueue_key(PARTITION, 1)


def enqueue(
    writes: Writes,
    pos: int,
    data: bytes = b"hello",
    *,
    subqueue: int = QUEUE,
    sequence: int | None = None,
    enqueued_ms: int = 1_700_000_000_000,
    state: EntryState = EntryState.ACTIVE,
    delivery_count: int = 0,
    session: str | None = None,
    due_ms: int | None = None,
) -> Writes:
    """Add a message: its body under the number of its sequence, its entry at ``pos``."""
    number = pos if sequence is None else sequence
    body = body_key(subqueue >> 2, number)
    writes.bodies += [body, data]
    writes.entries += [
        entry_key(subqueue, pos), body, number, enqueued_ms, int(state), delivery_count, session, due_ms,
    ]  # fmt: skip
    writes.counters.setdefault(subqueue >> 2, (number + 1, 0, 0))
    return writes


def complete(writes: Writes, first: int, last: int, subqueue: int = QUEUE) -> Writes:
    """Remove a run of messages."""
    partition = subqueue >> 2
    writes.deleted_entries.append((entry_key(subqueue, first), entry_key(subqueue, last)))
    writes.deleted_bodies.append((body_key(partition, first), body_key(partition, last)))
    return writes


def enqueued(*positions: int, data: bytes = b"hello", subqueue: int = QUEUE) -> Writes:
    """A commit of messages at these positions."""
    writes = Writes()
    for pos in positions:
        enqueue(writes, pos, data, subqueue=subqueue)
    return writes


def positions(store: Store, subqueue: int = QUEUE) -> list[int]:
    """Return the positions of everything in a sub-queue, whatever its state."""
    return [row.pos for row in store.read(q.Browse(subqueue, 0, 1 << 40, 100_000, 1 << 40))]
