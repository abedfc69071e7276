"""Which store has which number: files first, then databases, each for ever."""

import json
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import Store, StoreError
from partibus.store.generations import Owner
from partibus.store.opening import Opener, StorePlace, find_stores
from partibus.store.postgresql import Address
from tests.contract.stores import enqueued, new_address, positions

US = Owner("broker-0", "run-1")


def found(data: Path, *stores: str) -> list[StorePlace]:
    return find_stores(data, stores, created_ms=0)


def refusal(data: Path, *stores: str) -> str:
    with pytest.raises(StoreError) as caught:
        found(data, *stores)
    assert "only-for-tests" not in str(caught.value), "no password"
    return str(caught.value)


def ids(places: list[StorePlace]) -> list[str]:
    return [place.store_id for place in places]


@pytest.fixture
def one() -> Address:
    return new_address()


@pytest.fixture
def two() -> Address:
    return new_address()


def test_without_a_word_there_are_sixteen_files_and_no_list(tmp_path: Path) -> None:
    assert ids(found(tmp_path)) == [f"store-{number:02}" for number in range(16)]
    assert not (tmp_path / "stores.json").exists()


def test_with_databases_there_are_no_files(tmp_path: Path, one: Address, two: Address) -> None:
    places = found(tmp_path, one.url, two.url)
    assert [(place.store_id, place.location) for place in places] == [("store-00", one.url), ("store-01", two.url)]
    assert list((tmp_path / "stores").iterdir()) == []
    assert "only-for-tests" not in (tmp_path / "stores.json").read_text()


def test_files_and_databases_together_whatever_their_order(tmp_path: Path, one: Address, two: Address) -> None:
    first = found(tmp_path, one.url, "sqlite:2", two.url)
    assert ids(first) == ["store-00", "store-01", "store-02", "store-03"]
    assert [place.is_distant for place in first] == [False, False, True, True]
    assert found(tmp_path, two.url, one.url, "sqlite:2") == first
    assert found(tmp_path, two.url, one.url) == first, "files that exist hold messages"


def test_files_that_exist_keep_their_numbers(tmp_path: Path, one: Address) -> None:
    found(tmp_path)
    places = found(tmp_path, one.url)
    assert (len(places), places[16].store_id, places[16].location) == (17, "store-16", one.url)


def test_a_store_keeps_its_rows_from_one_run_to_the_next(tmp_path: Path, one: Address) -> None:
    for run in (1, 2):
        (place,) = found(tmp_path, one.url)
        opener = Opener(StorePlace(*place), Owner("broker-0", f"run-{run}"), tmp_path)
        store: Store = opener()
        store.commit(enqueued(run))
        again = opener()
        assert positions(again) == list(range(1, run + 1))
        again.close()


def test_a_database_that_is_known_is_not_asked_for(tmp_path: Path, one: Address) -> None:
    (place,) = found(tmp_path, one.url)
    listing = tmp_path / "stores.json"
    document = json.loads(listing.read_text())
    document["stores"]["store-00"] = "postgresql://me@127.0.0.1:1/gone?schema=partibus"
    listing.write_text(json.dumps(document))
    url = "postgresql://me@127.0.0.1:1/gone"
    (away,) = found(tmp_path, url)
    assert away == place._replace(location=f"{url}?schema=partibus")
    with pytest.raises(StoreError, match="see that the server runs"):
        Opener(away, US, tmp_path)()


def test_a_store_that_was_moved_is_known_again(tmp_path: Path, one: Address, two: Address) -> None:
    (place, _) = found(tmp_path, one.url, two.url)
    moved = one.url.replace("127.0.0.1", "localhost")
    assert found(tmp_path, two.url, moved)[0] == place._replace(location=moved)


def test_a_new_database_must_be_reachable_and_is_not_noted_before_it_is_made(tmp_path: Path) -> None:
    assert "see that the server runs" in refusal(tmp_path, "postgresql://me@127.0.0.1:1/new")
    assert not (tmp_path / "stores.json").exists()


def test_a_known_store_that_is_left_out_is_refused(tmp_path: Path, one: Address, two: Address) -> None:
    found(tmp_path, one.url, two.url)
    assert f"{two.name}: holds store-01 of this namespace" in refusal(tmp_path, one.url)
    assert "holds store-00" in refusal(tmp_path)


def test_a_store_of_another_data_directory_is_refused(tmp_path: Path, one: Address) -> None:
    found(tmp_path / "here", one.url)
    assert "is store-00 of another data directory" in refusal(tmp_path / "there", one.url)


def test_files_can_not_grow_into_the_numbers_of_databases(tmp_path: Path, one: Address) -> None:
    found(tmp_path, "sqlite:1", one.url)
    assert "store-01 is in a database, so 1 stores can be in files, not 2" in refusal(tmp_path, "sqlite:2", one.url)


@pytest.mark.parametrize(
    ("stores", "reason"),
    [
        (("mysql://u:only-for-tests@h/db",), "is no kind of store"),
        (("sqlite:x",), "give sqlite:N once"),
        (("sqlite:1", "sqlite:2"), "give sqlite:N once"),
        (("sqlite:0",), "sqlite:0: there may be 1 to 256 stores in files"),
        (("sqlite:257",), "sqlite:257: there may be 1 to 256 stores in files"),
        (("sqlite:9" + 5_000 * "9",), "sqlite:999999999: there may be 1 to 256"),
        (("postgresql://h/db", "postgresql://h/db?schema=partibus"), "is given twice"),
    ],
)
def test_what_is_no_store(tmp_path: Path, stores: tuple[str, ...], reason: str) -> None:
    assert reason in refusal(tmp_path, *stores)
    assert list(tmp_path.glob("stores/*")) == [], "nothing was made"


def test_no_files_may_be_asked_for_beside_databases(tmp_path: Path, one: Address) -> None:
    assert ids(found(tmp_path, one.url, "sqlite:0")) == ["store-00"]


def test_a_damaged_list_is_refused(tmp_path: Path, one: Address) -> None:
    found(tmp_path, one.url)
    (tmp_path / "stores.json").write_text("[]")
    assert "can't be read" in refusal(tmp_path, one.url)


def test_a_start_that_was_cut_short_goes_on(tmp_path: Path, one: Address, two: Address) -> None:
    found(tmp_path, one.url, two.url)
    listing = tmp_path / "stores.json"
    document = json.loads(listing.read_text())
    del document["stores"]["store-01"]
    listing.write_text(json.dumps(document))
    assert ids(found(tmp_path, one.url, two.url)) == ["store-00", "store-01"]


def test_a_store_without_a_kind_is_named_as_it_was_given(tmp_path: Path) -> None:
    assert refusal(tmp_path, "foo").startswith("foo: is no kind of store; give postgresql://")
    assert refusal(tmp_path, "mysql://u:only-for-tests@h/db").startswith("mysql:...: is no kind of store")
