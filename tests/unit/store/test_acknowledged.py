"""The record of acknowledged commits, and who may go on without them."""

import os
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.acknowledged import FOLDER, AcknowledgedCommits, accept_loss
from partibus.store.opening import Opener, StorePlace
from partibus.store.owner import Owner


def test_an_acceptance_that_was_not_needed_covers_no_later_loss(tmp_path: Path) -> None:
    record = AcknowledgedCommits(tmp_path, "store-07")
    record.note(6, 1)
    assert accept_loss(tmp_path, "store-07", 3) == 3
    assert record.is_accepted(3)
    record.withdraw()
    assert not record.is_accepted(3)
    record.close()


def test_a_store_that_is_refused_again_and_again_opens_its_record_once(tmp_path: Path) -> None:
    """A broker tries again each second until an operator decides."""
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


@pytest.mark.parametrize("content", [b"short", bytes(20)])
def test_a_damaged_record_is_refused_with_its_file(tmp_path: Path, content: bytes) -> None:
    """Read as none, it would let the broker go on from a standby that lags."""
    record = AcknowledgedCommits(tmp_path, "store-07")
    record.note(6, 1)
    record.close()
    path = tmp_path / FOLDER / "store-07"
    path.write_bytes(content)
    opener = Opener(
        StorePlace("store-07", "postgresql://nobody@127.0.0.1:1/none?schema=some"), Owner("one", "run"), tmp_path
    )
    with pytest.raises(StoreError, match=r"store-07 is damaged .* remove the file"):
        opener()
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="see that the server runs"):
        opener()
