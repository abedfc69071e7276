"""`partibus:back-up` on the namespace's `$management` node: copies stores and the catalog.

The target is a directory of the broker's machine. The node answers when the copy is complete and synced, which may take
minutes.
"""

from partibus.errors import ArgumentError, PartibusError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, items, text
from partibus.frontends.amqp.operations.status import failure, success
from partibus.namespace.broker import Broker

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
