"""Operations of clients of real brokers and their results, in an order that rules can check.

An operation is noted when its outcome is known. ``fail``: it was surely not done, the broker said so. ``unknown``: it
may have been done, then or later: the connection broke, or no answer came in time.
"""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from partibus.client.errors import ClientError, ConnectionLost, LinkLost, SendFailed, TimedOut
from partibus.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.plain_client import Link


_TOKEN_DIGITS = 32
_BODY = re.compile(rb"[a-z]+[0-9.]*-[0-9]+$")
"""The body of a message, with which its data ends: the name of a sender, and a number."""
_PARTITION_MASK = (1 << 48) - 1
"""Takes the partition's id away from a sequence number, and from the first half of a token."""


class Kind(StrEnum):
    """The kinds of operations."""

    SEND = "send"
    """A send of one message, whose body no other send has."""
    DELIVER = "deliver"
    """A message came; ends when the application has it."""
    LOST = "lost"
    """The first time that an owner gave a message to a front end, at ``sent_ms``, other than in a delivery that an
    application got: it was for the cache, or was given back, or a connection or a broker was lost."""
    SETTLE = "settle"
    LEFT = "left"
    """A message was still in the queue at the end of the run."""
    LOSS = "loss"
    """A broker process ended: some time after ``began_ms``, when it was last seen."""
    OUTAGE = "outage"
    """A time in which no broker could be reached, by intent."""
    LOAD = "load"
    """The time in which clients sent."""


class Outcome(StrEnum):
    """The results of operations."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Operation:
    """One, from its beginning to the moment when its outcome was known (ms since 1970, of this machine)."""

    kind: Kind
    began_ms: int
    ended_ms: int
    outcome: Outcome = Outcome.OK
    who: str = ""
    queue: str = ""
    body: str = ""
    """Names the message for its sender."""
    key: str = ""
    """Partition key or session id, "" without one."""
    sequence: int = 0
    """Names the message for the broker; the partition is in the bits from 48 on."""
    delivery_count: int = 0
    until_ms: int = 0
    """The end of the lock."""
    token: str = ""
    """The token of the lock, in hexadecimal digits."""
    action: str = ""
    """The action of a settlement: ``complete``, ``abandon`` or, of an SQS handle, ``extend`` to ``until_ms``."""
    note: str = ""
    """The error's text, or the fault's name: for people."""
    epoch: int = 0
    """The epoch of the store under which the owner of a delivery handed the message out; 0: unknown."""
    sent_ms: int = 0
    """The time at which the owner of a delivery with an epoch handed it out. The client may receive it much later."""
    since_ms: int = 0
    """The time at which the receiver of a delivery made its connection; 0: unknown."""
    dedup: str = ""
    """The deduplication id of a send to an SQS FIFO queue."""


class History:
    """Operations in the order in which their outcomes became known. For any number of threads."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._clock = SystemClock()
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def begin(self, *operations: Operation) -> None:
        """Operations that are about to be tried: of use to who may be killed before their ends."""

    def add(self, *operations: Operation) -> None:
        """Operations that have ended, in their order."""
        with self._lock:
            self.operations += operations

    def accepted(self, queue: str) -> int:
        """How many sends to a queue were acknowledged so far."""
        with self._lock:
            return sum(
                one.kind is Kind.SEND and one.outcome is Outcome.OK and one.queue == queue for one in self.operations
            )

    def write(self, path: Path) -> None:
        """One JSON object a line."""
        path.write_text("".join(json.dumps(plain(one)) + "\n" for one in self.operations))


def plain(one: Operation) -> dict[str, object]:
    """Return the form that `read_history` reads. There may be very many, and `dataclasses.asdict` is slow."""
    return {name: getattr(one, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(Operation))


def read_history(path: Path) -> list[Operation]:
    """Read the operations that `History.write` wrote. Raises ValueError or TypeError for anything else."""
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [Operation(**one | {"kind": Kind(one["kind"]), "outcome": Outcome(one["outcome"])}) for one in read]


def add_epochs(operations: list[Operation], folder: Path) -> int:
    """Add the notes of owners: to deliveries their epochs, and deliveries that no application got.

    Each line of the files in ``folder`` is ``[[counter, lock id, position, end of lock], epoch, ms, end of data]``.
    Messages of several partitions may agree in the numbers. The end of the data, in hexadecimal digits, tells which.
    Returns how many deliveries have an epoch now.
    """
    sends = {one.body: one for one in operations if one.kind is Kind.SEND}
    noted: dict[tuple[int, ...], list[tuple[int, int, str]]] = defaultdict(list)
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # a process was killed while it wrote
                given, epoch, sent_ms, data = json.loads(line)
                if (end := _BODY.search(bytes.fromhex(data))) is not None:
                    noted[tuple(given)].append((epoch, sent_ms, end[0].decode()))
    found = 0
    for one in operations:
        if one.kind is not Kind.DELIVER or len(one.token) != _TOKEN_DIGITS:
            continue
        start, pos = (int(digits, 16) for digits in (one.token[:16], one.token[16:]))
        key = one.sequence & _PARTITION_MASK, start & _PARTITION_MASK, pos, one.until_ms
        for note in noted.get(key, ()):
            epoch, sent_ms, body = note
            if body == one.body:
                one.epoch, one.sent_ms = epoch, sent_ms
                found += 1
                noted[key].remove(note)
                break
    lost: dict[str, tuple[int, int]] = {}
    for epoch, sent_ms, body in chain.from_iterable(noted.values()):
        if body in sends:
            lost[body] = min((sent_ms, epoch), lost.get(body, (sent_ms, epoch)))
    operations += (
        Operation(kind=Kind.LOST, began_ms=ms, ended_ms=ms, queue=sends[body].queue, body=body, epoch=epoch, sent_ms=ms)
        for body, (ms, epoch) in lost.items()
    )
    return found


def outcome_of(error: ClientError, link: Link) -> Outcome:
    """Return the outcome of the send or settlement that an error ended.

    A refusal by name was not carried out, except one whose outcome the broker does not know
    (`com.microsoft:timeout`). A link that ended instead, for whatever reason, says nothing.
    """
    if isinstance(error, SendFailed):
        error = error.failures[0][1]
    if link.error is not None or isinstance(error, ConnectionLost | LinkLost | TimedOut):
        return Outcome.UNKNOWN
    return Outcome.FAIL
