"""Steps of a run: a progress bar while each works, and how long it took."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from partibus.demo.results import Phase

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
        """What its rate is reckoned by, when it ends; 0 where a rate means nothing."""

    def advance(self, count: int) -> None:
        self._bars.advance(self._bar, count)

    def at(self, done: int, total: int) -> None:
        """So much of so much is done; nothing is known yet while ``total`` is 0."""
        self._bars.update(self._bar, completed=done, total=total or None)


class Steps:
    """``with Steps(console) as steps: with steps.step("send", total=n) as step: ...``"""

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
    """How many tasks of the stages that run now are done, of how many."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_))]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
