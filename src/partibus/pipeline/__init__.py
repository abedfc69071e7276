"""Bulk work on messages and on the broker's telemetry: PySpark jobs that run the same on a laptop and on a cluster.

```text
 cli/pipeline.py ─▶ cli/jobs/NAME.py ─▶ job.Job: session, progress, result, report
 __main__.py (spark-submit) ─┘               │
                                             ▼
               NAME.py: functions from DataFrame to DataFrame, and from few rows to plain values
                                             │
                                             ▼
               NAME_page.py: the values as a page of `report`
```

A job's functions know neither options nor files; what they need is an argument. docs/pipeline.md has the tables, the
shape of results and the exit codes.
"""
