"""The receiver of a link's events."""

from partibus.amqp import Delivery, Disposed
from partibus.client.errors import ClientError


class Owner:
    """The receiver of a link's events, stored in `Link.user`."""

    name: str
    """The name for error texts: ``sender to 'orders'``."""

    def on_attached(self) -> None:
        """Use the link, which the broker has attached."""

    def on_credit(self) -> None:
        """Send what the broker has room for now."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Process messages that arrived on the link."""

    def on_disposed(self, event: Disposed) -> None:
        """Process the peer's dispositions of deliveries on the link."""

    def on_drained(self) -> None:
        """Process the end of a drain."""

    def on_over(self, error: ClientError) -> None:
        """Process the error that ended the link."""
