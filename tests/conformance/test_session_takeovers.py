"""The holder of a session keeps it when the broker that owns its store is killed, or gives the store back (D21)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import ClientTrouble, Outgoing, ServiceBusClient, Trouble
from tests.conformance.conftest import LIBRARIES
from tests.conformance.several import Holder, Leaving, all_well, status
from tests.kit.eventually import eventually

# Python clients leave the sockets of a killed broker to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

HOLDERS = 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, arguments=("--brokers", "3")) as broker:
        eventually("all of them serve", lambda: all_well(broker))
        yield broker


@pytest.mark.row("K4", "P4")
@pytest.mark.parametrize("library", ["javascript", "python"])
def test_a_session_outlives_the_owner_of_its_store(broker: BrokerProcess, library: str) -> None:
    queue = broker.create_queue("sessions", EnablePartitioning=True, RequiresSession=True, LockDuration="PT5M")
    names = [f"s{number}" for number in range(HOLDERS)]
    with ExitStack() as stack:
        sender = stack.enter_context(closing(cast(ServiceBusClient, LIBRARIES["python"](broker.connection_string))))
        sender.send(queue, *(Outgoing(b"%d" % count, session_id=name) for name in names for count in range(4)))
        holders = [Holder(stack, broker, library, queue, name) for name in names[:-1]]
        holders.append(Holder(stack, broker, library, queue, names[-1], not_at=holders[0].broker))
        held = {}
        for holder in holders:
            held[holder.name] = holder.session.receive(2)
            assert [message.body for message in held[holder.name]] == [b"0", b"1"]
            holder.session.state = b"halfway"
        # An acknowledged operation is durable, and so is the client's lock on the session.
        crowds = Counter(holder.broker for holder in holders)
        victim = min(status(broker).brokers, key=lambda one: (crowds[one.id] == 0, crowds[one.id]))
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        living = [holder for holder in holders if holder.broker != victim.id]
        assert living
        for holder in living:
            holder.session.complete(held[holder.name][0])  # some of the stores have no owner at this moment
        free = [holder.name for holder in holders if holder.broker == victim.id]
        eventually("the stores are shared out again", lambda: all_well(broker))  # some were given back meanwhile
        for name in free:  # whose broker is gone holds nothing
            client = cast(ServiceBusClient, LIBRARIES[library](broker.connection_string))
            again = stack.enter_context(Leaving(client)).accept_session(queue, name)
            assert again.state == b"halfway"
            bodies = [message.body for message in again.receive(4)]
            assert bodies == [b"0", b"1", b"2", b"3"][: len(bodies)]
        for holder in living:
            holder.session.complete(held[holder.name][1])
            assert holder.session.renew() > time.time() * 1_000
            assert holder.session.state == b"halfway"
            rest = holder.session.receive(2)
            assert [message.body for message in rest] == [b"2", b"3"]
            holder.session.complete(*rest)
            with pytest.raises(ClientTrouble) as refused:
                sender.accept_session(queue, holder.name)
            assert refused.value.kind is Trouble.SESSION_HELD
