"""A Celery application on SQS, for a worker process of its own. ``PARTIBUS_SQS`` is ``host:port`` of the broker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tests", broker=f"sqs://test:test@{os.environ.get('PARTIBUS_SQS', '127.0.0.1:9324')}")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": int(os.environ.get("PARTIBUS_VISIBILITY", "60")),
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    task_default_queue="celery",
    worker_prefetch_multiplier=1,
    worker_concurrency=1,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
)


def note(folder: str, line: str) -> None:
    """Append a line to the file in which the test looks."""
    with Path(folder, "done").open("a", encoding="utf-8") as done:
        done.write(f"{line}\n")


def work(folder: str, name: str) -> None:
    """Note the name."""
    note(folder, name)


def fails_twice(self: Any, folder: str) -> None:
    """Ask to be retried until the third try."""
    note(folder, f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)


def dies_once(folder: str) -> None:
    """Kill the worker's process in the first try. The message was not deleted, so it comes again."""
    mark = Path(folder, "died")
    if not mark.exists():
        mark.touch()
        os._exit(9)
    note(folder, "came again")


def at(folder: str) -> None:
    """Note the time."""
    note(folder, f"{time.time()}")


app.task(bind=True, max_retries=3)(fails_twice)
for task in (work, dies_once, at):
    app.task(task)
