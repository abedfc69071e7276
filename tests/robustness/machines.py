"""Brokers as they run on several machines: processes with nothing in common but a catalog and stores on a server."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psycopg

from partibus.client.extensions.cluster import ClusterStatus, cluster_status
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import Client, connect
from tests.kit.postgresql_server import PostgreSQLServer, new_schema


class Machines:
    """A namespace of its own on the server; its brokers by name, each in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        server: PostgreSQLServer,
        catalog: PostgreSQLServer | None = None,
        more: PostgreSQLServer | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """``catalog``: another server for the catalog; ``more``: one for the second half of the stores. ``options``:
        more flags of each."""
        self.catalog_url = (catalog or server).url(parameters=f"schema={new_schema()}")
        self.schema = new_schema()
        """The beginning of the names of the stores' schemas."""
        self.store_url = server.url(parameters=f"schema={self.schema}&stores={16 if more is None else 8}")
        self._more = options
        if more is not None:
            self._more += ("--store", more.url(parameters=f"schema={self.schema}&stores=8"))
        self.brokers: dict[str, BrokerProcess] = {}
        self._folder = folder
        self._server = server

    def arguments(self, name: str) -> tuple[str, ...]:
        """Return the arguments of `partibus serve`."""
        return ("--catalog", self.catalog_url, "--store", self.store_url, *self._more, "--broker-name", name)

    def make(self, name: str) -> BrokerProcess:
        """One that is not started; it has the keys and the secret of the others."""
        folder = self._folder / name
        (folder / "data").mkdir(parents=True)
        for first in list(self.brokers.values())[:1]:
            for file in ("keys.json", "cluster.secret"):
                shutil.copy(first.data / file, folder / "data" / file)
        broker = self.brokers[name] = BrokerProcess(folder, emulator=False, arguments=self.arguments(name))
        return broker

    def start(self, *names: str) -> Self:
        """Make and start them, one after the other, and wait until each has its share."""
        try:
            for name in names:
                self.make(name).start()
            self.settle(*self.brokers)
        except BaseException:
            for broker in self.brokers.values():
                broker.kill()
            raise
        return self

    def status(self, broker: str) -> ClusterStatus:
        with self.client(broker) as client:
            return cluster_status(client)

    def owner_of_messages(self) -> str:
        """The broker of the one store that has any."""
        with psycopg.connect(self._server.conninfo()) as connection:
            counts = [
                connection.execute(f"SELECT count(*) FROM {self.schema}_{number:02}.entry").fetchone()
                for number in range(16)
            ]
        (number,) = [number for number, count in enumerate(counts) if count != (0,)]
        owner = self.status(next(iter(self.brokers))).stores[number].owner
        assert owner is not None
        return owner

    def client(self, broker: str) -> Client:
        return connect(self.brokers[broker].connection_string, timeout_s=EVENTUALLY_S)

    def settle(self, *names: str) -> None:
        """Wait until all stores can be used, each of these brokers has an even share, and no other broker has any."""
        share = 16 // len(names)

        def is_settled() -> bool:
            for asked in names:
                stores = self.status(asked).stores
                owners = [store.owner for store in stores if store.trouble is None]
                if len(owners) < 16 or set(owners) != set(names):
                    return False
                if not all(share <= owners.count(name) <= share + 1 for name in names):
                    return False
            return True

        eventually(f"{', '.join(names)} have an even share each", is_settled)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """None is left running, whatever one of them has to complain of."""
        with ExitStack() as ending:
            for broker in self.brokers.values():
                ending.callback(broker.stop if kind is None else broker.kill)
