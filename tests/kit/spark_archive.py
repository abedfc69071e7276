"""A class-data archive for Spark's Java processes in tests: `python -m tests.kit.spark_archive` writes it into .venv.

A Java process of Spark loads and parses many thousands of classes. From an archive it maps them: until the end of its
first query it took 8.5 s of processor time instead of 13.4. `make setup` writes the archive, with the classes that a
small batch and a small stream load. Java ignores an archive that another Java or another Spark has written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""190 MB, of which all processes that map it share one copy."""
_QUIET = "-Xlog:disable"
"""Otherwise Java warns of each class that it leaves out, and of an archive that does not fit."""


def archive_options() -> str:
    """Return options for Java that use the archive, empty without one."""
    # Options are separated by spaces.
    return f" -XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() and " " not in str(ARCHIVE) else ""


def write_archive() -> None:
    """Run Spark once and archive the classes that it has loaded. A Java that can't do this leaves no archive."""
    ARCHIVE.unlink(missing_ok=True)  # before the next import, whose options would name it
    from partibus.spark.session import make_session
    from partibus.testing.broker_process import BrokerProcess
    from tests.spark.conftest import CONFIG

    new = ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    java = f"{CONFIG['spark.driver.extraJavaOptions']} -XX:ArchiveClassesAtExit={new} {_QUIET}"
    with TemporaryDirectory() as name, BrokerProcess(Path(name)) as broker:
        session = make_session("archive", "local[2]", {**CONFIG, "spark.driver.extraJavaOptions": java})
        session.sparkContext.setLogLevel("OFF")
        target: dict[str, Any] = {"connection": broker.connection_string, "entity": broker.create_queue("archived")}
        rows = session.createDataFrame([("one", "key"), ("two", "key")], "body string, partition_key string")
        rows.coalesce(1).write.format("partibus").options(**target, naming="none").mode("append").save()
        stream = session.readStream.format("partibus").options(**target, cursor="archive").load()
        files = stream.writeStream.format("parquet").option("path", f"{name}/files")
        files.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start().awaitTermination()
        session.read.parquet(f"{name}/files").groupBy("partition_key").count().collect()
        gateway: Any = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        # It ends with its input, and writes the archive before.
        gateway.proc.stdin.close()
        gateway.proc.wait()
    if new.exists():
        new.rename(ARCHIVE)


if __name__ == "__main__":
    write_archive()
