"""What Spark's Python workers are forked from in these tests: PySpark's daemon, with everything imported.

PySpark's own imports nothing before it forks, so that each worker begins with half a second of imports; the tests start
a hundred. Workers also look for garbage behind each task: what is imported here is left out of that.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.worker import (  # noqa: F401
    commit_data_source_write,
    create_data_source,
    lookup_data_sources,
    plan_data_source_read,
    python_streaming_sink_runner,
    write_into_data_source,
)

import partibus.spark.source
import partibus.spark.stream
import partibus.spark.writer  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
