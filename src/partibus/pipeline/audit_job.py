"""The job `audit`: logs in, findings out."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyspark import StorageLevel

from partibus.pipeline import audit
from partibus.pipeline.audit_page import audit_page
from partibus.pipeline.job import DONE, FINDINGS, Job
from partibus.pipeline.logs import CONSUMED, PRODUCED, LogColumn, read_log

Values = dict[str, Any]

REMAINING = tuple(column for column in PRODUCED if column.name in audit.ID)


class Want(NamedTuple):
    """What is asked for."""

    produced: Sequence[str]
    consumed: Sequence[str]
    remaining: Sequence[str] = ()
    form: str | None = None
    """One of `logs.FORMATS`; None goes by the names."""
    slack_ms: int = 1000
    samples_max: int = 10
    out: str | None = None


def run(job: Job, want: Want) -> Values:
    """The result; its `counts` are all zero when every promise was kept."""
    spark = job.spark

    def log(paths: Sequence[str], columns: Sequence[LogColumn]) -> Any:
        return read_log(spark, paths, columns, want.form)

    remaining = log(want.remaining, REMAINING) if want.remaining else None
    logs = audit.normalized(audit.Logs(log(want.produced, PRODUCED), log(want.consumed, CONSUMED), remaining))
    both = audit.reconciled(logs).persist(StorageLevel.MEMORY_AND_DISK)
    found = audit.findings(logs, both, audit.Terms(want.slack_ms)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("join the logs"):
            job.watched(both.count)
        with job.step("look for faults"):
            counts = job.watched(lambda: audit.counted(found))
        with job.step("tell"):
            result: Values = {
                "holds": not any(counts.values()),
                "counts": counts,
                "totals": audit.totals(both),
                "samples": audit.samples(found, want.samples_max),
                "series": audit.delays(both),
                "findings": None,
            }
            if want.out is not None:
                result["findings"] = str(PurePosixPath(want.out, "findings"))
                found.write.mode("overwrite").partitionBy("kind").parquet(result["findings"])
    finally:
        found.unpersist()
        both.unpersist()
    job.finish(result, status=DONE if result["holds"] else FINDINGS, page=audit_page)
    return result
