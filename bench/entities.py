"""Many entities: made by the service's Python admin client, and what ten thousand that exist cost a broker."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import attach
from bench.fill import fill_catalog
from bench.pairs import Pairs, Side, compare
from partibus.bench.process import rss_bytes
from partibus.bench.temporary import TemporaryBroker
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityOptions

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Creating:
    """Partitioned queues, one after the other, over HTTPS."""

    scenario: str = "creating"
    entities: int
    seconds: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A broker with so many partitioned queues, none of which was ever used."""

    scenario: str = "existing"
    entities: int
    start_s: float
    """To readiness."""
    idle_mib: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_entities(
    directory: Path, program: Path, *, creating: int, existing: int, pairs: int, count: int
) -> Iterator[Creating | Existing | Pairs]:
    """``creating`` and ``existing``: how many; ``count``: messages of a run beside a broker without any."""
    shutil.rmtree(directory, ignore_errors=True)
    yield Creating(entities=creating, seconds=_create(directory / "creating", creating))
    with TemporaryBroker(directory / "with") as broker:
        broker.stop()

    def create(catalog: Catalog) -> None:
        now_ms = int(time.time() * 1000)
        for number in range(existing):
            catalog.create(EntityDescription(f"existing-{number}", EntityOptions(partitioned=True)), now_ms)

    fill_catalog(directory / "with" / "data", create)
    with TemporaryBroker(directory / "without") as without, TemporaryBroker(directory / "with") as broker:
        yield Existing(entities=existing, start_s=broker.start_s, idle_mib=rss_bytes(broker.pid) / _MIB)
        few, many = attach(without, program), attach(broker, program)
        base = Side(lambda: few.queue("partitioned"), few.foreign)
        other = Side(lambda: many.queue("partitioned"), many.foreign)
        yield from compare("entities", f"{existing:,} others", base, other, pairs=pairs, count=count)
    shutil.rmtree(directory)


def _create(directory: Path, count: int) -> float:
    """Seconds."""
    # Here, since only this part needs the service's library.
    from azure.servicebus.management import ServiceBusAdministrationClient

    with TemporaryBroker(directory, arguments=("--amqps-port", "0", "--https-port", "0")) as broker:
        _, https_port = broker.tls_ports
        connection = broker.connection.replace(f":{broker.amqp_port}", f":{https_port}")
        authority = directory / "data" / "certs" / "ca.pem"
        with ServiceBusAdministrationClient.from_connection_string(
            connection, connection_verify=os.fspath(authority)
        ) as client:
            client.get_namespace_properties()
            began = time.perf_counter()
            for number in range(count):
                client.create_queue(f"created-{number}", enable_partitioning=True)
            return time.perf_counter() - began
