"""The demo's topic with its subscriptions, and the broker that serves them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from partibus.client.extensions.entities import Entities, subscription_path
from partibus.client.management import RuleInfo
from partibus.client.sync import connect
from partibus.demo.flights import DemoError
from partibus.testing.broker_process import BrokerFailed, BrokerProcess

TOPIC = "flights"
PARTITION_COUNT = 16
"""The service's number for a partitioned entity."""
ALL = "all"
"""The subscription that gets everything."""
SUBSCRIPTIONS = (ALL, "delayed", "carrier")
"""The subscriptions in the order in which they are shown."""
CONSUMED = "delayed"
"""The subscription whose reader completes the captured messages. The others are browsed, and keep everything."""

CONFIG_TEXT = (Path(__file__).parent / "Config.json").read_text(encoding="utf-8")
EVERYTHING = "1=1"
"""How a broker writes the filter that selects every message."""


class Filter(NamedTuple):
    """A subscription's filter, in words for the report."""

    kind: str
    """`everything`, `SQL` or `correlation`."""
    text: str


def config() -> dict[str, Any]:
    """Return the content of Config.json, for `partibus serve --config`."""
    found: dict[str, Any] = json.loads(CONFIG_TEXT)
    return found


def path_of(subscription: str) -> str:
    """Return the address of a subscription."""
    return subscription_path(TOPIC, subscription)


def left_at(connection: str) -> dict[str, int]:
    """Subscription -> messages that it holds now."""
    with connect(connection) as client:
        return {name: Entities(client).get(path_of(name)).messages for name in SUBSCRIPTIONS}


def filters_at(connection: str) -> dict[str, Filter]:
    """Return the filters by subscription as the broker has them, not as the file declares them."""
    with connect(connection) as client:
        return {name: _filter(client.rules(path_of(name)).list()) for name in SUBSCRIPTIONS}


def _filter(rules: list[RuleInfo]) -> Filter:
    kinds = {_kind(rule) for rule in rules}
    return Filter(" or ".join(sorted(kinds)), " OR ".join(map(_text, rules)))


def _kind(rule: RuleInfo) -> str:
    if rule.sql is None:
        return "correlation"
    return "everything" if rule.sql == EVERYTHING else "SQL"


def _text(rule: RuleInfo) -> str:
    if rule.sql is not None:
        return rule.sql
    named = dict(rule.correlation)
    properties = named.pop("properties", {})
    pairs = {**named, **(properties if isinstance(properties, dict) else {})}
    return ", ".join(f"{name} = {value!r}" for name, value in pairs.items())


@contextmanager
def demo_broker(folder: Path, telemetry: Path) -> Iterator[str]:
    """Run a broker with the entities of Config.json, and yield its connection string.

    Data and log are kept in ``folder``. A row for every operation on every message goes into the folder ``telemetry``,
    all of them by the end. Raises `DemoError` with the broker's log when it does not start, or does not end gracefully.
    """
    arguments = ("--telemetry", "full", "--telemetry-dir", str(telemetry))
    try:
        with BrokerProcess(folder, config=config(), arguments=arguments) as broker:
            yield broker.connection_string
    except BrokerFailed as error:
        raise DemoError(str(error)) from error
