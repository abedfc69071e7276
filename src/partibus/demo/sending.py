"""The demo's senders: processes that replay flights through the Azure SDK, with progress and a watch on memory."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from partibus.demo.flights import DemoError, Envelope, KeyTallies, Tally, envelopes, read_flights
from partibus.demo.results import Phase
from partibus.demo.topology import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

POLL_SECONDS = 0.2


class Step:
    """One running step."""

    def __init__(self, bars: Progress, bar: TaskID, messages: int) -> None:
        self._bars = bars
        self._bar = bar
        self.messages = messages
        """The number of messages for the rate at the end; 0 where a rate means nothing."""

    def advance(self, count: int) -> None:
        """Advance by a count."""
        self._bars.advance(self._bar, count)

    def at(self, done: int, total: int) -> None:
        """Show ``done`` of ``total``; nothing is known yet while ``total`` is 0."""
        self._bars.update(self._bar, completed=done, total=total or None)


class Steps:
    """The steps of a run.

    Use them as ``with Steps(console) as steps: with steps.step("send", total=n) as step: ...``.
    """

    def __init__(self, console: Console) -> None:
        self.phases: list[Phase] = []
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}"),
            console=console,
        )

    def __enter__(self) -> "Steps":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    @contextmanager
    def step(self, name: str, *, total: int | None = None, messages: int = 0) -> Iterator[Step]:
        """Time a step and show it; ``messages``: see `Step`."""
        bar = self._bars.add_task(name, total=total, detail="")
        started = time.monotonic()
        step = Step(self._bars, bar, messages)
        yield step
        seconds = time.monotonic() - started
        self.phases.append(Phase(name, seconds, step.messages))
        rate = f"{step.messages / seconds:,.0f} messages/s" if step.messages else ""
        self._bars.update(bar, total=1, completed=1, detail=rate)


@contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Let child processes that start meanwhile write their errors into a file: a JVM logs over the progress bars."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def run_watched(spark: "SparkSession", job: Callable[[], T], show: Callable[[int, int], None]) -> T:
    """Run ``job`` and meanwhile show how many tasks of its current stages are done, of how many."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)
        while wait([running], timeout=POLL_SECONDS).not_done:
            show(*tasks_of(spark))
        return running.result()


def tasks_of(spark: "SparkSession") -> tuple[int, int]:
    """Return the number of finished tasks and of all tasks in the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_))]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


BATCH_MESSAGES = 250
"""Messages per batch: about 120 KB with these bodies, under the 256 KB that a Standard namespace takes."""


class Shard(NamedTuple):
    """The job of one sender process."""

    connection: str
    topic: str
    rows: int | None
    shard: int
    shards: int


class Sent(NamedTuple):
    """The messages that the broker accepted from one sender process, or from all."""

    keys: dict[str, Tally]
    body_bytes: int


def replay(connection: str, topic: str, rows: int | None, senders: int, on_sent: Callable[[int], None]) -> Sent:
    """Send everything; ``on_sent`` gets the number of newly accepted messages.

    Raises `DemoError` when a sender fails; the others are then stopped.
    """
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    try:
        for shard in range(senders):
            ours, theirs = context.Pipe(duplex=False)
            job = Shard(connection, topic, rows, shard, senders)
            process: BaseProcess = context.Process(
                target=_send_shard, args=(job, theirs), name=f"sender {shard}", daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        return _merged(list(_results(dict(processes), on_sent)))
    finally:
        for process in processes.values():
            process.terminate()
            process.join()


def _results(running: dict[Connection, BaseProcess], on_sent: Callable[[int], None]) -> Iterator[Sent]:
    """Yield the result of each process at its end."""
    while running:
        for ready in connection.wait(list(running)):
            if not isinstance(ready, Connection):
                raise TypeError(f"waited for a pipe, got {ready!r}")
            try:
                message = ready.recv()
            except EOFError:
                process = running[ready]
                process.join()
                raise DemoError(f"{process.name} ended with exit code {process.exitcode} before it was done") from None
            if isinstance(message, int):
                on_sent(message)
            elif isinstance(message, Sent):
                del running[ready]
                yield message
            else:
                raise DemoError(f"{running[ready].name} failed: {message}")


def _merged(results: list[Sent]) -> Sent:
    keys: dict[str, Tally] = {}
    for result in results:
        keys.update(result.keys)
    return Sent(keys, sum(result.body_bytes for result in results))


def _send_shard(job: Shard, pipe: Connection) -> None:
    """Body of a sender process: sends counts, then a `Sent`, or a text saying what went wrong."""
    from azure.core.exceptions import AzureError

    try:
        pipe.send(send_envelopes(job, envelopes(read_flights(job.rows), job.shard, job.shards), pipe.send))
    except (AzureError, DemoError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def send_envelopes(job: Shard, messages: Iterator[Envelope], on_sent: Callable[[int], None]) -> Sent:
    """Send in batches as the client makes them; accepted messages are counted."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    from azure.servicebus.exceptions import MessageSizeExceededError

    tallies = KeyTallies()
    body_bytes = 0
    with (
        ServiceBusClient.from_connection_string(job.connection) as client,
        client.get_topic_sender(job.topic) as sender,
    ):
        batch = sender.create_message_batch()
        count = 0
        for envelope in messages:
            message = ServiceBusMessage(
                envelope.body,
                message_id=envelope.message_id,
                partition_key=envelope.key,
                content_type="application/json",
                subject="flight",
                application_properties=envelope.properties,
            )
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                sender.send_messages(batch)
                on_sent(count)
                batch, count = sender.create_message_batch(), 0
                batch.add_message(message)
            tallies.add(envelope.key, envelope.message_id, envelope.body)
            body_bytes += len(envelope.body)
            count += 1
            if count == BATCH_MESSAGES:
                sender.send_messages(batch)
                on_sent(count)
                batch, count = sender.create_message_batch(), 0
        if count:
            sender.send_messages(batch)
            on_sent(count)
    return Sent(tallies.result(), body_bytes)


class Sending:
    """Begins when its context is entered; leaving it waits for the senders, or after an error stops them."""

    def __init__(self, connection: str, rows: int, senders: int, steps: Steps) -> None:
        self._connection = connection
        self._rows = rows
        self._senders = senders
        self._steps = steps
        self._sent = 0
        self._is_given_up = False
        self._stack = ExitStack()
        self._running: Future[Sent] | None = None

    def __enter__(self) -> "Sending":
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        self._running = pool.submit(self._send)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_given_up = error is not None
        self._stack.close()

    def wait_for(self, count: int) -> None:
        """Wait until the broker has accepted so many, or the senders have ended."""
        assert self._running is not None, "waited for before it began"
        while self._sent < count and wait([self._running], timeout=POLL_SECONDS).not_done:
            pass

    def result(self) -> Sent:
        """Wait for the end. Raises `DemoError` when a sender failed."""
        assert self._running is not None, "asked before it began"
        return self._running.result()

    def _send(self) -> Sent:
        with self._steps.step("send", total=self._rows, messages=self._rows) as step:
            return replay(self._connection, TOPIC, self._rows, self._senders, lambda count: self._accepted(step, count))

    def _accepted(self, step: Step, count: int) -> None:
        if self._is_given_up:
            # The error ends the senders.
            raise DemoError("the run was stopped while messages were sent")
        self._sent += count
        step.advance(count)
