"""What Spark's Python processes are forked from on this machine: PySpark's daemon, with everything imported.

PySpark's own imports nothing before it forks, so that each process that plans, and each new worker, begins with a fifth
to half a second of imports. It does so lest there be threads at a fork, of which a child would have the locks and not
the threads. So they are looked at: where an import has started one, this program becomes PySpark's own daemon.
Processes also look for garbage behind each task: what is imported here is left out of that.

Frames of megabytes come and go in a worker, and the C library hands the memory of each back to the system, which has to
clear it anew for the next: a fifth of what a read took of a worker beside decoding. So processes keep some.
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
"""What the processes of a read, a stream and a sink need."""
_OWN = "pyspark.daemon"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
_KEPT_BYTES = 32 << 20
"""Free memory that a process keeps: some copies of a frame, which has 4 MiB unless a reader says otherwise. Also the
size from which on memory is handed back at once in any case: no more can be set."""
_TASKS = Path("/proc/self/task")
_SAFE = {"jemalloc_bg_thd"}
"""Of Arrow's allocator, which stops it before a fork and knows of it in the child."""


def main() -> None:
    """Serve until Spark ends; the arguments are those of PySpark's daemon."""
    # Else numpy would start a thread per core; workers with more than the one that Spark gives them have it set.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not (_TASKS.is_dir() and _imported() and not other_threads()):
        os.execv(sys.executable, [sys.executable, "-m", _OWN, *sys.argv[1:]])
    gc.freeze()
    keep_memory()
    import_module(_OWN).manager()


def keep_memory() -> bool:
    """For this process and its children. False where the C library is not GNU's."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(set_option(option, _KEPT_BYTES) for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


def other_threads() -> list[str]:
    """The names of threads of this process that a fork would be wrong beside."""
    names = [(task / "comm").read_text().strip() for task in _TASKS.iterdir() if task.name != str(os.getpid())]
    return [name for name in names if name not in _SAFE]


def _imported() -> bool:
    """False where something is missing: the process that needs it will say so, as ever."""
    try:
        for name in IMPORTED:
            import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
