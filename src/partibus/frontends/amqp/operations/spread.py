"""Requests to several partitions: distribution of the commands, and collection of the answers.

Each partition succeeds or fails alone: the work of one stays done when another fails. The operations explain the
consequences to their callers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from partibus.errors import ArgumentError, MessageNotFound, PartibusError
from partibus.frontends.amqp.operations.request import SESSION_ID, EntityRequest, HeldSession, optional_text
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import Command, LockToken
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.lock_tokens import read_token
from partibus.routing.partitions import PartitionHandle
from partibus.routing.send import COUNTER_BITS

COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1

Ask = tuple[PartitionHandle, Command]


def ask_all(asks: Sequence[Ask], on_answered: Callable[[list[Any]], None]) -> None:
    """Send each partition its command; call back once with all replies, in the order of the commands."""
    replies: list[Any] = [None] * len(asks)
    missing = len(asks)

    def collect(index: int) -> Callable[[Any], None]:
        def answered(reply: Any) -> None:
            nonlocal missing
            replies[index] = reply
            missing -= 1
            if not missing:
                on_answered(replies)

        return answered

    for index, (partition, command) in enumerate(asks):
        partition.submit(command, collect(index))


def counters_by_partition(entity: Entity, what: str, numbers: Iterable[int]) -> dict[PartitionHandle, list[int]]:
    """Group counters of sequence numbers by the partition that they name (D9).

    Raises `MessageNotFound`, which calls the messages ``what``, for numbers that no message of this entity can have.
    """
    partitions = entity.route.partitions
    found: dict[PartitionHandle, list[int]] = {}
    strange: list[int] = []
    for number in numbers:
        partition_id, counter = number >> COUNTER_BITS, number & COUNTER_MAX
        if 0 <= partition_id < len(partitions) and counter:
            found.setdefault(partitions[partition_id], []).append(counter)
        else:
            strange.append(number)
    if strange:
        raise MessageNotFound(entity.queue.name, what, strange)
    return found


def numbers_of(partition: PartitionHandle, counters: Iterable[int]) -> list[int]:
    """Return sequence numbers as they are on the wire."""
    return [partition.partition_id << COUNTER_BITS | counter for counter in counters]


def tokens_by_partition(
    entity: Entity, tokens: Iterable[UUID], held: HeldSession | None, lost: PartibusError
) -> dict[PartitionHandle, list[LockToken]]:
    """Group lock tokens by the partition that they name, without repetitions.

    Raises ``lost``, before any command is sent, for a token that this entity never issued, or that is not of the held
    session. Tokens are compared by their bytes: a client can choose thousands of UUIDs with one hash.
    """
    partitions = entity.route.partitions
    found: dict[PartitionHandle, list[LockToken]] = {}
    for token in {token.bytes: token for token in tokens}.values():
        partition_id, lock_id, pos = read_token(token)
        if partition_id >= len(partitions):
            raise lost
        partition = partitions[partition_id]
        if held is not None and (partition is not held.partition or lock_id != held.lock_id):
            raise lost
        found.setdefault(partition, []).append((lock_id, pos))
    return found


def held_session(request: EntityRequest) -> HeldSession | None:
    """Return the lock of the request's session; None on a sub-queue without sessions.

    Raises `ArgumentError` if the request names none, and `SessionLockLost` if no link of the same connection holds it:
    only its holder may use a session's messages (section 5.3).
    """
    entity = request.entity
    session = optional_text(request.arguments, SESSION_ID)
    if not entity.queue.has_sessions or request.kind != SubqueueKind.ACTIVE:
        return None
    if session is None:
        raise ArgumentError(
            SESSION_ID,
            None,
            f"a session of '{entity.queue.name}' that this connection holds",
            "Accept a session first.",
        )
    return request.lock_of(session)
