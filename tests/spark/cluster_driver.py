"""The driver of tests/spark/test_cluster.py, a process of its own so that it can be killed.

Runs two queries on one queue, from their checkpoints: one consumes it into Parquet files, one copies it into another
queue. First it runs a task and says how many executors there are beside its own process: ``ready on 1``. For each line
of its standard input it reads both to the end of what is there, and answers what the sinks hold as a line of JSON:
``{"files": [id, ...], "copy": [[partition, position, key, id], ...]}``.
"""

from __future__ import annotations

import json
import sys
from typing import TypedDict

from pyspark.sql.streaming.query import StreamingQuery

from partibus.spark.session import make_session, silence_query_context


class Given(TypedDict):
    """The driver's settings, as JSON in its one argument."""

    master: str
    config: dict[str, str]
    connection: str
    source: str
    copy: str
    files: str
    """Folder of the Parquet files."""
    checkpoints: str
    limit: str
    """Messages of a micro-batch."""


def main(given: Given) -> None:
    spark = make_session("cluster", given["master"], given["config"])
    spark.sparkContext.setLogLevel("ERROR")
    silence_query_context()
    source = {
        "connection": given["connection"],
        "entity": given["source"],
        "maxMessagesPerTrigger": given["limit"],
        "pollTimeoutMs": "100",
    }

    def start(name: str, form: str, options: dict[str, str], reading: dict[str, str]) -> StreamingQuery:
        rows = spark.readStream.format("partibus").options(**source, **reading, cursor=name).load()
        writer = rows.writeStream.format(form).options(**options)
        return writer.option("checkpointLocation", f"{given['checkpoints']}/{name}").start()

    target = {"connection": given["connection"], "entity": given["copy"]}
    queries = [
        start("files", "parquet", {"path": given["files"]}, {"mode": "consume", "leaseMs": "5000"}),
        start("copy", "partibus", target, {}),
    ]
    spark.range(1).count()  # an executor is there then, or the driver's own process has done it
    print(f"ready on {len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1}", flush=True)
    for _ in sys.stdin:
        for query in queries:
            query.processAllAvailable()
        files = spark.read.parquet(given["files"]).select("message_id").collect()
        copied = spark.read.format("partibus").options(**target).load()
        copy = copied.select("partition_id", "position", "partition_key", "message_id").collect()
        found = {"files": [row.message_id for row in files], "copy": [list(row) for row in copy]}
        print(json.dumps(found), flush=True)
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
