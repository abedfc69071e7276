"""The settings of PostgreSQL stores; one value object for all stores of a broker."""

from typing import NamedTuple


class PostgreSQLSettings(NamedTuple):
    """Timeouts and pool sizes, in ms unless the name says otherwise."""

    lease_ms: int = 5_000
    """How long a silent broker keeps its store from others (D19). This is half of the time allowed for a take-over
    between machines; three renewals fit in.
    """
    connect_timeout_s: int = 2
    """The timeout for each host of the URL; libpq's own minimum."""
    statement_limit_ms: int = 2_000
    """How long a statement waits for a lock that another session holds, and a take-over for the end of a connection."""
    doubt_ms: int = 1_000
    """How long the writer tries to resolve a commit in doubt before it reports the outcome as unknown."""
    full_ms: int = 2_000
    """How long messages are refused after the disk was full, before the next commit tries again."""
    readers_idle: int = 1
    """Idle connections kept for the next load; more are opened while several loads run at once."""

    @property
    def renewal_ms(self) -> float:
        """The time between two renewals of an idle store's lease."""
        return self.lease_ms / 3


DEFAULTS = PostgreSQLSettings()
