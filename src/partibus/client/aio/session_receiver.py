"""Receiving from one session: the receiver holds its lock, renews it, and reads and writes its state."""

import asyncio
from typing import Final

from partibus.amqp import Source
from partibus.amqp.codec.types import Symbol, UInt
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import repeat
from partibus.client.aio.lock_renewal import LEAST_WAIT_S, RENEW_BEFORE
from partibus.client.aio.receiver import Receiver
from partibus.client.aio.settings import retriable
from partibus.client.aio.settlements import Settling
from partibus.client.errors import ClientError, Closed, InvalidRequest, LockLost, SessionHeld, TimedOut
from partibus.client.management import integer
from partibus.client.outcomes import NextSession, ReceiveMode

_WAIT_MAX_S: Final = 65.0
"""The longest wait for the next session that the service allows."""
_TICKS_OF_1970: Final = 621_355_968_000_000_000
"""Ticks of 100 ns between year 1 and 1970, as sessions state the end of their lock."""
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_SESSION_WAIT: Final = Symbol("com.microsoft:timeout")
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"


class SessionReceiver(Receiver):
    """A receiver that holds one session, made by `Client.session_receiver`; `open` waits for the session.

    The loss of the link ends the lock of the session. Every call raises `LockLost` then.
    """

    def __init__(
        self,
        connection: Connection,
        entity: str,
        session_id: str | NextSession,
        *,
        mode: ReceiveMode,
        prefetch: int,
        auto_renew: float,
        flush_interval: float,
        max_wait: float,
    ) -> None:
        wanted = "the next session" if isinstance(session_id, NextSession) else f"session '{session_id}'"
        super().__init__(
            connection,
            entity,
            mode=mode,
            prefetch=prefetch,
            auto_renew=0.0,
            flush_interval=flush_interval,
            name=f"receiver of {wanted} of '{entity}'",
        )
        self._wanted = session_id
        self._max_wait = max_wait
        self._wait_until = 0.0
        self._keep_session_s = auto_renew
        self._keeping: asyncio.TimerHandle | None = None
        self._keep_until = 0.0
        self.session_id: str | None = None if isinstance(session_id, NextSession) else session_id
        """The session that the receiver holds; None before the next one is found."""
        self.locked_until_ms: int | None = None
        """When the lock of the session ends, as Unix time in milliseconds."""

    async def renew_session_lock(self) -> int:
        """Renew the lock of the session and return its new end, as Unix time in milliseconds. Raises `LockLost`."""
        reply = await self._request("com.microsoft:renew-session-lock", self._named())
        self.locked_until_ms = integer(reply, "expiration")
        return self.locked_until_ms

    async def get_state(self) -> bytes | None:
        """Return the state of the session, None if it has none. Raises `LockLost`."""
        state = (await self._request("com.microsoft:get-session-state", self._named())).get("session-state")
        return state if isinstance(state, bytes) else None

    async def set_state(self, state: bytes | None) -> None:
        """Set the state of the session; None removes it. Raises `LockLost`."""
        await self._request("com.microsoft:set-session-state", self._named() | {"session-state": state})

    def _named(self) -> dict[str, object]:
        if self.session_id is None:
            raise InvalidRequest(f"{self.name}: there is no session yet; await open()")
        return {"session-id": self.session_id}

    @property
    def _session_of_requests(self) -> str | None:
        return self.session_id

    def _open_timeout(self) -> float:
        return self._max_wait + self._connection.settings.timeout

    async def _open(self) -> None:
        """Wait for the session. The broker has the shorter time limit: then no session stays locked."""
        deadline = self._wait_until = self._loop.time() + self._max_wait

        def worth_repeating(error: BaseException) -> bool:
            if isinstance(error, TimedOut | SessionHeld) and deadline - self._loop.time() < 1.0:
                return False
            return retriable(error)

        await repeat(self._connection, f"opening the {self.name}", self._attempt, self._open_timeout(), worth_repeating)

    def _filter(self) -> dict[object, object] | None:
        return {_SESSION_FILTER: None if isinstance(self._wanted, NextSession) else self._wanted}

    def _properties(self) -> dict[object, object] | None:
        if not isinstance(self._wanted, NextSession):
            return None
        left_s = max(0.0, self._wait_until - self._loop.time())
        return {_SESSION_WAIT: UInt(int(min(left_s, _WAIT_MAX_S) * 1000))}

    def _on_open(self) -> None:
        link = self._link
        assert link is not None
        source = link.source
        found = source.filter.get(_SESSION_FILTER) if isinstance(source, Source) and source.filter else None
        if isinstance(found, str):
            self.session_id = str(found)
            self.name = f"receiver of session '{found}' of '{self.entity}'"
        ticks = (link.properties or {}).get(_LOCKED_UNTIL)
        if isinstance(ticks, int):
            self.locked_until_ms = (ticks - _TICKS_OF_1970) // 10_000
        self._keep_until = self._connection.wall() + self._keep_session_s
        self._watch_session()
        super()._on_open()

    def _watch_session(self) -> None:
        if not self._keep_session_s or self.locked_until_ms is None or self._closed or self._error is not None:
            return
        now = self._connection.wall()
        if now < self._keep_until:
            due = max(LEAST_WAIT_S, (self.locked_until_ms / 1000 - now) * RENEW_BEFORE)
            self._keeping = self._loop.call_later(due, self._keep_session)

    def _keep_session(self) -> None:
        self._connection.start(self._keep())

    async def _keep(self) -> None:
        try:
            await self.renew_session_lock()
        except (LockLost, Closed):
            return  # The broker detaches the link of a lost session.
        except ClientError:
            # Try again for as long as the lock is known to last.
            if self._connection.wall() >= (self.locked_until_ms or 0) / 1000:
                return
        self._watch_session()

    def _settle_again(self, settling: list[Settling], unsent: set[int], error: ClientError) -> None:
        """Fail settlements without an answer: their locks have ended with the link."""
        lost = LockLost(
            f"{self.name}: the link was lost and the session's lock with it", "com.microsoft:session-lock-lost"
        )
        self._settlements.fail(settling, unsent, lost)

    def _after_loss(self, error: ClientError) -> None:
        self._error = LockLost(
            f"the {self.name} has lost its lock: {error}; open a new receiver", "com.microsoft:session-lock-lost"
        )
        self._incoming.cache.clear()
        self._incoming.fail(self._error)

    async def close(self) -> None:
        """Detach, which ends the lock of the session. Otherwise as `Receiver.close`."""
        if self._keeping is not None:
            self._keeping.cancel()
        await super().close()
