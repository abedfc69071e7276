"""One Spark session for all tests here, started when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from partibus.spark.session import make_session, silence_query_context
from tests.spark.simulated import SimulatedNamespace, SimulatedSource

PROJECT = Path(__file__).parents[2]

# Start-up counts here, not speed: the first compiler and the plain collector, no doubts about Spark's classes (a fifth
# of the processor time until it is warm), no full collection for each step in which their space grows. With one
# compiler Java has 48 MB for its code, and a thread that looks for code to drop took a twelfth of the processor time.
# Tasks may fail three times, which plain local[2] would not let them. One shuffle partition takes a sixth of Java's
# processor time less than two; tests of what is grouped or ordered by key ask for `several_partitions`.
MASTER = "local[2,3]"
JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=240m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SHUFFLES = "spark.sql.shuffle.partitions"
CONFIG = {
    "spark.driver.extraJavaOptions": JAVA,
    SHUFFLES: "1",
    "spark.sql.adaptive.enabled": "false",
    # A plan is run once or twice, over few rows: not worth being compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # No operator watches these tasks, so Spark draws no progress bar and updates no page.
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.liveUpdate.period": "-1",
    # Where in the tests a column was made need not be known.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

CHECKPOINTS = {
    # The default starts a process, `readlink`, for each step of a file's renaming: some ten for a micro-batch. On the
    # cluster, where drivers are killed, the default stands.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose workers can import the project's tests."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # Java hands it to its workers. This process has what it began with again, since a broker that starts with
        # another path is no fork (tests/kit/fork_server.py).
        patch.setenv("PYTHONPATH", str(PROJECT), prepend=os.pathsep)
        session = make_session(
            "tests",
            MASTER,
            {
                **CONFIG,
                **CHECKPOINTS,
                "spark.sql.warehouse.dir": str(folder),
                "spark.local.dir": str(folder),
            },
        )
    session.sparkContext.setLogLevel("OFF")
    silence_query_context()
    _write_no_checksums(session)
    session.dataSource.register(SimulatedSource)
    yield session
    session.stop()


@pytest.fixture
def several_partitions(spark: SparkSession) -> Iterator[None]:
    """Divide rows by key, as a cluster does."""
    spark.conf.set(SHUFFLES, "3")
    yield
    spark.conf.set(SHUFFLES, CONFIG[SHUFFLES])


def _write_no_checksums(session: SparkSession) -> None:
    """Write files without checksums beside them: each would be written, renamed, and given its mode by a process."""
    context: Any = session.sparkContext
    context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration()).setWriteChecksum(False)


@pytest.fixture
def namespace(tmp_path: Path) -> SimulatedNamespace:
    return SimulatedNamespace(tmp_path)
