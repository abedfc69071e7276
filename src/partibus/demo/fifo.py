"""The demo's FIFO act: a burst that splits a queue's partitions, and a calm that merges them.

The act has a broker of its own, whose clock the demo moves: a calm takes minutes, and slots go back to a former
partition only when the window of duplicate detection has passed. Flights are the messages, and carrier and airport are
their group. Every group is received in order, whatever its slots do.
"""

from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from partibus.client.errors import LinkLost, LockLost, SessionHeld, TimedOut
from partibus.client.extensions.cluster import Partitions
from partibus.client.messages import OutgoingMessage
from partibus.client.sync import Client, connect
from partibus.demo.flights import DemoError, Flight, read_flights
from partibus.demo.proof import Check
from partibus.demo.results import job_of
from partibus.pipeline import fifo
from partibus.testing.broker_process import BrokerFailed, BrokerProcess

QUEUE = "departures.fifo"
MOST = 4
"""The most partitions of the queue."""
PROPERTIES = {
    "RequiresSession": True,
    "RequiresDuplicateDetection": True,
    "PartibusElasticPartitions": MOST,
    "PartibusPartitionRequests": 1_000,
    "PartibusPartitionMessages": 4,
    "PartibusPartitionCalm": "PT1M",
}
BURST_STEPS = 12
BURST_STEP_MS = 10_000
BURST_MESSAGES = 120
"""Messages of each step of the burst: 12 a second are the load of four partitions of 4 at 80 %."""
CALM_STEP_MS = 120_000
CALM_MESSAGES = 4
CALM_STEPS_MAX = 60
CLOCK = (
    "The demo moves the clock of this queue's broker, so that a calm takes seconds: times and rates here are those of "
    "that clock, which runs ahead of yours."
)
LOOK_S = 1.2
"""Real time in which the broker has looked at its elastic queues: each second, whatever its clock says."""
PAUSE_S = 0.05
STALL_S = 60.0
"""Real time after which the act gives up."""


class Act(NamedTuple):
    """The results of the act."""

    sent: dict[str, list[str]]
    """Message ids by group, in order."""
    received: dict[str, list[str]]
    """Message ids by group, in the order of their first deliveries."""
    owners: list[int]
    """The number of partitions that own slots, whenever it was another one."""

    @property
    def messages(self) -> int:
        """The number of messages sent."""
        return sum(map(len, self.sent.values()))


class Fifo(NamedTuple):
    """The act, and what the job `fifo` says of it."""

    act: Act
    splits: int
    merges: int


def play(folder: Path, telemetry: Path) -> Act:
    """Run the act with a broker whose files are in ``folder``. Raises `DemoError`."""
    arguments = ("--clock", "manual", "--telemetry", "full", "--telemetry-dir", str(telemetry))
    try:
        with BrokerProcess(folder, arguments=arguments) as broker, connect(broker.connection_string) as client:
            broker.create_queue(QUEUE, **PROPERTIES)
            return _Stage(broker, client).play()
    except BrokerFailed as error:
        raise DemoError(str(error)) from error


class _Stage:
    """The act while it goes on."""

    def __init__(self, broker: BrokerProcess, client: Client) -> None:
        self._broker = broker
        self._client = client
        self._sender = client.sender(QUEUE)
        self._flights = enumerate(read_flights(BURST_STEPS * BURST_MESSAGES + CALM_STEPS_MAX * CALM_MESSAGES))
        self._act = Act({}, {}, [1])
        self._deadline = monotonic() + STALL_S

    def play(self) -> Act:
        """Send a burst, receive it, let the queue calm down, and receive the rest."""
        owners = self._act.owners
        for number in range(BURST_STEPS):
            self._send(BURST_MESSAGES)
            self._broker.advance(BURST_STEP_MS)
            if number == BURST_STEPS // 2:
                while owners[-1] == 1:
                    self._look()
        self._receive()
        while owners[-1] > 1:
            self._send(CALM_MESSAGES)
            self._broker.advance(CALM_STEP_MS)
            looked = monotonic() + LOOK_S
            while owners[-1] > 1 and monotonic() < looked:
                self._look()
            self._receive()
        self._send(CALM_MESSAGES)
        self._receive()
        return self._act

    def _send(self, count: int) -> None:
        messages = []
        for number, flight in islice(self._flights, count):
            group, message_id = group_of(flight), f"departure-{number:05d}"
            messages.append(OutgoingMessage(body=message_id.encode(), message_id=message_id, session_id=group))
            self._act.sent.setdefault(group, []).append(message_id)
        if messages:
            self._sender.send(messages)

    def _look(self) -> None:
        """Look at the partitions, after a pause. Raises `DemoError` when the act has taken too long."""
        if monotonic() > self._deadline:
            raise DemoError(
                f"the FIFO act has taken more than {STALL_S:g} s; its queue had {self._act.owners} partitions so far"
            )
        sleep(PAUSE_S)
        partitions: Any = Partitions(self._client).of(QUEUE)["partitions"]
        owners = sum(one["slots"] > 0 for one in partitions)
        if owners != self._act.owners[-1]:
            self._act.owners.append(owners)

    def _receive(self) -> None:
        """Receive all that was sent, group by group."""
        for group, sent in self._act.sent.items():
            found = self._act.received.setdefault(group, [])
            while len(found) < len(sent):
                self._receive_of(group, found, len(sent))

    def _receive_of(self, group: str, found: list[str], wanted: int) -> None:
        """Receive messages of a group. Its lock ends when its former partition has no messages of it left."""
        if monotonic() > self._deadline:
            raise DemoError(f"the group {group} has given {len(found)} of {wanted} messages in {STALL_S:g} s")
        try:
            with self._client.session_receiver(QUEUE, group, max_wait=5.0) as receiver:
                while len(found) < wanted and (messages := receiver.receive(100, max_wait=1.0)):
                    found += [name for one in messages if (name := str(one.message_id)) not in found]
                    receiver.complete(messages)
        except (LinkLost, LockLost, SessionHeld, TimedOut):
            return


def group_of(flight: Flight) -> str:
    """Return the message group of a flight: its carrier and the airport that it leaves."""
    return f"{flight['carrier']}-{flight['origin']}"


def find_fifo(spark: SparkSession, act: Act, telemetry: Path, report: Path) -> Fifo:
    """Run the job `fifo` over the act's telemetry; ``report`` is its page, with the result as JSON beside it."""
    want = fifo.Want([str(telemetry)], [QUEUE], remark=CLOCK)
    found = fifo.run(job_of("fifo", spark, telemetry, report), want)
    (queue,) = found["entities"]
    return Fifo(act, queue["splits"], queue["merges"])


def check_act(found: Fifo) -> Check:
    """Check that the queue was split and merged, and that each group came in order, each message once."""
    act = found.act
    wrong = [group for group in act.sent if act.received.get(group) != act.sent[group]]
    has_followed = max(act.owners) > 1 and act.owners[-1] == 1 and found.splits > 0 and found.merges > 0
    return Check(
        "FIFO: partitions follow a burst and a calm, and each group comes whole and in order",
        has_followed and not wrong and act.received.keys() == act.sent.keys(),
        f"{act.messages:,} messages of {len(act.sent)} groups, {_in_words(wrong)}; partitions "
        f"{' → '.join(map(str, act.owners))}, {found.splits} splits, {found.merges} merges",
    )


def _in_words(wrong: list[str]) -> str:
    return f"{len(wrong)} not as sent, such as {wrong[0]}" if wrong else "all as sent"
