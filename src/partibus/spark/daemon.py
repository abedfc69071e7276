"""The parent of Spark's Python processes on this machine: PySpark's daemon, with everything imported.

PySpark's own daemon imports nothing before it forks, so each planning process and each new worker begins with a fifth
to half a second of imports. It avoids threads at a fork: a child would inherit their locks without the threads. So this
program looks for threads. Where an import has started one, it becomes PySpark's own daemon. Processes also collect
garbage after each task; objects imported here are frozen, so collections skip them.

Frames of megabytes come and go in a worker. The C library returns the memory of each to the system, which has to clear
it again for the next: a fifth of a worker's time beside decoding. So processes keep some memory.
"""

import ctypes
import gc
import os
import sys
from importlib import import_module
from pathlib import Path

IMPORTED = (
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "partibus.client.sync",
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "partibus.spark.source",
    "partibus.spark.decoding",
    "partibus.spark.reader",
    "partibus.spark.stream",
    "partibus.spark.writer",
)
"""Modules that a read, a stream and a sink need."""
_OWN = "pyspark.daemon"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_KEPT_BYTES = 32 << 20
"""Free memory that a process keeps: some copies of a frame, which has 4 MiB unless a reader asks for another size.

It is also the size from which memory is always returned at once, the largest that can be set.
"""
_TASKS = Path("/proc/self/task")
_SAFE = {"jemalloc_bg_thd"}
"""A thread of Arrow's allocator, which stops it before a fork and handles its absence in the child."""


def main() -> None:
    """Serve until Spark ends; the arguments are those of PySpark's daemon."""
    # Otherwise numpy starts a thread per core; workers to which Spark gives several set it themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not (_TASKS.is_dir() and _imported() and not other_threads()):
        os.execv(sys.executable, [sys.executable, "-m", _OWN, *sys.argv[1:]])
    gc.freeze()
    keep_memory()
    import_module(_OWN).manager()


def keep_memory() -> bool:
    """Keep freed memory in this process and its children. Returns False where the C library is not GNU's."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(set_option(option, _KEPT_BYTES) for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


def other_threads() -> list[str]:
    """Return the names of threads of this process that make a fork unsafe."""
    names = [(task / "comm").read_text().strip() for task in _TASKS.iterdir() if task.name != str(os.getpid())]
    return [name for name in names if name not in _SAFE]


def _imported() -> bool:
    """Import everything; returns False where something is missing. The process that needs it reports it."""
    try:
        for name in IMPORTED:
            import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
