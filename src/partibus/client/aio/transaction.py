"""Transactions: sends and settlements on one connection that happen all or not at all."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from partibus.amqp import (
    ACCEPTED,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Disposed,
    Rejected,
    Source,
    TransactionalState,
)
from partibus.amqp import Sender as Link
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_value
from partibus.amqp.session import Session
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import Attachment
from partibus.client.errors import ClientError, ConnectionLost, InvalidRequest, LinkLost, TimedOut, error_from

_CAPABILITIES: Final = (Symbol("amqp:local-transactions"),)


class Transaction(Attachment):
    """A transaction, made by `Client.transaction` and used as ``async with``: commit at the end, roll back on an error.

    It concerns one entity (or subscriptions of one topic) and links of one connection. The broker ends it two minutes
    after its first operation.
    """

    def __init__(self, connection: Connection, entity: str) -> None:
        """Prepare a transaction. A token for ``entity`` opens it; "" for the namespace."""
        super().__init__(connection, entity, "transaction")
        connection.links -= 1  # It is short-lived: it does not count where links are dealt.
        self._link: Link | None = None
        self._id: bytes | None = None
        self._answer: asyncio.Future[DeliveryState] | None = None
        self._credit: asyncio.Future[None] | None = None
        self._lost: ClientError | None = None
        self._callbacks: list[Callable[[bool], None]] = []
        self._sends: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self.open()
            state = await self._ask(Declare())
            if not isinstance(state, Declared):
                raise ClientError(f"the transaction was not declared: the broker answered {type(state).__name__}")
        except BaseException:
            self._close()  # `async with` calls no `__aexit__` then.
            raise
        self._id = state.txn_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._id is None:
                return  # The program has committed or rolled back.
            if kind is None:
                await self.commit()
            elif self._lost is None:
                await self.roll_back()
        finally:
            self._close()

    async def commit(self) -> None:
        """Carry out the transaction's operations.

        Waits for its sends first, and rolls back if one of them failed. Raises the broker's reason if nothing of it was
        done, and `ConnectionLost` or `TimedOut` if that is unknown.
        """
        failure = await self._failed_send()
        if failure is not None and self._lost is None:
            with suppress(ClientError):  # The broker ends the transaction in time.
                await self.roll_back()
            raise ClientError(
                f"the transaction was rolled back, because a send failed: {failure}", "amqp:transaction:rollback"
            ) from failure
        try:
            await self._discharge(fail=False)
        except (ConnectionLost, LinkLost, TimedOut) as error:
            raise type(error)(
                f"{error}; the commit was sent, and may or may not be carried out (unknown)", error.condition
            ) from error

    async def _failed_send(self) -> BaseException | None:
        """Wait for all sends and return the error of one; a cancelled one is no part of the transaction."""
        while self._lost is None and (waiting := [one for one in self._sends if not one.done()]):
            await asyncio.wait(waiting)
        errors = [one.exception() for one in self._sends if one.done() and not one.cancelled()]
        return next((error for error in errors if error is not None), None)

    async def roll_back(self) -> None:
        """Drop the transaction's operations; its messages stay locked."""
        await self._discharge(fail=True)

    async def _discharge(self, *, fail: bool) -> None:
        if self._id is None:
            raise InvalidRequest("the transaction is over; begin another one")
        txn_id, self._id = self._id, None
        is_committed = False
        try:
            await self._ask(Discharge(txn_id=txn_id, fail=fail))
            is_committed = not fail
        finally:
            self._tell(is_committed)

    def tell_at_end(self, callback: Callable[[bool], None]) -> None:
        """Call a function at the end of the transaction, with True if it is committed for certain."""
        self._callbacks.append(callback)

    def wait_for(self, sending: asyncio.Future[None]) -> None:
        """Have the commit wait for a send: it may be queued for credit, or until its link is attached."""
        self._sends.append(sending)

    def _tell(self, is_committed: bool) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(is_committed)

    def state_for(self, connection: Connection, name: str, outcome: DeliveryState | None = None) -> TransactionalState:
        """Return the state that makes an operation part of the transaction. Raises `InvalidRequest`."""
        if connection is not self._connection:
            raise InvalidRequest(
                f"the {name} has another connection than the transaction; pass it to Client.transaction(beside=...)"
            )
        if self._id is None:
            raise InvalidRequest(f"{name}: the transaction is not open; use it inside of its 'async with'")
        return TransactionalState(txn_id=self._id, outcome=outcome)  # type: ignore[arg-type]

    async def _ask(self, request: Declare | Discharge) -> DeliveryState:
        if self._lost is not None:
            raise self._lost
        link = self._link
        loop = asyncio.get_running_loop()
        assert link is not None, "the link is open or lost"
        timeout_s = self._connection.settings.timeout
        try:
            async with asyncio.timeout(timeout_s):
                if not link.credit:
                    self._credit = loop.create_future()
                    await self._credit
                self._answer = loop.create_future()
                link.send(b"t", encode_value(request), None)
                self._connection.flush_soon()
                return await self._answer
        except TimeoutError:
            raise TimedOut(f"the transaction: no answer from {self._connection.peer} within {timeout_s:g} s") from None

    def _attach(self, session: Session) -> None:
        name = self._connection.link_name("$coordinator")
        self._link = session.attach_sender(
            name, source=Source(name), target=Coordinator(_CAPABILITIES), snd_settle_mode=0
        )
        self._link.user = self

    def on_credit(self) -> None:
        """Send the request that waits."""
        if self._credit is not None and not self._credit.done():
            self._credit.set_result(None)

    def on_disposed(self, event: Disposed) -> None:
        """Process the coordinator's answer."""
        if self._link is not None and not event.settled:
            self._link.settle_many(event.delivery_ids, event.state)
        answer, state = self._answer, event.state
        if answer is None or answer.done():
            return
        if isinstance(state, Rejected):
            answer.set_exception(error_from("the transaction", state.error))
        else:
            answer.set_result(state if state is not None else ACCEPTED)

    def _on_lost(self, error: ClientError) -> None:
        self._lost = LinkLost(f"the transaction was lost: {error}; nothing of it was done before its commit")
        for future in (self._answer, self._credit):
            if future is not None and not future.done():
                future.set_exception(error)

    def _close(self) -> None:
        self._tell(False)
        if not self._closed:
            self._closed = True
            self._end()
            self._connection.links += 1
