"""A broker per file of tests, clients on it that live as long, and queues of a test's own."""

from __future__ import annotations

import gc
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar, cast
from zlib import crc32

import pytest

from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.properties import SUBSCRIPTION_PROPERTIES
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Client, ServiceBusClient
from tests.conformance.clients.javascript import JavaScriptServiceBus, Rhea
from tests.conformance.clients.python_asyncio import PythonAsyncio
from tests.conformance.clients.python_sync import PythonSync

CountMessages = Callable[..., int]
Connect = Callable[[str], Client]
T = TypeVar("T", bound=Client)

QUEUES = ("plain", "partitioned")
"""Kinds of a test that says ``queues``: what it shows is not so of a subscription."""
SERVICE_BUS = ("python", "python-asyncio", "javascript")
PLAIN_AMQP = ("rhea", "proton")


def connect_rhea(connection_string: str) -> Client:
    return Rhea(*_login(connection_string))


def connect_proton(connection_string: str) -> Client:
    if importlib.util.find_spec("proton") is None:
        pytest.skip(
            "python-qpid-proton is not installed: it has no wheel and needs a C compiler (`make setup` says so)"
        )
    from tests.conformance.clients.proton import Proton

    return Proton(*_login(connection_string))


LIBRARIES: dict[str, Connect] = {
    "python": PythonSync,
    "python-asyncio": PythonAsyncio,
    "javascript": JavaScriptServiceBus,
    "rhea": connect_rhea,
    "proton": connect_proton,
}


PAIRS = {
    "sdk": (("python", "partitioned"), ("javascript", "plain"), ("javascript", "subscription")),
    "client": (("python", "plain"), ("javascript", "subscription"), ("rhea", "plain"), ("proton", "partitioned")),
}
"""Libraries and queues of a file that says ``PAIRED = True``. Of the two libraries for Python, which have their
protocol in common, one test runs the one and another the other."""
EVERY = {"sdk": SERVICE_BUS, "client": (*SERVICE_BUS, *PLAIN_AMQP)}
"""The libraries of each fixture."""


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Pair libraries and kinds of queues instead of running all combinations.

    Each test runs every library and every kind of queue once; another test pairs them otherwise. A file that says
    ``PAIRED`` runs `PAIRS`.
    """
    python = ("python", "python-asyncio")[crc32(metafunc.function.__name__.encode()) % 2]
    kinds = QUEUES if metafunc.definition.get_closest_marker("queues") else (*QUEUES, "subscription")
    names = {"queue"} & set(metafunc.fixturenames)
    for fixture, pairs in PAIRS.items():
        if {fixture, "queue"} <= set(metafunc.fixturenames):
            if getattr(metafunc.module, "PAIRED", False):
                chosen = [
                    (python if library == "python" else library, kind if kind in kinds else "partitioned")
                    for library, kind in pairs
                ]
            else:
                first = crc32(metafunc.function.__name__.encode())
                chosen = [(library, kinds[(first + at) % len(kinds)]) for at, library in enumerate(EVERY[fixture])]
            ids = ["-".join(pair) for pair in chosen]
            # As a mark, which takes precedence over the parameters of the fixtures.
            metafunc.definition.add_marker(pytest.mark.parametrize((fixture, "queue"), chosen, indirect=True, ids=ids))
            names.clear()
    if names and len(kinds) == len(QUEUES):
        metafunc.definition.add_marker(pytest.mark.parametrize("queue", kinds, indirect=True))


class Clients:
    """Clients of each library, made when they are first asked for."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self._clients: dict[str, Client] = {}
        self._opened: list[Client] = []

    def get(self, library: str) -> Client:
        if library not in self._clients:
            self._clients[library] = self._open(LIBRARIES[library](self._connection_string))
        return self._clients[library]

    def another(self, library: str) -> Client:
        """One that shares no connection with the others."""
        return self._open(LIBRARIES[library](self._connection_string))

    def close(self) -> None:
        """All at once: each takes up to a second, of which it waits nearly all."""
        if self._opened:
            with ThreadPoolExecutor(len(self._opened)) as pool:
                list(pool.map(lambda client: client.close(), self._opened))

    def _open(self, client: T) -> T:
        self._opened.append(client)
        return client


AHEAD_MS = 3_600_000
BROKERS = os.environ.get("PARTIBUS_TEST_BROKERS", "1")
"""Processes of the broker: what clients see must be the same with several, whichever they hit."""


@pytest.fixture(scope="module", autouse=True)
def _sockets_of_broken_connections() -> Iterator[None]:
    """The libraries for Python leave them to the garbage collector, which would warn in some test of another file."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """Stopped gracefully after the file's tests: a traceback in its log fails the last of them.

    A file that says ``CLOCK = "manual"`` gets a broker whose clock stands still until a test moves it. It is an hour
    ahead, since some libraries look at the machine's clock too, and must never find that a lock has run out.
    """
    clock = getattr(request.module, "CLOCK", "real")
    arguments = ("--clock", clock, "--brokers", BROKERS)
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=arguments) as broker:
        if clock == "manual":
            broker.advance(AHEAD_MS)
        yield broker


@pytest.fixture(autouse=True)
def _log_of_broker(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failing test shows what the broker has written meanwhile."""
    if "broker" not in request.fixturenames:
        yield
        return
    broker = cast(BrokerProcess, request.getfixturevalue("broker"))
    seen = len(broker.log)
    yield
    if news := broker.log[seen:]:
        print(f"log of the broker:\n{news}")


@pytest.fixture(scope="module")
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    with closing(Clients(broker.connection_string)) as clients:
        yield clients


@pytest.fixture(params=[*SERVICE_BUS, *PLAIN_AMQP])
def client(clients: Clients, request: pytest.FixtureRequest) -> Client:
    """Each library."""
    return clients.get(request.param)


@pytest.fixture(params=SERVICE_BUS)
def sdk(clients: Clients, request: pytest.FixtureRequest) -> ServiceBusClient:
    """Each library of the Service Bus."""
    return cast(ServiceBusClient, clients.get(request.param))


@pytest.fixture
def python(clients: Clients) -> PythonSync:
    """The blocking client for Python: where one library is enough, because the broker is what is looked at."""
    return cast(PythonSync, clients.get("python"))


@pytest.fixture
def javascript(clients: Clients) -> JavaScriptServiceBus:
    return cast(JavaScriptServiceBus, clients.get("javascript"))


@pytest.fixture
def make_queue(broker: BrokerProcess, request: pytest.FixtureRequest) -> Callable[..., str]:
    """``make_queue(LockDuration="PT5S")``: a queue that no other test uses; properties by the service's names.
    ``make_queue("topic")`` makes a topic."""
    made = 0

    def make(kind: str = "queue", **properties: object) -> str:
        nonlocal made
        made += 1
        name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")
        create = broker.create_topic if kind == "topic" else broker.create_queue
        return create(f"{name}-{made}", **properties)

    return make


@pytest.fixture
def make_subscription(broker: BrokerProcess, make_queue: Callable[..., str]) -> Callable[..., str]:
    """``make_subscription(LockDuration="PT5S")``: as `make_queue`, the only subscription of a topic of its own. Options
    that only topics have are the topic's."""

    def make(**properties: object) -> str:
        topic = make_queue(
            "topic", **{key: properties.pop(key) for key in [*properties] if key not in OF_SUBSCRIPTIONS}
        )
        return broker.create_subscription(topic, "sub", **properties)

    return make


OF_SUBSCRIPTIONS = {prop.name for prop in SUBSCRIPTION_PROPERTIES}


@pytest.fixture(params=["plain", "partitioned", "subscription"])
def queue(make_queue: Callable[..., str], make_subscription: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """A plain and a partitioned queue, and the subscription of a partitioned topic: clients need not know which."""
    if request.param == "subscription":
        return make_subscription(EnablePartitioning=True)
    return make_queue(EnablePartitioning=request.param == "partitioned")


@pytest.fixture
def messages_in(broker: BrokerProcess) -> CountMessages:
    """``messages_in(queue)``, ``messages_in(queue, dead=True)``: what is stored over all partitions, locked or not."""

    def count(name: str, *, dead: bool = False) -> int:
        info = broker.describe(name)
        assert not info.partitions_away, f"partitions {info.partitions_away} of '{name}' are away"
        return info.dead_letter_messages if dead else info.messages

    return count


def _login(connection_string: str) -> tuple[str, int, str, str]:
    """Host, port, policy and key."""
    parsed = parse_connection_string(connection_string)
    assert parsed.port is not None
    return parsed.host, parsed.port, parsed.key_name, parsed.key
