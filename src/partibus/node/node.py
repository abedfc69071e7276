"""One message broker: stores, entities, front ends, in the order in which they start and stop."""

import asyncio
import json
import os
from pathlib import Path
from secrets import token_hex
from typing import Any

from partibus.clock import Clock, ManualClock, SystemClock
from partibus.frontends.amqp.server import AmqpServer
from partibus.frontends.rest.app import make_app
from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_json import read_config_json
from partibus.namespace.keys_file import load_policies
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.placement import Placement
from partibus.node.clock_hand import ClockHand
from partibus.node.host import AsyncioHost
from partibus.node.http_server import HttpServer
from partibus.node.idle import AT_A_TIME, INTERVAL_S, IdleQueues
from partibus.node.options import partition_options
from partibus.node.settings import Settings
from partibus.partition.runtime import StoreRuntime
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.store.sqlite.directory import lock_data_directory, open_stores
from partibus.store.sqlite.owner import Owner

DRAIN_S = 0.2
"""Between telling clients to go and closing their connections."""


class Node:
    """A broker process."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        """Opens the data directory and its stores; raises `StartError`, `ConfigError` or `StoreError`."""
        self._settings = settings
        self._loop = loop
        self.clock: Clock = ManualClock(SystemClock().now_ms()) if settings.manual_clock else SystemClock()
        owner = Owner("broker-0", token_hex(8))
        self._lock = lock_data_directory(settings.data, owner)
        stores = open_stores(settings.data, owner=owner, created_ms=self.clock.now_ms())
        self._host = AsyncioHost(loop)
        self.runtimes = [
            StoreRuntime(store.reopen, self._host, self.clock, settings.limits.store, store, self._wake)
            for store in stores
        ]
        self._catalog = Catalog(settings.data, len(stores))
        namespace = Namespace(self._catalog, self.clock)
        if settings.config is not None:
            namespace.apply(read_config_json(settings.config))
        access = load_policies(settings.data, emulator=settings.emulator)
        self._key = EMULATOR_KEY if settings.emulator else access.policy(ROOT_POLICY).primary_key
        self.broker = Broker(namespace, access, self.clock, Numbers(), settings.limits, self._make_handle)
        for row, store_no in self._catalog.dropped_partitions():
            self.runtimes[store_no].drop(row, lambda dropped: namespace.forget_dropped([dropped]))
        self._idle = IdleQueues(self.broker)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._amqp = AmqpServer(self.broker, loop)
        advance = None
        if isinstance(self.clock, ManualClock):
            advance = ClockHand(self.clock, self.broker, self.runtimes, self._idle).advance
        self._http = HttpServer(make_app(self.health, self.clock, advance, access))

    async def start(self) -> None:
        """Serve; writes the ready file last. Raises OSError when a port is taken."""
        settings = self._settings
        amqp_port = await self._amqp.start(settings.host, settings.amqp_port)
        http_port = await self._http.start(settings.host, settings.http_port)
        self.ready = {
            "pid": os.getpid(),
            "amqp_port": amqp_port,
            "http_port": http_port,
            "amqps_port": None,
            "https_port": None,
            "connection_string": self._connection_string(amqp_port),
            "brokers": [{"id": "broker-0", "pid": os.getpid(), "stores": len(self.runtimes)}],
        }
        self._idle_timer = self._loop.call_later(INTERVAL_S, self._check_idle)
        for runtime in self.runtimes:
            runtime.wake_timed()
        if settings.ready_file is not None:
            _write_whole(settings.ready_file, json.dumps(self.ready, indent=2) + "\n")

    async def stop(self) -> None:
        """Take no more connections, tell clients to go, commit what is pending, close the stores."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._amqp.stop_listening()
        self._amqp.close_connections("The broker is stopping; reconnect when it is back.")
        await asyncio.sleep(DRAIN_S if self._amqp.protocols else 0)
        await self._http.stop()
        await asyncio.gather(*(self._closed(runtime) for runtime in self.runtimes))
        self._host.stop()
        self._catalog.close()
        self._lock.release()

    async def _closed(self, runtime: StoreRuntime) -> None:
        closed = asyncio.Event()
        runtime.close(closed.set)
        await closed.wait()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether sends and receives work, and what each store says."""
        troubles = [runtime.trouble for runtime in self.runtimes]
        stores = {f"store-{index:02}": trouble or "ok" for index, trouble in enumerate(troubles)}
        healthy = not any(troubles)
        return healthy, {"status": "healthy" if healthy else "unhealthy", "stores": stores}

    def _wake(self, partition_rows: list[int]) -> None:
        self.broker.wake_partitions(partition_rows)

    def _check_idle(self) -> None:
        self._idle_timer = self._loop.call_later(INTERVAL_S, self._check_idle)
        self._idle.check(AT_A_TIME)

    def _make_handle(self, queue: Queue, placement: Placement) -> PartitionHandle:
        options = partition_options(queue, self._settings.limits)
        runtime = self.runtimes[placement.store_no]
        return PartitionHandle(
            placement.partition_no, placement.partition_row, runtime, options, batched=queue.batched_operations
        )

    def _connection_string(self, amqp_port: int) -> str:
        host = "localhost" if self._settings.host in ("127.0.0.1", "0.0.0.0", "::") else self._settings.host
        return (
            f"Endpoint=sb://{host}:{amqp_port};SharedAccessKeyName={ROOT_POLICY};SharedAccessKey={self._key};"
            "UseDevelopmentEmulator=true;"
        )


def _write_whole(path: Path, text: str) -> None:
    """Readers see all of the file or none: it holds a key, so only its owner may read it."""
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)
