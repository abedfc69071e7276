"""The Spark session of a job: its own on a laptop, the one that `spark-submit` has prepared on a cluster."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pyspark.sql import SparkSession

from partibus.spark.session import DEFAULTS, make_session, silence_query_context

_JAVA = (
    # A job lives for a minute, in which most of Spark's code runs some thousand times: too few for the second compiler
    # to pay. It is left for the loops over rows, which reach any threshold soon; the first one alone took 24 s of
    # processor time in place of 15 for one of them. With the collector below 10 million rows of telemetry take 58 s in
    # place of 72 (docs/pipeline.md).
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=3000 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000"
)
_FEW_CORES = 4
"""With so many or fewer, threads that collect garbage beside the tasks take more than they save."""

_SHUFFLES = "spark.sql.shuffle.partitions"

_LOCAL: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": _JAVA + (" -XX:+UseSerialGC" if (os.cpu_count() or 2) <= _FEW_CORES else ""),
    # Tables are small after the first step: more shuffle partitions would only add tasks. A cluster sets its own.
    _SHUFFLES: str(max(4, 2 * (os.cpu_count() or 2))),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ALWAYS: Mapping[str, str] = {
    # A broker removes the oldest telemetry while a job reads.
    "spark.sql.files.ignoreMissingFiles": "true",
    # The job's own bar shows the tasks.
    "spark.ui.showConsoleProgress": "false",
}

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Variable with what Spark's launcher gives to the driver's Java, before `spark.driver.extraJavaOptions`."""


def is_submitted() -> bool:
    """Whether `spark-submit` runs this process: it has started the JVM already and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def job_session(name: str, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """A session. Without ``master``: what `spark-submit` says, else all cores of this machine. ``config`` wins over
    everything, and what `spark-submit` was given over what is chosen here."""
    silence_query_context()
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
        session = make_session(name, master or "local[*]", {**local, **_ALWAYS, **config})
        session.sparkContext.setLogLevel("ERROR")
    return session


def log_errors_only(env: MutableMapping[str, str]) -> None:
    """Have the Java that Spark starts say errors only, from its first line on, unless the environment chooses what is
    logged. A file that `spark.driver.extraJavaOptions` names is chosen over this one: Java takes the last."""
    options = env.get(_JAVA_OPTIONS, "")
    folder = env.get("SPARK_CONF_DIR") or (f"{env['SPARK_HOME']}/conf" if env.get("SPARK_HOME") else None)
    chosen = "LOG4J_CONFIGURATION_FILE" in env or "log4j" in options
    if not chosen and not (folder and any(Path(folder).glob("log4j2.*"))):
        env[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={_LOGGING.as_uri()}".strip()


def shuffle_less(session: SparkSession) -> None:
    """On this machine as where `spark-submit` has not started the job, unless it was told how many partitions: its own
    200 are as many tasks in each step, for tables of a few rows."""
    context = session.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_SHUFFLES):
        session.conf.set(_SHUFFLES, _LOCAL[_SHUFFLES])


def _fixed() -> dict[str, str]:
    """Of the settings of any session, those that results and secrets depend on."""
    return {key: value for key, value in DEFAULTS.items() if key != "spark.ui.enabled"}
