"""The data source with a client that fails, or takes its process with it, at the first attempts of tasks: after the
broker has stored rows, which is when a second attempt must not store them again."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from pyspark import TaskContext

from partibus.client.errors import ConnectionLost
from partibus.client.extensions.sinks import SinkClient, Stored, open_sink
from partibus.spark.source import PartibusSource


class Failing:
    """The first two requests of a first attempt are stored, and not answered."""

    def __init__(self, client: SinkClient, *, kill: bool) -> None:
        self._client = client
        self._kill = kill
        self._puts = 0

    def put(self, messages: Sequence[bytes], **names: Any) -> Stored:
        stored = self._client.put(messages, **names)
        self._puts += 1
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and self._puts == 2:
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionLost("the test says so")
        return stored

    def check(self) -> None:
        self._client.check()

    def commit(self, sink: int, batch: int) -> None:
        self._client.commit(sink, batch)

    def close(self) -> None:
        self._client.close()


def open_failing(connection: str, entity: str, within_s: float, request_bytes: int) -> Failing:
    return Failing(open_sink(connection, entity, within_s, request_bytes), kill=False)


def open_killed(connection: str, entity: str, within_s: float, request_bytes: int) -> Failing:
    return Failing(open_sink(connection, entity, within_s, request_bytes), kill=True)


class FailingSource(PartibusSource):
    open_sink = staticmethod(open_failing)

    @classmethod
    def name(cls) -> str:
        return "failing"


class KilledSource(PartibusSource):
    open_sink = staticmethod(open_killed)

    @classmethod
    def name(cls) -> str:
        return "killed"
