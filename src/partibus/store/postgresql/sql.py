"""The store's SQL, and PostgreSQL's errors as errors of the store.

Every statement is a file in ``statements/``, called by the file's name, read once. An error names the failed operation,
the store, and the next step.
"""

import re
import struct
from functools import cache
from importlib.resources import files

import psycopg

from partibus.partition.protocol.ports import StoreError, StoreFull

FORMAT_VERSION = 5
OLDEST_VERSION = 1
"""The first format that `creation.migrate` handles."""


def schema_script() -> str:
    """Return the script that makes the tables of an empty store."""
    return _ddl("schema")


def migration_script(version: int) -> str:
    """Return the script that migrates a store from this format to the next."""
    return _ddl(f"{version:04}-to-{version + 1:04}")


def functions_script() -> str:
    """Return the script of the functions that commits call.

    They belong to this version of partibus, so a broker that takes a store over installs them.
    """
    return _ddl("apply_writes") + _ddl("sweep_partition")


@cache
def statement(name: str) -> bytes:
    """Return the text of ``statements/<name>.sql`` without its comments."""
    text = files(__package__).joinpath("statements", f"{name}.sql").read_text()
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).encode()


@cache
def page_statement(name: str) -> bytes:
    """Return a statement that finds entries, bounded by the sum of their messages' lengths."""
    return statement("bounded").replace(b"{page}", statement(name))


def _ddl(name: str) -> str:
    return files(__package__).joinpath("ddl", f"{name}.sql").read_text()


BINDING_ERRORS = (psycopg.Error, OverflowError, ValueError, TypeError, struct.error)
"""The errors of executing a statement: the driver's own, and those of values that don't fit a column (a lone surrogate
in a text, an integer of more than 64 bits).
"""

FENCED = "PB001"
"""The code that `apply_writes` raises when this process no longer owns the store."""

DISK_FULL = "53100"

_NEXT_STEP = {
    "25006": "the server only reads (a standby, perhaps); name the primary, or all hosts of the cluster, in the URL",
    "42501": "this role may not do that; let it own the schema, or grant it CREATE on the database for the first start",
    "53200": "the server is out of memory; give it more, or lower work_mem and max_connections",
    "53300": "all connections of the server are in use; raise its max_connections, or end other sessions",
    "55P03": "another session holds a lock of the store for too long; end it (a migration, a shell), then start again",
    "57P01": "the connection was ended from the server's side; it is made anew",
    "57P03": "the server is starting or stopping; wait until it takes connections",
    "58030": "the server's disk refused; look at its log and the disk's health",
    "XX001": "the server found damaged data; stop the broker and restore the database from a backup",
}
_NEXT_STEP_OF_TEXT = (
    (r"too many clients|remaining connection slots|too many connections", _NEXT_STEP["53300"]),
    (r"authentication|no password|pg_hba", "correct user and password in the URL, or the server's pg_hba.conf"),
    (r'role ".*" does not exist', "correct the user in the URL, or make the role (createuser)"),
    (r'database ".*" does not exist', "correct the name in the URL, or make the database (createdb)"),
    (r"read-only|recovery|standby", _NEXT_STEP["25006"]),
    (r"starting up|shutting down", _NEXT_STEP["57P03"]),
)
"""Next steps for connection errors, which have no code.

A server with messages in another language gets the last one.
"""

_UNREACHABLE = "see that the server runs and that its host and port are right and can be reached from here"


def store_error(error: Exception, name: str, doing: str, *, executed: bool | None) -> StoreError:
    """Return the error to raise in place of that of the driver (or of the binding of a value) while ``doing``."""
    code = getattr(error, "sqlstate", None)
    text = " ".join(str(error).split())
    if code == DISK_FULL:
        return StoreFull(
            f"{name}: {doing} failed: no room: {text}; receive and complete messages, delete entities, or free space "
            "on the server's disk"
        )
    return StoreError(f"{name}: {doing} failed: {text}: {next_step(error)}", executed=executed)


def refused(name: str, reason: str) -> StoreError:
    """Return the error for a refusal by the store itself; nothing was done."""
    return StoreError(f"{name}: {reason}", executed=False)


def next_step(error: Exception) -> str:
    """Return what an operator can do about an error."""
    code = getattr(error, "sqlstate", None)
    text = " ".join(str(error).split())
    if code is not None:
        if code.startswith("08"):
            return _UNREACHABLE
        return _NEXT_STEP.get(code, "this is not expected: please report it")
    for pattern, step in _NEXT_STEP_OF_TEXT:
        if re.search(pattern, text):
            return step
    return _UNREACHABLE if isinstance(error, psycopg.OperationalError) else "this is not expected: please report it"
