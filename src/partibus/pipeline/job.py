"""One run of a job: its Spark session, what it shows meanwhile, what it leaves behind.

```text
 with Job("telemetry", options, parameters) as job:
     with job.step("add up"):
         ...job.watched(lambda: frame.count())...
     job.finish(values, page=...)
```

The result has the same frame for every job (docs/pipeline.md); it is written also when the job fails.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from partibus.pipeline.errors import JobError, said
from partibus.pipeline.report.page import Page, render
from partibus.pipeline.sessions import job_session

T = TypeVar("T")
Values = dict[str, Any]

RESULT_VERSION = 1
POLL_SECONDS = 0.2
DONE, FINDINGS, FAILED = "done", "findings", "failed"


class JobOptions(NamedTuple):
    """What every job can be told."""

    master: str | None = None
    """None: what `spark-submit` says, else all cores of this machine."""
    config: Mapping[str, str] = {}
    json: Path | None = None
    """Where the result goes; `-` is standard output."""
    report: Path | None = None
    dry_run: bool = False
    spark: SparkSession | None = None
    """One to use and to leave running, for who calls a job from a program."""


class Job:
    """A context manager; the session starts when it is first asked for."""

    def __init__(self, name: str, options: JobOptions, parameters: Values) -> None:
        """``parameters``: the job's own options, for the result. No secrets in them."""
        self.name = name
        self.options = options
        self._parameters = parameters
        self._spark = options.spark
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()
        self._steps: list[Values] = []
        self._bars = _bars()
        self._running: TaskID | None = None
        self._result: Values | None = None
        self._status = FAILED
        self.console = Console(stderr=True, highlight=False)

    def __enter__(self) -> "Job":
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._bars.stop()
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._write({"status": FAILED, "error": said(error), "result": self._result})
        if self._spark is not None and self.options.spark is None:
            self._spark.stop()
        if isinstance(error, PySparkException):
            raise JobError(f"Spark could not do it: {said(error)}") from error

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            with self.step("start Spark"):
                self._spark = job_session(f"partibus {self.name}", self.options.master, self.options.config)
        return self._spark

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a step while it works, and note how long it took."""
        bar = self._bars.add_task(name, total=None)
        outer, self._running = self._running, bar
        started = time.monotonic()
        try:
            yield
        finally:
            self._running = outer
        seconds = time.monotonic() - started
        self._steps.append({"name": name, "seconds": round(seconds, 2)})
        self._bars.update(bar, total=1, completed=1)

    def watched(self, work: Callable[[], T]) -> T:
        """Do ``work``, an action on a DataFrame, and show meanwhile how many tasks of its stages are done."""
        if not self.console.is_terminal or self._running is None:
            return work()
        tracker, bar = self.spark.sparkContext.statusTracker(), self._running
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(work)
            while wait([running], timeout=POLL_SECONDS).not_done:
                stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_))]
                done, total = (sum(getattr(one, of) for one in stages) for of in ("numCompletedTasks", "numTasks"))
                self._bars.update(bar, completed=done, total=total or None)
            return running.result()

    def finish(self, result: Values, *, status: str = DONE, page: Callable[[Values], Page] | None = None) -> Values:
        """Write result and report; may be called again while a job goes on. ``page`` is asked only where a report is
        wanted. The answer is the result in its frame."""
        self._result, self._status = result, status
        report = self.options.report
        if report is not None and page is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            aside = report.with_name(f".{report.name}.new")
            aside.write_text(render(page(result)), encoding="utf-8")
            aside.replace(report)
        return self._write({"status": status, "result": result})

    def _write(self, what: Values) -> Values:
        spark = self._spark
        framed: Values = {
            "job": self.name,
            "version": RESULT_VERSION,
            "partibus": version("partibus"),
            "dry_run": self.options.dry_run,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._clock, 2),
            "steps": self._steps,
            "parameters": self._parameters,
            "spark": {"version": spark.version, "master": spark.sparkContext.master} if spark else None,
            "report": str(self.options.report) if self.options.report else None,
            **what,
        }
        if self.options.json is not None:
            text = json.dumps(framed, ensure_ascii=False, indent=2, default=str)
            if str(self.options.json) == "-":
                sys.stdout.write(text + "\n")
            else:
                self.options.json.parent.mkdir(parents=True, exist_ok=True)
                self.options.json.write_text(text + "\n", encoding="utf-8")
        return framed


def _bars() -> Progress:
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
