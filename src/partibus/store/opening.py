"""All stores of a data directory: those in its files, and the PostgreSQL databases that ``--store`` names.

Partitions are placed by the number of their store, so a number must always mean the same store. Files carry it in their
names. For databases a listing maps stores to places: ``DATA/stores.json``, or the catalog of brokers on several
machines. Stores in files have the first numbers. A store also records its number and its owner, so the broker
recognizes a store that was moved to another server.
"""

import json
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from partibus.durable import replace_file
from partibus.partition.protocol.ports import Store, StoreError
from partibus.store.acknowledged import Acknowledged, AcknowledgedCommits
from partibus.store.generations import Owner
from partibus.store.sqlite.directory import STORES_DEFAULT, make_stores, open_store, store_id

if TYPE_CHECKING:
    from partibus.store.postgresql import Address, OwnerWatch, PostgreSQLStore

LISTING = "stores.json"
IN_FILES = "sqlite:"
"""``sqlite:10``: ten stores in the data directory, beside those in databases."""

FILES_MAX = 256
"""Each file takes 4 MiB of reserved space for a full disk, a thread's time at each start, and some open files."""

_OPENED_AT_ONCE = 4


def _refused(reason: str) -> StoreError:
    return StoreError(reason, executed=False)


class StorePlace(NamedTuple):
    """The place of one store, in plain values that another process can be told."""

    store_id: str
    location: str
    """A path, or a PostgreSQL URL with its password."""
    cluster: str = ""
    """The cluster that owns the store, for a store in a database."""

    @property
    def is_distant(self) -> bool:
        """Whether the store is behind a network, and so may answer late or not at all."""
        return "://" in self.location


CheckTime = Callable[[str, int], int | None]
"""A function that gets the name of an opened store and its `highest_ms`.

It returns the time to which the store must be turned back, or None. It raises `StoreError` if the store may not be
used at this time.
"""


class Opener:
    """A callable that opens one store, repeatedly, for one run of a broker.

    Each time it checks that acknowledged commits are there.
    """

    def __init__(
        self,
        place: StorePlace,
        owner: Owner,
        data: Path,
        *,
        evict: bool = True,
        check_time: CheckTime | None = None,
        reported: Callable[[], Acknowledged | None] = lambda: None,
        ended: Collection[str] = (),
    ) -> None:
        """Prepare to open the store at ``place``. ``data`` is the data directory.

        ``evict``: the caller knows that the former owner has ended. Otherwise the store waits for the end of its lease,
        which a store in a file can't. ``reported`` returns the last commit of the store that an owner has reported to
        the other machines. ``ended``: earlier runs of this broker, which have surely ended.
        """
        self._data = data
        assert evict or place.is_distant
        self._place = place
        self._owner = owner
        self._evict = evict
        self._check_time = check_time
        self._before: PostgreSQLStore | None = None
        self._record: AcknowledgedCommits | None = None
        self._reported = reported
        self._ended = ended
        self._watch: OwnerWatch | None = None

    def __call__(self) -> Store:
        """Open the store and take it over (D19). Raises `StoreError`, also if another broker owns it."""
        store = self._open()
        if self._check_time is not None:
            try:
                back_to_ms = self._check_time(store.name, store.highest_ms)
                if back_to_ms is not None:
                    store.set_time(back_to_ms)
            except StoreError:
                store.close()
                raise
        return store

    def _open(self) -> Store:
        place = self._place
        if not place.is_distant:
            return open_store(Path(place.location), owner=self._owner)
        from partibus.store.postgresql import PostgreSQLStore, parse_address

        if self._before is not None:
            self._before.close()
        record = self._open_record()
        if self._before is None:
            (address,) = parse_address(place.location)
            self._before = PostgreSQLStore.open(
                address,
                store_id=place.store_id,
                owner=self._owner,
                cluster=place.cluster,
                created_ms=None,  # `find_stores` has made it
                evict=self._evict,
                record=record,
                watch=self._make_watch(),
            )
        else:
            self._before = self._before.reopen()
        return self._before

    def watch(self) -> None:
        """Look at the owner of the store, which may be lost: the time until this broker may take it over begins.

        Does nothing for a store in a file, or while the server does not answer: the next attempt to open looks again.
        """
        if not self._place.is_distant or self._evict:
            return
        from partibus.store.postgresql import parse_address, watch_owner

        (address,) = parse_address(self._place.location)
        with suppress(StoreError):
            watch_owner(address, self._make_watch())

    def _make_watch(self) -> "OwnerWatch":
        from partibus.store.postgresql import OwnerWatch

        if self._watch is None:
            self._watch = OwnerWatch(self._ended)
        return self._watch

    def _open_record(self) -> AcknowledgedCommits:
        """Read the record of acknowledged commits. One object does: the caller retries a refused store every second."""
        try:
            if self._record is None:
                self._record = AcknowledgedCommits(self._data, self._place.store_id, is_shared=not self._evict)
            else:
                self._record.load()
            if (reported := self._reported()) is not None:
                self._record.learn(reported)
        except OSError as error:
            raise StoreError(
                f"{self._place.store_id}: the record of its commits in {self._data} can't be opened: {error}",
                executed=False,
            ) from error
        return self._record


def open_each(openers: Sequence[Callable[[], Store]]) -> list[Store | StoreError]:
    """Open several stores at once; return for each the store, or the reason why it can't be opened."""

    def opened(opener: Callable[[], Store]) -> Store | StoreError:
        try:
            return opener()
        except StoreError as error:
            return error

    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return list(pool.map(opened, openers))


class Listing(Protocol):
    """The databases of stores, and the cluster that owns the stores."""

    cluster: str
    places: dict[str, str]
    """Store id -> URL without password."""

    @property
    def name(self) -> str:
        """The name of the listing, for people."""
        ...

    def admit(self, name: str) -> None:
        """Raise `StoreError` if no new store may be added now at the place ``name``."""
        ...

    def save(self) -> None:
        """Save the listing durably. Raises `StoreError`."""
        ...


def find_distant_stores(listing: Listing, stores: Sequence[str], *, created_ms: int) -> list[StorePlace]:
    """Find every store by its number and make missing ones, for brokers on several machines.

    All stores are in databases then. Raises `StoreError` as `find_stores`.
    """
    if not stores or any(store.startswith(IN_FILES) for store in stores):
        raise _refused(
            f"{listing.name}: brokers on several machines need stores that each of them can reach; give --store "
            "postgresql://... for all of them, and no files"
        )
    return _in_databases(listing, stores, 0, created_ms)


def find_stores(data_dir: Path, stores: Sequence[str], *, created_ms: int) -> list[StorePlace]:
    """Find every store by its number and make missing ones.

    ``stores``: as given with ``--store``, URLs and ``sqlite:N``; without any there are `STORES_DEFAULT` files. A
    database that is already listed is not contacted now: if it can't be reached, only its own partitions are
    unavailable. Raises `StoreError` if a new store can't be reached or belongs to another cluster, or if a known store
    is not among ``stores``.
    """
    listing = _ListingFile(data_dir)
    count = STORES_DEFAULT if not stores and not listing.places else _files_wanted(stores)
    urls = [store for store in stores if not store.startswith(IN_FILES)]
    if not urls and not listing.places:
        return _in_files(data_dir, count, created_ms)
    first = min(map(_number, listing.places), default=None)
    if first is not None and count > first:
        raise _refused(
            f"{listing.path}: {store_id(first)} is in a database, so {first} stores can be in files, not {count}; "
            f"give --store {IN_FILES}{first}, and more databases if more stores are wanted"
        )
    files = _in_files(data_dir, count, created_ms)
    if first is not None and len(files) > first:
        raise _refused(
            f"{files[first].location}: has the number of a store in a database ({listing.path}); take the file away"
        )
    return files + _in_databases(listing, urls, len(files), created_ms)


def _files_wanted(stores: Sequence[str]) -> int:
    counts = [store.removeprefix(IN_FILES) for store in stores if store.startswith(IN_FILES)]
    if not counts:
        return 0
    if len(counts) > 1 or not counts[0].isdecimal():
        raise _refused(f"{IN_FILES}{counts[-1]}: give {IN_FILES}N once, N the number of stores in files")
    least = 0 if len(stores) > 1 else 1
    count = int(counts[0][:9])
    if not least <= count <= FILES_MAX:
        raise _refused(
            f"{IN_FILES}{counts[0][:9]}: there may be {least} to {FILES_MAX} stores in files; {STORES_DEFAULT} are one "
            "for each partition of a queue"
        )
    return count


def _in_files(data_dir: Path, count: int, created_ms: int) -> list[StorePlace]:
    paths = make_stores(data_dir, created_ms=created_ms, count=count)
    return [StorePlace(path.stem, str(path.absolute())) for path in paths]


def _in_databases(listing: Listing, urls: Sequence[str], first: int, created_ms: int) -> list[StorePlace]:
    found: dict[str, Address] = {}
    new: list[Address] = []
    for address in _addresses(urls):
        known = _store_at(listing, address.name) or _look_up(address, listing)
        if known is None:
            new.append(address)
        elif known in found:
            raise _refused(f"{address.name}: is {known}, and so is {found[known].name}; give one of them")
        else:
            found[known] = address
            _note(listing, known, address.name)
    for address in new:
        listing.admit(address.name)
        known = store_id(first + len(listing.places))
        listing.save()  # who we are, before a store says so
        _make(address, known, listing.cluster, created_ms)
        found[known] = address
        _note(listing, known, address.name)
    for known, name in listing.places.items():
        if known not in found:
            raise _refused(
                f"{name}: holds {known} of this namespace ({listing.name}) and is not among --store; add it, or the "
                "place that it has been moved to"
            )
    return [StorePlace(known, found[known].url, listing.cluster) for known in sorted(found, key=_number)]


def _addresses(urls: Sequence[str]) -> "list[Address]":
    for url in urls:
        if not url.startswith(("postgresql://", "postgres://")):
            kind, colon, _ = url.partition(":")
            shown = f"{kind}:..." if colon else kind  # behind the kind a password may be
            raise _refused(
                f"{shown}: is no kind of store; give postgresql://USER:PASSWORD@HOST/DATABASE, or {IN_FILES}N"
            )
    try:
        from partibus.store.postgresql import parse_address
    except ImportError as error:
        raise _refused(f"stores in PostgreSQL need its driver ({error}); install partibus[postgresql]") from error
    addresses = [address for url in urls for address in parse_address(url)]
    names = [address.name for address in addresses]
    for name in names:
        if names.count(name) > 1:
            raise _refused(f"{name}: is given twice; give each store once (?schema=NAME tells them apart)")
    return addresses


def _look_up(address: "Address", listing: Listing) -> str | None:
    """Return which of this cluster's stores is at the address; None if there is no store at all."""
    from partibus.store.postgresql import identity_of

    identity = identity_of(address)
    if identity is None:
        return None
    if identity.cluster != listing.cluster:
        raise _refused(
            f"{address.name}: is {identity.store_id} of another data directory or catalog, not of {listing.name}; "
            "choose another schema (?schema=NAME), or serve with the data directory or catalog that it was made with"
        )
    return identity.store_id


def _make(address: "Address", known: str, cluster: str, created_ms: int) -> None:
    from partibus.store.postgresql import Identity, make_store

    make_store(address, Identity(known, cluster), created_ms)


def _store_at(listing: Listing, name: str) -> str | None:
    """Return which store is listed at that place, if any."""
    return next((known for known, place in listing.places.items() if place == name), None)


def _note(listing: Listing, known: str, name: str) -> None:
    """Record where a store is. Raises `StoreError`."""
    if listing.places.get(known) != name:
        listing.places[known] = name
        listing.save()


def _number(known: str) -> int:
    return int(known.removeprefix("store-"))


class _ListingFile:
    """``DATA/stores.json``: the cluster's name, and the place of each store in a database (without passwords)."""

    def __init__(self, data_dir: Path) -> None:
        """Read it, or begin an empty one. Raises `StoreError`."""
        self.path = data_dir / LISTING
        self.cluster = ""
        self.places: dict[str, str] = {}
        """Store id -> URL without password."""
        try:
            document = json.loads(self.path.read_text())
            self.cluster = str(document["cluster"])
            self.places = {str(known): str(name) for known, name in document["stores"].items()}
        except FileNotFoundError:
            self.cluster = os.urandom(8).hex()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _refused(
                f"{self.path}: can't be read ({error}); put it back from a copy: it says which store is where"
            ) from error

    @property
    def name(self) -> str:
        return str(self.path)

    def admit(self, name: str) -> None:
        """Accept any store: this process is the only user of the data directory."""

    def save(self) -> None:
        """Save the file durably. Raises `StoreError`."""
        document = {"cluster": self.cluster, "stores": dict(sorted(self.places.items()))}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(document, indent=2).encode() + b"\n")
        except OSError as error:
            raise _refused(f"{self.path}: can't be written: {error.strerror}") from error
