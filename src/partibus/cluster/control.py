"""The control line between a supervisor and one of its brokers: requests and answers, both ways, as lines of JSON.

```text
 {"ask": 7, "op": "take", "body": {...}}   ─▶   {"answer": 7, "body": {...}}   or   {"answer": 7, "error": "why not"}
 {"tell": "owners", "body": {...}}         ─▶   no answer
```

It is a pair of sockets that no other process can open, so it has no authentication or encryption. Few messages a second
travel on it, and none of them moves a message of a client. Requests are begun in the order in which they were sent.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Self

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 4 << 20
"""The longest answer names ten thousand queues in use."""

Body = Mapping[str, Any]
Handle = Callable[[str, Body], Awaitable[Body | None]]
"""A handler that gets the operation and its arguments, and returns the answer. A `ControlRefused` is sent back as its
text.
"""


class ControlLost(Exception):
    """The loss of the other end. Requests to it may have been carried out."""


class ControlRefused(Exception):
    """The other end could not do it; the text says why."""


class ControlChannel:
    """One end of the line. Made by `open`, on the loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle, on_lost: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle = handle
        self._on_lost = on_lost
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Body]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = False
        self._keep(self._read())

    @classmethod
    async def open(cls, end: socket.socket, handle: Handle, on_lost: Callable[[], None]) -> Self:
        """Take over one end of a pair.

        ``on_lost`` is called once, when the other end has closed and `close` was not called before.
        """
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=LINE_BYTES_MAX)
        return cls(reader, writer, handle, on_lost)

    async def ask(self, op: str, **body: Any) -> Body:
        """Send a request and return the answer. Raises `ControlLost`, or `ControlRefused` when the other end refused.

        Waits without a limit: the supervisor ends a process that does not answer.
        """
        if self._lost:
            raise ControlLost(f"the control channel is closed, so '{op}' can't be sent")
        number = next(self._numbers)
        answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send({"ask": number, "op": op, "body": body})
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def tell(self, op: str, **body: Any) -> None:
        """Send like `ask`, without an answer; do nothing when the other end has closed."""
        if not self._lost:
            self._send({"tell": op, "body": body})

    async def finish(self) -> None:
        """Close after the written bytes have left."""
        self.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def close(self) -> None:
        """Close the line. Idempotent."""
        self._on_lost = _nothing
        self._lose()

    def _send(self, line: dict[str, Any]) -> bool:
        """Send a line; tell whether it is short enough. The other end would close the line at a longer one."""
        data = json.dumps(line).encode() + b"\n"
        if len(data) > LINE_BYTES_MAX:
            return False
        # The transport knows a moment earlier than the reader that the other end has closed, and then takes no bytes.
        if not self._writer.is_closing():
            self._writer.write(data)
        return True

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._received(json.loads(line))
        except (OSError, ValueError, asyncio.CancelledError):
            pass
        finally:  # after a bug of ours, too: askers must not wait for ever
            self._lose()

    def _received(self, line: dict[str, Any]) -> None:
        if (number := line.get("answer")) is not None:
            answer = self._asked.get(number)
            if answer is not None and not answer.done():
                if (error := line.get("error")) is not None:
                    answer.set_exception(ControlRefused(error))
                else:
                    answer.set_result(line["body"])
        elif (op := line.get("tell")) is not None:
            self._keep(self._told(op, line["body"]))
        else:
            self._keep(self._answer(line["ask"], line["op"], line["body"]))

    async def _told(self, op: str, body: Body) -> None:
        try:
            await self._handle(op, body)
        except (ControlLost, ControlRefused) as error:
            log.warning("'%s' from the other end of the control channel could not be done: %s", op, error)

    async def _answer(self, number: int, op: str, body: Body) -> None:
        try:
            answer = {"answer": number, "body": await self._handle(op, body) or {}}
        except (ControlLost, ControlRefused) as error:
            answer = {"answer": number, "error": str(error)}
        except Exception as error:  # a bug of ours: the asker must not wait for ever
            log.exception("internal error in the operation '%s'", op)
            answer = {"answer": number, "error": f"internal error: {error}"}
        if not self._lost and not self._send(answer):
            self._send({"answer": number, "error": f"the answer to '{op}' has more than {LINE_BYTES_MAX:,} bytes"})

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ControlLost("the other end has closed the control channel"))
        self._on_lost()

    def _keep(self, work: Any) -> None:
        """Keep a task: the loop itself keeps only weak references."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _nothing() -> None:
    pass
