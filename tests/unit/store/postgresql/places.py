"""Opening stores in the tests' server, and a way to it that can be cut."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from partibus.store.acknowledged import AcknowledgedCommits
from partibus.store.generations import Owner
from partibus.store.postgresql import Address, OwnerWatch, PostgreSQLSettings, PostgreSQLStore, parse_address
from tests.contract.stores import new_address
from tests.kit.postgresql_server import shared_server

SETTINGS = PostgreSQLSettings()
US = Owner("broker-1", "run-1")
THEY = Owner("broker-2", "run-9")


def open_store(
    address: Address,
    owner: Owner = US,
    settings: PostgreSQLSettings = SETTINGS,
    *,
    evict: bool = False,
    record: AcknowledgedCommits | None = None,
    watch: OwnerWatch | None = None,
) -> PostgreSQLStore:
    """The store ``store-00`` at a place."""
    return PostgreSQLStore.open(
        address, store_id="store-00", owner=owner, settings=settings, evict=evict, record=record, watch=watch
    )


def sql(address: Address, text: str) -> list[str]:
    """Look into a store, or change it, behind its back."""
    return shared_server().psql(["--command", f"SET search_path = {address.schema}", "--command", text])


class Way:
    """A port that leads to the server, for as many connections as come, until it is cut.

    What the client sends next can be lost (`lose_request`), or the server's answer to it (`lose_answer`); that ends the
    connection. ``closed`` refuses new connections.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lose_request = False
        self.lose_answer = False
        self.closed = False
        self.on_cut: Callable[[], Any] = lambda: None
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.closed:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._server))
                self._open += (client, server)
                lost: list[bool] = []
                for source, target, is_request in ((client, server, True), (server, client, False)):
                    self._threads.append(
                        Thread(target=self._pass_on, args=(source, target, is_request, lost), daemon=True)
                    )
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool, lost: list[bool]) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_request and self.lose_request:
                    self.lose_request = False
                    break
                if is_request and self.lose_answer:
                    self.lose_answer = False
                    lost.append(True)
                if not is_request and lost:
                    break
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
                return
            self.cuts += 1
            self.on_cut()
        except OSError:
            pass  # One side has reset its connection: the other side waits until it hears of it.
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def way_to_store() -> Iterator[tuple[Way, Address, Address]]:
    """A new place: over a way that can be cut, and directly."""
    direct = new_address()
    server = shared_server()
    way = Way(server.port)
    (address,) = parse_address(
        server.url(parameters=f"schema={direct.schema}").replace(f":{server.port}/", f":{way.port}/")
    )
    try:
        yield way, address, direct
    finally:
        way.close()
