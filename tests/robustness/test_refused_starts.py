"""Data directories that can't be served: exit code 1, a text that names the file and what to do, nothing changed."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect
from tests.robustness.raw import check_serves


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that was in use."""
    with BrokerProcess(tmp_path_factory.mktemp("served")) as broker:
        broker.create_queue("alive")
        check_serves(broker)
    return broker.data


def refusal(data: Path, *arguments: str) -> str:
    """Return the last words of `partibus serve`."""
    run = run_to_the_end("serve", "--data", str(data), "--amqp-port=0", "--http-port=0", *arguments)
    assert run.returncode == 1, run
    assert "Traceback" not in run.stderr
    assert run.stderr.startswith("partibus: ")
    return run.stderr


def damage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1_000)


def damage_inside(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:4_000] = b"\xff" * 3_900
    path.write_bytes(content)


def make_newer_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET format_version = 99")


def make_newer_catalog(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE format SET version = 99")


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("file", "spoil", "reason"),
    [
        ("catalog.db", damage, ""),
        ("catalog.db", make_newer_catalog, "99"),
        ("catalog.db", replace_by_directory, ""),
        ("keys.json", damage, ""),
    ],
)
def test_a_spoilt_file_is_named(
    served: Path, tmp_path: Path, file: str, spoil: Callable[[Path], None], reason: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(served, data)
    spoil(data / file)
    content = (data / file).read_bytes() if (data / file).is_file() else None
    text = refusal(data)
    assert Path(file).name in text
    assert reason in text
    assert content is None or (data / file).read_bytes() == content


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "database"),
        (damage_inside, ""),
        (make_newer_store, "99"),
        (replace_by_directory, ""),
        (Path.unlink, ""),
    ],
)
def test_a_spoilt_store_holds_up_nobody_else(
    served: Path, tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    """Its partitions are away, health says which file and why, and the file is left as it was."""
    shutil.copytree(served, tmp_path / "data")
    path = tmp_path / "data" / "stores" / "store-03.db"
    spoil(path)
    content = path.read_bytes() if path.is_file() else None
    with BrokerProcess(tmp_path) as broker:
        with pytest.raises(HTTPError) as unhealthy:
            urlopen(f"{broker.http_url}/health", timeout=EVENTUALLY_S)
        trouble = json.load(unhealthy.value)["stores"]["store-03"]
        assert unhealthy.value.code == 503
        assert "store-03" in trouble
        assert reason in trouble
        check_serves(broker)
    assert content is None or path.read_bytes() == content
    assert path.exists() is (content is not None or spoil is replace_by_directory)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("alive")
        assert str(broker.data / "lock") in refusal(broker.data)
        check_serves(broker)


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal(tmp_path / "file" / "data")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refusal(tmp_path / "data", f"--amqp-port={port}")
        assert str(port) in refusal(tmp_path / "data", f"--http-port={port}")


def test_a_config_that_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text('{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Typo": 1}]}]}}')
    assert "Typo" in refusal(tmp_path / "data", "--config", str(config))


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_an_older_catalog_is_refused_until_its_loss_is_accepted(tmp_path: Path, brokers: str) -> None:
    """Messages of a queue that the copy lacks come to no other queue."""
    make = partial(BrokerProcess, tmp_path, arguments=("--brokers", brokers))
    with make() as broker:
        data = broker.data
        broker.create_queue("before")
    shutil.copyfile(data / "catalog.db", tmp_path / "copy")
    with make() as broker:
        broker.create_queue("lost")
        with connect(broker.connection_string) as client:
            client.sender("lost").send([OutgoingMessage(body=b"of the lost queue")])
    shutil.copyfile(tmp_path / "copy", data / "catalog.db")
    said = refusal(data)
    assert re.search(
        r"catalog\.db: is an older copy, which ends with change (\d+), while change (\d+) was stored", said
    )
    command = said.partition("accept the loss: partibus ")[2].split()
    assert command[:2] == ["cluster", "accept-loss"]
    run = run_to_the_end(*command)
    assert run.returncode == 0, run
    with make() as broker:
        broker.create_queue("new")
        for queue in ("before", "new"):
            assert broker.describe(queue).messages == 0


def test_a_start_that_fails_late_closes_the_stores(tmp_path: Path) -> None:
    identity = tmp_path / "identity.json"
    identity.write_text("{}")
    assert "identity.json" in refusal(tmp_path / "data", "--identity", str(identity))
    locks = sorted((tmp_path / "data" / "stores").glob("*.lock"))
    assert len(locks) == 16
    assert [path.name for path in locks if path.read_bytes().endswith(b"open\n")] == []
    assert list((tmp_path / "data" / "stores").glob("*-wal")) == []


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_a_start_that_fails_leaves_no_ready_file_of_a_former_run(tmp_path: Path, brokers: str) -> None:
    ready = tmp_path / "ready.json"
    arguments = (f"--ready-file={ready}", "--brokers", brokers)
    with BrokerProcess(tmp_path, arguments=("--brokers", brokers)) as broker:
        content = ready.read_bytes()
        assert "in use" in refusal(broker.data, *arguments)
        assert ready.read_bytes() == content, "the running broker's"
    ready.write_bytes(content)  # as after a kill
    damage(broker.data / "catalog.db")
    assert "catalog.db" in refusal(broker.data, *arguments)
    assert not ready.exists()
