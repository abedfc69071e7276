"""Operations for the operator: the state of the cluster, copies of stores, and the traffic of entities."""

from dataclasses import asdict
from typing import Final

from partibus.advice.facts import Traffic
from partibus.errors import ArgumentError, PartibusError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, integer, items, text
from partibus.frontends.amqp.operations.status import failure, success
from partibus.frontends.traffic import traffic_of
from partibus.namespace.broker import Broker

TRAFFIC: Final = "partibus:traffic"
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


BACK_UP = "partibus:back-up"


def back_up(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with the copied ``stores``, a map from name to bytes, and those ``left_out``.

    The reply also says whether all copies are of one moment.
    """
    arguments = body_of(body)
    stores = items(arguments, "stores", "names of stores") if arguments.get("stores") is not None else []
    names = [str(name) for name in stores if isinstance(name, str)]
    if len(names) != len(stores):
        raise ArgumentError("stores", stores, "a list of names of stores")

    def answer(result: dict[object, object] | PartibusError) -> None:
        respond(failure(result) if isinstance(result, PartibusError) else success(result))

    broker.back_up(text(arguments, "directory"), names, answer)


STATUS = "partibus:cluster-status"


def status(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``brokers`` and ``stores`` as their operator knows them; every broker replies the same."""
    broker.ask_status(lambda known: respond(success(known)))
