"""Clients in JavaScript: they run in Node.js processes that answer requests in lines of JSON (js/agent.js)."""

from __future__ import annotations

import atexit
import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tests.conformance.clients.interface import WAIT_S, ClientTrouble, Outgoing, Received, Session, Trouble
from tests.conformance.js.node import find_node

_SCRIPTS = Path(__file__).parents[1] / "js"


class _Node:
    """A Node.js process that runs a script: its clients share it, since the libraries take long to load."""

    def __init__(self, script: str, environment: Mapping[str, str]) -> None:
        node = find_node()
        self._numbers = count(1)
        self._lock = Lock()
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._process = subprocess.Popen(
            [str(node.executable), str(_SCRIPTS / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=node.environment() | dict(environment),
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def tell(self, **message: object) -> Future[dict[str, Any]]:
        """Send one message; the result is its answer, if it gets one."""
        answer: Future[dict[str, Any]] = Future()
        assert self._process.stdin
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answer
            self._process.stdin.write(json.dumps({"id": number, **message}) + "\n")
            self._process.stdin.flush()
        return answer

    def end(self) -> None:
        """End the process: the agent ends with its input."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                with suppress(InvalidStateError):  # of a client that was closed meanwhile
                    self._answers.pop(answer["id"]).set_result(answer)
        code = self._process.wait()
        for left in [*self._answers.values()]:
            with suppress(InvalidStateError):
                left.set_exception(AssertionError(f"Node.js ended with exit code {code}; its stderr says why"))


_nodes: dict[tuple[str, frozenset[tuple[str, str]]], _Node] = {}
_nodes_lock = Lock()
_client_numbers = count(1)


def _node_of(script: str, environment: Mapping[str, str]) -> _Node:
    key = (script, frozenset(environment.items()))
    with _nodes_lock:
        if key not in _nodes or not _nodes[key].is_running:
            _nodes[key] = _Node(script, environment)
            atexit.register(_nodes[key].end)
        return _nodes[key]


class JavaScriptAgent:
    """One client in a Node.js process."""

    def __init__(
        self,
        script: str,
        *arguments: str,
        kinds: Mapping[str, Trouble],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``kinds`` names the library's codes; ``environment`` is added to this process's own."""
        self._kinds = kinds
        self._node = _node_of(script, environment or {})
        self._number = next(_client_numbers)
        self._waiting: set[Future[dict[str, Any]]] = set()
        self._closed = False
        self._node.tell(client=self._number, op="open", arguments=arguments)

    def request(self, op: str, **arguments: object) -> Any:
        """One operation; raises `ClientTrouble` for the library's error."""
        asked = self._node.tell(client=self._number, op=op, **arguments)
        self._waiting.add(asked)
        try:
            answer = asked.result()
        finally:
            self._waiting.discard(asked)
        if "error" in answer:
            error = answer["error"]
            kind = self._kinds.get(error["code"]) or self._kinds.get(error["name"]) or Trouble.OTHER
            raise ClientTrouble(kind, f"{error['code']} ({error['name']}): {error['text']}")
        return answer["value"]

    def close(self) -> None:
        """Drop the client's connections as the end of its process would. Waiting requests fail."""
        if not self._closed:
            self._closed = True
            self._node.tell(client=self._number, op="close").result()
            for asked in [*self._waiting]:
                with suppress(InvalidStateError):
                    asked.set_exception(AssertionError("the client was closed before it had its answer"))

    def send(self, entity: str, *messages: Outgoing) -> None:
        self.request("send", entity=entity, messages=[to_json(message) for message in messages])

    def receive(self, entity: str, count: int, *, delete: bool = False, wait_s: float = WAIT_S) -> list[Received]:
        found = self.request("receive", entity=entity, count=count, delete=delete, wait_ms=int(wait_s * 1000))
        return [from_json(message) for message in found]

    def complete(self, entity: str, message: Received) -> None:
        self.request("complete", entity=entity, token=message.token)

    def abandon(self, entity: str, message: Received) -> None:
        self.request("abandon", entity=entity, token=message.token)

    def dead_letter(self, entity: str, message: Received, reason: str, description: str) -> None:
        self.request("dead_letter", entity=entity, token=message.token, reason=reason, description=description)

    def defer(self, entity: str, message: Received) -> None:
        self.request("defer", entity=entity, token=message.token)


class JavaScriptServiceBus(JavaScriptAgent):
    """@azure/service-bus."""

    def __init__(
        self,
        connection_string: str,
        *,
        websocket: bool = False,
        endpoint: str | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """``endpoint``: ``sb://host:port`` to connect to instead of that of the connection string. ``ca_file``: who is
        trusted besides those that Node.js knows."""
        super().__init__(
            "service_bus.js",
            connection_string,
            "websocket" if websocket else "tcp",
            *([endpoint] if endpoint is not None else []),
            environment={} if ca_file is None else {"NODE_EXTRA_CA_CERTS": str(ca_file)},
            kinds={
                "MessagingEntityNotFound": Trouble.NOT_FOUND,
                "UnauthorizedAccess": Trouble.UNAUTHORIZED,
                "MessageSizeExceeded": Trouble.TOO_LARGE,
                "MessagingEntityDisabled": Trouble.DISABLED,
                "MessageLockLost": Trouble.LOCK_LOST,
                "SessionLockLost": Trouble.SESSION_LOST,
                "SessionCannotBeLocked": Trouble.SESSION_HELD,
                "MessageNotFound": Trouble.MESSAGE_NOT_FOUND,
                "QuotaExceeded": Trouble.FULL,
                "ServiceBusy": Trouble.BUSY,
                "ServiceTimeout": Trouble.TIMEOUT,
                "InvalidOperationError": Trouble.NOT_ALLOWED,
                "NotImplementedError": Trouble.NOT_IMPLEMENTED,
                "ArgumentError": Trouble.ARGUMENT,
            },
        )

    def send_list(self, entity: str, messages: Sequence[Outgoing]) -> None:
        self.request("send_list", entity=entity, messages=[to_json(message) for message in messages])

    def send_batch(self, entity: str, messages: Sequence[Outgoing]) -> None:
        self.request("send_batch", entity=entity, messages=[to_json(message) for message in messages])

    def peek(self, entity: str, count: int, start: int = 1) -> list[Received]:
        found = self.request("peek", entity=entity, count=count, start=str(start))
        return [from_json(message) for message in found]

    def schedule(self, entity: str, messages: Sequence[Outgoing], at_ms: int) -> list[int]:
        found = self.request("schedule", entity=entity, messages=[to_json(m) for m in messages], at_ms=at_ms)
        return [int(number) for number in found]

    def cancel_scheduled(self, entity: str, numbers: Sequence[int]) -> None:
        self.request("cancel_scheduled", entity=entity, numbers=[str(number) for number in numbers])

    def receive_deferred(self, entity: str, numbers: Sequence[int], *, delete: bool = False) -> list[Received]:
        texts = [str(number) for number in numbers]
        found = self.request("receive_deferred", entity=entity, numbers=texts, delete=delete)
        return [from_json(message) for message in found]

    def renew_lock(self, entity: str, message: Received) -> int:
        return int(self.request("renew_lock", entity=entity, token=message.token))

    def accept_session(
        self, entity: str, session: str | None, *, delete: bool = False, wait_s: float = WAIT_S
    ) -> Session:
        wait_ms = int(wait_s * 1000)
        return Session(
            self, self.request("accept_session", entity=entity, session=session, delete=delete, wait_ms=wait_ms)
        )

    def session_facts(self, link: str) -> tuple[str, int]:
        session, locked_until_ms = self.request("session_facts", entity=link)
        return str(session), int(locked_until_ms)

    def renew_session(self, link: str) -> int:
        return int(self.request("renew_session", entity=link))

    def session_state(self, link: str) -> bytes | None:
        state = self.request("session_state", entity=link)
        return None if state is None else b64decode(state)

    def set_session_state(self, link: str, state: bytes | None) -> None:
        self.request("set_session_state", entity=link, state=None if state is None else b64encode(state).decode())

    def close_link(self, link: str) -> None:
        self.request("close_link", entity=link)

    def subscribe(self, entity: str, count: int, *, concurrent: int = 1) -> list[Received]:
        """Have messages pushed to a handler until there are so many, completed by the library when it returns."""
        found = self.request("subscribe", entity=entity, count=count, concurrent=concurrent)
        return [from_json(message) for message in found]

    def abandon_with(self, entity: str, message: Received, properties: Mapping[str, Any]) -> None:
        """Abandon, and set application properties."""
        self.request("abandon", entity=entity, token=message.token, properties=dict(properties))

    def defer_with(self, entity: str, message: Received, properties: Mapping[str, Any]) -> None:
        self.request("defer", entity=entity, token=message.token, properties=dict(properties))

    def dead_letter_with(
        self, entity: str, message: Received, reason: str, description: str, properties: Mapping[str, Any]
    ) -> None:
        self.request(
            "dead_letter",
            entity=entity,
            token=message.token,
            reason=reason,
            description=description,
            properties=dict(properties),
        )


class Rhea(JavaScriptAgent):
    """rhea, logged in with SASL PLAIN."""

    def __init__(self, host: str, port: int, policy: str, key: str, *, ca_file: Path | None = None) -> None:
        """Connect, over TLS if there is a ``ca_file``, which names the trusted authority."""
        super().__init__(
            "rhea_client.js",
            host,
            str(port),
            policy,
            key,
            *([str(ca_file)] if ca_file is not None else []),
            kinds={
                "amqp:not-found": Trouble.NOT_FOUND,
                "amqp:unauthorized-access": Trouble.UNAUTHORIZED,
                "connection_error": Trouble.UNAUTHORIZED,
                "amqp:link:message-size-exceeded": Trouble.TOO_LARGE,
                "com.microsoft:entity-disabled": Trouble.DISABLED,
                "com.microsoft:message-lock-lost": Trouble.LOCK_LOST,
                "com.microsoft:session-lock-lost": Trouble.SESSION_LOST,
                "com.microsoft:session-cannot-be-locked": Trouble.SESSION_HELD,
                "com.microsoft:message-not-found": Trouble.MESSAGE_NOT_FOUND,
                "amqp:resource-limit-exceeded": Trouble.FULL,
                "com.microsoft:server-busy": Trouble.BUSY,
                "com.microsoft:timeout": Trouble.TIMEOUT,
                "amqp:not-allowed": Trouble.NOT_ALLOWED,
                "amqp:not-implemented": Trouble.NOT_IMPLEMENTED,
                "com.microsoft:argument-error": Trouble.ARGUMENT,
            },
        )

    def accept_session(
        self, entity: str, session: str | None, *, form: str = "plain", wait_s: float = WAIT_S
    ) -> dict[str, Any]:
        """``link`` takes the place of an entity's name from then on; ``session``, ``descriptor`` and ``ticks`` are what
        the broker's attach says. ``form`` is that of the filter: ``plain``, ``go`` as the client for Go sends it, and
        others that some clients or none send."""
        answer = self.request("accept_session", entity=entity, session=session, form=form, wait_ms=int(wait_s * 1000))
        assert isinstance(answer, dict)
        return answer

    def detached(self, link: str) -> str:
        """The condition with which the broker ends a link, once it does."""
        return str(self.request("detached", entity=link))

    def close_link(self, link: str) -> None:
        self.request("close_link", entity=link)

    def abandon_with(self, entity: str, message: Received, annotations: Mapping[str, Any]) -> None:
        """The outcome modified with message annotations."""
        self.request("abandon_with", entity=entity, token=message.token, annotations=dict(annotations))


def to_json(message: Outgoing) -> dict[str, Any]:
    """Return the form that the scripts' ``toAzure`` reads."""
    return {
        "body": b64encode(message.body).decode(),
        "message_id": message.message_id,
        "partition_key": message.partition_key,
        "session_id": message.session_id,
        "subject": message.subject,
        "ttl_ms": message.ttl_ms,
        "scheduled_ms": message.scheduled_ms,
        "properties": dict(message.properties),
    }


def from_json(message: dict[str, Any]) -> Received:
    """Read the form that the scripts' ``fromAzure`` writes."""
    sequence = message.pop("sequence_number")
    return Received(
        **{**message, "body": b64decode(message["body"])},
        sequence_number=None if sequence is None else int(sequence),
    )
