"""Backups of a running broker, on a thread of their own: commits and the loop go on (`partibus.store.backup`)."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from partibus.clock import SystemClock
from partibus.errors import ArgumentError, InvalidOperation, PartibusError, StoreUnavailable
from partibus.namespace.catalog_file import FILE_NAME
from partibus.partition.protocol.ports import StoreError
from partibus.store.backup import Backup, back_up, store_file
from partibus.store.sqlite.backup import BackupStopped

log = logging.getLogger(__name__)

Answer = Callable[[dict[object, object] | PartibusError], None]


class Backups:
    """Makes one at a time."""

    def __init__(self, data: Path, store_names: Sequence[str], loop: asyncio.AbstractEventLoop) -> None:
        self._data = data
        self._store_names = store_names
        self._loop = loop
        self._stop = Event()
        self._thread: Thread | None = None

    def begin(self, directory: str, stores: Sequence[str], answer: Answer) -> None:
        """Begin to copy the named stores, or all if none is named, and the catalog.

        ``answer`` gets the description of the backup, or the reason of its failure. Raises `ArgumentError`, and
        `InvalidOperation` while another backup is under way.
        """
        target = Path(directory)
        if not target.is_absolute():
            raise ArgumentError("directory", directory, "an absolute path on the broker's machine")
        if not (self._data / FILE_NAME).exists():
            raise InvalidOperation(
                "The catalog and the stores of this broker are in databases. Back them up with PostgreSQL's own tools."
            )
        if self._thread is not None:
            raise InvalidOperation("A backup is under way. Wait for its end.")
        files = self._files(stores)
        left_out = [name for name in self._store_names if name not in files]

        def run() -> None:
            result: Backup | PartibusError
            try:
                now_ms = SystemClock().now_ms()
                result = back_up(files, self._data / FILE_NAME, target, left_out, now_ms, self._stop)
            except StoreError as error:
                result = InvalidOperation(f"There is no backup: {error}.")
            except BackupStopped:
                result = StoreUnavailable("There is no backup: the broker is stopping.")
            except Exception as error:
                log.exception("a backup to %s failed", target)
                result = InvalidOperation(f"There is no backup: {type(error).__name__}: {error}.")
            with suppress(RuntimeError):  # the loop has ended, and the request with it
                self._loop.call_soon_threadsafe(ended, result)

        def ended(result: Backup | PartibusError) -> None:
            self._thread = None
            if isinstance(result, PartibusError):
                answer(result)
            else:
                answer(dict(result._asdict().items()))

        thread = Thread(target=run, name="backup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"There is no backup: {error}. Try again when fewer threads run.") from error
        self._thread = thread

    def stop(self) -> None:
        """Stop the thread; a backup that is under way ends without a result."""
        self._stop.set()

    def _files(self, stores: Sequence[str]) -> dict[str, Path]:
        in_files = {name: store_file(self._data, name) for name in self._store_names}
        in_files = {name: path for name, path in in_files.items() if path.exists()}
        for name in stores:
            if name not in in_files:
                raise ArgumentError("stores", name, f"one of those in files: {', '.join(in_files)}")
        return {name: path for name, path in in_files.items() if not stores or name in stores}
