"""`add-rule`, `remove-rule`, `enumerate-rules`: a queue has none, and says so."""

from partibus.errors import InvalidOperation
from partibus.frontends.amqp.operations.request import EntityRequest

NAMES = ("com.microsoft:add-rule", "com.microsoft:remove-rule", "com.microsoft:enumerate-rules")


def refuse(request: EntityRequest) -> None:
    """Raises `InvalidOperation`."""
    raise InvalidOperation(
        f"'{request.entity.queue.name}' is a queue, and only subscriptions have rules. Name a subscription: "
        "<topic>/Subscriptions/<name>/$management."
    )
