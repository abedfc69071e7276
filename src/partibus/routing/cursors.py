"""Cursors over all partitions of an entity (D14).

Each partition has a cursor of its own. This module asks all parts together and returns either all answers or one error.
When one partition refuses an exclusive reader, the leases that others granted are returned, and a cursor created for it
is dropped, because no reader would ever advance it. If messages are still locked, the leases are kept for a moment
instead, so that the next attempt finds those partitions idle. Otherwise their receivers would lock the next messages,
and a reader would never get all partitions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from partibus.errors import (
    CursorHeld,
    CursorLost,
    InvalidOperation,
    PartibusError,
    QuotaExceeded,
    ServerBusy,
    moment,
    shown,
)
from partibus.partition.core.cursors import CURSORS_MAX
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle, error_of

KEPT_MS = 10_000
"""How long partitions keep a lease for the next attempt of a reader that met locks in others."""

DROP_SOME = "Drop those without readers: partibus cursor list, partibus cursor drop."

OnStates = Callable[[dict[int, r.CursorOpened] | PartibusError], None]
"""A function that gets the cursor's state by partition id, or the error."""


class OpenAll:
    """One attempt to open a cursor; `start` begins it."""

    def __init__(
        self,
        route: EntityRoute,
        kind: int,
        name: str,
        start: Callable[[int], int],
        epochs: Mapping[int, int],
        on_done: OnStates,
        *,
        dispositions: bool,
        bound_bytes: int,
        lease_ms: int,
        revoke: bool,
    ) -> None:
        """Prepare an attempt.

        ``start`` returns a new cursor's position by partition id. ``epochs`` are those of the lease to renew, empty for
        a new one.
        """
        self._route = route
        self._kind = kind
        self._name = name
        self._start = start
        self._epochs = epochs
        self._on_done = on_done
        self._dispositions = dispositions
        self._bound_bytes = bound_bytes
        self._lease_ms = lease_ms
        self._revoke = revoke

    def start(self) -> None:
        """Ask every partition."""
        commands = {
            partition: self._command(partition, self._lease_ms, self._epochs.get(partition.partition_id, 0))
            for partition in self._route.partitions
        }
        ask_each(commands, self._answered)

    def _command(self, partition: PartitionHandle, lease_ms: int, epoch: int) -> c.OpenCursor:
        return c.OpenCursor(
            self._route.numbers.next(),
            self._kind,
            self._name,
            self._start(partition.partition_id),
            dispositions=self._dispositions,
            bound_bytes=self._bound_bytes,
            lease_ms=lease_ms,
            epoch=epoch,
            revoke=self._revoke,
        )

    def _answered(self, replies: dict[PartitionHandle, Any]) -> None:
        granted = {partition: reply for partition, reply in replies.items() if isinstance(reply, r.CursorOpened)}
        if len(granted) == len(replies):
            self._on_done({partition.partition_id: reply for partition, reply in granted.items()})
            return
        refusals = [reply for partition, reply in replies.items() if partition not in granted]
        busy = [reply for reply in refusals if isinstance(reply, r.CursorBusy)]
        error = self._error(refusals, busy)
        if not self._lease_ms or self._epochs:
            self._on_done(error)
            return
        undone: dict[PartitionHandle, c.Command] = {}
        for partition, reply in granted.items():
            if len(busy) == len(refusals):
                undone[partition] = self._command(partition, min(self._lease_ms, KEPT_MS), reply.epoch)
            else:
                number = self._route.numbers.next()
                undone[partition] = c.CloseCursor(number, self._kind, self._name, reply.epoch, drop=reply.made)
        ask_each(undone, lambda _: self._on_done(error))

    def _error(self, refusals: list[Any], busy: list[r.CursorBusy]) -> PartibusError:
        """Return the most permanent of the refusals."""
        for reply in refusals:
            if not isinstance(reply, r.CursorBusy):
                return cursor_error(reply, self._route.name, self._name)
        locked, until_ms = sum(reply.locked for reply in busy), max(reply.until_ms for reply in busy)
        return ServerBusy(
            f"{locked} messages of '{self._route.name}' are under lock, the last of them until {moment(until_ms)}. "
            f"No receiver is granted more for a moment: ask again within {KEPT_MS // 1000} s, or revoke the locks."
        )


def advance_all(
    route: EntityRoute,
    kind: int,
    name: str,
    positions: Mapping[int, int],
    disposition_positions: Mapping[int, int],
    epochs: Mapping[int, int],
    on_done: OnStates,
    only: Mapping[int, list[int]] | None = None,
) -> None:
    """Advance a cursor in the named partitions, or complete the positions in ``only`` instead.

    After an error some partitions may have done it and others not. Repeating the request is harmless.
    """
    only = only or {}
    named = sorted({*positions, *disposition_positions, *only})
    commands = {
        route.partitions[index]: c.AdvanceCursor(
            route.numbers.next(),
            kind,
            name,
            positions.get(index, 0),
            disposition_positions.get(index, -1),
            epochs.get(index, 0),
            only.get(index, []),
        )
        for index in named
    }

    def answered(replies: dict[PartitionHandle, Any]) -> None:
        for reply in replies.values():
            if not isinstance(reply, r.CursorOpened):
                on_done(cursor_error(reply, route.name, name))
                return
        on_done({partition.partition_id: reply for partition, reply in replies.items()})

    ask_each(commands, answered)


def close_all(
    route: EntityRoute,
    kind: int,
    name: str,
    epochs: Mapping[int, int],
    on_done: Callable[[PartibusError | None], None],
    *,
    drop: bool,
) -> None:
    """End a cursor's lease in every partition, or drop the cursor. The caller repeats it after an error."""
    commands = {
        partition: c.CloseCursor(route.numbers.next(), kind, name, epochs.get(partition.partition_id, 0), drop)
        for partition in route.partitions
    }

    def answered(replies: dict[PartitionHandle, Any]) -> None:
        refusals = [reply for reply in replies.values() if not isinstance(reply, r.Done)]
        on_done(cursor_error(refusals[0], route.name, name) if refusals else None)

    ask_each(commands, answered)


def ask_each(
    commands: Mapping[PartitionHandle, c.Command], on_answered: Callable[[dict[PartitionHandle, Any]], None]
) -> None:
    """Submit each partition's command; call once with all replies, in the order of the commands."""
    replies: dict[PartitionHandle, Any] = dict.fromkeys(commands)
    missing = len(commands)
    if not missing:
        on_answered(replies)
        return

    def collect(partition: PartitionHandle) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal missing
            replies[partition] = reply
            missing -= 1
            if not missing:
                on_answered(replies)

        return answered

    for partition, command in commands.items():
        partition.submit(command, collect(partition))


def cursor_error(reply: Any, entity: str, name: str) -> PartibusError:
    """Return the error for a partition's failed reply to a cursor command."""
    match reply:
        case r.CursorHeld():
            return CursorHeld(entity, reply.name, reply.until_ms)
        case r.CursorLost():
            return CursorLost(entity, name, reply.reason)
        case r.CursorRefused(forwards=True):
            return InvalidOperation(
                f"'{entity}' can't be read by the cursor {shown(name)} alone: its messages go on to another entity, "
                "where some may be stored already. Read that one, end the forwarding first, or read without a lease."
            )
        case r.CursorRefused():
            return QuotaExceeded(f"A partition of '{entity}'", CURSORS_MAX, "cursors", DROP_SOME)
        case _:
            return error_of(reply, entity)
