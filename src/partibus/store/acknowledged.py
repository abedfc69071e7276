"""The last commit of a database store that this machine has acknowledged, recorded outside of the database.

A database can go back in time: a standby that lags is made primary, or a dump is restored. The owner row goes back with
it, so only a record elsewhere can tell. The record is a file in the data directory:

```text
 DATA/acknowledged/store-07             number of the last commit, epoch, checksum     after each commit, 2 us
 DATA/acknowledged/store-07.accepted    number of the commit that an operator goes on from
```

Writes are not synced one by one. The kernel has them when the process is killed, so a fresh process on the machine
knows every acknowledged commit. They are synced when a lease is renewed, so after a loss of power the record is at most
one renewal behind (ADR 0024).
"""

import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from partibus.durable import replace_file, sync_directory

FOLDER = "acknowledged"
_RECORD = Struct("<QQ")
_CHECKSUM = Struct("<I")
_ACCEPTED = ".accepted"


class AcknowledgedCommits:
    """The record of one store, used by one thread at a time."""

    def __init__(self, data: Path, store_id: str) -> None:
        """Open the record in a data directory, and make it if it is missing.

        Raises `OSError`, and ValueError for a damaged record.
        """
        self.command = f"partibus cluster accept-loss {store_id} --data {data}"
        """The command by which an operator accepts a loss, without the number."""
        self._path = data / FOLDER / store_id
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        is_new = not self._path.exists()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if is_new:
            sync_directory(self._path.parent)
        self._synced = 0
        try:
            self.last_commit = self._read()
        except ValueError:
            self.close()
            raise
        """The last commit that was acknowledged; 0: none is known."""

    def _read(self) -> int:
        """Read the number; 0 from an empty file. Raises ValueError for a damaged one: it must not count as none."""
        content = os.pread(self._file, _RECORD.size + _CHECKSUM.size, 0)
        if not content:
            return 0
        body, checksum = content[: _RECORD.size], content[_RECORD.size :]
        if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != crc32(body):
            raise ValueError(
                f"{self._path} is damaged ({len(content)} bytes, or a wrong checksum), so the last acknowledged commit "
                "is unknown; if the database surely has all commits, remove the file"
            )
        number: int = _RECORD.unpack(body)[0]
        return number

    def note(self, last_commit: int, epoch: int) -> None:
        """Record a commit before it is acknowledged. Raises `OSError`."""
        body = _RECORD.pack(last_commit, epoch)
        os.pwrite(self._file, body + _CHECKSUM.pack(crc32(body)), 0)
        self.last_commit = last_commit

    def sync(self) -> None:
        """Make the record survive a loss of power. Does nothing if it already does. Raises `OSError`."""
        if self._synced != self.last_commit:
            number = self.last_commit
            os.fdatasync(self._file)
            self._synced = number

    def is_accepted(self, last_commit: int) -> bool:
        """Tell whether an operator has accepted that the store goes on from this commit."""
        try:
            return int(self._path.with_name(self._path.name + _ACCEPTED).read_text()) == last_commit
        except (FileNotFoundError, ValueError):
            return False

    def go_on_from(self, last_commit: int, epoch: int) -> None:
        """Replace the record after an accepted loss, durably. Raises `OSError`."""
        self.note(last_commit, epoch)
        self._synced = -1
        self.sync()
        self.withdraw()

    def withdraw(self) -> None:
        """Remove an acceptance, so that it covers no later loss. Raises `OSError`."""
        path = self._path.with_name(self._path.name + _ACCEPTED)
        if path.exists():
            path.unlink(missing_ok=True)
            sync_directory(path.parent)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def accept_loss(data: Path, store_id: str, last_commit: int) -> int:
    """Let a store go on from a commit behind the acknowledged one; return how many commits are lost.

    The broker that opens the store next begins a generation, so that no number is given out twice. Raises ValueError,
    with the numbers, if no commit of the store is recorded or no commit would be lost, and `OSError`.
    """
    path = data / FOLDER / store_id
    if not path.is_file():
        known = ", ".join(sorted(one.name for one in path.parent.glob("*") if not one.suffix))
        raise ValueError(f"{store_id}: nothing is recorded in {path.parent}; there are {known or 'no stores'}")
    record = AcknowledgedCommits(data, store_id)
    record.close()
    if last_commit >= record.last_commit:
        raise ValueError(
            f"{store_id}: commit {record.last_commit} was acknowledged last, so nothing is lost by going on from "
            f"{last_commit}; give the number that the broker's error names"
        )
    replace_file(path.with_name(path.name + _ACCEPTED), f"{last_commit}\n".encode())
    return record.last_commit - last_commit
