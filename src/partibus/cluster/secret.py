"""The secret by which the brokers of one namespace know each other, in a file that only its owner can read."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from partibus.errors import UnusableFile

FILE_NAME = "cluster.secret"
SECRET_BYTES = 32


def load_secret(directory: Path) -> bytes:
    """Read the secret in a data directory; make it at the first start.

    Several processes may do so at once, and get the same. Raises `UnusableFile` when other users than its owner can use
    it, or it is too short.
    """
    return read_secret(directory / FILE_NAME, make=True)


def read_secret(path: Path, *, make: bool) -> bytes:
    """Read the secret in a file. Raises `UnusableFile` as `load_secret`.

    ``make``: make a missing one, which is otherwise an `UnusableFile`.
    """
    try:
        if make and not path.exists():
            _make(path)
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(1024).strip()
    except OSError as error:
        raise UnusableFile(
            str(path), f"can't be used ({error.strerror})", "Check that it is there, can be read, and has room."
        ) from error
    if mode & 0o077:
        raise UnusableFile(
            str(path),
            f"holds a secret and has the mode {mode:o}, so others than its owner can use it",
            f"Run: chmod 600 {path}. Remove the file to have a new one made, if another user may have read it.",
        )
    if len(secret) < SECRET_BYTES:
        raise UnusableFile(
            str(path),
            f"has {len(secret)} bytes, a secret has {SECRET_BYTES} at least",
            "Remove the file to have a new one made.",
        )
    return secret


def _make(path: Path) -> None:
    """Write a secret atomically, and never over one that another process has made."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        beside.unlink()
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, os.urandom(SECRET_BYTES).hex().encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    try:
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()
