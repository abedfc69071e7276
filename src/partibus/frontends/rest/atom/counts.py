"""The counts of an entity, over all of its partitions (rows A3, A4)."""

from functools import partial
from typing import NamedTuple

from partibus.frontends.rest.atom.xml import COUNTS, element, text_element
from partibus.frontends.rest.requests import Ask
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.entity import EntityRoute, Inspection, inspect_each


class Counts(NamedTuple):
    """Messages by state. Partitions in stores that are away are missing."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size_bytes: int = 0
    limited: bool = False
    """Partitions are away."""

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


def ask_counts(route: EntityRoute) -> Ask[Inspection]:
    """Ask a route for all that `counts_of` counts."""
    return partial(inspect_each, route, count_scheduled=True)


def counts_of(inspection: Inspection, *, forwards: bool = False) -> Counts:
    """Return the sum over the partitions that have answered. ``forwards``: active messages wait to be forwarded."""
    messages = dict.fromkeys(SubqueueKind, 0)
    size_bytes = scheduled = 0
    for found in inspection.found.values():
        scheduled += found.scheduled
        size_bytes += found.subscriptions_bytes
        for kind, subqueue in found.subqueues.items():
            messages[SubqueueKind(kind)] += subqueue.messages
            size_bytes += subqueue.size_bytes
    # Messages that were scheduled or cancelled between the two queries may be missing in one of them.
    waiting = max(messages[SubqueueKind.ACTIVE] - scheduled, 0)
    return Counts(
        0 if forwards else waiting,
        messages[SubqueueKind.DEAD_LETTER],
        scheduled,
        messages[SubqueueKind.TRANSFER] + (waiting if forwards else 0),
        messages[SubqueueKind.TRANSFER_DEAD_LETTER],
        size_bytes,
        bool(inspection.failed),
    )


def counts_xml(counts: Counts) -> str:
    """Return ``CountDetails``.

    JavaScript reads the children by the prefix that the element's only attribute declares (trap 30).
    """
    children = (
        ("ActiveMessageCount", counts.active),
        ("DeadLetterMessageCount", counts.dead_letter),
        ("ScheduledMessageCount", counts.scheduled),
        ("TransferMessageCount", counts.transfer),
        ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
    )
    content = "".join(text_element(f"d2p1:{name}", str(count)) for name, count in children)
    return element("CountDetails", content, {"xmlns:d2p1": COUNTS})
