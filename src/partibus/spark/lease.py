"""The exclusive reader of an entity (mode ``consume``): a lease that a thread of Spark's planner renews.

Spark kills its planner without notice when a query stops, so the lease then expires. Other receivers get no messages
for `leaseMs`, unless the query is started again; it takes over its own lease.
"""

import logging
import threading
import time
from collections.abc import Mapping

from partibus.client.errors import Busy, ClientError, CursorHeld, CursorLost
from partibus.client.extensions.ranges import CursorState
from partibus.spark.errors import PlanError, SparkSourceError
from partibus.spark.options import Options
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.retry_policy import may_pass

_log = logging.getLogger(__name__)
_RENEWALS = 3
"""Renewals per lease: two may fail."""
_BUSY_PAUSE_S = 0.25
_FAILED_PAUSE_S = 1.0


class Lease:
    """A lease, held from `take` until the process ends or another reader takes it."""

    def __init__(self, options: Options, open_client: OpenClient) -> None:
        assert options.cursor is not None, "mode consume has a cursor"
        self._options = options
        self._open_client = open_client
        self._name = options.cursor
        self._epochs: Mapping[int, int] = {}
        self._failure: SparkSourceError | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def epochs(self) -> Mapping[int, int]:
        """Epochs by partition id. Raises the reason when the lease is lost."""
        if self._failure is not None:
            raise self._failure
        return self._epochs

    def take(self, client: RangeReader, start: Mapping[int, int]) -> Mapping[int, CursorState]:
        """Become the only reader; waits until consumers have settled what they hold. Raises `ClientError`."""
        states = self._granted(client, start)
        if self._thread is None:
            thread = threading.Thread(target=self._keep, name=f"lease of {self._name}", daemon=True)
            thread.start()
            self._thread = thread
        return states

    def end(self) -> None:
        """Stop renewing, and release the lease if that is quick. Raises nothing."""
        self._over.set()
        if self._thread is None or self._failure is not None:
            return
        try:
            client = self._open_client(self._options.connection, self._options.entity)
            try:
                client.close_cursor(self._name, epochs=self._epochs)
            finally:
                client.close()
        except (ClientError, OSError) as error:
            _log.info("the exclusive lease of %s will run out by itself: %s", self._name, error)

    def _granted(self, client: RangeReader, start: Mapping[int, int]) -> Mapping[int, CursorState]:
        is_told = False
        # While the lease holds, messages leave only by commits and expiry, so nothing is kept of them.
        while True:
            try:
                states = client.open_cursor(
                    self._name,
                    start=start,
                    bound_bytes=0,
                    lease_ms=self._options.lease_ms,
                    revoke=self._options.revoke_locks,
                )
            except Busy as error:
                if not is_told:
                    _log.warning("waiting to read %s exclusively: %s", self._options.where, error)
                    is_told = True
                time.sleep(_BUSY_PAUSE_S)
                continue
            self._epochs = {partition_id: state.epoch for partition_id, state in states.items()}
            return states

    def _keep(self) -> None:
        """Renew on a thread and a connection of its own: the planner may be waiting for an answer on the other one."""
        client: RangeReader | None = None
        pause_s = self._options.lease_ms / 1000 / _RENEWALS
        while not self._over.wait(pause_s):
            try:
                if client is None:
                    client = self._open_client(self._options.connection, self._options.entity)
                self._renew(client)
                pause_s = self._options.lease_ms / 1000 / _RENEWALS
            except (ClientError, OSError) as error:
                if client is not None:
                    client.close()
                    client = None
                if not may_pass(error):
                    self._failure = PlanError(f"the exclusive reader {self._name!r} of {self._options.where}: {error}")
                    return
                _log.warning("the exclusive lease of %s is not renewed: %s", self._name, error)
                pause_s = min(_FAILED_PAUSE_S, pause_s)
        if client is not None:
            client.close()

    def _renew(self, client: RangeReader) -> None:
        try:
            states = client.open_cursor(
                self._name,
                bound_bytes=0,
                lease_ms=self._options.lease_ms,
                epochs=self._epochs,
            )
            self._epochs = {partition_id: state.epoch for partition_id, state in states.items()}
        except CursorLost as lost:
            if self._is_taken(client):
                raise CursorHeld(
                    f"another query reads with the same cursor since ({lost}); give each query a name of its own"
                ) from lost
            if self._over.is_set():
                return  # `end` has released it meanwhile
            _log.warning("the exclusive lease of %s had run out, and is taken again: %s", self._name, lost)
            self._granted(client, {})

    def _is_taken(self, client: RangeReader) -> bool:
        """Tell whether a later grant than ours was made under our name."""
        return any(
            one.epoch > self._epochs.get(one.partition_id, 0)
            for cursor in client.cursors()
            if cursor.name == self._name
            for one in cursor.partitions
        )
