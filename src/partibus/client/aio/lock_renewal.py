"""The renewal of message locks while the program works on the messages."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

from partibus.amqp.errors import DecodeError
from partibus.client.aio.connection import Connection
from partibus.client.errors import ClientError, Closed, LockLost
from partibus.client.messages import IncomingMessage

RENEW_BEFORE: Final = 0.5
"""The share of a lock's remaining time after which it is renewed."""
LEAST_WAIT_S: Final = 0.05
_SOON_S: Final = 0.5
"""Locks of one receive end together: one request renews all that are due within this time."""
_RENEWED_TOGETHER: Final = 1_000
"""The most locks in one request: the broker refuses one with more than 5,000, whose locks would all end."""

Renew = Callable[[list[UUID]], Awaitable[list[int]]]
"""A request that renews locks by their tokens, and returns their new ends in Unix milliseconds."""


class Kept(NamedTuple):
    """A lock that is kept."""

    due: float
    """When to renew it, in Unix seconds; infinite while a renewal is under way."""
    limit: float
    """When to stop, in Unix seconds."""
    until_ms: int
    """When it ends, as far as is known."""


class LockRenewal:
    """The locks of one receiver's messages that are kept, each for ``limit_s`` seconds at most."""

    def __init__(self, connection: Connection, limit_s: float, renew: Renew) -> None:
        self.limit_s = limit_s
        self.kept: dict[UUID, Kept] = {}
        """Locks of messages by token."""
        self._connection = connection
        self._renew = renew
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, message: IncomingMessage) -> None:
        """Renew the lock of a message that was handed out, until `forget` or the limit."""
        token = message.lock_token
        try:
            until_ms = message.locked_until_ms
        except DecodeError:
            return  # The program sees the malformed message, and the others of the call.
        if token is not None and until_ms is not None:
            now = self._connection.wall()
            self.kept[token] = Kept(_due(now, until_ms), now + self.limit_s, until_ms)
            self._watch()

    def forget(self, message: IncomingMessage) -> None:
        """Let the lock of a message end, because the message is settled."""
        token = message.lock_token
        if token is not None:
            self.kept.pop(token, None)

    def stop(self) -> None:
        """Renew nothing from now on."""
        self.kept.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        if self._timer is None:
            due = min((kept.due for kept in self.kept.values()), default=inf)
            if due < inf:
                wait_s = max(LEAST_WAIT_S, due - self._connection.wall())
                self._timer = self._connection.loop().call_later(wait_s, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        now = self._connection.wall()
        for token in [token for token, kept in self.kept.items() if now >= kept.limit]:
            del self.kept[token]
        due = [token for token, kept in self.kept.items() if kept.due <= now + _SOON_S]
        for token in due:
            self.kept[token] = self.kept[token]._replace(due=inf)
        for first in range(0, len(due), _RENEWED_TOGETHER):
            self._connection.start(self._renew_all(due[first : first + _RENEWED_TOGETHER]))
        self._watch()

    async def _renew_all(self, tokens: list[UUID]) -> None:
        await self._try(tokens)
        if self._timer is not None:  # It may be for later ones.
            self._timer.cancel()
            self._timer = None
        self._watch()

    async def _try(self, tokens: list[UUID]) -> None:
        """Renew locks. The settlement of its message tells of a lost one."""
        try:
            ends = await self._renew(tokens)
        except LockLost:
            if len(tokens) == 1:
                self.kept.pop(tokens[0], None)
                return
            # One expired lock fails the whole request; the others are renewed alone.
            for token in tokens:
                await self._try([token])
        except Closed:
            self.kept.clear()
        except ClientError:
            self._postpone(tokens)
        else:
            now = self._connection.wall()
            for token, until_ms in zip(tokens, ends, strict=False):
                if (kept := self.kept.get(token)) is not None:
                    self.kept[token] = kept._replace(due=_due(now, until_ms), until_ms=until_ms)
            self._postpone(tokens[len(ends) :])  # A broker must not leave any out.

    def _postpone(self, tokens: list[UUID]) -> None:
        """Try again later, for as long as the locks are known to last."""
        now = self._connection.wall()
        for token in tokens:
            if (kept := self.kept.get(token)) is None:
                continue
            if now >= kept.until_ms / 1000:
                del self.kept[token]
            else:
                self.kept[token] = kept._replace(due=_due(now, kept.until_ms))


def _due(now: float, until_ms: int) -> float:
    return now + (until_ms / 1000 - now) * RENEW_BEFORE
