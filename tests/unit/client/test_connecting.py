"""Connecting: the address, and the error when no broker is there."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from partibus.client import aio, sync
from partibus.client.endpoint import endpoint_of
from partibus.client.errors import Closed, ConnectFailed, InvalidRequest
from partibus.namespace.connection_string import parse_connection_string
from tests.kit.plain_client import connect
from tests.unit.client.broker import TinyBroker

KEY = "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "tls"),
    [
        ("sb://broker/", "broker", 5671, True),
        ("sb://broker:5672", "broker", 5672, False),
        ("sb://broker:7000", "broker", 7000, True),
        ("sb://broker:7000;UseDevelopmentEmulator=true", "broker", 7000, False),
        ("sb://broker;UseDevelopmentEmulator=true", "broker", 5672, False),
        ("sb://[::1]:5672", "::1", 5672, False),
    ],
)
def test_connection_string_says_where_and_how(endpoint: str, host: str, port: int, tls: bool) -> None:
    found = endpoint_of(parse_connection_string(f"Endpoint={endpoint};{KEY}"))
    assert (found.address, found.port, found.tls) == (host, port, tls)


def test_nobody_there_names_the_address_and_the_next_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectFailed, match=rf"127\.0\.0\.1:{port}.*partibus serve") as caught:
        connect(f"Endpoint=sb://127.0.0.1:{port};{KEY};UseDevelopmentEmulator=true")
    assert "c2VjcmV0" not in str(caught.value)


def test_server_that_speaks_no_amqp_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        text = f"Endpoint=sb://127.0.0.1:{server.getsockname()[1]};{KEY};UseDevelopmentEmulator=true"
        with pytest.raises(ConnectFailed):
            connect(text)
        thread.join()


def test_close_may_be_called_twice_and_ends_everything(broker: TinyBroker) -> None:
    client = connect(broker.connection_string)
    sender = client.sender("q")
    client.close()
    client.close()
    with pytest.raises(Closed, match="make a new one"):
        sender.send([b""])


IMPORTED = """
import asyncio, hmac, msgspec, sys
loop = asyncio.new_event_loop()
before = set(sys.modules)
from partibus.client.aio import Client, OutgoingMessage
imported = set(sys.modules) - before

async def work():
    async with Client(sys.argv[1]) as client:
        await client.sender("q").send(OutgoingMessage(body=b"x"))

loop.run_until_complete(work())
connected = set(sys.modules) - before - imported
foreign = [name for name in imported if not name.startswith("partibus")]
print(sorted(foreign), sorted(connected - {"_queue", "queue", "concurrent.futures.thread"}), len(imported))
seldom = ["advice", "client.aio.processor", "client.aio.rules", "client.aio.session_receiver", "client.aio.tracing",
          "client.aio.transaction", "client.aio.websocket", "client.profiles", "client.rules", "client.sync"]
print([name for name in seldom if f"partibus.{name}" in sys.modules])
"""


def test_an_import_and_a_connection_bring_only_what_every_client_needs(broker: TinyBroker) -> None:
    """A program pays for each import: 20 ms for OpenTelemetry, 2 or 3 ms for most others, 0.3 for each of ours."""
    connection = broker.connection_string.replace("127.0.0.1", "localhost")
    command = [sys.executable, "-c", IMPORTED, connection]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    foreign, _, count = first.rpartition(" ")
    assert foreign == "[] []"
    assert int(count) <= 68
    assert second == "[]"


def test_names_that_few_programs_use_are_imported_on_first_use() -> None:
    assert all(getattr(aio, name) is not None for name in aio.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(aio, "Nothing")  # noqa: B009 (mypy knows that there is none)


def test_a_client_of_the_parent_process_is_refused_in_a_forked_one(broker: TinyBroker) -> None:
    with sync.Client(broker.connection_string, retry=sync.RetryPolicy(attempts=1)) as client:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.request("q", "x", {})
                told = "no error"
            except InvalidRequest as error:
                told = str(error)
            try:
                with sync.Client(broker.connection_string, retry=sync.RetryPolicy(attempts=1)) as own:
                    own.sender("q").send(b"\x00\x53\x75\xa0\x011")
                told += "; sent"
            finally:
                os.write(writing, told.encode())
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as result:
            assert result.read() == ("the client was made before this process was forked; make a new one; sent")
        assert len(broker.queues["q"]) == 1


def test_a_websocket_that_is_given_up_in_its_handshake_leaves_no_socket() -> None:
    async def work() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            with suppress(ConnectionError):
                await reader.read()
            ended.set()
            writer.close()

        server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = aio.Client(
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;"
            "UseDevelopmentEmulator=true",
            transport="websocket",
        )
        opening = asyncio.create_task(client.open())
        await asked.wait()
        await client.close()
        with suppress(Closed):
            await opening
        async with asyncio.timeout(30):
            await ended.wait()
        server.close()

    asyncio.run(work())
