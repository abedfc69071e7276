"""The mark of a data directory: the namespace that it belongs to, and the runs that had it."""

import json
from pathlib import Path

import pytest

from partibus.cluster.ownership import Identity
from partibus.errors import StartError, UnusableFile
from partibus.node import joining
from partibus.node.settings import MARK, ClusterSettings, Settings


def started(data: Path, incarnation: str, broker: str = "a") -> list[str]:
    """Start a run of a broker in the directory; return the earlier runs that have surely ended."""
    mark = joining.check_mark(data, "catalog", "cluster")
    return joining.note_run(data, mark, "catalog", "cluster", Identity(broker, incarnation))


def test_earlier_runs_of_a_broker_in_its_directory_have_ended(tmp_path: Path) -> None:
    assert started(tmp_path, "1") == []
    assert started(tmp_path, "2") == ["1"]
    assert started(tmp_path, "3") == ["1", "2"]
    assert started(tmp_path, "4", broker="b") == []


def test_runs_are_forgotten_one_by_one(tmp_path: Path) -> None:
    for number in range(29):
        started(tmp_path, str(number))
    assert started(tmp_path, "29") == [str(number) for number in range(13, 29)]


def test_a_run_with_the_original_of_a_copy_may_be_alive(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    copy.mkdir()
    started(original, "1")
    (copy / MARK).write_bytes((original / MARK).read_bytes())
    assert started(copy, "2") == []


def test_a_run_before_the_machine_started_may_have_been_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume may be attached to another machine, where its lock tells nothing of the first."""
    data, boot = tmp_path / "data", tmp_path / "boot_id"
    data.mkdir()
    boot.write_text("first")
    monkeypatch.setattr(joining, "_BOOT_ID", boot)
    started(data, "1")
    boot.write_text("second")
    assert started(data, "2") == []
    boot.unlink()
    assert started(data, "3") == []
    assert started(data, "4") == []


def test_a_mark_without_runs_is_read(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text(json.dumps({"catalog": "catalog", "cluster": "cluster"}))
    assert started(tmp_path, "1") == []
    assert started(tmp_path, "2") == ["1"]
    with pytest.raises(UnusableFile, match="another namespace"):
        joining.check_mark(tmp_path, "catalog", "another")


@pytest.mark.parametrize("address", ["0.0.0.0", "0.0.0.0:5680", "::", "[::]", "[::]:5680"])
def test_an_address_that_leads_other_brokers_to_themselves_is_refused(tmp_path: Path, address: str) -> None:
    for settings in (
        Settings(tmp_path, host=address),
        Settings(tmp_path, cluster=ClusterSettings(host=address)),
        Settings(tmp_path, cluster=ClusterSettings(address=address)),
    ):
        with pytest.raises(StartError, match=r"Give --cluster-address the name or address"):
            joining.check_address(settings)


@pytest.mark.parametrize("address", ["127.0.0.1", "broker-1", "broker-1:5680", "fd00::1", "[fd00::1]:5680"])
def test_an_address_of_one_machine_is_taken(tmp_path: Path, address: str) -> None:
    joining.check_address(Settings(tmp_path, host="0.0.0.0", cluster=ClusterSettings(address=address)))
