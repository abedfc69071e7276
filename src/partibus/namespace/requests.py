"""How many requests of clients there were, and how many of them went wrong, by whose fault (row R13).

A number per kind of request and outcome, whatever names clients use. Front ends count where they answer, by batches.
"""

from collections.abc import Sequence
from enum import IntEnum

from partibus.errors import InternalError, OutcomeUnknown, PartibusError, ServerBusy, StoreUnavailable


class RequestKind(IntEnum):
    """The values are places in the lists of `RequestCounters`."""

    SEND = 0
    """A transfer of a client's: one message or one batch of them."""
    SETTLE = 1
    """A delivery that a client has settled."""
    MANAGEMENT = 2
    """A request to `$management` of an entity or the namespace, or to the admin API."""
    HTTP = 3
    """A request about messages over HTTP."""
    ATTACH = 4
    """A link that was refused, or ended with its claim; accepted ones are not counted."""


REQUEST_KINDS = tuple(kind.name.lower() for kind in RequestKind)
"""The labels of the kinds of requests."""


class Fault(IntEnum):
    """Why a request went wrong; the values are places in the lists of `RequestCounters`."""

    USER = 0
    """The request can't be carried out: no claim, no entity, no lock, too large."""
    SERVER = 1
    """The broker, or a store, could not."""
    BUSY = 2
    """Refused for now: throttled, or over a bound of load."""


FAULTS = tuple(fault.name.lower() for fault in Fault)
_SERVER = (StoreUnavailable, OutcomeUnknown, InternalError)


def fault_of(error: PartibusError) -> Fault:
    """Return the party at fault for an error."""
    if isinstance(error, ServerBusy):
        return Fault.BUSY
    return Fault.SERVER if isinstance(error, _SERVER) else Fault.USER


def fault_of_status(status: int) -> Fault | None:
    """Return the party at fault for a status code; None: success."""
    if status < 400:
        return None
    if status == 503:
        return Fault.BUSY
    return Fault.SERVER if status >= 500 and status != 501 else Fault.USER


class RequestCounters:
    """The request counters of one namespace at one broker; they only rise while the broker knows the namespace."""

    __slots__ = ("failed", "requests")

    def __init__(self) -> None:
        self.requests = [0] * len(REQUEST_KINDS)
        """Requests by `RequestKind`, successful or not."""
        self.failed = [[0] * len(FAULTS) for _ in REQUEST_KINDS]
        """Failed requests by `RequestKind` and `Fault`."""

    def answered(self, kind: RequestKind, count: int, errors: Sequence[PartibusError | None] | None = None) -> None:
        """Count answered requests. ``errors`` holds the error of each, or None."""
        self.requests[kind] += count
        if errors is not None:
            failed = self.failed[kind]
            for error in errors:
                if error is not None:
                    failed[fault_of(error)] += 1

    def answered_status(self, kind: RequestKind, status: int) -> None:
        """Count a request by the status code of its answer."""
        self.requests[kind] += 1
        if status >= 400 and (fault := fault_of_status(status)) is not None:
            self.failed[kind][fault] += 1
