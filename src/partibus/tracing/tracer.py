"""Spans of the broker's work on messages whose trace is sampled.

```text
 the client's span ◀── send      from the receipt to the durable answer
                   ◀── deliver   from the enqueuing to the delivery
                   ◀── settle    from the receiver's outcome to the durable answer
                   ◀── forward   to another entity, from the attempt to the durable answer
```

Without tracing there is no tracer; callers check that once per batch.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from time import time_ns
from typing import Final, NamedTuple

from partibus.errors import PartibusError
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


SPANS_MAX: Final = 100
"""The most spans of one batch: traces of all its messages must not delay other work."""
HELD_MAX: Final = 10_000
"""The most deliveries whose settlement is traced, per link, or per namespace for lock tokens."""


class Step(StrEnum):
    """The traced steps. The name of a span begins with the value."""

    SEND = "send"
    DELIVER = "deliver"
    SETTLE = "settle"
    FORWARD = "forward"


class Span(NamedTuple):
    """A span that has ended. Times are in ns since 1970."""

    step: Step
    parent: Parent
    namespace: str
    entity: str
    since_ns: int
    until_ns: int
    details: tuple[tuple[str, str | int], ...]
    error: str | None
    """The kind of error that ended it."""


Keep = Callable[[Span], None]
OnSent = Callable[[list[PartibusError | None] | None], None]
OnEnded = Callable[[PartibusError | None], None]
_Parents = OrderedDict[tuple[int, int, int], Parent]
"""Parents by partition row, lock id and position, in the order of delivery."""


class Tracer:
    """The tracer of one namespace."""

    def __init__(self, namespace: str, keep: Keep, now_ns: Callable[[], int] = time_ns) -> None:
        self._namespace = namespace
        self._keep = keep
        self._by_token: _Parents = OrderedDict()
        self.now_ns = now_ns

    def parents(self, messages: Iterable[bytes | None]) -> list[Parent]:
        """Return the parents of stored messages with a sampled trace, `SPANS_MAX` at most."""
        found: list[Parent] = []
        for data in messages:
            parent = None if data is None else parent_of(data)
            if parent is not None:
                found.append(parent)
                if len(found) == SPANS_MAX:
                    break
        return found

    def record(
        self,
        step: Step,
        parent: Parent,
        entity: str,
        since_ns: int,
        details: tuple[tuple[str, str | int], ...] = (),
        error: PartibusError | None = None,
    ) -> None:
        """Record a step that has ended now."""
        until_ns = max(since_ns, self.now_ns())
        kind = None if error is None else type(error).__name__
        self._keep(Span(step, parent, self._namespace, entity, since_ns, until_ns, details, kind))

    def sending(self, entity: str, batches: Sequence[Iterable[bytes]], on_sent: OnSent) -> OnSent:
        """Wrap ``on_sent`` so that spans end with the answer to a send: an error or None per batch, or None for all."""
        parents = [(index, parent) for index, batch in enumerate(batches) for parent in self.parents(batch)]
        if not parents:
            return on_sent
        del parents[SPANS_MAX:]
        since_ns = self.now_ns()

        def sent(errors: list[PartibusError | None] | None) -> None:
            for index, parent in parents:
                self.record(Step.SEND, parent, entity, since_ns, error=None if errors is None else errors[index])
            on_sent(errors)

        return sent

    def beginning(self, step: Step, entity: str, messages: Iterable[bytes]) -> OnEnded | None:
        """Begin a step for stored messages. Returns the call that ends it, or None if no trace is sampled."""
        parents = self.parents(messages)
        if not parents:
            return None
        since_ns = self.now_ns()

        def ended(error: PartibusError | None) -> None:
            for parent in parents:
                self.record(step, parent, entity, since_ns, error=error)

        return ended

    def held(self, entity: str) -> "Held":
        """Return the traces of deliveries without a link, which clients settle by lock token."""
        return Held(self, entity, self._by_token)


class Held:
    """Traces of deliveries that clients hold. A settlement does not name its message."""

    def __init__(self, tracer: Tracer, entity: str, parents: _Parents | None = None) -> None:
        """Note parents in ``parents``; None: in a table of its own, as for one link."""
        self._tracer = tracer
        self._entity = entity
        self._parents: _Parents = OrderedDict() if parents is None else parents

    def delivered(
        self, row: int, lock_id: int, entries: Iterable[tuple[int, bytes | None, int, int]], *, settles: bool
    ) -> None:
        """Note a delivery.

        ``entries`` are position, stored form, enqueued time (ms) and deliveries so far. ``settles``: the client will
        settle them.
        """
        for count, (pos, data, enqueued_ms, deliveries) in enumerate(entries):
            if count == SPANS_MAX:
                return
            parent = None if data is None else parent_of(data)
            if parent is None:
                continue
            details = (("messaging.servicebus.message.delivery_count", deliveries),)
            since_ns = min(enqueued_ms * 1_000_000, self._tracer.now_ns())
            self._tracer.record(Step.DELIVER, parent, self._entity, since_ns, details)
            if settles:
                self._note((row, lock_id, pos), parent)

    def _note(self, key: tuple[int, int, int], parent: Parent) -> None:
        self._parents[key] = parent
        if len(self._parents) > HELD_MAX:
            self._parents.popitem(last=False)

    def settling(self, row: int, tokens: Iterable[tuple[int, int]], outcome: str) -> OnEnded | None:
        """Return the call for the answer to a settlement, or None if no trace is sampled.

        ``tokens`` are lock ids and positions.
        """
        if not self._parents:
            return None
        keys = [(row, *token) for token in tokens]
        found = [(key, parent) for key in keys if (parent := self._parents.pop(key, None)) is not None]
        if not found:
            return None
        since_ns = self._tracer.now_ns()

        def settled(error: PartibusError | None) -> None:
            for key, parent in found:
                details = (("messaging.servicebus.disposition_status", outcome),)
                self._tracer.record(Step.SETTLE, parent, self._entity, since_ns, details, error)
                if error is not None:
                    self._note(key, parent)  # the client may say it again

        return settled
