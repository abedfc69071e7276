"""The demo's topic with its subscriptions, and the broker that serves them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from partibus.client import connect
from partibus.client.entities import Entities, subscription_path
from partibus.client.rules import RuleInfo, Rules
from partibus.demo.flights import DemoError
from partibus.testing.broker_process import BrokerFailed, BrokerProcess

TOPIC = "flights"
PARTITION_COUNT = 16
"""What the service gives a partitioned entity."""
ALL = "all"
"""The subscription that gets everything."""
SUBSCRIPTIONS = (ALL, "delayed", "carrier")
"""In the order in which they are shown."""
CONSUMED = "delayed"
"""The one whose reader consumes: what was captured of it is completed. The others are browsed, and keep everything."""

CONFIG_TEXT = (Path(__file__).parent / "Config.json").read_text(encoding="utf-8")
EVERYTHING = "1=1"
"""How a broker writes the filter that selects every message."""


class Filter(NamedTuple):
    """What a subscription selects, in words for people."""

    kind: str
    """`everything`, `SQL` or `correlation`."""
    text: str


def config() -> dict[str, Any]:
    """The content of Config.json, for `partibus serve --config`."""
    found: dict[str, Any] = json.loads(CONFIG_TEXT)
    return found


def path_of(subscription: str) -> str:
    """Where it is read."""
    return subscription_path(TOPIC, subscription)


def left_at(connection: str) -> dict[str, int]:
    """Subscription -> messages that it holds now."""
    with connect(connection) as client:
        return {name: Entities(client).get(path_of(name)).messages for name in SUBSCRIPTIONS}


def filters_at(connection: str) -> dict[str, Filter]:
    """Subscription -> what it selects, as the broker knows it: not as the file asked for it."""
    with connect(connection) as client:
        return {name: _filter(Rules(client, path_of(name)).list()) for name in SUBSCRIPTIONS}


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
    """The connection string of a running broker that has made what Config.json declares. Data and log are kept in
    ``folder``; a row for every operation on every message goes into the folder ``telemetry``, all of them by the end.

    Raises `DemoError` with the broker's log when it does not start, or does not end gracefully.
    """
    arguments = ("--telemetry", "full", "--telemetry-dir", str(telemetry))
    try:
        with BrokerProcess(folder, config=config(), arguments=arguments) as broker:
            yield broker.connection_string
    except BrokerFailed as error:
        raise DemoError(str(error)) from error
