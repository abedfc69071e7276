"""The store's SQL: every statement is a file in ``statements/``, called by the file's name, read once."""

from functools import cache
from importlib.resources import files

FORMAT_VERSION = 5
OLDEST_VERSION = 1
"""The first format that `creation.migrate` handles."""


def schema_script(version: int) -> str:
    """Return the script that makes the tables of an empty store of this format."""
    return _ddl(f"{version:04}")


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
