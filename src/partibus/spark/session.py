"""A Spark session for a machine without any preparation, and the source's registration on any other.

Where `pyspark_partibus` is installed Spark finds the source by itself; `register` is for a driver that got the code
another way (`spark.addArtifacts`, a notebook's path).
"""

import logging
import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from partibus.spark.java import find_java
from partibus.spark.programs import worker_python
from partibus.spark.source import PartibusSource

DEFAULTS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # A shared key must not reach a log or a page through a plan or a configuration listing.
    "spark.sql.redaction.options.regex": "(?i)url|connection|secret|password|token|key",
}


def register(spark: SparkSession) -> None:
    """Register ``format("partibus")`` with this session."""
    spark.dataSource.register(PartibusSource)


def silence_query_context() -> None:
    """Keep PySpark from logging every failed query as one JSON line of some 10 KB; the exception says the same."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True


def make_session(
    app_name: str = "partibus",
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    *,
    quiet: bool = False,
) -> SparkSession:
    """Return a session on the Java that `find_java` chooses, with Python workers of this interpreter.

    Spark's default is the `python3` on PATH, which may lack pyarrow. Where all workers are on this machine they start
    faster (`worker_python`, `partibus.spark.daemon`). ``config`` wins over `DEFAULTS`. ``quiet`` keeps Java from
    printing a warning about an incubator module, which only Spark's machine learning gains from.

    The function sets JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON of this process, since Spark's launcher reads
    them there; the two Python ones only if they are not set. Raises `JavaNotFound`.
    """
    os.environ["JAVA_HOME"] = str(find_java(quiet=quiet).home)
    is_local = master.startswith("local")
    here = worker_python()
    python = here if is_local else sys.executable
    # Another Python, or one of another machine, may not find this package when the daemon starts.
    has_daemon = os.environ.setdefault("PYSPARK_PYTHON", python) == python and is_local
    # Planner processes always run on this machine, and by this Python where Spark has found the source by itself.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", here)
    builder = SparkSession.builder.appName(app_name).master(master)
    own = {"spark.python.daemon.module": "partibus.spark.daemon"} if has_daemon else {}
    for key, value in {**DEFAULTS, **own, **(config or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
