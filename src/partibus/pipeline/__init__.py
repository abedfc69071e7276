"""PySpark jobs on messages and on the broker's telemetry, which run the same on a laptop and on a cluster.

```text
 cli/main.py ─▶ cli/jobs/NAME.py ─▶ NAME.py: the job, its functions from DataFrame to DataFrame, its page
 __main__.py (spark-submit) ─┘             │
                                           ▼
                                        job.Job: session, progress, result, report
```

The functions of a job know neither options nor files; their input is an argument. docs/pipeline.md has the tables, the
shape of results and the exit codes.
"""
