"""Connection strings: where a namespace is and what to show there.

```text
 Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=…][;UseDevelopmentEmulator=true]
 Endpoint=sb://host[:port]/;SharedAccessSignature=SharedAccessSignature sr=…[;…]
```

Keys of the pairs compare without case; only the first ``=`` of a pair separates, since values may hold more.
"""

from msgspec import Struct

from partibus.errors import ArgumentError, did_you_mean

_FIELDS = (
    "Endpoint",
    "HostName",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
)
_NAME_MAX = 40
"""Characters; a key has more."""
_BY_FOLDED = {name.lower(): name for name in _FIELDS}
# Sets of characters and no patterns: each client would pay 2 ms to compile these.
_SCHEME = "sb://"
_HOST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-")
_IPV6 = frozenset("ABCDEFabcdef0123456789:.")
_PORT_DIGITS_MAX = 5


class ConnectionString(Struct, frozen=True, kw_only=True):
    """A parsed connection string. Shows neither key nor signature when printed; `text` has them."""

    host: str
    port: int | None = None
    key_name: str = ""
    key: str = ""
    signature: str = ""
    """A ready token, in place of name and key."""
    entity_path: str = ""
    emulator: bool = False
    """Plain TCP, as the emulator is spoken to."""

    def __repr__(self) -> str:
        return (
            f"ConnectionString(host={self.host!r}, port={self.port!r}, key_name={self.key_name!r}, "
            f"entity_path={self.entity_path!r}, emulator={self.emulator!r})"
        )

    @property
    def text(self) -> str:
        """The connection string; holds the secret."""
        parts = [f"Endpoint=sb://{self.host}{'' if self.port is None else f':{self.port}'}/"]
        if self.signature:
            parts.append(f"SharedAccessSignature={self.signature}")
        else:
            parts += [f"SharedAccessKeyName={self.key_name}", f"SharedAccessKey={self.key}"]
        if self.entity_path:
            parts.append(f"EntityPath={self.entity_path}")
        if self.emulator:
            parts.append("UseDevelopmentEmulator=true")
        return ";".join(parts)


def parse_connection_string(text: str) -> ConnectionString:
    """Parse a connection string.

    Raises `ArgumentError`, never with a secret in it, for a field that is missing, unknown, repeated or malformed.
    """
    fields = _fields(text)
    host, port = _host_and_port(fields)
    signature = fields.get("SharedAccessSignature", "")
    key_name, key = fields.get("SharedAccessKeyName", ""), fields.get("SharedAccessKey", "")
    if bool(signature) == bool(key_name or key) or bool(key_name) != bool(key):
        raise ArgumentError(
            "connection string",
            ";".join(fields),
            "with SharedAccessKeyName and SharedAccessKey, or with SharedAccessSignature alone",
        )
    flag = fields.get("UseDevelopmentEmulator", "false")
    if flag.lower() not in ("true", "false"):
        raise ArgumentError("UseDevelopmentEmulator", flag, "true or false")
    return ConnectionString(
        host=host,
        port=port,
        key_name=key_name,
        key=key,
        signature=signature,
        entity_path=fields.get("EntityPath", ""),
        emulator=flag.lower() == "true",
    )


def _fields(text: str) -> dict[str, str]:
    """Values by the proper spelling of their names."""
    fields: dict[str, str] = {}
    for pair in text.strip().split(";"):
        if not pair.strip():
            continue
        folded, equals, value = pair.partition("=")
        name = _BY_FOLDED.get(folded.strip().lower())
        if name is None or not equals:
            # A text that is no name may be a part of a key: it is not repeated.
            unknown = folded.strip() if equals and len(folded) <= _NAME_MAX else "(not shown)"
            raise ArgumentError(
                "name in the connection string", unknown, f"one of {', '.join(_FIELDS)}", did_you_mean(unknown, _FIELDS)
            )
        if name in fields:
            raise ArgumentError("name in the connection string", name, "there once")
        fields[name] = value.strip()
    return fields


def _host_and_port(fields: dict[str, str]) -> tuple[str, int | None]:
    name = "Endpoint" if "Endpoint" in fields else "HostName"
    if name not in fields:
        raise ArgumentError("connection string", ";".join(fields), "with an Endpoint", "Add Endpoint=sb://host/.")
    address = fields[name]
    if name == "Endpoint":
        has_scheme = address[: len(_SCHEME)].lower() == _SCHEME
        address = address[len(_SCHEME) :].removesuffix("/") if has_scheme else ""
    if address.startswith("["):  # An IPv6 address, which has colons of its own.
        own, closed, rest = address[1:].partition("]")
        host, known, is_closed = f"[{own}]", _IPV6, bool(closed)
        colon, rest = rest[:1], rest[1:]
    else:
        host, colon, rest = address.partition(":")
        own, known, is_closed = host, _HOST, True
    is_port = colon == ":" and rest.isascii() and rest.isdecimal() and len(rest) <= _PORT_DIGITS_MAX
    if not (own and is_closed and known.issuperset(own) and (is_port or not colon)):
        raise ArgumentError(name, fields[name], "sb://host/ or sb://host:port/")
    port = int(rest) if is_port else None
    if port is not None and not 1 <= port <= 65_535:
        raise ArgumentError(f"port of the {name}", port, "1 to 65535")
    return host, port
