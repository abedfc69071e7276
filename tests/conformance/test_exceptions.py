"""Each exception of azure-servicebus and each code of @azure/service-bus, brought about by what it is there for."""

from __future__ import annotations

import inspect
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import AutoLockRenewer, ServiceBusMessage, exceptions
from azure.servicebus import ServiceBusClient as AzureClient

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import OPTIONS
from tests.conformance.clients.interface import (
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import EVENTUALLY_S, eventually

MakeQueue = Callable[..., str]
MESSAGE = Outgoing(b"x")
TOO_LARGE = Outgoing(bytes(300_000))
LOCK_MS = 60_000
CLOCK = "manual"

# The library leaves the sockets of broken connections to the garbage collector, which would warn at some later time.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

NOT_OF_A_QUEUE = {
    "MessagingEntityAlreadyExistsError": "adding a rule to a subscription twice",
    "ServiceBusCommunicationError": "the library keeps it for a connection that is refused as not found",
}
"""Errors that no request to a queue causes."""


# What brings each about: by the blocking client for Python -----------------------------------------------------------


class Python:
    """One method for each exception, named like it."""

    def __init__(self, broker: BrokerProcess, client: PythonSync, make_queue: MakeQueue) -> None:
        self.broker = broker
        self.client = client
        self.azure = client.azure
        self.make_queue = make_queue

    def ServiceBusError(self) -> None:  # noqa: N802
        """An error without a class of its own: here an operation that is not allowed."""
        self.azure.get_queue_receiver(self.make_queue(), session_id="a").__enter__()

    def ServiceBusAuthenticationError(self) -> None:  # noqa: N802
        wrong = self.broker.connection_string.replace("SAS_KEY_VALUE", "WRONG_KEY_VALUE")
        with AzureClient.from_connection_string(wrong, **OPTIONS) as client:
            client.get_queue_sender(self.make_queue()).__enter__()

    def OperationTimeoutError(self) -> None:  # noqa: N802
        self.client.accept_session(self.make_queue(RequiresSession=True), None, wait_s=1)

    def MessageSizeExceededError(self) -> None:  # noqa: N802
        self.client.sender(self.make_queue()).send_messages(ServiceBusMessage(TOO_LARGE.body))

    def MessageAlreadySettled(self) -> None:  # noqa: N802
        queue, message = self.locked()
        for _ in range(2):
            self.client.receiver(queue).complete_message(message)

    def MessageLockLostError(self) -> None:  # noqa: N802
        queue, message = self.locked()
        self.broker.advance(LOCK_MS)
        self.client.receiver(queue).complete_message(message)

    def SessionLockLostError(self) -> None:  # noqa: N802
        session = self.client.accept_session(self.make_queue(RequiresSession=True), "a")
        self.broker.advance(LOCK_MS)
        self.client.receiver(session.link).session.renew_lock()

    def SessionCannotBeLockedError(self) -> None:  # noqa: N802
        queue = self.make_queue(RequiresSession=True)
        with (
            self.azure.get_queue_receiver(queue, session_id="a"),
            self.azure.get_queue_receiver(queue, session_id="a"),
        ):
            pass

    def MessageNotFoundError(self) -> None:  # noqa: N802
        self.client.receiver(self.make_queue()).receive_deferred_messages([1])

    def MessagingEntityNotFoundError(self) -> None:  # noqa: N802
        self.azure.get_queue_sender("no-such-queue").__enter__()

    def MessagingEntityDisabledError(self) -> None:  # noqa: N802
        self.azure.get_queue_receiver(self.make_queue(Status="Disabled")).__enter__()

    def locked(self) -> tuple[str, Any]:
        queue = self.make_queue()
        self.client.send(queue, MESSAGE)
        (message,) = receive_all(self.client, queue, 1)
        return queue, message.token


OF_PYTHON = [name for name, member in vars(Python).items() if inspect.isfunction(member) and name[0].isupper()]


@pytest.mark.parametrize("name", OF_PYTHON)
def test_exception_of_python(broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, name: str) -> None:
    bring_about: Callable[[], None] = getattr(Python(broker, python, make_queue), name)
    with pytest.raises(Exception) as raised:
        bring_about()
    error = raised.value.__cause__ if isinstance(raised.value, ClientTrouble) else raised.value
    assert type(error) is getattr(exceptions, name)


def test_no_exception_of_the_library_is_left_out() -> None:
    """Errors that need a broker of their own have a test below with their name."""
    documented = {
        name
        for name, member in vars(exceptions).items()
        if inspect.isclass(member) and issubclass(member, AzureError | ValueError) and member is not AzureError
    }
    with_test = {name for name in documented if f"test_{name}" in globals()}
    assert documented == set(OF_PYTHON) | with_test | set(NOT_OF_A_QUEUE)


# Those that need a broker of their own ------------------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q")
        yield broker


@pytest.fixture
def full(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One whose stores find no room: files may not grow to what each holds back."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ExitStack() as ending:
        resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, limit[1]))  # inherited when it starts
        try:
            broker = ending.enter_context(BrokerProcess(tmp_path))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        broker.create_queue("q")
        yield broker


def test_ServiceBusConnectionError(other: BrokerProcess) -> None:  # noqa: N802
    with closing(PythonSync(other.connection_string)) as client:
        client.send("q", MESSAGE)
        other.kill()
        with pytest.raises(exceptions.ServiceBusConnectionError):
            client.sender("q").send_messages(ServiceBusMessage(b"x"))


def test_ServiceBusServerBusyError(other: BrokerProcess) -> None:  # noqa: N802
    """A store that can't be used just now, which is so as soon as it has been found out."""
    pid = other.ready["pid"]
    limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    with (
        closing(PythonSync(other.connection_string)) as python,
        closing(JavaScriptServiceBus(other.connection_string)) as javascript,
    ):
        python.send("q", MESSAGE)
        # So little that the store can't be opened again: the JavaScript client waits 20 s for a send whose outcome is
        # unknown, and each commit of a store that was opened could fail so.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, limit[1]))
        try:
            for client in (python, javascript):
                assert first_trouble(client, Trouble.BUSY)
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def first_trouble(client: ServiceBusClient, kind: Trouble) -> bool:
    """Send until this comes, whatever else comes before."""
    for _ in range(50):
        try:
            client.send("q", Outgoing(bytes(200_000)))
        except ClientTrouble as trouble:
            if trouble.kind is kind:
                return True
    return False


def test_ServiceBusQuotaExceededError(full: BrokerProcess) -> None:  # noqa: N802
    with (
        closing(PythonSync(full.connection_string)) as python,
        closing(JavaScriptServiceBus(full.connection_string)) as javascript,
    ):
        for client in (python, javascript):
            with pytest.raises(ClientTrouble) as refused:
                client.send("q", MESSAGE)
            assert refused.value.kind is Trouble.FULL
            assert client.peek("q", 1) == []


def test_ServiceBusAuthorizationError(tmp_path: Path) -> None:  # noqa: N802
    """A policy that may listen, and no more."""
    keys = tmp_path / "data" / "keys.json"
    keys.parent.mkdir(mode=0o700)
    secret = "k" * 40
    policies = [
        {"name": name, "rights": [right], "primaryKey": secret, "secondaryKey": ""}
        for name, right in (("RootManageSharedAccessKey", "Manage"), ("reader", "Listen"))
    ]
    keys.touch(mode=0o600)
    keys.write_text(json.dumps({"version": 1, "policies": policies}))
    with BrokerProcess(tmp_path, emulator=False) as other:
        other.create_queue("q")
        reader = other.connection_string.replace("RootManageSharedAccessKey", "reader")
        with (
            closing(PythonSync(reader)) as python,
            closing(JavaScriptServiceBus(reader)) as javascript,
        ):
            for client in (python, javascript):
                assert client.peek("q", 1) == []
                with pytest.raises(ClientTrouble) as refused:
                    client.send("q", MESSAGE)
                assert refused.value.kind is Trouble.UNAUTHORIZED
            # This one needs no link for it: the operation itself is refused.
            with pytest.raises(ClientTrouble) as refused:
                javascript.cancel_scheduled("q", [1])
            assert refused.value.kind is Trouble.UNAUTHORIZED
            with pytest.raises(exceptions.ServiceBusAuthorizationError), python.azure.get_queue_sender("q"):
                pass


def test_AutoLockRenewFailed(tmp_path: Path) -> None:  # noqa: N802
    """The broker's clock is moved behind the library's back."""
    failures: SimpleQueue[Exception | None] = SimpleQueue()
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as other:
        other.create_queue("q", LockDuration="PT16S")  # renewed ten seconds before its end, shorter ones two
        renewer = AutoLockRenewer(on_lock_renew_failure=lambda _message, error: failures.put(error))
        with (
            closing(PythonSync(other.connection_string)) as client,
            closing(renewer),
            client.azure.get_queue_receiver("q", auto_lock_renewer=renewer) as receiver,
        ):
            client.send("q", MESSAGE)
            receiver.receive_messages(1, EVENTUALLY_S)
            other.advance(16_000)
            error = failures.get(timeout=EVENTUALLY_S)
    assert type(error) is exceptions.AutoLockRenewFailed


def test_AutoLockRenewTimeout(other: BrokerProcess) -> None:  # noqa: N802
    """The time for which an application wants a lock renewed ends before the lock does."""
    with closing(PythonSync(other.connection_string)) as client, AutoLockRenewer() as renewer:
        client.send("q", MESSAGE)
        (message,) = client.receiver("q").receive_messages(1, EVENTUALLY_S)
        renewer.register(client.receiver("q"), message, max_lock_renewal_duration=0.1)
        eventually("the renewal has failed", lambda: message.auto_renew_error is not None)
        assert type(message.auto_renew_error) is exceptions.AutoLockRenewTimeout
        client.receiver("q").complete_message(message)


# Codes of JavaScript ------------------------------------------------------------------------------------------------


class JavaScript:
    """One method for each code, named like it, that nothing above has brought about."""

    def __init__(self, broker: BrokerProcess, client: JavaScriptServiceBus, make_queue: MakeQueue) -> None:
        self.broker = broker
        self.client = client
        self.make_queue = make_queue

    def GeneralError(self) -> None:  # noqa: N802
        """An error without a code of its own: here an operation that is not allowed."""
        self.client.accept_session(self.make_queue(), None)

    def MessagingEntityNotFound(self) -> None:  # noqa: N802
        self.client.send("no-such-queue", MESSAGE)

    def MessageLockLost(self) -> None:  # noqa: N802
        queue = self.make_queue()
        self.client.send(queue, MESSAGE)
        (message,) = receive_all(self.client, queue, 1)
        self.broker.advance(LOCK_MS)
        self.client.complete(queue, message)

    def MessageNotFound(self) -> None:  # noqa: N802
        self.client.receive_deferred(self.make_queue(), [1])

    def MessageSizeExceeded(self) -> None:  # noqa: N802
        self.client.send(self.make_queue(), TOO_LARGE)

    def MessagingEntityDisabled(self) -> None:  # noqa: N802
        self.client.send(self.make_queue(Status="Disabled"), MESSAGE)

    def ServiceTimeout(self) -> None:  # noqa: N802
        self.client.accept_session(self.make_queue(RequiresSession=True), None, wait_s=1)

    def SessionCannotBeLocked(self) -> None:  # noqa: N802
        queue = self.make_queue(RequiresSession=True)
        for _ in range(2):
            self.client.accept_session(queue, "a")

    def SessionLockLost(self) -> None:  # noqa: N802
        session = self.client.accept_session(self.make_queue(RequiresSession=True), "a")
        self.broker.advance(LOCK_MS)
        session.renew()


OF_JAVASCRIPT = [name for name, member in vars(JavaScript).items() if inspect.isfunction(member) and name[0].isupper()]


@pytest.mark.parametrize("code", OF_JAVASCRIPT)
def test_code_of_javascript(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue, code: str
) -> None:
    bring_about: Callable[[], None] = getattr(JavaScript(broker, javascript, make_queue), code)
    with pytest.raises(ClientTrouble) as refused:
        bring_about()
    # The adapter names what is general by the name of its condition.
    assert refused.value.text.split(" ")[0] == ("InvalidOperationError" if code == "GeneralError" else code)
