"""Sends under way of messages whose ids are unique in all partitions of an entity (ADR 0026).

A front end asks every partition for an id before it stores the message in one of them. Two sends of one id to two
partitions could ask first and store then, both. So each one first *announces* its ids at its own partition, and stores
only under that announcement:

```text
 announce at its own ──▶ ask each other partition ──▶ store, if the announcement still stands
                              │                              └── else begin again
                              ├── a lower partition with an announcement of the id: the answer waits for its end
                              └── a higher one with an announcement of the id: it ends there
```

Of two such sends each announces before it asks, so one of them meets the other's announcement. The lower partition
wins: the send to the higher one waits, or loses its announcement, and then finds the id known. No send waits for a
higher partition, so there is no deadlock.

Announcements are in memory only. A partition that is loaded again has none, and a send under a former one begins again.
One that is never used, since its front end has gone, ends after `INTENT_MS` by the clock of its own partition.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from partibus.partition.protocol.commands import CheckIds

INTENT_MS: Final = 10_000
"""The longest time between an announcement and the store."""


class _Intent(NamedTuple):
    until_ms: int
    ids: list[bytes]


class Intents:
    """The announcements of one partition."""

    __slots__ = ("_by_id", "_by_token", "parked")

    def __init__(self) -> None:
        self._by_token: dict[int, _Intent] = {}
        """Intents in the order in which they end."""
        self._by_id: dict[bytes, dict[int, None]] = {}
        """Tokens by id."""
        self.parked: list[tuple[CheckIds, list[bytes]]] = []
        """Questions of sends to higher partitions, and the ids that they wait for."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no announcement."""
        return not self._by_token

    def announce(self, token: int, ids: Iterable[bytes], now_ms: int) -> None:
        """Note the ids of a send under way."""
        intent = self._by_token[token] = _Intent(now_ms + INTENT_MS, list(ids))
        for item in intent.ids:
            self._by_id.setdefault(item, {})[token] = None

    def take(self, token: int, ids: Iterable[bytes], now_ms: int) -> bool:
        """End an announcement; return whether it still covered all the ids."""
        intent = self._by_token.get(token)
        if intent is None:
            return False
        self._end(token)
        return intent.until_ms > now_ms and set(ids) <= set(intent.ids)

    def revoke(self, ids: Iterable[bytes]) -> None:
        """End every announcement of these ids: a send to a lower partition goes first."""
        for item in ids:
            for token in list(self._by_id.get(item, ())):
                self._end(token)

    def _end(self, token: int) -> None:
        for item in self._by_token.pop(token).ids:
            tokens = self._by_id.get(item)
            if tokens is not None:
                tokens.pop(token, None)
                if not tokens:
                    del self._by_id[item]

    def park(self, command: CheckIds, ids: Collection[bytes]) -> bool:
        """Have a question wait if some of its ids are announced; return whether it does."""
        announced = [item for item in ids if item in self._by_id]
        if announced:
            self.parked.append((command, announced))
        return bool(announced)

    def expire(self, now_ms: int) -> None:
        """End the announcements that were never used."""
        for token in [token for token, intent in self._by_token.items() if intent.until_ms <= now_ms]:
            self._end(token)

    def released(self) -> list[CheckIds]:
        """Take the questions whose announcements have ended."""
        free = [command for command, ids in self.parked if not any(item in self._by_id for item in ids)]
        if free:
            self.parked = [one for one in self.parked if any(item in self._by_id for item in one[1])]
        return free

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has work."""
        return next((intent.until_ms for intent in self._by_token.values()), None)
