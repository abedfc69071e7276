"""The reference model of a partition: what `partibus.partition.machine` must amount to, in the most obvious code.

No paging, no rows, no bytes let go, no efficiency: every message is in one list per sub-queue, in the order in which it
is handed out. Where the machine may choose (how many messages one grant has, when an expired message is noticed) the
model is told what it chose and raises `AssertionError` if that was not allowed.

A message is known by its sequence counter, which is unique in a partition and survives dead-lettering.
"""

from dataclasses import dataclass, field

from partibus.message import Message, with_application_properties
from partibus.partition.commands import LockToken, Outcome
from partibus.partition.keys import SubqueueKind
from partibus.partition.options import PartitionOptions

READY, RESERVED, LOCKED, DOOMED = "ready", "reserved", "locked", "doomed"


@dataclass(slots=True)
class Item:
    """One message."""

    sequence: int
    pos: int
    data: bytes
    enqueued_ms: int
    expires_ms: int | None
    delivery_count: int = 0
    state: str = READY
    hold: int = 0
    """Lock or reservation id."""
    until_ms: int = 0
    reason: tuple[str | None, str | None] | None = None
    """Why a doomed message goes to the dead-letter sub-queue, once its move is due."""


@dataclass
class Model:
    """One partition."""

    options: PartitionOptions
    next_sequence: int = 1
    queues: dict[int, list[Item]] = field(
        default_factory=lambda: {SubqueueKind.ACTIVE: [], SubqueueKind.DEAD_LETTER: []}
    )

    def enqueue(self, messages: list[Message], now_ms: int) -> int:
        """Store messages at the end; the sequence counter of the first."""
        first = self.next_sequence
        for message in messages:
            ttls = [ttl for ttl in (message.ttl_ms, self.options.default_ttl_ms) if ttl is not None]
            expires_ms = now_ms + min(ttls) if ttls else None
            number = self.next_sequence
            self.queues[SubqueueKind.ACTIVE].append(Item(number, number, message.data, now_ms, expires_ms))
            self.next_sequence += 1
        return first

    def ready(self, kind: int) -> list[Item]:
        """What may be handed out, in order."""
        return [item for item in self.queues[kind] if item.state == READY]

    def held(self, kind: int, state: str) -> list[Item]:
        """What is locked, reserved or doomed."""
        return [item for item in self.queues[kind] if item.state == state]

    def grant(self, kind: int, sequences: list[int], hold: int, until_ms: int, now_ms: int, state: str) -> list[Item]:
        """Messages were handed out: must be the first that are ready, and not expired. READY: removed as well."""
        items = self.ready(kind)[: len(sequences)]
        assert [item.sequence for item in items] == sequences, f"handed out {sequences}, first in line are {items}"
        for item in items:
            assert not self._is_expired(kind, item, now_ms), f"handed out after its time to live: {item}"
        self._hold(kind, items, hold, until_ms, state)
        return items

    def lock_reserved(
        self, kind: int, tokens: list[LockToken], hold: int, until_ms: int, now_ms: int, state: str
    ) -> list[Item]:
        """Reservations become locks; the ones that lapsed or expired are left out."""
        found = self._find(kind, RESERVED, tokens, now_ms)
        items = [item for item in found if not self._is_expired(kind, item, now_ms)]
        self._hold(kind, items, hold, until_ms, state)
        return items

    def return_reserved(self, kind: int, tokens: list[LockToken], now_ms: int) -> None:
        """Reservations are given up."""
        for item in self._find(kind, RESERVED, tokens, now_ms):
            item.state = READY

    def settle(
        self,
        kind: int,
        outcome: Outcome,
        tokens: list[LockToken],
        reason: tuple[str | None, str | None],
        now_ms: int,
    ) -> list[int]:
        """Apply an outcome; the indexes of tokens whose lock had ended."""
        items = self._find(kind, LOCKED, tokens, now_ms)
        known = {(item.hold, item.pos) for item in items}
        for item in items:
            if outcome is Outcome.COMPLETE:
                self.queues[kind].remove(item)
            elif outcome is Outcome.DEAD_LETTER:
                item.state, item.reason = DOOMED, reason
            else:
                self._give_back(kind, item, counted=outcome is Outcome.ABANDON)
        return [index for index, token in enumerate(tokens) if token not in known]

    def tick(self, now_ms: int) -> None:
        """Locks and reservations that are over go back, the locks counted."""
        for kind, queue in self.queues.items():
            for item in list(queue):
                if item.state == LOCKED and item.until_ms <= now_ms:
                    self._give_back(kind, item, counted=True)
                elif item.state == RESERVED and item.until_ms <= now_ms:
                    item.state = READY

    def expire(self, kind: int, sequence: int, now_ms: int) -> None:
        """An expired message was noticed and dropped."""
        item = self.find(kind, sequence)
        assert item.state in (READY, RESERVED), f"dropped while held: {item}"
        assert self._is_expired(kind, item, now_ms), f"dropped before its time: {item}"
        assert not self.options.dead_letter_on_expiration, f"dropped, not dead-lettered: {item}"
        self.queues[kind].remove(item)

    def dead_letter(self, kind: int, sequence: int, pos: int, now_ms: int) -> Item:
        """A message went to the end of the dead-letter sub-queue."""
        item = self.find(kind, sequence)
        if item.state in (READY, RESERVED):
            assert self._is_expired(kind, item, now_ms), f"dead-lettered for no reason: {item}"
            assert self.options.dead_letter_on_expiration, f"dead-lettered, not dropped: {item}"
            item.reason = ("TTLExpiredException", "The message expired and was dead lettered.")
        else:
            assert item.state == DOOMED, f"dead-lettered while held: {item}"
        assert item.reason is not None
        names = ("DeadLetterReason", "DeadLetterErrorDescription")
        changes = {name: text for name, text in zip(names, item.reason, strict=True) if text is not None}
        if changes:
            item.data = with_application_properties(item.data, changes)
        self.queues[kind].remove(item)
        self.queues[SubqueueKind.DEAD_LETTER].append(item)
        item.state, item.pos, item.expires_ms, item.reason = READY, pos, None, None
        return item

    def forget_memory(self) -> None:
        """A crash: what is kept in memory only is gone."""
        for queue in self.queues.values():
            for item in queue:
                if item.state == RESERVED:
                    item.state = READY

    def find(self, kind: int, sequence: int) -> Item:
        """The message, which must be there."""
        found = [item for item in self.queues[kind] if item.sequence == sequence]
        assert found, f"no message {sequence} in sub-queue {kind}"
        return found[0]

    def _find(self, kind: int, state: str, tokens: list[LockToken], now_ms: int) -> list[Item]:
        by_token = {(item.hold, item.pos): item for item in self.held(kind, state) if item.until_ms > now_ms}
        return [by_token[token] for token in dict.fromkeys(tokens) if token in by_token]

    def _hold(self, kind: int, items: list[Item], hold: int, until_ms: int, state: str) -> None:
        for item in items:
            item.state, item.hold, item.until_ms = state, hold, until_ms
            if state == READY:
                self.queues[kind].remove(item)

    def _give_back(self, kind: int, item: Item, *, counted: bool) -> None:
        item.state = READY
        item.delivery_count += counted
        if kind == SubqueueKind.ACTIVE and item.delivery_count >= self.options.max_delivery_count:
            text = f"Message could not be consumed after {self.options.max_delivery_count} delivery attempts."
            item.state, item.reason = DOOMED, ("MaxDeliveryCountExceeded", text)

    @staticmethod
    def _is_expired(kind: int, item: Item, now_ms: int) -> bool:
        return kind == SubqueueKind.ACTIVE and item.expires_ms is not None and item.expires_ms <= now_ms
