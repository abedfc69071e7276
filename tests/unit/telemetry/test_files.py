"""Rolling files: whole ones only, within a bound, the oldest go (D28)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partibus.telemetry.settings import TelemetryError, TelemetrySettings, check
from partibus.telemetry.table import sent_keys
from partibus.telemetry.writer import Files

MANY = 4096


def table(fill: int = 0) -> pa.Table:
    """Some 30 KB that nothing makes smaller."""
    return pa.table({"size_bytes": [int.from_bytes(os.urandom(7), "big") for _ in range(MANY)], "store": [fill] * MANY})


@pytest.fixture
def deltas_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tables have few of the columns."""
    monkeypatch.setattr("partibus.telemetry.writer._TEXTS", ["store"])
    monkeypatch.setattr("partibus.telemetry.writer._DELTAS", {"size_bytes": "PLAIN"})


pytestmark = pytest.mark.usefixtures("deltas_in")


def fills(folder: Path) -> list[int]:
    return [pq.read_table(path)["store"][0].as_py() for path in sorted(folder.glob("*.parquet"))]


def test_files_are_in_order_of_their_names(tmp_path: Path) -> None:
    files = Files(tmp_path, "broker-0-run-1", 1 << 20)
    for number in range(3):
        files.write(table(number))
    assert fills(tmp_path) == [0, 1, 2]


def test_the_oldest_go(tmp_path: Path) -> None:
    ours, theirs = Files(tmp_path, "broker-0-run-1", 150_000), Files(tmp_path, "broker-1-run-1", 150_000)
    for number in range(12):
        (ours, theirs)[number % 2].write(table(number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 150_000
    found = fills(tmp_path)
    assert found == list(range(12 - len(found), 12))
    assert len(found) >= 3


def test_a_file_that_can_not_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    files = Files(tmp_path, "broker-0-run-1", 1 << 20)
    monkeypatch.setattr("partibus.telemetry.writer.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write(table())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_has_left_goes_and_anothers_work_stays(tmp_path: Path) -> None:
    left, fresh, old = (
        tmp_path / f".2026-{name}-000001.parquet.writing" for name in ("broker-0-a-1", "broker-1-a-1", "broker-2-a-1")
    )
    for path in (left, fresh, old):
        path.write_bytes(b"PAR1")
    os.utime(old, (1, 1))
    Files(tmp_path, "broker-0-a-2", 1 << 20)
    assert list(tmp_path.iterdir()) == [fresh]


def test_what_is_missing_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.telemetry.settings.find_spec", lambda name: None if name == "pyarrow" else object())
    check(TelemetrySettings())
    with pytest.raises(
        TelemetryError, match=r"--telemetry full .* pyarrow is missing. .* pip install 'partibus\[spark"
    ):
        check(TelemetrySettings("full"))


def test_what_brokers_with_longer_names_and_former_runs_are_writing_stays(tmp_path: Path) -> None:
    theirs = {
        tmp_path / f".20260102T030405.678901Z-{name}-000001.parquet.writing"
        for name in ("broker-10-a-1", "broker-1-former-1", "a-broker-1-b-1")
    }
    for path in theirs:
        path.write_bytes(b"PAR1")
    Files(tmp_path, "broker-1-b-2", 1 << 20)
    assert set(tmp_path.iterdir()) == theirs


def test_keys_of_sent_messages_are_read_beside_a_file_that_is_just_removed(tmp_path: Path) -> None:
    row = {"op": "send", "namespace": "default", "entity": "q", "partition_id": 3, "key": "k"}
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), tmp_path / "there.parquet")
    (tmp_path / "removed.parquet").symlink_to(tmp_path / "nowhere")
    assert sent_keys(tmp_path, "default", ["q"]) == {"q": [(3, "k")]}
