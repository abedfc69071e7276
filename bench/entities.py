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
from partibus.bench.measures import rss_bytes
from partibus.bench.scenarios import Target, TemporaryBroker
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import EntityDescription, EntityOptions
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import limits_of

_MIB = 2**20
_MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Creating:
    """Queues, one after the other, over HTTPS."""

    scenario: str = "creating"
    entities: int
    partitioned: int
    """The partitioned ones among them: the first ones, as many as a namespace may have (row A12)."""
    seconds: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A broker with so many partitioned queues, none of which was ever used."""

    scenario: str = "existing"
    entities: int
    start_s: float
    """Seconds to readiness."""
    idle_mib: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_entities(
    directory: Path, program: Path, *, creating: int, existing: int, pairs: int, count: int
) -> Iterator[Creating | Existing | Pairs]:
    """``creating`` and ``existing``: how many; ``count``: messages of a run beside a broker without any."""
    shutil.rmtree(directory, ignore_errors=True)
    partitioned = min(creating, limits_of(NamespaceOptions()).partitioned_entities)
    seconds = _create(directory / "creating", creating, partitioned)
    yield Creating(entities=creating, partitioned=partitioned, seconds=seconds)
    with _filled(directory / "without", 0) as without, _filled(directory / "with", existing) as broker:
        yield Existing(entities=existing, start_s=broker.start_s, idle_mib=rss_bytes(broker.pid) / _MIB)
        sides = [_side(one, program) for one in (without, broker)]
        yield from compare("entities", f"{existing:,} others", *sides, pairs=pairs, count=count)
    shutil.rmtree(directory)


def _filled(directory: Path, existing: int) -> TemporaryBroker:
    """A broker with so many queues, and one that is measured."""
    with TemporaryBroker(directory) as broker:
        broker.stop()

    def create(catalog: Catalog) -> None:
        now_ms = int(time.time() * 1000)
        for name in (*(f"existing-{number}" for number in range(existing)), _MEASURED):
            catalog.create(EntityDescription(name, EntityOptions(partitioned=True, max_size_mb=5120)), now_ms)

    fill_catalog(directory / "data", create)
    return TemporaryBroker(directory)


def _side(broker: TemporaryBroker, program: Path) -> Side:
    """Always the same queue: each run leaves it empty."""
    return Side(lambda: Target("partibus", "partitioned", _MEASURED, broker.pid), attach(broker, program).foreign)


def _create(directory: Path, count: int, partitioned: int) -> float:
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
                client.create_queue(f"created-{number}", enable_partitioning=number < partitioned)
            return time.perf_counter() - began
