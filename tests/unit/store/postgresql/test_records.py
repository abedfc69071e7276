"""Opening a store beside the record of its acknowledged commits."""

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.ports import StoreError
from partibus.store.acknowledged import FOLDER, Acknowledged, AcknowledgedCommits, accept_loss, run_of
from partibus.store.generations import Owner
from partibus.store.opening import Opener, StorePlace
from partibus.store.postgresql import Address, PostgreSQLStore, parse_address
from tests.contract.stores import PARTITION, enqueued, new_address, positions
from tests.kit.eventually import eventually
from tests.kit.postgresql_server import PASSWORD, USER, PostgreSQLServer
from tests.unit.store.postgresql.places import open_store, sql

STORE = "store-00"
RUNS = count()


def opened(address: Address, data: Path, *, is_shared: bool = False, evict: bool = False) -> PostgreSQLStore:
    """Open the store as a fresh process of the data directory does; closing the store leaves the record open."""
    run = Owner("broker-1", f"run-{next(RUNS)}")
    return open_store(address, run, evict=evict, record=AcknowledgedCommits(data, STORE, is_shared=is_shared))


def served(address: Address, data: Path) -> Path:
    """Commit three times and end; return the record."""
    store = opened(address, data)
    for pos in range(1, 4):
        store.commit(enqueued(pos))
    store.close()
    return data / FOLDER / STORE


def go_back(address: Address) -> None:
    """Take two commits away, as a standby that lagged lacks them."""
    sql(address, "DELETE FROM entry WHERE key & ((1::bigint << 38) - 1) > 1")
    sql(address, "DELETE FROM body WHERE key & ((1::bigint << 38) - 1) > 1")
    sql(address, "UPDATE partition SET next_sequence = 2, next_number = 2")
    sql(address, "UPDATE owner SET last_commit = 1")


def first_free(store: PostgreSQLStore) -> int:
    """The next sequence counter of the partition."""
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    return snapshot.next_sequence


def test_a_store_behind_its_record_is_left_as_it_was(tmp_path: Path) -> None:
    address = new_address()
    served(address, tmp_path)
    go_back(address)
    before = sql(address, "SELECT broker, epoch, last_commit, taken_at FROM owner")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"last commit is 1, while 3 was acknowledged.*accept-loss store-00"):
            opened(address, tmp_path)
    assert sql(address, "SELECT broker, epoch, last_commit, taken_at FROM owner") == before


def test_an_accepted_loss_begins_a_generation_and_is_accepted_once(tmp_path: Path) -> None:
    address = new_address()
    served(address, tmp_path)
    go_back(address)
    assert accept_loss(tmp_path, STORE, 1) == 2
    store = opened(address, tmp_path)
    assert len(store.generations) == 2
    assert first_free(store) >= store.generations[-1].first
    assert store.last_commit == 3, "records of other machines hold up to 3 commits"
    store.close()
    again = opened(address, tmp_path)
    assert len(again.generations) == 2
    again.close()
    go_back(address)
    with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
        opened(address, tmp_path)


def test_an_acceptance_is_withdrawn_when_the_server_with_all_commits_is_back(tmp_path: Path) -> None:
    address = new_address()
    served(address, tmp_path)
    accept_loss(tmp_path, STORE, 1)
    opened(address, tmp_path).close()
    go_back(address)
    with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
        opened(address, tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", bytes(28)])
def test_a_damaged_record_refuses_the_store_until_the_loss_is_accepted(tmp_path: Path, content: bytes) -> None:
    address = new_address()
    record = served(address, tmp_path)
    record.write_bytes(content)
    with pytest.raises(
        StoreError, match=r"store-00 is damaged .* unknown; .* accept-loss store-00 --data \S+ --last-commit 3"
    ) as caught:
        opened(address, tmp_path)
    assert "remove" not in str(caught.value)
    assert accept_loss(tmp_path, STORE, 3) is None
    store = opened(address, tmp_path)
    assert len(store.generations) == 2
    assert positions(store) == [1, 2, 3]
    store.commit(enqueued(4))
    store.close()
    again = opened(address, tmp_path)
    assert len(again.generations) == 2
    again.close()


def test_a_missing_record_of_the_only_data_directory_begins_a_generation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Begin one, since the record was removed or the data directory is a copy: the store may have gone back, too."""
    address = new_address()
    served(address, tmp_path).unlink()
    go_back(address)
    with caplog.at_level(logging.WARNING):
        store = opened(address, tmp_path)
    assert "no record tells whether the server has every acknowledged commit" in caplog.text
    assert first_free(store) >= store.generations[-1].first > 3
    store.close()
    again = opened(address, tmp_path)
    assert len(again.generations) == 2
    again.close()


@pytest.mark.parametrize("content", [b"", None])
def test_a_new_store_needs_no_record(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / FOLDER / STORE
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    store = opened(new_address(), tmp_path)
    assert len(store.generations) == 1
    store.close()
    assert AcknowledgedCommits(tmp_path, STORE).last == Acknowledged(0, 0, run_of(""))


def test_a_machine_that_has_not_owned_a_shared_store_goes_on_with_its_numbers(tmp_path: Path) -> None:
    """Each machine has a record of its own, so a missing one is usual."""
    address = new_address()
    served(address, tmp_path / "one")
    store = opened(address, tmp_path / "two", is_shared=True)
    assert len(store.generations) == 1
    store.close()


def test_a_machine_that_has_not_owned_a_store_refuses_it_by_the_report_of_the_owner(tmp_path: Path) -> None:
    """The owner and its machine are lost, together with the server: the catalog has what it reported."""
    address = new_address()
    served(address, tmp_path / "lost")
    reported = AcknowledgedCommits(tmp_path / "lost", STORE).last
    go_back(address)
    place = StorePlace(STORE, address.url)
    opener = Opener(place, Owner("broker-2", "a run"), tmp_path / "here", evict=False, reported=lambda: reported)
    with pytest.raises(StoreError, match="last commit is 1, while 3 was acknowledged"):
        opener()
    assert accept_loss(tmp_path / "here", STORE, 1) == 2
    store = opener()
    assert len(store.generations) == 2
    store.close()


@pytest.mark.parametrize(("reported", "is_refused"), [(2, True), (1, False)])
def test_a_machine_that_has_not_owned_a_store_learns_of_commits_up_to_the_last_heartbeat(
    tmp_path: Path, reported: int, is_refused: bool
) -> None:
    """The owner's machine and the server are lost within one heartbeat: later commits are in no report (ADR 0024).

    The timeline of the promoted standby begins a generation, so no number is given out twice.
    """
    address = new_address()
    served(address, tmp_path / "lost")
    last = AcknowledgedCommits(tmp_path / "lost", STORE).last
    assert last is not None
    assert last.last_commit == 3
    go_back(address)
    (home,) = sql(address, "SELECT home FROM meta")
    sql(address, f"UPDATE meta SET home = '{home.rpartition('/')[0]}/0000000A'")
    report = last._replace(last_commit=reported)
    place = StorePlace(STORE, address.url)
    opener = Opener(place, Owner("broker-2", "a run"), tmp_path / "here", evict=False, reported=lambda: report)
    if is_refused:
        with pytest.raises(StoreError, match="last commit is 1, while 2 was acknowledged"):
            opener()
        return
    store = opener()
    assert isinstance(store, PostgreSQLStore)
    assert len(store.generations) == 2
    assert first_free(store) > 1 << 30
    store.close()


@pytest.mark.parametrize(
    ("is_shared", "has_record", "is_last_owner", "before", "generations"),
    [
        (False, True, True, "0000000A", 1),
        (True, True, True, "0000000A", 1),  # every acknowledged commit is this machine's own
        (True, True, False, "0000000A", 2),
        (True, False, False, "0000000A", 2),
        (True, False, False, "", 1),  # taken over before by a version that did not note the timeline
    ],
)
def test_a_promoted_server_begins_a_generation_unless_the_record_proves_that_it_has_all_commits(
    tmp_path: Path, is_shared: bool, has_record: bool, is_last_owner: bool, before: str, generations: int
) -> None:
    address = new_address()
    here = tmp_path / "here"
    served(address, here)
    if not is_last_owner:
        store = opened(address, tmp_path / "there", is_shared=True)
        store.commit(enqueued(4))
        store.close()
    if not has_record:
        (here / FOLDER / STORE).unlink()
    (home,) = sql(address, "SELECT home FROM meta")
    place, _, timeline = home.rpartition("/")
    assert len(timeline) == 8
    sql(address, f"UPDATE meta SET home = '{place}/{before}'")
    for _ in range(2):
        store = opened(address, here, is_shared=is_shared)
        assert len(store.generations) == generations
        store.close()
    assert sql(address, "SELECT home FROM meta") == [home]


@pytest.mark.parametrize("epoch_change", [-1, 0])
def test_a_store_that_went_another_way_is_refused_by_its_epoch(tmp_path: Path, epoch_change: int) -> None:
    """Another broker used a standby that lagged: it has as many commits, and they are others."""
    address = new_address()
    served(address, tmp_path)
    sql(
        address,
        f"UPDATE owner SET last_commit = 9, taken_at = 1, epoch = epoch + {epoch_change}, incarnation = 'another'",
    )
    for _ in range(2):
        with pytest.raises(StoreError, match=r"went another way .* accept-loss .* --other-history --last-commit 9"):
            opened(address, tmp_path)
    other = tmp_path / "other"
    served_record = AcknowledgedCommits(tmp_path, STORE).last
    assert served_record is not None
    AcknowledgedCommits(other, STORE).note(served_record)
    assert accept_loss(tmp_path, STORE, 9, other_history=True) is None
    store = opened(address, tmp_path)
    assert len(store.generations) == 2
    store.close()
    again = opened(address, other, is_shared=True)  # the loss need not be accepted on each machine
    assert len(again.generations) == 2
    again.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_restart_after_an_epoch_without_commits_is_no_loss(tmp_path: Path, is_shared: bool) -> None:
    address = new_address()
    served(address, tmp_path)
    for _ in range(3):
        store = opened(address, tmp_path, is_shared=is_shared)
        assert len(store.generations) == 1
        store.close()


# -- a real standby --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lagging() -> Iterator[tuple[Address, Address, Path]]:
    """A store with one commit on a promoted standby and three on its primary: their addresses, and the record."""
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "another_room")
        try:
            standby.start()
            addresses = [
                parse_address(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{one.port}/postgres")[0]
                for one in (primary, standby)
            ]
            data = primary.directory / "of_a_broker"
            data.mkdir()
            store = opened(addresses[0], data)
            store.commit(enqueued(1))
            (end,) = primary.sql("SELECT pg_current_wal_lsn()")
            eventually(
                "the standby has followed",
                lambda: standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == ["t"],
            )
            standby.stop()
            store.commit(enqueued(2))
            store.commit(enqueued(3))
            store.close()
            primary.kill()
            standby.start()
            standby.promote()
            yield addresses[0], addresses[1], data / FOLDER / STORE
        finally:
            standby.remove()


def test_a_promoted_standby_gives_no_number_out_again_whatever_has_become_of_the_record(
    lagging: tuple[Address, Address, Path], tmp_path: Path
) -> None:
    """The steps follow one another on one standby: refused by a whole and by a damaged record, taken without one."""
    _, standby, record = lagging
    whole = record.read_bytes()
    path = tmp_path / FOLDER / STORE
    path.parent.mkdir()
    for content, error in (
        (whole, "last commit is 1, while 3 was acknowledged"),
        (b"", "is damaged"),
        (b"x", "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=error):
            opened(standby, tmp_path, evict=True)
    path.unlink()
    store = opened(standby, tmp_path, is_shared=True, evict=True)  # a machine that never owned the store
    assert first_free(store) >= store.generations[-1].first > 3
    store.close()
    again = opened(standby, tmp_path / "a_third", is_shared=True)
    assert again.generations == store.generations, "the server has not been promoted since"
    again.close()
