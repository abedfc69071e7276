"""Telemetry of one broker process: counters, a recorder with its writer (D28), and exported spans (docs/tracing.md)."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from partibus.namespace.broker import Broker
from partibus.namespace.namespace import Namespace, Queue, Topic
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.partition_moves import Move
from partibus.node.settings import Settings
from partibus.partition.core.meters import Meters
from partibus.telemetry.settings import OFF
from partibus.throttling.uses import OPERATIONS, Operation, Use, Uses

if TYPE_CHECKING:
    from partibus.telemetry.recorder import Place
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partibus.errors import StartError
from partibus.tracing.tracer import Tracer

if TYPE_CHECKING:
    from partibus.tracing.otlp import Exporter


RULES_MAX = 100
"""The most rules of a topic that are named."""


class Telemetry:
    """The telemetry of a broker: made before its stores, since their runtimes record from the start."""

    def __init__(self, settings: Settings, broker: str, run: str, loop: asyncio.AbstractEventLoop) -> None:
        """``run``: of that broker, in the names of the files."""
        self._loop = loop
        self._uses: dict[Broker, Uses] = {}
        self._watched: set[Broker] = set()
        self._feed = None
        if settings.telemetry.mode != OFF:
            from partibus.telemetry.feed import Feed

            self._feed = Feed(settings.telemetry, settings.data, broker, run, loop)
        self.meters = Meters(perf_counter, None if self._feed is None else self._feed.recorder)

    def begin(self, namespaces: Namespaces) -> None:
        """Start the writer, once the entities are known."""
        if self._feed is not None:
            self._feed.recorder.place_of = _places_of(namespaces)
            for broker in namespaces:
                self._keep_uses(broker)
            namespaces.on_changed.append(self._keep_uses)
            namespaces.on_deleted.append(self._forget_uses)
            self._feed.start()

    def close(self) -> None:
        """Make the writer finish, once the stores are closed. Blocks for some seconds at most."""
        if self._feed is not None:
            for uses in self._uses.values():
                uses.flush()
            self._feed.close()

    def _keep_uses(self, broker: Broker) -> None:
        """Keep the usage records of a namespace's clients (row D9), and its moves of slots."""
        self._keep_moves(broker)
        if broker.throttle.uses is not None or self._feed is None:
            return
        recorder, namespace = self._feed.recorder, broker.namespace

        def keep(since_ms: int, uses: list[Use]) -> None:
            rows: list[list[str | int]] = []
            for use in uses:
                rules = _rules_of(namespace, use.entity) if use.operation is Operation.FILTER else ""
                asked_for = OPERATIONS[use.operation]
                rows.append([use.namespace, use.entity, use.client, asked_for, use.requests, use.units, rules])
            recorder.put_uses(since_ms, rows)

        def call_later(delay_ms: float, call: Callable[[], None]) -> object:
            return self._loop.call_later(delay_ms / 1000, call)

        broker.throttle.uses = self._uses[broker] = Uses(namespace.name, broker.clock, keep, call_later)

    def _keep_moves(self, broker: Broker) -> None:
        """Record the moves of slots that this broker carries out."""
        if broker in self._watched or self._feed is None:
            return
        recorder, namespace = self._feed.recorder, broker.namespace
        self._watched.add(broker)

        def keep(queue: Queue, move: Move, step: str) -> None:
            now_ms = broker.clock.now_ms()
            partitions = sum(count > 0 for count in queue.slots.map(len(queue.partitions)).counts())
            recorder.put_move(
                [
                    now_ms, namespace.name, queue.name, move.source, move.target, move.slots, partitions, step,
                    max(0, now_ms - move.began_ms), move.why,
                    queue.slots.version,
                ]
            )  # fmt: skip

        broker.movers.on_step.append(keep)

    def _forget_uses(self, broker: Broker) -> None:
        """Stop keeping the usage records of a deleted namespace."""
        self._watched.discard(broker)
        uses = self._uses.pop(broker, None)
        if uses is not None:
            uses.flush()


def _rules_of(namespace: Namespace, topic: str) -> str:
    """Return the rules, one a line (`partibus.telemetry.schema`); the last line counts those not named."""
    entity = namespace.find(topic)
    if not isinstance(entity, Topic):
        return ""
    names = [f"{one.short_name}/{rule.name}" for one in entity.subscriptions for rule in one.rules]
    if len(names) > RULES_MAX:
        names[RULES_MAX:] = [f"({len(names) - RULES_MAX} others)"]
    return "\n".join(names)


def _places_of(namespaces: Namespaces) -> "Callable[[int], Place]":
    from partibus.telemetry.recorder import Place

    def place_of(row: int) -> Place:
        queue = namespaces.queue_of(row)
        if queue is None:
            return Place("", 0, 0)
        place = queue.partitions[queue.index_of(row)]
        name = namespaces.broker_of(queue).namespace.name
        return Place(queue.name, place.partition_no, place.store_no, name)

    return place_of


log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INSTALL = "Install it: pip install 'partibus[otel]'."


def is_wanted(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Tell whether ``--otlp-endpoint`` or the standard variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if endpoint:
        return True
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    return exporters != "none" and any(environment.get(name) for name in ENDPOINTS)


class Tracing:
    """The traces of a broker."""

    def __init__(self, endpoint: str, broker: str) -> None:
        """Start tracing. Raises `StartError` when ``endpoint`` is given and OpenTelemetry is missing."""
        self._exporter: Exporter | None = None
        if not is_wanted(endpoint, os.environ):
            return
        try:
            from partibus.tracing import otlp
        except ModuleNotFoundError as error:
            if endpoint:
                raise StartError(f"--otlp-endpoint needs {error.name}. {INSTALL}") from error
            log.warning("OTEL_* variables ask for traces, which need %s: there are none. %s", error.name, INSTALL)
            return
        self._exporter = otlp.Exporter(endpoint, broker)

    def tracer(self, namespace: str) -> Tracer | None:
        """Return the tracer of one namespace; None: traces are off."""
        return None if self._exporter is None else Tracer(namespace, self._exporter.keep)

    def close(self) -> None:
        """Export the remaining spans. Blocks for some seconds at most."""
        if self._exporter is not None:
            self._exporter.close()
