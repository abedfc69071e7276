"""The renewal of message locks while the program works on the messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from partibus.amqp.errors import DecodeError
from partibus.client.aio.connection import Connection
from partibus.client.errors import ClientError, LockLost
from partibus.client.messages import IncomingMessage

RENEW_BEFORE: Final = 0.5
"""The share of a lock's remaining time after which it is renewed."""
LEAST_WAIT_S: Final = 0.05
_SOON_S: Final = 0.5
"""Locks of one receive end together: one request renews all that are due within this time."""

Renew = Callable[[list[UUID]], Awaitable[list[int]]]
"""A request that renews locks by their tokens, and returns their new ends in Unix milliseconds."""


class LockRenewal:
    """The locks of one receiver's messages that are kept, each for ``limit_s`` seconds at most."""

    def __init__(self, connection: Connection, limit_s: float, renew: Renew) -> None:
        self.limit_s = limit_s
        self.kept: dict[UUID, tuple[float, float]] = {}
        """When to renew the lock of a message, and until when at most (Unix seconds), by token."""
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
            self.kept[token] = (_due(now, until_ms), now + self.limit_s)
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
        if self._timer is None and self.kept:
            due = min(at for at, _ in self.kept.values()) - self._connection.wall()
            self._timer = self._connection.loop().call_later(max(LEAST_WAIT_S, due), self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        now = self._connection.wall()
        for token in [token for token, (_, end) in self.kept.items() if now >= end]:
            del self.kept[token]
        due = [token for token, (at, _) in self.kept.items() if at <= now + _SOON_S]
        if due:
            self._connection.start(self._renew_all(due))
        else:
            self._watch()

    async def _renew_all(self, tokens: list[UUID]) -> None:
        """Renew locks. The settlement of its message tells of a lost one."""
        ends = await self._ends(tokens)
        now = self._connection.wall()
        for token, until_ms in zip(tokens, ends, strict=False):
            kept = self.kept.get(token)
            if kept is None:
                continue
            if until_ms is None:
                del self.kept[token]
            else:
                self.kept[token] = (_due(now, until_ms), kept[1])
        self._watch()

    async def _ends(self, tokens: list[UUID]) -> list[int | None]:
        """Request renewal; return the new ends, None for locks that were not renewed."""
        try:
            return list(await self._renew(tokens))
        except LockLost:
            if len(tokens) == 1:
                return [None]
            # One expired lock fails the whole request; the others are renewed alone.
            return [end for token in tokens for end in await self._ends([token])]
        except ClientError:
            return [None] * len(tokens)


def _due(now: float, until_ms: int) -> float:
    return now + (until_ms / 1000 - now) * RENEW_BEFORE
