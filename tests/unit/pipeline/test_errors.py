"""The report of an error that Spark brings from a task."""

from __future__ import annotations

import pytest

from partibus.pipeline.job import said

WORKER = "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in store\n    put()\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ValueError"),
        (
            "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST",
            "Python worker failed to connect back: Spark waits ten seconds for a Python process, which this machine "
            "did not start in time; run it again, when there is less to do beside it",
        ),
        ("[UNRESOLVED_COLUMN] no such column\nJVM stacktrace", "[UNRESOLVED_COLUMN] no such column"),
        (
            f"{WORKER}{TRACE}partibus.client.errors.NotFound: gone\n\nDuring handling\n\n{TRACE}"
            "partibus.spark.errors.WriteError: cannot write to 'q': gone; create it\n\tat java.base/java.lang.Thread",
            "cannot write to 'q': gone; create it",
        ),
        (
            f"{WORKER}{TRACE}pyarrow.lib.ArrowInvalid: x\nKeyError: 'y'\n\njava.lang.RuntimeException: z\n",
            "KeyError: 'y'",
        ),
        (
            "An error occurred while calling o7.parquet.\n: org.apache.spark.SparkException: [FAILED_READ] No footer\n"
            "\tat org.apache.spark",
            "org.apache.spark.SparkException: [FAILED_READ] No footer",
        ),
        (f"{WORKER}{TRACE}", "An exception was thrown from the Python worker. Please see the stack trace below."),
    ],
)
def test_the_line_that_says_something_is_found(text: str, told: str) -> None:
    assert said(ValueError(text)) == told
