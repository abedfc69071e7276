"""The broker and the entity that options name, each of which can be given in several ways."""

from collections.abc import Mapping

from partibus.client.endpoint import endpoint_of
from partibus.errors import ArgumentError
from partibus.namespace.connection_string import ConnectionString, parse_connection_string
from partibus.spark.errors import OptionError
from partibus.spark.option_table import SUB_QUEUES
from partibus.spark.option_values import word_of

_EXAMPLE = {
    "connection": 'option("connection", "Endpoint=sb://localhost;SharedAccessKeyName=NAME;SharedAccessKey=KEY")',
    "entity": 'option("entity", "orders")',
}


def endpoint(connection: str) -> str:
    """Return the `sb://host:port` of a valid connection string, the part of it that may be shown."""
    return endpoint_of(parse_connection_string(connection)).namespace.rstrip("/")


def connection_of(values: Mapping[str, str]) -> str:
    """Return the connection string that options give, as one or in parts. Raises `OptionError`."""
    text = values.get("connection", "").strip()
    parts = [name for name in ("endpoint", "keyName", "key", "token") if values.get(name, "").strip()]
    if text and parts:
        raise OptionError(f"option {parts[0]!r} is given beside 'connection', which says it already; leave one out")
    if not text and "endpoint" in parts:
        text = _joined(values)
    elif not text and parts:
        raise OptionError(f'option {parts[0]!r} goes with \'endpoint\'; add .option("endpoint", "sb://HOST:PORT")')
    if not text:
        raise OptionError(f"option 'connection' is missing; add .{_EXAMPLE['connection']}")
    try:
        parse_connection_string(text)
    except ArgumentError as error:
        raise OptionError(f"option 'connection': {error}") from None
    return text


def _joined(values: Mapping[str, str]) -> str:
    """Join the parts of a connection string."""
    key_name, key, token = (values.get(name, "").strip() for name in ("keyName", "key", "token"))
    if bool(token) == bool(key_name or key) or bool(key_name) != bool(key):
        raise OptionError("option 'endpoint' goes with 'keyName' and 'key', or with 'token' alone")
    for name in ("keyName", "key", "token"):
        if ";" in values.get(name, ""):
            raise OptionError(f"option {name!r} has a semicolon, which is no part of one; give it alone")
    text = values["endpoint"].strip()
    try:
        # Only its address counts:
        where = parse_connection_string(f"Endpoint={text if '://' in text else 'sb://' + text};SharedAccessSignature=x")
    except ArgumentError as error:
        raise OptionError(f"option 'endpoint': {error}") from None
    return ConnectionString(host=where.host, port=where.port, key_name=key_name, key=key, signature=token).text


def entity_of(values: Mapping[str, str], connection: str) -> str:
    """Return the entity that the option or the connection string names. Raises `OptionError` when they differ.

    A key of one entity is useless for another.
    """
    text = values.get("entity", "").strip().strip("/")
    named = parse_connection_string(connection).entity_path.strip("/")
    if named and text and not f"{text}/".lower().startswith(f"{named}/".lower()):
        raise OptionError(
            f"option 'entity' is {text!r}, but the connection string is of {named!r} (EntityPath); leave one out"
        )
    return text or named


def source_of(values: Mapping[str, str], connection: str) -> str:
    """Return the entity to read, with its sub-queue, from all options that name it. Raises `OptionError`."""
    text = entity = entity_of(values, connection)
    if not entity:
        raise OptionError(f"option 'entity' is missing; add .{_EXAMPLE['entity']}")
    base, dollar, last = entity.partition("/$")
    ending = f"${last}" if dollar else ""
    if dollar and ending.lower() not in (known.lower() for known in SUB_QUEUES.values()):
        raise OptionError(
            f"option 'entity' is {text!r}: '/{ending}' is no sub-queue; use '/$DeadLetterQueue' or leave it out"
        )
    subscription, sub_queue = values.get("subscription", "").strip(), word_of(values, "subQueue")
    if subscription and "/subscriptions/" in f"{base}/".lower():
        raise OptionError(f"option 'subscription' is given, but 'entity' names one already: {text!r}; leave one out")
    if subscription:
        base = f"{base}/Subscriptions/{subscription}"
    if sub_queue is not None and ending:
        raise OptionError(f"option 'subQueue' is given, but 'entity' names one already: {text!r}; leave one out")
    if sub_queue is not None:
        ending = SUB_QUEUES[sub_queue]
    return f"{base}/{ending}" if ending else base
