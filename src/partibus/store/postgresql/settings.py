"""What can be set about PostgreSQL stores; one value object for all stores of a broker."""

from typing import NamedTuple


class PostgreSQLSettings(NamedTuple):
    """Times in ms unless the name says otherwise."""

    lease_ms: int = 5_000
    """How long a broker that is not heard of keeps its store from others (D19). Half of what a take-over between
    machines may take; three renewals fit in."""
    connect_timeout_s: int = 2
    """For each host of the URL: libpq's own smallest."""
    statement_patience_ms: int = 2_000
    """How long a statement waits for a lock that another session holds, and a take-over for the end of a connection."""
    doubt_ms: int = 1_000
    """How long a commit whose outcome is unknown tries to find it out before it says that nobody can tell."""
    full_ms: int = 2_000
    """After the disk was full, messages are refused for so long before the next commit tries again."""
    readers_idle: int = 1
    """Connections that wait for the next load; more are opened while several loads run at once."""

    @property
    def renewal_ms(self) -> float:
        """Between two renewals of an idle store's lease."""
        return self.lease_ms / 3


DEFAULTS = PostgreSQLSettings()
