"""The catalog's log: copied in an order that keeps clear of SQLite's WAL-reset bug, and written again after a failed
sync."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from partibus.errors import PartibusError
from partibus.namespace import catalog_file
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_file import FILE_NAME
from partibus.namespace.entities import QueueDescription
from tests.unit.namespace.catalogs import database
from tests.unit.store.sqlite.log_index import log_index
from tests.unit.store.sqlite.lossy_disk import LOG, PLANTED, LossyDisk, disk, library

__all__ = ["disk", "library"]

STORES = 16


@pytest.fixture
def catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Catalog, Catalog]]:
    """The same one, as two brokers have it open, with a log that is copied soon."""
    monkeypatch.setattr(catalog_file, "CHECKPOINT_BYTES", 20_000)
    both = Catalog(tmp_path, STORES), Catalog(tmp_path, STORES)
    yield both
    for one in both:
        one.close()


def test_a_checkpoint_begins_behind_a_commit_that_none_has_copied(
    catalogs: tuple[Catalog, Catalog], tmp_path: Path
) -> None:
    checkpoints: list[bool] = []
    with log_index(tmp_path / FILE_NAME) as index:

        def look(statement: str) -> None:
            if statement.startswith("PRAGMA wal_checkpoint"):
                checkpoints.append(index.may_start_over)

        for catalog in catalogs:
            database(catalog).set_trace_callback(look)
        for number in range(40):
            catalogs[number % 2].create(QueueDescription(f"q-{number}"), 0)
            with catalogs[1 - number % 2].together():
                pass  # a transaction that changes nothing adds nothing to the log
        assert len(checkpoints) > 10
        assert not any(checkpoints)
        for catalog in catalogs:
            catalog.close()


def test_only_one_broker_at_a_time_makes_a_checkpoint(catalogs: tuple[Catalog, Catalog], tmp_path: Path) -> None:
    _, second = catalogs
    with log_index(tmp_path / FILE_NAME) as index:
        with (tmp_path / FILE_NAME).with_suffix(".lock").open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            for number in range(20):
                second.create(QueueDescription(f"q-{number}"), 0)
            assert index.copied == 0
        second.create(QueueDescription("last"), 0)
        assert index.copied == index.frames > 20
        for catalog in catalogs:
            catalog.close()


def test_a_commit_behind_one_whose_sync_failed_outlives_a_loss_of_power(disk: LossyDisk) -> None:
    program = ("-m", __name__)
    # Commit 3 fails, and so does writing the log again, which the first attempt of 4 does.
    assert disk.run("1", "2", f"fail:{LOG}*2", "3", "4", "4", program=program) == [1, 2, 4]
    assert disk.run("5", f"fail:{LOG}*1", "6", program=program) == [5]
    assert disk.run("7", program=program) == [7]
    assert created_on(disk.lose_power()) - {3, 6} == {1, 2, 4, 5, 7}


def test_the_lossy_disk_catches_a_catalog_that_trusts_the_cache(disk: LossyDisk) -> None:
    program = ("-m", __name__)
    assert disk.run("trusting", "1", f"fail:{LOG}*1", "2", program=program) == [1]
    assert disk.run("trusting", "3", program=program) == [3]
    assert 3 not in created_on(disk.lose_power())


def created_on(device: Path) -> set[int]:
    catalog = Catalog(device, STORES)
    names = {int(one.description.name.removeprefix("q-")) for one in catalog.list_entities()}
    catalog.close()
    return names


def main() -> None:
    """Create queues while syncs fail; print the number of each that is there. Then end as a killed process does."""
    directory, faults = Path(sys.argv[1]), Path(sys.argv[2])
    catalog: Catalog | None = None
    for step in sys.argv[3:]:
        if step in PLANTED:
            assert hasattr(catalog_file, "rewrite")
            setattr(catalog_file, "rewrite", lambda *_: None)  # noqa: B010
        elif step.startswith("fail:"):
            faults.write_text(step.removeprefix("fail:").replace("*", " ") + "\n")
        else:
            while catalog is None:
                with suppress(PartibusError):
                    catalog = Catalog(directory, STORES)
            with suppress(PartibusError):
                catalog.create(QueueDescription(f"q-{step}"), 0)
                print(step, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
