"""Errors that end a job."""

import re

from partibus.errors import PartibusError

_LATE = "Python worker failed to connect back"
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?!java\.|org\.|scala\.)[\w.]+(Error|Exception|Interrupt)\b")
"""The last line of Python's tracebacks; Java's look alike."""


class JobError(PartibusError):
    """An error that ends a job. The text names the option or the table, the fault and the next step."""


def said(error: BaseException) -> str:
    """Return an error in one line. From a traceback of a task it takes the error raised there, ours before others'."""
    text = str(error)
    if _LATE in text:
        return (
            f"{_LATE}: Spark waits ten seconds for a Python process, which this machine did not start in time; run "
            "it again, when there is less to do beside it"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("partibus.")]
    if ours:
        return ours[-1].partition(": ")[2] or ours[-1]
    if _TRACEBACK in lines:
        raised = [line for line in lines[lines.index(_TRACEBACK) :] if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else type(error).__name__
