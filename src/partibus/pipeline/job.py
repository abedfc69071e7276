"""One run of a job: its Spark session, its progress, its result and report.

```text
 with Job("telemetry", options, parameters) as job:
     with job.step("add up"):
         ...job.watched(lambda: frame.count())...
     job.finish(values, page=...)
```

The result has the same frame for every job (docs/pipeline.md). A failed job writes one too.
"""

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from partibus.errors import PartibusError
from partibus.pipeline.report.page import Page, render
from partibus.spark.session import DEFAULTS, make_session, silence_query_context

_LATE = "Python worker failed to connect back"
_CALLED = "An error occurred while calling "
"""The first line of an exception of Java that PySpark has no class for; the next one begins with its name."""
_STOPPED = "stopped SparkContext"
"""Part of the error of a new session that has stopped itself, since no master has accepted it in a minute."""
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?!java\.|org\.|scala\.)[\w.]+(Error|Exception|Interrupt)\b")
"""The last line of Python's tracebacks; Java's look alike."""


_CONFIGURED = {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"}
_RESOLVED = re.compile(r"^[A-Za-z][\w+.-]*:|[*?\[{]")
"""A part of paths that Spark resolves: the scheme of a URL, or a pattern."""


class JobError(PartibusError):
    """An error that ends a job. The text names the option or the table, the fault and the next step."""


def said(error: BaseException) -> str:
    """Return an error in one line. From a traceback of a task it takes the error raised there, ours before others'."""
    text = str(error)
    if _LATE in text:
        return (
            f"{_LATE}: Spark waits ten seconds for a Python process, which this machine did not start in time; run "
            "it again, when there is less to do beside it"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith(_CALLED) and len(lines) > 1:
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    ours = [line for line in lines if line.startswith("partibus.")]
    if ours:
        return ours[-1].partition(": ")[2] or ours[-1]
    if _TRACEBACK in lines:
        raised = [line for line in lines[lines.index(_TRACEBACK) :] if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else type(error).__name__


_FAULTS = {"PATH_NOT_FOUND": "the path does not exist", "UNABLE_TO_INFER_SCHEMA": "the folder has no such files"}


def fault_of(error: AnalysisException) -> str:
    """Return the reason for which Spark can't read a table, in few words."""
    condition = error.getCondition()
    return _FAULTS.get(condition or "") or condition or said(error)


T = TypeVar("T")
Values = dict[str, Any]

RESULT_VERSION = 1
POLL_SECONDS = 0.2
DONE, FINDINGS, FAILED = "done", "findings", "failed"


class JobOptions(NamedTuple):
    """Options of every job."""

    master: str | None = None
    """Spark's master; None: as `spark-submit` says, else all cores of this machine."""
    config: Mapping[str, str] = {}
    json: Path | None = None
    """The file of the result; `-` is standard output."""
    report: Path | None = None
    dry_run: bool = False
    spark: SparkSession | None = None
    """A session to use and to leave running, for programs that call a job."""


class Job:
    """A context manager; the session starts when it is first used."""

    def __init__(self, name: str, options: JobOptions, parameters: Values) -> None:
        """Prepare a job. ``parameters`` are the job's own options for the result, without secrets."""
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
        failed = said(error) if isinstance(error, PySparkException | Py4JJavaError) else None
        if self._spark is not None and self.options.spark is None:
            self._spark.stop()  # an exception of Java can't be read after it
        if failed is not None:
            raise JobError(f"Spark could not do it: {failed}") from error

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        if self._spark is None:
            # Java outlives a process that ends while it starts. Besides, PySpark's own handler of Ctrl-C calls Java,
            # also in the middle of another call; the one from before comes back here.
            with interruption() as is_interrupted, self.step("start Spark"):
                self._spark = self._started_spark()
            if is_interrupted():
                raise KeyboardInterrupt
        return self._spark

    def check_paths(self, paths: Iterable[str], advice: str) -> None:
        """Raise `JobError` with ``advice`` when one of ``paths`` does not exist on this machine. Spark need not start.

        Paths that only Spark can resolve are left to it: URLs, patterns, and all where another file system than that of
        this machine may be its default.
        """
        options = self.options
        elsewhere = is_submitted() or not (options.master or "local").startswith("local")
        configured = _CONFIGURED & os.environ.keys() or any("fs.default" in name for name in options.config)
        if self._spark is not None or elsewhere or configured:
            return
        for path in paths:
            if not _RESOLVED.search(path) and not Path(path).exists():
                raise JobError(f"{path} does not exist: {advice}")

    def _started_spark(self) -> SparkSession:
        try:
            return job_session(f"partibus {self.name}", self.options.master, self.options.config)
        except Py4JJavaError as error:
            if _STOPPED not in str(error):
                raise
            raise JobError(
                f"--master {self.options.master or 'of spark-submit'} does not answer as one of Spark: give the "
                "address that the master's own page shows, or leave --master out to use all cores of this machine"
            ) from error

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a step while it works, and record its duration."""
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
        """Run ``work``, an action on a DataFrame, and show how many tasks of its stages are done."""
        if not self.console.is_terminal or self._running is None:
            return work()
        context, bar = self.spark.sparkContext, self._running
        tracker = context.statusTracker()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(work)
            try:
                while wait([running], timeout=POLL_SECONDS).not_done:
                    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_))]
                    done, total = (sum(getattr(one, of) for one in stages) for of in ("numCompletedTasks", "numTasks"))
                    self._bars.update(bar, completed=done, total=total or None)
            except KeyboardInterrupt:
                context.cancelAllJobs()  # the pool waits for them
                raise
            return running.result()

    def finish(self, result: Values, *, status: str = DONE, page: Callable[[Values], Page] | None = None) -> Values:
        """Write result and report; returns the result in its frame.

        A job that goes on may call this again. ``page`` is called only where a report is wanted.
        """
        self._result = result
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


_JAVA = (
    # A job runs for a minute, in which most of Spark's code runs some thousand times: too few for the second compiler
    # to pay off. It is left for the loops over rows, which reach any threshold soon; the first one alone took 24 s of
    # processor time in place of 15 for one of them. With the collector below 10 million rows of telemetry take 58 s in
    # place of 72 (docs/pipeline.md).
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=3000 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000"
)
_FEW_CORES = 4
"""Up to this number of cores, threads that collect garbage beside the tasks take more time than they save."""

_SHUFFLES = "spark.sql.shuffle.partitions"

_LOCAL: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": _JAVA + (" -XX:+UseSerialGC" if (os.cpu_count() or 2) <= _FEW_CORES else ""),
    # Tables are small after the first step: more shuffle partitions would only add tasks. A cluster sets its own.
    _SHUFFLES: str(max(4, 2 * (os.cpu_count() or 2))),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ALWAYS: Mapping[str, str] = {
    # The job's own bar shows the tasks.
    "spark.ui.showConsoleProgress": "false",
}

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable with options that Spark's launcher gives to the driver's Java before `spark.driver.extraJavaOptions`."""


def is_submitted() -> bool:
    """Tell whether `spark-submit` runs this process: it has started the JVM already and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def job_session(name: str, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Return a session. Without ``master``, use that of `spark-submit`, or else all cores of this machine.

    ``config`` overrides everything, and the options of `spark-submit` override the defaults here.
    """
    silence_query_context()
    silence_calls()
    if is_submitted():
        builder = SparkSession.builder.appName(name)
        if master is not None:
            builder = builder.master(master)
        for key, value in {**_fixed(), **_ALWAYS, **config}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        shuffle_less(session)
    else:
        local = _LOCAL if master is None or master.startswith("local") else {}
        log_errors_only(os.environ)
        session = make_session(name, master or "local[*]", {**local, **_ALWAYS, **config}, quiet=True)
        session.sparkContext.setLogLevel("ERROR")
    return session


def silence_calls() -> None:
    """Keep py4j from logging a traceback for every call to Java that Ctrl-C or the end of Spark cuts off."""
    logging.getLogger("py4j").propagate = False
    root = logging.getLogger()
    if _is_no_call not in root.filters:
        root.addFilter(_is_no_call)  # py4j logs some of them with the root logger itself


def _is_no_call(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def log_errors_only(env: MutableMapping[str, str]) -> None:
    """Make the Java that Spark starts log errors only, from its first line on.

    The environment can configure another log. A file that `spark.driver.extraJavaOptions` names overrides this
    one: Java takes the last.
    """
    options = env.get(_JAVA_OPTIONS, "")
    folder = env.get("SPARK_CONF_DIR") or (f"{env['SPARK_HOME']}/conf" if env.get("SPARK_HOME") else None)
    chosen = "LOG4J_CONFIGURATION_FILE" in env or "log4j" in options
    if not chosen and not (folder and any(Path(folder).glob("log4j2.*"))):
        env[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={_LOGGING.as_uri()}".strip()


def shuffle_less(session: SparkSession) -> None:
    """Reduce the number of shuffle partitions, unless it is configured or `spark-submit` has started the job.

    Spark's own 200 are as many tasks in each step, for tables of a few rows.
    """
    context = session.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_SHUFFLES):
        session.conf.set(_SHUFFLES, _LOCAL[_SHUFFLES])


def _fixed() -> dict[str, str]:
    """Return the settings of every session that results and secrets depend on."""
    return {key: value for key, value in DEFAULTS.items() if key != "spark.ui.enabled"}


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed since.

    A second Ctrl-C, or one outside of this, raises the exception as usual. Other threads than the main one get no
    signals, so it always returns False there.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    # None: a handler that was not set from Python, and can't be restored from there.
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def note(_number: int, _frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
