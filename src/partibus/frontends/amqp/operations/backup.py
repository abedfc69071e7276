"""`partibus:back-up`: copy stores and the catalog to a directory of the broker's machine, on the `$management` node
that belongs to no entity. Answered when the copy is whole and synced, which may take minutes."""

from partibus.errors import ArgumentError, PartibusError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, items, text
from partibus.frontends.amqp.operations.status import failure, success
from partibus.namespace.broker import Broker

BACK_UP = "partibus:back-up"


def back_up(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with the ``stores`` that were copied, a map from name to bytes, those ``left_out``, and
    whether all copies are of one moment."""
    arguments = body_of(body)
    stores = items(arguments, "stores", "names of stores") if arguments.get("stores") is not None else []
    names = [str(name) for name in stores if isinstance(name, str)]
    if len(names) != len(stores):
        raise ArgumentError("stores", stores, "a list of names of stores")

    def answer(result: dict[object, object] | PartibusError) -> None:
        respond(failure(result) if isinstance(result, PartibusError) else success(result))

    broker.back_up(text(arguments, "directory"), names, answer)
