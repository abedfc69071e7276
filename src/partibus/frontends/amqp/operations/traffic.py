"""`partibus:traffic` on the namespace's `$management` node: counters and clients of its entities, of all brokers."""

from dataclasses import asdict
from typing import Final

from partibus.advice.facts import Traffic
from partibus.errors import PartibusError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, integer
from partibus.frontends.amqp.operations.status import failure, success
from partibus.frontends.traffic import traffic_of
from partibus.namespace.broker import Broker

NAME: Final = "partibus:traffic"
PAGE_MAX: Final = 100
"""The most entities of one reply: a reply is made at once, and a hundred take some milliseconds."""
SKIP_MAX: Final = 1_000_000


def traffic(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``entities``, the busiest first, and ``more``: whether others follow.

    ``skip`` leaves out so many, ``entity`` selects one.
    """
    arguments = body_of(body)
    skip = integer(arguments, "skip", 0, SKIP_MAX, 0)
    name = arguments.get("entity")
    path = broker.namespace.entity(name).name if isinstance(name, str) else None

    def known(measured: object) -> None:
        if isinstance(measured, PartibusError):
            respond(failure(measured))
            return
        found = traffic_of(measured, broker.namespace.name, path)  # type: ignore[arg-type]
        page = list(found.items())[skip : skip + PAGE_MAX]
        respond(
            success(
                {
                    "entities": [{"entity": name, **_plain(one)} for name, one in page],
                    "namespace": broker.namespace.name,
                    "tier": broker.namespace.record.options.tier.value,
                    "more": len(found) > skip + PAGE_MAX,
                }
            )
        )

    broker.ask_measured(known)


def _plain(traffic: Traffic) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(traffic).items()}
