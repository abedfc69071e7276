"""Source and target of a link [3.5.3, 3.5.4], kept as received so that they can be echoed exactly."""

from __future__ import annotations

from typing import Final

from partibus.amqp.codec.composite import (
    ANY,
    BOOLEAN,
    MAP,
    SYMBOL,
    SYMBOLS,
    UINT,
    Kind,
    amqp,
    composite,
    kind_of,
)
from partibus.amqp.codec.states import Coordinator
from partibus.amqp.codec.types import Described


@composite(0x28, "amqp:source:list")
class Source:
    """The source of a link's messages. Null fields stay None, so an echo equals the received value."""

    address: object = amqp(ANY)
    durable: int | None = amqp(UINT)
    expiry_policy: str | None = amqp(SYMBOL)
    timeout: int | None = amqp(UINT)
    dynamic: bool | None = amqp(BOOLEAN)
    dynamic_node_properties: dict[object, object] | None = amqp(MAP)
    distribution_mode: str | None = amqp(SYMBOL)
    filter: dict[object, object] | None = amqp(MAP)
    default_outcome: object = amqp(ANY)
    outcomes: object = amqp(SYMBOLS)
    capabilities: object = amqp(SYMBOLS)


@composite(0x29, "amqp:target:list")
class Target:
    """The target of a link's messages."""

    address: object = amqp(ANY)
    durable: int | None = amqp(UINT)
    expiry_policy: str | None = amqp(SYMBOL)
    timeout: int | None = amqp(UINT)
    dynamic: bool | None = amqp(BOOLEAN)
    dynamic_node_properties: dict[object, object] | None = amqp(MAP)
    capabilities: object = amqp(SYMBOLS)


AnySource = Source | Described
AnyTarget = Target | Coordinator | Described

SOURCE: Final[Kind] = kind_of("source", Source)
TARGET: Final[Kind] = kind_of("target", Target, Coordinator)
