"""The trace that a message belongs to: its property ``traceparent``, or ``Diagnostic-Id``.

Both have the form of W3C Trace Context, version 00.
"""

import re
from typing import Final, NamedTuple

from partibus.message import StoredMessage

_NAMES: Final = (b"traceparent", b"Diagnostic-Id")
_VALUE: Final = re.compile(
    # Names and values are strings, symbols or binary; some libraries write binary.
    rb"(?:traceparent|Diagnostic-Id)[\xa0\xa1\xa3]\x3700-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED: Final = 1


class Parent(NamedTuple):
    """The client's span that is the parent of a broker's span."""

    trace_id: int
    span_id: int


def parent_of(data: bytes) -> Parent | None:
    """Return the sampled trace of a stored message; None without one."""
    if not any(name in data for name in _NAMES):
        return None
    try:
        found = _VALUE.search(StoredMessage(data).application_properties)
    except ValueError:  # a form of another version
        return None
    if found is None or not int(found[3], 16) & _SAMPLED:
        return None
    parent = Parent(int(found[1], 16), int(found[2], 16))
    return parent if all(parent) else None
