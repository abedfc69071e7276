"""Clients that write down what they do: senders, receivers and workers on sessions, each a thread with a connection."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from partibus.client.errors import ClientError, SendFailed, TimedOut
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import ABANDON, COMPLETE, NEXT_SESSION
from tests.kit.history import History, Kind, Operation, Outcome, outcome_of
from tests.kit.plain_client import connect

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from partibus.client.messages import IncomingMessage
    from tests.kit.plain_client import Client, Receiver

TIMEOUT_S = 10.0
RECONNECT_S = 0.5
"""More than the quarter of a second for which a message may be in the cache of a front end that lost its receiver."""
_PAUSE_S = 0.01
"""The pause after each message that is sent: receivers, which settle one by one, must keep up."""
_KEYED_PAUSE_S = 0.03
"""The same where a queue has one receiver, or receivers that change."""
_BATCH = 8
_BURST_MAX = 12
_LOOK_S = 0.5
_NAP_S = 1.5
"""The longest pause of a consumer; less than the shortest lock, of 5 s."""

_LATE_MS = 300
"""The time after the end of a lock at which another receiver has the message, mostly."""


class Worker:
    """Does its work over and over on a connection, and makes a new one when that is lost, until it is stopped."""

    def __init__(self, name: str, connection_string: str, queue: str, history: History, random: Random) -> None:
        self.name = name
        self.queue = queue
        self.history = history
        self.random = random
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        """The error that ended it, if it was no `ClientError`."""
        self._connection_string = connection_string
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Have it end, and wait. Raises what went wrong in it, other than what the broker answers."""
        self.stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                # On any error: only a client that goes on shows whether the brokers do.
                with suppress(ClientError), connect(self._connection_string, timeout_s=TIMEOUT_S) as client:
                    self.work(client)
                self.stopping.wait(RECONNECT_S)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`, in the thread that waits
            self.failure = error

    def work(self, client: Client) -> None:
        """Work until it is stopped. Raises `ClientError`."""
        raise NotImplementedError


class Sending(Worker):
    """Sends messages, each with a body of its own, and never sends one again: those with a key one by one, others some
    at once, so that much is under way when a broker is lost."""

    def __init__(
        self,
        name: str,
        connection_string: str,
        queue: str,
        history: History,
        random: Random,
        *,
        keys: Sequence[str] = (),
        sessions: bool = False,
        slowness: int = 1,
    ) -> None:
        """``keys``: of partitions, or for ``sessions`` their ids; no other sender has them. ``slowness`` multiplies the
        pauses."""
        super().__init__(name, connection_string, queue, history, random)
        self._keys = keys
        self._sessions = sessions
        self._slowness = slowness
        self._numbers = count()

    def work(self, client: Client) -> None:
        sender = client.sender(self.queue)
        while not self.stopping.is_set():
            sent = [self._next() for _ in range(1 if self._keys else self.random.randint(1, _BURST_MAX))]
            began_ms = self.history.now_ms()
            outcomes: dict[int, tuple[Outcome, str]] = {}
            self.history.begin(*(operation for _, operation in sent))
            try:
                sender.send([message for message, _ in sent])
            except SendFailed as error:
                outcomes = {index: (outcome_of(why, sender), str(why)) for index, why in error.failures}
            except ClientError as error:
                outcomes = dict.fromkeys(range(len(sent)), (Outcome.UNKNOWN, str(error)))
                raise
            finally:
                ended_ms = self.history.now_ms()
                for index, (_, operation) in enumerate(sent):
                    operation.began_ms, operation.ended_ms = began_ms, ended_ms
                    operation.outcome, operation.note = outcomes.get(index, (Outcome.OK, ""))
                self.history.add(*(operation for _, operation in sent))
            self.stopping.wait(self._slowness * (_KEYED_PAUSE_S if self._keys else _PAUSE_S * len(sent)))

    def _next(self) -> tuple[OutgoingMessage, Operation]:
        """A message, and what is known of its sending before."""
        key = self.random.choice(self._keys) if self._keys else ""
        body = f"{self.name}-{next(self._numbers)}"
        message = OutgoingMessage(
            body=body.encode(),
            partition_key=key if key and not self._sessions else None,
            session_id=key if self._sessions else None,
        )
        operation = Operation(
            kind=Kind.SEND, began_ms=0, ended_ms=0, who=self.name, queue=self.queue, body=body, key=key
        )
        return message, operation


class Receiving(Worker):
    """Receives and settles: mostly completes at once, now and then later or too late, or gives back."""

    def __init__(self, name: str, connection_string: str, queue: str, history: History, random: Random) -> None:
        super().__init__(name, connection_string, queue, history, random)
        self.calm = threading.Event()
        """Set: complete everything, at once."""
        self._late: list[IncomingMessage] = []
        """Left lying; to be settled when their locks have ended, which must not do anything."""
        self._since_ms = 0
        """The time of the present connection."""

    def work(self, client: Client) -> None:
        self._since_ms = self.history.now_ms()
        receiver = client.receiver(self.queue)
        self._late.clear()
        while not self.stopping.is_set():
            self._settle_late(receiver)
            self.use(receiver, self.take(receiver))

    def take(self, receiver: Receiver) -> list[IncomingMessage]:
        """Record the messages that are there."""
        began_ms = self.history.now_ms()
        messages = receiver.receive(_BATCH, _LOOK_S)
        now_ms = self.history.now_ms()
        self.history.add(*(self._delivered(one, began_ms, now_ms) for one in messages))
        return messages

    def use(self, receiver: Receiver, messages: list[IncomingMessage]) -> None:
        chance = 1.0 if self.calm.is_set() else self.random.random()
        if chance < 0.04:
            self._late += messages
            return
        if chance < 0.12:
            self.stopping.wait(self.random.uniform(0, _NAP_S))
        for message in messages:
            self.settle(receiver, message, give_back=not self.calm.is_set() and self.random.random() < 0.05)

    def settle(self, receiver: Receiver, message: IncomingMessage, *, give_back: bool = False) -> None:
        """One message, written down. Raises what leaves its fate open."""
        settlement = self._note(message, Kind.SETTLE, self.history.now_ms())
        settlement.action = "abandon" if give_back else "complete"
        self.history.begin(settlement)
        try:
            receiver.settle([message], ABANDON if give_back else COMPLETE)
        except ClientError as error:
            settlement.outcome = outcome_of(error, receiver)
            settlement.note = str(error)
            if settlement.outcome is Outcome.UNKNOWN:
                raise
        finally:
            settlement.ended_ms = self.history.now_ms()
            self.history.add(settlement)

    def _settle_late(self, receiver: Receiver) -> None:
        ended_ms = self.history.now_ms() - _LATE_MS
        while self._late and (self._late[0].locked_until_ms or 0) < ended_ms:
            self.settle(receiver, self._late.pop(0))

    def _delivered(self, message: IncomingMessage, began_ms: int, now_ms: int) -> Operation:
        note = self._note(message, Kind.DELIVER, began_ms)
        note.ended_ms = now_ms
        note.since_ms = self._since_ms
        return note

    def _note(self, message: IncomingMessage, kind: Kind, began_ms: int) -> Operation:
        return note_of(message, kind, self.queue, began_ms, self.name)


class WorkingOnSessions(Receiving):
    """Takes the next free session, some of its messages, and lets it go."""

    def work(self, client: Client) -> None:
        while not self.stopping.is_set():
            try:
                receiver = client.receiver(self.queue, session=NEXT_SESSION, session_wait_s=_LOOK_S)
            except TimedOut:
                continue  # no session has messages
            for _ in range(self.random.randint(1, 6)):
                messages = self.take(receiver)
                if not messages or self.stopping.is_set():
                    break
                self.use(receiver, messages)
            receiver.close()

    def use(self, receiver: Receiver, messages: list[IncomingMessage]) -> None:
        """Nothing is forgotten: the session goes on being held, and would wait for that message."""
        if not self.calm.is_set() and self.random.random() < 0.1:
            self.stopping.wait(self.random.uniform(0, _NAP_S))
        for message in messages:
            self.settle(receiver, message)


def note_of(message: IncomingMessage, kind: Kind, queue: str, began_ms: int, who: str = "") -> Operation:
    """Return the known facts of a delivered or stored message; the caller adds its time."""
    body = message.body
    return Operation(
        kind=kind,
        began_ms=began_ms,
        ended_ms=began_ms,
        who=who,
        queue=queue,
        body=body.decode() if isinstance(body, bytes) else str(body),
        sequence=message.sequence_number or 0,
        delivery_count=message.delivery_count,
        until_ms=message.locked_until_ms or 0,
        token=message.delivery.tag.hex() if message.delivery is not None else "",
    )


def what_is_left(client: Client, queue: str, history: History) -> None:
    """Write down every message of a queue without senders. Raises `ClientError`."""
    node = client.management(queue)
    next_number = 1
    while page := node.peek(next_number, 100):
        history.add(*(note_of(one, Kind.LEFT, queue, history.now_ms()) for one in page))
        next_number = (page[-1].sequence_number or 0) + 1
