"""The place of a store: a PostgreSQL URL as libpq reads it, several hosts included, with two parameters of partibus.

``schema=NAME``: the schema of the store, ``partibus`` by default. ``stores=N``: N stores in one database, in schemas
``NAME_00``, ``NAME_01`` and so on.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from partibus.partition.protocol.ports import StoreError

SCHEMA_DEFAULT = "partibus"
STORES_MAX = 64
"""The most stores in one database: each keeps a few connections open."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,31}")
"""A name of at most 32 letters: an application name (63 bytes) also holds the broker's incarnation."""


class Address(NamedTuple):
    """The place of one store."""

    conninfo: str
    """Key words and values for libpq, including the password."""
    schema: str
    name: str
    """The URL without its password: for people, and to recognize the place."""
    url: str
    """The URL of this store alone, with the password."""


def parse_address(url: str, schema_default: str = SCHEMA_DEFAULT) -> list[Address]:
    """Return the stores of a URL. Raises `StoreError` that names the URL without its password."""
    base, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    ours = {key: value for key, value in given if key in ("schema", "stores")}
    theirs = [(key, value) for key, value in given if key not in ours]
    try:
        words = conninfo_to_dict(base + (f"?{urlencode(theirs)}" if theirs else ""))
    except psycopg.Error as error:
        raise _refused(url, " ".join(str(error).split())) from error
    schema = ours.get("schema", schema_default)
    if not _SCHEMA.fullmatch(schema):
        raise _refused(url, f"schema={schema!r}: give 1 to 32 of a-z, 0-9 and _, no digit first")
    schemas = [schema]
    if "stores" in ours:
        stores = ours["stores"]
        if not stores.isdecimal() or not 1 <= int(stores) <= STORES_MAX or len(schema) > 29:
            raise _refused(url, f"stores={stores!r}: give 1 to {STORES_MAX}, and a schema of 29 letters at most")
        schemas = [f"{schema}_{index:02}" for index in range(int(stores))]
    # A read-only server (a standby) can't commit: libpq goes on to the next host.
    words.setdefault("target_session_attrs", "read-write")
    place = _without_password(words)
    conninfo = make_conninfo("", **words)
    return [
        Address(conninfo, schema, f"{place}?schema={schema}", f"{base}?{urlencode([*theirs, ('schema', schema)])}")
        for schema in schemas
    ]


def _without_password(words: Mapping[str, object]) -> str:
    hosts = str(words.get("host") or words.get("hostaddr") or "").split(",")
    ports = str(words.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
    user = f"{words['user']}@" if "user" in words else ""
    return f"postgresql://{user}{places}/{words.get('dbname', '')}"


def _refused(url: str, why: str) -> StoreError:
    return StoreError(f"{_redacted(url.partition('?')[0])}: is no address of a store: {_redacted(why)}", executed=False)


def _redacted(text: str) -> str:
    """Return a URL, or libpq's message about one, without possible passwords."""
    return re.sub(r"password=[^&\s\"]*", "password=...", re.sub(r"//.*@", "//...@", text))
