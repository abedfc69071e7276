"""`partibus:cluster-status` on the namespace's `$management` node: the brokers and the stores that they own."""

from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.status import success
from partibus.namespace.broker import Broker

STATUS = "partibus:cluster-status"


def status(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``brokers`` and ``stores`` as their operator knows them; every broker replies the same."""
    broker.ask_status(lambda known: respond(success(known)))
