"""`partibus:cluster-status`: the brokers of the namespace and the stores that they own, on the `$management` node that
belongs to no entity."""

from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.status import success
from partibus.namespace.broker import Broker

STATUS = "partibus:cluster-status"


def status(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``brokers`` and ``stores``, as whoever runs them knows them; the same whichever broker is asked."""
    broker.ask_status(lambda known: respond(success(known)))
