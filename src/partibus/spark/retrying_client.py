"""A connection of Spark's planner that survives outages of the broker: opened on use, and again after a failure."""

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from partibus.client.errors import ClientError
from partibus.spark.options import Options
from partibus.spark.reader import plan_error
from partibus.spark.retry_policy import RetryPolicy

_log = logging.getLogger(__name__)


class Closing(Protocol):
    """The part that every client has."""

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


C = TypeVar("C", bound=Closing)
T = TypeVar("T")


class RetryingClient(Generic[C]):
    """The connection to one entity, for one thread at a time."""

    def __init__(self, options: Options, open_client: Callable[[str, str], C]) -> None:
        self._options = options
        self._open_client = open_client
        self._client: C | None = None

    def ask(self, act: Callable[[C], T], retry_policy: RetryPolicy | None = None) -> T:
        """Ask the broker, and wait while it is unavailable. Raises `PlanError`."""
        retry_policy = retry_policy or RetryPolicy(self._options.outage_timeout_ms)
        while True:
            try:
                if self._client is None:
                    self._client = self._open_client(self._options.connection, self._options.entity)
                return act(self._client)
            except (ClientError, OSError) as error:
                self.close()
                if retry_policy.has_ended(error):
                    raise plan_error(self._options, error) from error
                _log.info("waiting for %s: %s", self._options.where, error)

    def close(self) -> None:
        """Close the connection. Idempotent; the next request opens it again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
