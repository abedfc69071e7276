"""Several brokers behind one port: how they are, which of them has a connection, and clients that lose theirs."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

from partibus.client.extensions.cluster import ClusterStatus, cluster_status
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import ServiceBusClient, Session
from tests.conformance.conftest import LIBRARIES
from tests.kit.plain_client import connect
from tests.kit.reached import connections_of

TRIES = 60
"""The kernel deals connections out by chance: one of two brokers gets none of so many in one run of 10^18."""


def status(broker: BrokerProcess) -> ClusterStatus:
    with connect(broker.connection_string) as client:
        return cluster_status(client)


def all_well(broker: BrokerProcess) -> bool:
    """Every broker serves, every store has an owner, shares are even."""
    found = status(broker)
    shares = [one.stores for one in found.brokers]
    return (
        all(one.state == "serving" for one in found.brokers)
        and all(one.owner is not None and one.trouble is None for one in found.stores)
        and max(shares) - min(shares) <= 1
    )


def pids(broker: BrokerProcess) -> dict[str, int]:
    return {one.id: one.pid for one in status(broker).brokers if one.pid is not None}


def is_running(pid: int) -> bool:
    """Tell whether it runs, and is not only a process whose end its parent has not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Leaving:
    """A client whose connection may be gone when it is closed."""

    def __init__(self, client: ServiceBusClient) -> None:
        self.client = client

    def __enter__(self) -> ServiceBusClient:
        return self.client

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self.client.close()


class Holder:
    """A client on a connection of its own, the broker that has it, and its session."""

    def __init__(
        self, stack: ExitStack, broker: BrokerProcess, library: str, queue: str, name: str, *, not_at: str | None = None
    ) -> None:
        """``not_at``: connect until another broker than this one has the connection."""
        of_each = pids(broker)
        for _ in range(TRIES):
            before = {id_: connections_of(pid, broker.port) for id_, pid in of_each.items()}
            with ExitStack() as trying:
                connected = cast(ServiceBusClient, LIBRARIES[library](broker.connection_string))
                self.client = trying.enter_context(Leaving(connected))
                self.session: Session = self.client.accept_session(queue, name)
                more = [id_ for id_, pid in of_each.items() if connections_of(pid, broker.port) - before[id_]]
                assert len(more) == 1, "a client with one session has one connection"
                self.broker = more[0]
                if self.broker != not_at:
                    stack.push(trying.pop_all())
                    break
        assert self.broker != not_at, f"all of {TRIES} connections are at {not_at}"
        self.name = name


def connections(broker: BrokerProcess, library: str, count: int, stack: ExitStack) -> list[ServiceBusClient]:
    return [
        stack.enter_context(closing(cast(ServiceBusClient, LIBRARIES[library](broker.connection_string))))
        for _ in range(count)
    ]
