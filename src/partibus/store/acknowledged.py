"""The last commit of a database store that this machine has acknowledged, recorded outside of the database.

The record of the catalog has the number of its last change instead.

A database can go back in time: a standby that lags is made primary, or a dump is restored. The owner row goes back with
it, so only a record elsewhere can tell. The record is a file in the data directory:

```text
 DATA/acknowledged/store-07             last commit, its epoch and run, checksum     after each commit, 2 us
 DATA/acknowledged/store-07.accepted    number of the commit that an operator goes on from
```

Writes are not synced one by one. The kernel has them when the process is killed, so a fresh process on the machine
knows every acknowledged commit. They are synced when a lease is renewed, so after a loss of power the record is at most
one renewal behind (ADR 0024).
"""

import fcntl
import os
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from partibus.durable import replace_file, sync_directory

FOLDER = "acknowledged"
CATALOG_RECORD = "catalog"
"""The name of the catalog among the stores."""
_RECORD = Struct("<QQQ")
_RECORD_WITHOUT_RUN = Struct("<QQ")
"""Records that were written before runs were added to them."""
_CHECKSUM = Struct("<I")
_ACCEPTED = ".accepted"


class Acknowledged(NamedTuple):
    """A commit that an owner acknowledged."""

    last_commit: int
    epoch: int
    """The epoch of the owner that made the commit, or of a later one; 0: unknown."""
    run: int
    """`run_of` the owner of that epoch; 0: unknown. Two servers that went different ways can have equal epochs.

    An even number, one less than the owner's: another machine has reported the commit, and may have acknowledged later
    ones since.
    """


class History(NamedTuple):
    """The owner row of a database, before it is taken over."""

    last_commit: int
    epoch: int
    run: int
    """`run_of` the owner."""
    taken_at: int
    """The last commit of all epochs before this one."""


def run_of(incarnation: str) -> int:
    """Return an odd number of 64 bits that stands for one run of a broker."""
    return int.from_bytes(blake2b(incarnation.encode(), digest_size=8).digest(), "little") | 1


def lacks(found: History, known: Acknowledged) -> bool:
    """Tell whether the database lacks the commit by its number."""
    return found.last_commit < known.last_commit


def went_another_way(found: History, known: Acknowledged) -> bool:
    """Tell whether the database has no fewer commits than were acknowledged, but others.

    A standby that lagged was made primary and has been used: its commits reuse the numbers of those that it lacks.
    """
    if not known.epoch:
        return False
    if found.epoch == known.epoch:
        return bool(known.run) and known.run | 1 != found.run
    return found.epoch < known.epoch or (found.epoch == known.epoch + 1 and found.taken_at < known.last_commit)


class AcknowledgedCommits:
    """The record of one store, used by one thread at a time."""

    def __init__(self, data: Path, store_id: str, *, is_shared: bool = False) -> None:
        """Read the record in a data directory. A missing one is made by the first `note`. Raises `OSError`.

        ``is_shared``: brokers with other data directories use the store as well.
        """
        self.is_shared = is_shared
        self.command = f"partibus cluster accept-loss {store_id} --data {data}"
        """The command by which an operator accepts a loss, without the number."""
        self.path = data / FOLDER / store_id
        self.last: Acknowledged | None = None
        """The last commit that is known to be acknowledged; None: none is known, or the record is damaged."""
        self.damage: str | None = None
        """Why the existing record can't be read. It must not count as a missing one."""
        self.is_empty = False
        """Whether the record exists and has no bytes."""
        self._file = -1
        self._is_current = False
        """Whether the file has the present form, and can be overwritten in place."""
        self._synced: Acknowledged | None = None
        self.load()

    def load(self) -> None:
        """Read the record again: another process of the data directory may have owned the store. Raises `OSError`."""
        self.close()
        self.last = self.damage = None
        self.is_empty = self._is_current = False
        self._synced = None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        content = os.pread(self._file, _RECORD.size + _CHECKSUM.size + 1, 0)
        self.is_empty = not content
        body, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
        is_whole = len(body) in (_RECORD.size, _RECORD_WITHOUT_RUN.size)
        if not is_whole or _CHECKSUM.unpack(checksum)[0] != crc32(body):
            self.damage = f"{self.path} is damaged ({len(content)} bytes, or a wrong checksum)"
        elif len(body) == _RECORD.size:
            self.last = Acknowledged._make(_RECORD.unpack(body))
            self._is_current = True
        else:
            number, epoch = _RECORD_WITHOUT_RUN.unpack(body)
            self.last = Acknowledged(number, epoch, 0)

    def note(self, acknowledged: Acknowledged) -> None:
        """Record a commit before it is acknowledged. Raises `OSError`."""
        body = _RECORD.pack(*acknowledged)
        content = body + _CHECKSUM.pack(crc32(body))
        if self._is_current:
            os.pwrite(self._file, content, 0)
        else:
            self._make(content)
            self._synced = acknowledged
        self.last = acknowledged

    def note_later(self, acknowledged: Acknowledged) -> None:
        """Record a commit unless a later one is recorded. Raises `OSError`.

        Processes that share the store may call this at once. A record that was damaged meanwhile stays as it is.
        """
        if not self._is_current:
            self.note(acknowledged)
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._read()
            if self.damage is None and (self.last is None or self.last.last_commit < acknowledged.last_commit):
                self.note(acknowledged)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _make(self, content: bytes) -> None:
        """Make the file with its content, durably: a crash leaves no file or a whole one."""
        replace_file(self.path, content)
        self.close()
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._is_current = True
        self.damage = None
        self.is_empty = False

    def sync(self) -> None:
        """Make the record survive a loss of power. Does nothing if it already does. Raises `OSError`."""
        if self._file >= 0 and self._synced != self.last:
            last = self.last
            os.fdatasync(self._file)
            self._synced = last

    def is_accepted(self, last_commit: int) -> bool:
        """Tell whether an operator has accepted that the store goes on from this commit."""
        try:
            return int(self._accepted.read_text()) == last_commit
        except (FileNotFoundError, ValueError):
            return False

    def learn(self, reported: Acknowledged) -> None:
        """Record a commit that was acknowledged elsewhere, if it is later. Raises `OSError`.

        A damaged record stays as it is: it may have held a later commit.
        """
        if self.damage is not None:
            return
        if self.last is None or (self.last.epoch, self.last.last_commit) < (reported.epoch, reported.last_commit):
            self.note(reported._replace(run=reported.run & ~1))

    def go_on_from(self, acknowledged: Acknowledged) -> None:
        """Replace the record after an accepted loss, durably. Raises `OSError`."""
        self.note(acknowledged)
        self.sync()
        self.withdraw()

    def withdraw(self) -> None:
        """Remove an acceptance, so that it covers no later loss. Raises `OSError`."""
        if self._accepted.exists():
            self._accepted.unlink(missing_ok=True)
            sync_directory(self._accepted.parent)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def _accepted(self) -> Path:
        return self.path.with_name(self.path.name + _ACCEPTED)


class AcknowledgedChanges:
    """The record of the last change of a catalog in a file, which several processes of the machine keep."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @cached_property
    def _commits(self) -> AcknowledgedCommits:
        """The file of the record, opened when it is first used."""
        return AcknowledgedCommits(self._data, CATALOG_RECORD)

    @property
    def command(self) -> str:
        """The command by which an operator accepts a loss, without the number."""
        return self._commits.command

    def read(self) -> tuple[int, str | None]:
        """Return the last change, 0 without a record, and why the record can't be read, if so. Raises `OSError`."""
        self._commits.load()
        last = self._commits.last
        return 0 if last is None else last.last_commit, self._commits.damage

    def note(self, change: int) -> None:
        """Record a stored change. Raises `OSError`."""
        self._commits.note_later(Acknowledged(change, 0, 0))

    def is_accepted(self, change: int) -> bool:
        """Tell whether an operator has accepted that the catalog goes on from this change."""
        return self._commits.is_accepted(change)

    def go_on_from(self, change: int) -> None:
        """Replace the record after an accepted loss, durably. Raises `OSError`."""
        self._commits.go_on_from(Acknowledged(change, 0, 0))

    def withdraw(self) -> None:
        """Remove an acceptance, so that it covers no later loss. Raises `OSError`."""
        self._commits.withdraw()

    def close(self) -> None:
        """Sync and close the record. Idempotent. Raises `OSError`."""
        try:
            self._commits.sync()
        finally:
            self._commits.close()


def accept_loss(data: Path, store_id: str, last_commit: int, *, other_history: bool = False) -> int | None:
    """Let a store go on from a commit that lacks acknowledged ones; return how many are lost, None if that is unknown.

    The broker that opens the store next begins a generation, so that no number is given out twice. ``other_history``:
    the broker's error says that the database went another way, so the numbers of commits can't be compared. Raises
    ValueError if the store has no record, or if by the record no commit would be lost, and `OSError`.
    """
    path = data / FOLDER / store_id
    if not path.is_file():
        known = ", ".join(sorted(one.name for one in path.parent.glob("*") if not one.suffix))
        raise ValueError(f"{store_id}: nothing is recorded in {path.parent}; there are {known or 'no stores'}")
    record = AcknowledgedCommits(data, store_id)
    record.close()
    lost = None
    if record.last is not None and not other_history:
        lost = record.last.last_commit - last_commit
        if lost <= 0:
            raise ValueError(
                f"{store_id}: commit {record.last.last_commit} was acknowledged last, so nothing is lost by going on "
                f"from {last_commit}; give the command that the broker's error names"
            )
    replace_file(path.with_name(path.name + _ACCEPTED), f"{last_commit}\n".encode())
    return lost
