"""The record of acknowledged commits, and the stores that go on without them."""

import os
from pathlib import Path
from struct import Struct
from zlib import crc32

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.acknowledged import (
    FOLDER,
    Acknowledged,
    AcknowledgedCommits,
    History,
    accept_loss,
    lacks,
    went_another_way,
)
from partibus.store.generations import Owner
from partibus.store.opening import Opener, StorePlace


def test_an_acceptance_that_was_not_needed_covers_no_later_loss(tmp_path: Path) -> None:
    record = AcknowledgedCommits(tmp_path, "store-07")
    record.note(Acknowledged(6, 1, 7))
    assert accept_loss(tmp_path, "store-07", 3) == 3
    assert record.is_accepted(3)
    record.withdraw()
    assert not record.is_accepted(3)
    record.close()


def test_a_store_that_is_refused_again_and_again_opens_its_record_once(tmp_path: Path) -> None:
    """A broker tries again each second until an operator decides."""
    written(tmp_path)
    place = StorePlace("store-07", "postgresql://nobody@127.0.0.1:1/none?schema=some")
    opener = Opener(place, Owner("one", "run"), tmp_path)
    record = str(tmp_path / FOLDER / "store-07")
    for _ in range(3):
        with pytest.raises(StoreError):
            opener()
    files = [
        os.readlink(f"/proc/self/fd/{one}")
        for one in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{one}")
    ]
    assert files.count(record) == 1


def written(data: Path) -> Path:
    """A record of commit 6."""
    record = AcknowledgedCommits(data, "store-07")
    record.note(Acknowledged(6, 1, 7))
    record.close()
    return data / FOLDER / "store-07"


def test_a_record_is_made_with_its_content(tmp_path: Path) -> None:
    """A file that is made first and written later can be left empty by a loss of power."""
    record = AcknowledgedCommits(tmp_path, "store-07")
    assert (record.last, record.damage) == (None, None)
    assert not record.path.exists()
    record.note(Acknowledged(6, 1, 7))
    record.note(Acknowledged(7, 1, 7))
    record.sync()
    record.close()
    assert AcknowledgedCommits(tmp_path, "store-07").last == Acknowledged(7, 1, 7)


@pytest.mark.parametrize("content", [b"", b"short", bytes(20), bytes(28), bytes(29)])
def test_a_damaged_record_tells_nothing_until_an_operator_accepts_the_loss(tmp_path: Path, content: bytes) -> None:
    """Read as none, it would let the broker go on from a standby that lags."""
    written(tmp_path).write_bytes(content)
    record = AcknowledgedCommits(tmp_path, "store-07")
    assert record.last is None
    assert record.damage is not None
    assert record.is_empty is (not content)
    assert accept_loss(tmp_path, "store-07", 3) is None
    assert record.is_accepted(3)
    record.go_on_from(Acknowledged(3, 2, 8))
    assert not record.is_accepted(3)
    record.close()
    assert AcknowledgedCommits(tmp_path, "store-07").last == Acknowledged(3, 2, 8)


def test_a_record_that_another_process_has_replaced_is_read_again(tmp_path: Path) -> None:
    """Several brokers share a data directory, and each owns the store for a while."""
    ours = AcknowledgedCommits(tmp_path, "store-07")
    theirs = AcknowledgedCommits(tmp_path, "store-07")
    ours.note(Acknowledged(6, 1, 7))
    theirs.note(Acknowledged(9, 2, 8))
    ours.load()
    assert ours.last == Acknowledged(9, 2, 8)
    ours.note(Acknowledged(10, 3, 7))
    theirs.load()
    assert theirs.last == Acknowledged(10, 3, 7)
    (tmp_path / FOLDER / "store-07").unlink()
    ours.load()
    assert ours.last is None


def test_a_report_of_a_later_commit_is_recorded(tmp_path: Path) -> None:
    path = written(tmp_path)
    record = AcknowledgedCommits(tmp_path, "store-07")
    record.learn(Acknowledged(5, 1, 9))
    assert record.last == Acknowledged(6, 1, 7)
    record.learn(Acknowledged(4, 2, 9))
    assert record.last == Acknowledged(4, 2, 8), "an even run: reported by another machine"
    path.write_bytes(b"x")
    record.load()
    record.learn(Acknowledged(9, 3, 9))
    assert record.damage is not None, "it may have held a later commit"


def test_a_record_without_a_run_is_read_and_replaced(tmp_path: Path) -> None:
    path = written(tmp_path)
    body = Struct("<QQ").pack(6, 1)
    path.write_bytes(body + Struct("<I").pack(crc32(body)))
    record = AcknowledgedCommits(tmp_path, "store-07")
    assert record.last == Acknowledged(6, 1, 0)
    record.note(Acknowledged(7, 2, 8))
    record.close()
    assert AcknowledgedCommits(tmp_path, "store-07").last == Acknowledged(7, 2, 8)


def test_a_loss_of_a_store_without_a_record_or_of_no_commit_is_not_accepted(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ValueError, match=r"store-08: nothing is recorded .* there are store-07"):
        accept_loss(tmp_path, "store-08", 3)
    with pytest.raises(ValueError, match="commit 6 was acknowledged last, so nothing is lost"):
        accept_loss(tmp_path, "store-07", 6)
    assert accept_loss(tmp_path, "store-07", 9, other_history=True) is None


KNOWN = Acknowledged(last_commit=6, epoch=5, run=7)


@pytest.mark.parametrize(
    ("found", "is_behind", "is_other"),
    [
        (History(6, 5, 7, taken_at=2), False, False),
        (History(9, 5, 7, taken_at=2), False, False),
        (History(9, 6, 8, taken_at=6), False, False),
        (History(9, 8, 8, taken_at=9), False, False),
        (History(5, 5, 7, taken_at=2), True, False),
        (History(9, 4, 8, taken_at=2), False, True),  # never heard of the epoch in which the commit was made
        (History(6, 4, 8, taken_at=2), False, True),
        (History(9, 5, 8, taken_at=3), False, True),  # the same epoch of another owner
        (History(9, 6, 8, taken_at=5), False, True),  # the next epoch began before the commit
    ],
)
def test_a_database_that_went_another_way_is_told_by_its_epoch(found: History, is_behind: bool, is_other: bool) -> None:
    assert (lacks(found, KNOWN), went_another_way(found, KNOWN)) == (is_behind, is_other)
