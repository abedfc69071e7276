"""One request under way: its parameters, its client, and its one answer."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from partibus.errors import PartibusError
from partibus.frontends.sqs.errors import SqsError, missing, no_such_queue, of_core
from partibus.frontends.sqs.names import Home, QueueName, name_of_url, path_of, url_of
from partibus.frontends.sqs.protocol import Answer, Parsed, Request, answer_to, refusal_of
from partibus.frontends.sqs.queues import SqsQueue
from partibus.frontends.sqs.state import SqsState
from partibus.namespace.access import Grant, Right
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.requests import RequestKind
from partibus.throttling.uses import Operation

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]
_HTTP: Final = "http"
"""Stands for clients without connections of their own, in the records of use."""


class Caller(Struct, frozen=True):
    """The client of a request, as its signature proves."""

    name: str
    """The access key id."""
    grant: Grant | None
    """None: an emulator's client, which may do everything with queues."""
    region: str


class Call:
    """One request under way.

    An action answers once, now or later. ``on_gone`` is called when the client has left before that.
    """

    __slots__ = (
        "_respond",
        "action",
        "broker",
        "caller",
        "end_early",
        "is_answered",
        "members",
        "on_gone",
        "parsed",
        "request",
        "request_id",
        "state",
    )

    def __init__(
        self,
        state: SqsState,
        broker: Broker,
        caller: Caller,
        request: Request,
        parsed: Parsed,
        request_id: str,
        respond: Respond,
    ) -> None:
        self.state = state
        self.broker = broker
        self.caller = caller
        self.request = request
        self.parsed = parsed
        self.action = parsed.action
        self.members: Mapping[str, Any] = parsed.members or {}
        self.request_id = request_id
        self.on_gone: Callable[[], None] | None = None
        self.end_early: Callable[[], None] | None = None
        """Ends a wait for messages, since the broker stops."""
        self._respond = respond
        self.is_answered = False
        """Whether the answer was given, or the client has left."""

    # -- the answer ----------------------------------------------------------------------------------------------------

    def answer(self, output: Mapping[str, Any] | None = None) -> None:
        """Give the answer of a request that was carried out."""
        if not self.is_answered:
            self._finish(answer_to(self.parsed, output, self.request_id))

    def answer_when_followed(self, output: Mapping[str, Any] | None = None) -> None:
        """Give the answer once every broker follows the change."""
        self.broker.when_followed(lambda: self.answer(output))

    def refuse(self, error: SqsError | PartibusError) -> None:
        """Give the answer that refuses the request."""
        if not self.is_answered:
            refusal = of_core(error) if isinstance(error, PartibusError) else error
            self._finish(refusal_of(self.parsed, refusal, self.request_id))

    def fail(self) -> None:
        """Log the exception being handled, and refuse the request."""
        log.exception("an error inside of the broker ends a request for %s", self.action)
        self.refuse(SqsError("InternalFailure", "An error inside of the broker; its log says more."))

    def _finish(self, answer: Answer) -> None:
        self.is_answered = True
        self.on_gone = self.end_early = None
        self.broker.requests.answered_status(RequestKind.HTTP, answer.status)
        self._respond(answer)

    def leave(self) -> None:
        """Note that the client has left: the answer would reach no client."""
        gone, self.on_gone = self.on_gone, None
        self.is_answered = True
        if gone is not None:
            gone()

    def guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return a callback of the core whose errors refuse the request."""

        def run(*arguments: Any) -> None:
            try:
                step(*arguments)
            except (SqsError, PartibusError) as error:
                self.refuse(error)
            except Exception:  # noqa: BLE001 - a bug of ours: it ends this request and no other
                self.fail()

        return run

    # -- the queue -----------------------------------------------------------------------------------------------------

    @property
    def home(self) -> Home:
        """The region and account of this server's queues."""
        return self.state.home

    @property
    def base_url(self) -> str:
        """Scheme and host as the client has addressed the request."""
        return f"{self.request.scheme}://{self.request.headers.get('host') or 'localhost'}"

    def url_of(self, queue: QueueName) -> str:
        """Return the URL of a queue for this client."""
        return url_of(self.home, queue, self.base_url)

    def check(self, right: Right, queue: QueueName | None = None) -> None:
        """Check that the client has a right on a queue, or on the whole namespace. Raises `SqsError`."""
        grant = self.caller.grant
        if grant is None:
            return
        path: tuple[str, ...] = ()
        if queue is not None and (grant.path or grant.owner):
            path = path_of(self.home, queue)
        if not grant.allows(path, right, self.broker.wall_clock.now_ms() / 1000):
            what = f"the queue {queue.name}" if queue is not None else "the namespace"
            raise SqsError(
                "AccessDenied",
                f"The access policy {self.caller.name} does not allow {self.action} on {what}: it lacks the right "
                f"{(right.name or '').capitalize()}.",
            )

    def sees(self, queue: QueueName) -> bool:
        """Tell whether the client's policy is one of the namespace, or of that queue."""
        grant = self.caller.grant
        if grant is None:
            return True
        path = path_of(self.home, queue)
        return path[: len(grant.path)] == grant.path

    def check_any(self, queue: QueueName) -> None:
        """Check that the client has some right on a queue. Raises `SqsError`."""
        if not self.sees(queue):
            self.check(Right.LISTEN, queue)

    def queue(self, right: Right | None = None) -> SqsQueue:
        """Return the queue that the request names, if the client has that right on it, or any. Raises `SqsError`."""
        url = self.members.get("QueueUrl")
        if not url:
            raise missing("QueueUrl")
        region, name = name_of_url(url)
        return self.named(QueueName(region or self.caller.region, name), right)

    def named(self, name: QueueName, right: Right | None = None) -> SqsQueue:
        """Return a queue by name, as `queue` does."""
        home = self.state.home
        if home.one_region:
            name = QueueName(home.region, name.name)
        if right is None:
            self.check_any(name)
        else:
            self.check(right, name)
        return self.state.queues_of(self.broker).find(self.broker, name)

    def entity(self, queue: SqsQueue) -> Entity:
        """Return the entity of a queue. Raises `SqsError`."""
        if queue.queue.deleted:
            raise no_such_queue()
        return self.broker.entity_of(queue.queue)

    def required(self, name: str) -> Any:
        """Return a member of the request that must be there. Raises `SqsError`."""
        value = self.members.get(name)
        if value is None or value == "":
            raise missing(name)
        return value

    # -- credits -------------------------------------------------------------------------------------------------------

    def admit_sends(self, entity: Entity, count: int, then: Callable[[], None]) -> None:
        """Go on once the namespace has credits for so many messages; refuse the request if it has none."""
        throttle = self.broker.throttle
        if throttle.uses is not None:
            throttle.uses.add(entity.queue.name, _HTTP, Operation.SEND, 1, count)
        if not throttle.active:
            then()
            return
        self._admitted(throttle.admit_send(count, 0, self._known(then)), then)

    def admit_management(self, then: Callable[[], None]) -> None:
        """Go on once the namespace has credits for a request about queues; refuse it if it has none."""
        throttle = self.broker.throttle
        if throttle.uses is not None:
            throttle.uses.add("", _HTTP, Operation.MANAGEMENT, 1, 1)
        if not throttle.active:
            then()
            return
        self._admitted(throttle.admit(Operation.MANAGEMENT, 1, self._known(then)), then)

    def check_receives(self) -> None:
        """Refuse to receive while the namespace has no credits. Raises `ServerBusy`."""
        throttle = self.broker.throttle
        if throttle.enforces and throttle.refuses(Operation.RECEIVE):
            throttle.refused(Operation.RECEIVE)
            raise throttle.refusal()

    def charge_receives(self, entity: Entity, count: int) -> None:
        """Charge for messages that the answer has."""
        throttle = self.broker.throttle
        if throttle.uses is not None:
            throttle.uses.add(entity.queue.name, _HTTP, Operation.RECEIVE, 1, count)
        if throttle.active:
            throttle.charge(Operation.RECEIVE, count)

    def _known(self, then: Callable[[], None]) -> Callable[[bool], None]:
        return self.guarded(lambda admitted: self._admitted(admitted, then))

    def _admitted(self, admitted: bool | None, then: Callable[[], None]) -> None:
        if admitted:
            then()
        elif admitted is not None:
            self.refuse(self.broker.throttle.refusal())
