"""A broker from start to stop, in this process."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.clock import ManualClock, SystemClock
from partibus.errors import ArgumentError, PartibusError, StoreUnavailable
from partibus.namespace.catalog import Catalog
from partibus.node.node import Broker
from partibus.node.settings import Settings
from partibus.node.single_process import make_broker
from partibus.partition.protocol.ports import StoreError


async def started(settings: Settings) -> Broker:
    broker = make_broker(settings, asyncio.get_running_loop())
    await broker.start()
    return broker


def test_it_starts_stops_and_starts_again_on_the_same_data(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0, ready_file=tmp_path / "ready.json")

    async def run(create: bool) -> list[str]:
        broker = await started(settings)
        if create:
            broker.front.broker.create_queue("q", {"EnablePartitioning": True})
        names = [entity.queue.name for entity in broker.front.broker]
        await broker.stop()
        return names

    assert asyncio.run(run(create=True)) == ["q"]
    assert asyncio.run(run(create=False)) == ["q"]


def test_a_catalog_that_another_program_has_locked_holds_messages_up_for_50_ms_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop waits for the lock, and all messages with it. SQLite's own wait is what is bounded."""
    settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0, ready_file=tmp_path / "ready.json")
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        if str(arguments[0]).endswith("catalog.db"):
            connections.append(connection)
        return connection

    async def run() -> None:
        monkeypatch.setattr(sqlite3, "connect", note)
        broker = await started(settings)
        monkeypatch.undo()
        with closing(connect(settings.data / "catalog.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="database is locked"):
                broker.front.broker.create_queue("q", {})
            assert connections[-1].execute("PRAGMA busy_timeout").fetchall() == [(50,)]
            other.execute("ROLLBACK")
        broker.front.broker.create_queue("q", {})
        await broker.stop()

    asyncio.run(run())


def test_the_ready_file_is_whole_and_its_owners_only(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"

    async def run() -> None:
        broker = await started(Settings(data=tmp_path / "data", amqp_port=0, http_port=0, ready_file=ready_file))
        assert json.loads(ready_file.read_text()) == broker.ready
        await broker.stop()

    asyncio.run(run())
    assert stat.S_IMODE(ready_file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("emulator", [False, True])
def test_the_connection_string_has_the_key_that_is_good(tmp_path: Path, emulator: bool) -> None:
    async def run() -> str:
        broker = await started(Settings(data=tmp_path / "data", amqp_port=0, http_port=0, emulator=emulator))
        text = str(broker.ready["connection_string"])
        await broker.stop()
        return text

    assert ("SAS_KEY_VALUE" in asyncio.run(run())) is emulator


@pytest.mark.parametrize("manual", [False, True])
def test_the_clock_is_the_one_that_was_asked_for(tmp_path: Path, manual: bool) -> None:
    async def run() -> type:
        broker = await started(Settings(data=tmp_path / "data", amqp_port=0, http_port=0, manual_clock=manual))
        await broker.stop()
        return type(broker.clock)

    assert asyncio.run(run()) is (ManualClock if manual else SystemClock)


def test_health_names_every_store(tmp_path: Path) -> None:
    async def run() -> None:
        broker = await started(Settings(data=tmp_path / "data", amqp_port=0, http_port=0))
        healthy, body = await broker.front.health()
        assert healthy
        assert set(body["stores"].values()) == {"ok"}
        broker.stores.runtimes[3].failure = "the disk is sick"
        healthy, body = await broker.front.health()
        assert not healthy
        assert body["stores"]["store-03"] == "the disk is sick"
        broker.stores.runtimes[3].failure = None
        await broker.stop()

    asyncio.run(run())


def test_a_second_node_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0)
        broker = await started(settings)
        with pytest.raises((StoreError, PartibusError), match="lock"):
            await started(settings)
        await broker.stop()

    asyncio.run(run())


def test_a_start_that_fails_releases_the_data_directory(tmp_path: Path) -> None:
    async def run() -> None:
        settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0)
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ArgumentError, match="--http-port"):
            await started(replace(settings, http_port=taken.getsockname()[1]))
        broker = await started(settings)
        await broker.stop()

    asyncio.run(run())


def test_what_was_deleted_just_before_a_crash_is_dropped_at_the_next_start(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0)

    async def delete() -> None:
        broker = await started(settings)
        broker.front.broker.create_queue("kept", {"EnablePartitioning": True})
        broker.front.broker.create_queue("gone", {"EnablePartitioning": True})
        broker.front.catalog.delete("gone")  # and no store is told
        assert len(broker.front.catalog.dropped_partitions()) == 16
        await broker.stop()

    async def look() -> tuple[list[str], list[tuple[int, int]]]:
        broker = await started(settings)
        found = [entity.queue.name for entity in broker.front.broker], broker.front.catalog.dropped_partitions()
        await broker.stop()
        return found

    asyncio.run(delete())
    asyncio.run(look())
    assert asyncio.run(look()) == (["kept"], [])


def test_many_dropped_partitions_of_a_store_are_forgotten_in_few_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of the catalog is a sync on the loop: one for each row would hold the start up for minutes."""
    settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0)
    told: list[list[int]] = []
    forget = Catalog.forget_dropped

    def note(catalog: Catalog, rows: Iterable[int]) -> None:
        told.append(list(rows))
        forget(catalog, told[-1])

    monkeypatch.setattr(Catalog, "forget_dropped", note)

    async def run() -> None:
        await (await started(settings)).stop()

    asyncio.run(run())
    with closing(sqlite3.connect(settings.data / "catalog.db")) as catalog, catalog:
        catalog.executemany("INSERT INTO dropped_partition VALUES (?, 0)", [(row,) for row in range(9_001, 11_001)])
    asyncio.run(run())
    assert sorted(row for rows in told for row in rows) == list(range(9_001, 11_001))
    assert len(told) <= 4
    with closing(sqlite3.connect(settings.data / "catalog.db")) as catalog:
        assert catalog.execute("SELECT count(*) FROM dropped_partition").fetchone() == (0,)


@pytest.mark.parametrize("port", ["http_port", "sqs_port"])
def test_a_client_that_polls_is_answered_empty_when_the_broker_stops(
    tmp_path: Path, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data=tmp_path / "data", amqp_port=0, http_port=0, sqs_port=0, emulator=True)

    def request(action: str, **members: object) -> bytes:
        body = json.dumps(members)
        return (
            f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    async def poll(port: int) -> list[bytes]:
        """Return the heads of the answers until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("CreateQueue", QueueName="q"))
        heads = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append(head := await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
                url = "http://localhost/000000000000/q"
                writer.write(request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
        writer.close()
        return heads

    async def run() -> list[bytes]:
        broker = await started(settings)
        polling = asyncio.create_task(poll(int(str(broker.ready[port]))))
        while not any(entity.awaited for entity in broker.front.broker):  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0)
        await broker.stop()
        return await polling

    heads = asyncio.run(run())
    assert len(heads) >= 2
    assert all(head.startswith(b"HTTP/1.1 200") for head in heads), heads
    assert caplog.text == ""
