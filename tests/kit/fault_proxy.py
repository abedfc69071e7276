"""A way between a client and a server that can be bad: cut, late, slow, deaf in one direction, half closed.

```python
with FaultProxy(("127.0.0.1", server.port)) as way:
    connect_to(way.address)
    way.to_target.swallows = True   # the server hears nothing, the client hears the server
    way.heal()                      # as at the beginning; connections that lost bytes are cut
```

In user space, so that no rights are needed. TCP on this machine, or Unix sockets. It runs on a thread of its own; what
it is told holds when the call returns, for connections that there are and for those to come. The effect of a network on
packets below TCP (loss, another order) looks to both ends like `Direction.delay_s` or `Direction.holds`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

Place = tuple[str, int] | Path
"""Host and port, or the path of a Unix socket."""

CHUNK_BYTES = 1 << 16
EVENTUALLY_S = 60.0
_SLICES = 20
"""A slow direction passes on so many pieces a second."""
_LOOK_S = 0.005
_ABORT = struct.pack("ii", 1, 0)
"""`SO_LINGER` with 0 seconds: closing sends RST, and nothing that still waits."""


class Direction:
    """How bytes fare one way. Set from any thread."""

    __slots__ = ("bytes_per_s", "delay_s", "holds", "swallows")

    def __init__(self) -> None:
        self.delay_s = 0.0
        """Each piece arrives so much later; order stays."""
        self.bytes_per_s = 0
        """The rate of each connection; 0 is without limit."""
        self.swallows = False
        """Bytes are taken and never arrive."""
        self.holds = False
        """Bytes are not taken: they wait at the sender, and go on when this ends."""

    def heal(self) -> None:
        self.delay_s, self.bytes_per_s, self.swallows, self.holds = 0.0, 0, False, False


class _Connection:
    """Two sockets, and what became of what passed between them."""

    __slots__ = ("client", "loses_answer", "lost", "pumps", "server")

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.lost = False
        """Bytes are missing: it can't go on once others can."""
        self.loses_answer = False
        """Whether the connection is cut at the next byte from the server."""
        self.pumps: list[asyncio.Task[None]] = []


class FaultProxy:
    """Listens from the moment it is made until `close`."""

    def __init__(self, target: Place, listen: Place = ("127.0.0.1", 0)) -> None:
        """Raises OSError when it can't listen there. The target need not be there yet."""
        self.target = target
        """Where connections to come lead; may be set anew."""
        self.to_target = Direction()
        self.to_client = Direction()
        self.refuses = False
        """New connections are reset at once."""
        self.accepted = 0
        """Connections so far."""
        self.cuts = 0
        """Connections that were cut."""
        self._lose: tuple[Direction, int] | None = None
        self._lose_answer_bytes = 0
        self._connections: set[_Connection] = set()
        self._listener = _listening(listen)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Place:
        """Where clients connect."""
        name = self._listener.getsockname()
        return Path(name) if self._listener.family == socket.AF_UNIX else (name[0], name[1])

    @property
    def port(self) -> int:
        """The port of a TCP proxy."""
        address = self.address
        assert isinstance(address, tuple), "not a Unix socket"
        return address[1]

    @property
    def connections(self) -> int:
        """How many there are."""
        return self._call(lambda: len(self._connections))

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> int:
        """End every connection with a reset at both ends; answers how many there were."""
        return self._call(self._cut_all)

    def half_close(self, direction: Direction) -> None:
        """Tell the receiving end of every connection that nothing more comes; what comes all the same is lost."""

        def close() -> None:
            for connection in self._connections:
                connection.lost = True
                with suppress(OSError):
                    self._ends(connection, direction)[1].shutdown(socket.SHUT_WR)

        self._call(close)

    def lose_next(self, direction: Direction, at_least_bytes: int = 1) -> None:
        """Cut the connection on which the next piece of that size comes, before it is passed on."""
        self._lose = (direction, at_least_bytes)

    def lose_next_answer(self, at_least_bytes: int = 1) -> None:
        """The same, after a piece of that size is passed on to the target, and before its answer is."""
        self._lose_answer_bytes = at_least_bytes

    def heal(self) -> None:
        """All is as at the beginning. Connections of which bytes are missing are cut."""

        def heal() -> None:
            self.to_target.heal()
            self.to_client.heal()
            self.refuses = False
            self._lose = None
            self._lose_answer_bytes = 0
            for connection in [one for one in self._connections if one.lost]:
                self._cut(connection)

        self._call(heal)

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cut everything and listen no more. Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._cut_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(EVENTUALLY_S)
        self._loop.close()
        address = self._listener.getsockname() if self._listener.family == socket.AF_UNIX else None
        self._listener.close()
        if address:
            Path(address).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- on its thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        pumps = [pump for connection in self._connections for pump in connection.pumps]
        self._loop.run_until_complete(asyncio.gather(accepting, *pumps, return_exceptions=True))

    def _call(self, call: Callable[[], T]) -> T:
        async def called() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(EVENTUALLY_S)

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setblocking(False)
            self.accepted += 1
            if self.refuses:
                _abort(client)
                continue
            server = _socket(self.target)
            connection = _Connection(client, server)
            self._connections.add(connection)
            connection.pumps.append(self._loop.create_task(self._lead(connection)))

    async def _lead(self, connection: _Connection) -> None:
        target = self.target
        try:
            await self._loop.sock_connect(connection.server, target if isinstance(target, tuple) else str(target))
        except OSError:
            self._cut(connection)
            return
        for direction in (self.to_target, self.to_client):
            connection.pumps.append(self._loop.create_task(self._pump(connection, direction)))

    async def _pump(self, connection: _Connection, direction: Direction) -> None:
        source, target = self._ends(connection, direction)
        try:
            while data := await self._loop.sock_recv(source, self._most(direction)):
                while direction.holds:  # noqa: ASYNC110 (set from any thread)
                    await asyncio.sleep(_LOOK_S)
                if direction.delay_s or direction.bytes_per_s:
                    await asyncio.sleep(direction.delay_s + len(data) / (direction.bytes_per_s or 1e12))
                if self._is_lost(connection, direction, len(data)):
                    self._cut(connection)
                    return
                if direction.swallows:
                    connection.lost = True
                    continue
                await self._loop.sock_sendall(target, data)
            target.shutdown(socket.SHUT_WR)
        except OSError as error:
            # A half that was closed on purpose takes nothing more, and the other half goes on.
            if not (connection.lost and error.errno == errno.EPIPE):
                self._cut(connection)
            return
        if all(pump.done() or pump is asyncio.current_task() for pump in connection.pumps):
            self._forget(connection)

    def _is_lost(self, connection: _Connection, direction: Direction, length: int) -> bool:
        if self._lose is not None and self._lose[0] is direction and length >= self._lose[1]:
            self._lose = None
            return True
        if direction is self.to_client:
            return connection.loses_answer
        if 0 < self._lose_answer_bytes <= length:
            self._lose_answer_bytes = 0
            connection.loses_answer = True
        return False

    def _most(self, direction: Direction) -> int:
        return max(1, min(CHUNK_BYTES, direction.bytes_per_s // _SLICES)) if direction.bytes_per_s else CHUNK_BYTES

    def _ends(self, connection: _Connection, direction: Direction) -> tuple[socket.socket, socket.socket]:
        """Return the sockets to read and to write."""
        if direction is self.to_target:
            return connection.client, connection.server
        return connection.server, connection.client

    def _cut_all(self) -> int:
        there = list(self._connections)
        for connection in there:
            self._cut(connection)
        return len(there)

    def _cut(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self.cuts += 1
        for end in (connection.client, connection.server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        current = asyncio.current_task(self._loop)
        for pump in connection.pumps:
            if pump is not current:
                pump.cancel()
        # Closing waits until the cancelled have let go of the descriptors: a new socket could get the same ones.
        self._loop.call_soon(self._close, connection)

    def _close(self, connection: _Connection) -> None:
        for end in (connection.client, connection.server):
            self._loop.remove_reader(end)
            self._loop.remove_writer(end)
            end.close()


def _listening(place: Place) -> socket.socket:
    if isinstance(place, tuple):
        listener = socket.create_server(place)
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(place))
        listener.listen()
    listener.setblocking(False)
    return listener


def _socket(place: Place) -> socket.socket:
    made = socket.socket(socket.AF_INET if isinstance(place, tuple) else socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    if isinstance(place, tuple):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _abort(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    end.close()
