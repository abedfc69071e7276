"""The SQS port, and the service behind it, made when something is to be answered."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from partibus.frontends.admission import Admission, SignIns
from partibus.namespace.namespaces import Namespaces
from partibus.node.settings import Settings
from partibus.routing.fault_injections import CallLater
from partibus.units.fair_scheduler import FairScheduler

if TYPE_CHECKING:
    from partibus.frontends.sqs.server import SqsServer
    from partibus.frontends.sqs.service import SqsService

LOOK_S: Final = 5.0
"""How often a broker looks for message move tasks to carry out: after a take-over they pause so long."""


class SqsPort:
    """Serves SQS on a port of its own; the HTTP port uses the same service."""

    def __init__(
        self,
        settings: Settings,
        namespaces: Namespaces,
        loop: asyncio.AbstractEventLoop,
        call_later: CallLater,
        scheduler: FairScheduler,
        admission: Admission,
        sign_ins: Callable[[], SignIns],
    ) -> None:
        self._settings = settings
        self._namespaces = namespaces
        self._loop = loop
        self._call_later = call_later
        self._scheduler = scheduler
        self._admission = admission
        self._sign_ins = sign_ins
        self._service: SqsService | None = None
        self._server: SqsServer | None = None
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def service(self) -> "SqsService":
        """The service; it is imported and made on first use, which takes some 30 ms."""
        if self._service is None:
            from partibus.frontends.sqs.names import Home
            from partibus.frontends.sqs.service import SqsService

            sqs = self._settings.sqs
            self._service = SqsService(
                self._namespaces,
                Home(sqs.region, sqs.account, sqs.url.rstrip("/"), sqs.one_region, sqs.partitions_max),
                self._call_later,
                lambda: self._loop.time() * 1000,
                self._scheduler.soon,
                Uuids(),
                self._sign_ins(),
                emulator=self._settings.emulator,
                purge_interval_ms=sqs.purge_interval_s * 1000,
                propagation_ms=sqs.propagation_s * 1000,
                recreate_after_ms=self._settings.sqs_recreate_after_s * 1000,
            )
        return self._service

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        if self._server is None:
            from partibus.frontends.origins import Origins
            from partibus.frontends.sqs.server import SqsServer

            origins = Origins(self._settings.origins, public_key=self._settings.emulator)
            self._server = SqsServer(
                self.service, self._loop, self._settings.limits.http, self._admission, self._scheduler, origins
            )
        return self._server.make_protocol()

    async def start(self, host: str, port: int, *, shared: bool = False, queue: int = 100) -> int:
        """Listen without TLS; returns the port. ``shared``: with other processes that say so, too. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, reuse_port=shared)
        except OSError:
            if self._settings.sqs_port is not None or shared:
                raise
            # Another program has taken the usual port since the settings looked for it.
            listener = socket.create_server((host, 0), family=family)
        self._listener = await self._loop.create_server(self.make_protocol, sock=listener, backlog=queue)
        self._timer = self._loop.call_later(LOOK_S, self._look)
        if self._has_tasks():
            self.service.look_for_tasks()
        return int(listener.getsockname()[1])

    def _look(self) -> None:
        """Go on with message move tasks of this broker's queues."""
        self._timer = self._loop.call_later(LOOK_S, self._look)
        if self._has_tasks():
            self.service.look_for_tasks()

    def _has_tasks(self) -> bool:
        queues = self._namespaces.queues()
        return any((sqs := queue.description.options.sqs) is not None and sqs.moves for queue in queues)

    def stop(self) -> None:
        """Close the listener, and end waiting receives."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._server is not None:
            self._server.stop()


class Uuids:
    """Random ids of version 4, made by the hundred: each costs a tenth of one by itself."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def next(self) -> str:
        """Return another one."""
        if not self._made:
            self._made = _uuids()
        return self._made.pop()

    def some(self, count: int) -> list[str]:
        """Return others, at least one."""
        while len(self._made) < count:
            self._made += _uuids()
        found = self._made[-count:]
        del self._made[-count:]
        return found


def _uuids() -> list[str]:
    """Return new UUIDs (RFC 9562 5.4). Each step takes all of them at once."""
    raw = bytearray(os.urandom(16 * _MADE))
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    return (_FORM % tuple(raw.hex(" ", 2).split())).split()


_MADE: Final = 64
_VERSION: Final = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT: Final = bytes(0x80 | byte & 0x3F for byte in range(256))
_FORM: Final = _MADE * "%s%s-%s-%s-%s-%s%s%s "
