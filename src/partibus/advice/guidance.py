"""The sentences of the guidance that profiles and advice rest on, in English, each by its place in the article.

`MEASURED` has the gains of docs/scenarios.md: how many times as good the advice was as each setting turned back. A test
compares the numbers with the page. Only factors of two or more are there, since that machine was busy.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Sentence(NamedTuple):
    """One sentence, or the sentences of one point of a list."""

    section: str
    number: int
    """The place in the list of the section; 0: the running text."""
    text: str

    @property
    def place(self) -> str:
        """The place for display, such as "High-throughput queue, point 5"."""
        return f"{self.section}, point {self.number}" if self.number else self.section


_PARTITIONED = "Use a partitioned queue for better performance and availability."
_PARTITIONED_TOPIC = "Use a partitioned topic for better performance and availability."
_ASYNC = "Use asynchronous operations to take advantage of client-side batching."
_DEFAULT_INTERVAL = (
    "Use the default batching interval of 20 ms to reduce the number of Service Bus client protocol transmissions."
)
_STORE = "Leave batched store access enabled. It raises the overall rate at which messages are written into the {}."
_PREFETCH = (
    "Set the prefetch count to 20 times the maximum processing rates of all receivers of a factory. "
    "It reduces the number of Service Bus client protocol transmissions."
)
_ONE_FACTORY = "If each {} is in a different process, use only one factory per process."
_SEND_FACTORIES = (
    "To raise the overall send rate into the {}, use several message factories to create senders. "
    "For each sender use asynchronous operations or several threads."
)

_HIGH: Final = "High-throughput queue"
HIGH_PARTITIONED: Final = Sentence(_HIGH, 1, _PARTITIONED)
HIGH_SEND_FACTORIES: Final = Sentence(_HIGH, 2, _SEND_FACTORIES.format("queue"))
HIGH_RECEIVE_FACTORIES: Final = Sentence(
    _HIGH, 3, "To raise the overall receive rate from the queue, use several message factories to create receivers."
)
HIGH_ASYNC: Final = Sentence(_HIGH, 4, _ASYNC)
HIGH_INTERVAL: Final = Sentence(
    _HIGH,
    5,
    "Set the batching interval to 50 ms to reduce the number of Service Bus client protocol transmissions. "
    "If several senders are used, increase the interval to 100 ms.",
)
HIGH_STORE: Final = Sentence(_HIGH, 6, _STORE.format("queue"))
HIGH_PREFETCH: Final = Sentence(_HIGH, 7, _PREFETCH)

SEVERAL_SETTINGS: Final = Sentence(
    "Several high-throughput queues",
    0,
    "For the greatest overall throughput of several queues, use the settings that maximize the throughput of a "
    "single queue.",
)
SEVERAL_FACTORIES: Final = Sentence(
    "Several high-throughput queues", 0, "Use several factories to create the clients that send to several queues."
)
DEDICATED_CLIENTS: Final = Sentence(
    "Use of several queues", 0, "Create a dedicated client for each entity instead of one client for all entities."
)

_LOW: Final = "Low-latency queue"
LOW_PARTITIONED: Final = Sentence(_LOW, 1, "Use a partitioned queue for better availability.")
LOW_INTERVAL: Final = Sentence(_LOW, 2, "Disable client-side batching. The client sends a message immediately.")
LOW_STORE: Final = Sentence(
    _LOW, 3, "Disable batched store access. The service writes a message to the store immediately."
)
LOW_PREFETCH_ONE: Final = Sentence(
    _LOW,
    4,
    "With a single client, set the prefetch count to 20 times the processing rate of the receiver. "
    "Keep the cache small.",
)
LOW_PREFETCH_SEVERAL: Final = Sentence(
    _LOW,
    5,
    "With several clients, set the prefetch count to 0. "
    "The second client can then receive the second message while the first client still processes the first one.",
)

_SENDERS: Final = "Queue with many senders"
SENDERS_PARTITIONED: Final = Sentence(_SENDERS, 1, _PARTITIONED)
SENDERS_FACTORY: Final = Sentence(_SENDERS, 2, _ONE_FACTORY.format("sender"))
SENDERS_ASYNC: Final = Sentence(_SENDERS, 3, _ASYNC)
SENDERS_INTERVAL: Final = Sentence(_SENDERS, 4, _DEFAULT_INTERVAL)
SENDERS_STORE: Final = Sentence(_SENDERS, 5, _STORE.format("queue or topic"))
SENDERS_PREFETCH: Final = Sentence(_SENDERS, 6, _PREFETCH)

_RECEIVERS: Final = "Queue with many receivers"
RECEIVERS_PARTITIONED: Final = Sentence(_RECEIVERS, 1, _PARTITIONED)
RECEIVERS_FACTORY: Final = Sentence(_RECEIVERS, 2, _ONE_FACTORY.format("receiver"))
RECEIVERS_EITHER: Final = Sentence(
    _RECEIVERS,
    3,
    "Receivers can use synchronous or asynchronous operations. Given the moderate receive rate of each receiver, "
    "client-side batching of complete requests does not affect its throughput.",
)
RECEIVERS_STORE: Final = Sentence(
    _RECEIVERS, 4, "Leave batched store access enabled. It reduces the overall load of the entity."
)
RECEIVERS_PREFETCH: Final = Sentence(
    _RECEIVERS,
    5,
    "Set the prefetch count to a small value, such as 10. "
    "It keeps receivers from being idle while other receivers have many messages in their caches.",
)

_FEW: Final = "Topic with few subscriptions"
FEW_PARTITIONED: Final = Sentence(_FEW, 1, _PARTITIONED_TOPIC)
FEW_SEND_FACTORIES: Final = Sentence(_FEW, 2, _SEND_FACTORIES.format("topic"))
FEW_RECEIVE_FACTORIES: Final = Sentence(
    _FEW,
    3,
    "To raise the overall receive rate from a subscription, use several message factories to create receivers. "
    "For each receiver use asynchronous operations or several threads.",
)
FEW_ASYNC: Final = Sentence(_FEW, 4, _ASYNC)
FEW_INTERVAL: Final = Sentence(_FEW, 5, _DEFAULT_INTERVAL)
FEW_STORE: Final = Sentence(_FEW, 6, _STORE.format("topic"))
FEW_PREFETCH: Final = Sentence(_FEW, 7, _PREFETCH)

_MANY: Final = "Topic with many subscriptions"
MANY_PARTITIONED: Final = Sentence(_MANY, 1, _PARTITIONED_TOPIC)
MANY_ASYNC: Final = Sentence(_MANY, 2, _ASYNC)
MANY_INTERVAL: Final = Sentence(_MANY, 3, _DEFAULT_INTERVAL)
MANY_STORE: Final = Sentence(_MANY, 4, _STORE.format("topic"))
MANY_PREFETCH: Final = Sentence(
    _MANY,
    5,
    "Set the prefetch count to 20 times the expected receive rate in messages per second. "
    "It reduces the number of Service Bus client protocol transmissions.",
)

REUSE: Final = Sentence(
    "Reuse of factories and clients",
    0,
    "Opening a connection is expensive. Reuse the same factory and client objects for several operations.",
)
PREFETCH_LOCK: Final = Sentence(
    "Prefetching",
    0,
    "To prevent the use of expired messages, the cache must always be smaller than the number of messages that the "
    "client can process within the lock time-out.",
)
EXPRESS: Final = Sentence(
    "Express queues and topics",
    0,
    "Express entities have a higher throughput and lower latency. Messages that are consumed within a few seconds are "
    "not written to the messaging store.",
)
EXPRESS_CRITICAL: Final = Sentence(
    "Express queues and topics",
    0,
    "If a sender sends critical information that must not be lost to an express entity, it can force the service to "
    "persist the message at once.",
)
KEY_PINS: Final = Sentence(
    "Partitioned queues and topics: using a partition key",
    0,
    'A partition key "pins" a message to a specific partition. If that store is unavailable, the service returns an '
    "error. It is recommended not to supply a partition key unless it is required.",
)
LOW_VOLUME: Final = Sentence(
    "Partitioned queues and topics: low-volume scenarios",
    0,
    "When partitioning is used in low-volume scenarios, receive operations might take longer than expected. Delete any "
    "existing partitioned entities and recreate them with partitioning disabled.",
)


MEASURED: Final[Mapping[str, Mapping[str, float]]] = {
    "high-throughput": {"overlapping": 258.64},
    "several-queues": {"overlapping": 77.18},
    "low-latency": {"interval_ms": 10.57},
    "many-senders": {"express": 2.94},
    "few-subscriptions": {"overlapping": 37.26},
    "many-subscriptions": {"overlapping": 22.41},
}


def measured_gain(profile: str, setting: str) -> str:
    """Return a sentence with the measured gain of a setting in a scenario; "" if it gained nothing there."""
    factor = MEASURED.get(profile, {}).get(setting)
    if factor is None:
        return ""
    return f" Measured in the scenario {profile}: {factor:.3g} times (docs/scenarios.md)."
