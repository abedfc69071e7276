"""Counters of a client."""


class Statistics:
    """Counters of a client since it was made; `Client.statistics` is live."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "dispositions_sent",
        "fills",
        "flows_sent",
        "messages_received",
        "messages_sent",
        "reconnects",
        "retries",
        "settled",
        "transfers_sent",
        "writes",
    )

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self.writes = 0
        """Writes to the transports."""
        self.transfers_sent = 0
        """Batches and single messages."""
        self.messages_sent = 0
        self.flows_sent = 0
        """Grants of credit to receivers' links."""
        self.messages_received = 0
        self.fills = 0
        """Requests to fill an empty prefetch cache."""
        self.dispositions_sent = 0
        """Groups of settlements that left together."""
        self.settled = 0
        """Messages whose settlement the broker has confirmed."""
        self.reconnects = 0
        """Connections opened again after a loss."""
        self.retries = 0
        """Attempts after a failed one."""

    def __repr__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in self.__slots__)
