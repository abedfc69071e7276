"""Namespaces of a server: operations of the default one's `$management` node, for its administrators."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from partibus.client.endpoint import Endpoint
from partibus.client.management import Requests, integer, maps, text
from partibus.namespace.connection_string import ConnectionString

NUMBERS: Final = ("partitions", "units", "units-min", "units-max")
"""The numeric options of a namespace, beside ``tier``, ``throttling`` and ``limits``."""
THROTTLING: Final = (
    "credits-per-second",
    "period-ms",
    "send-credits",
    "receive-credits",
    "peek-credits",
    "management-credits",
    "filter-credits",
)
"""The throttling options of a namespace, beside ``throttling``."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace as the broker describes it."""

    name: str
    is_default: bool
    """Whether the namespace serves every host name that names no other one."""
    options: Mapping[str, object]
    """The options ``tier``, ``throttling`` and ``limits``, and a number for each of `NUMBERS` and `THROTTLING`. The
    limits are those that differ from the tier's.
    """
    entities: int
    connections: int
    """The number of AMQP connections to all brokers."""
    created_ms: int
    updated_ms: int
    policy: str = ""
    """The name of the policy with all rights. It is empty if there is none or the request did not ask for it, as are
    its keys.
    """
    primary_key: str = field(default="", repr=False)
    secondary_key: str = field(default="", repr=False)

    @property
    def tier(self) -> str:
        """The tier of the namespace."""
        return str(self.options["tier"])

    def connection_string(self, endpoint: Endpoint) -> str:
        """Return the connection string for clients that reach the server as this client does.

        The result is empty without a policy.
        """
        if not self.policy:
            return ""
        host = endpoint.host if self.is_default else host_of(self.name, endpoint.host)
        known = ConnectionString(
            host=host, port=endpoint.port, key_name=self.policy, key=self.primary_key, emulator=not endpoint.tls
        )
        return known.text


class Namespaces:
    """The namespaces of a server.

    Every call raises the `ClientError` of the broker's reply.
    """

    def __init__(self, client: Requests) -> None:
        """Use ``client``, which belongs to the default namespace."""
        self._client = client

    def create(self, name: str, options: Mapping[str, object] | None = None) -> NamespaceInfo:
        """Create a namespace and return it with its keys.

        The options are those of `NamespaceInfo`; omitted ones have their defaults.
        """
        return self._ask("partibus:create-namespace", name, options or {})

    def list(self) -> list[NamespaceInfo]:
        """Return all namespaces without keys, sorted by name."""
        return [_info(one) for one in maps(self._client.request("", "partibus:list-namespaces", {}), "namespaces")]

    def get(self, name: str) -> NamespaceInfo:
        """Return a namespace with its keys."""
        return _info(self._client.request("", "partibus:get-namespace", {"name": name}))

    def update(self, name: str, options: Mapping[str, object]) -> NamespaceInfo:
        """Change the given options at once and keep the others.

        A limit of None restores the tier's limit.
        """
        return self._ask("partibus:update-namespace", name, options)

    def migrate(self, name: str, options: Mapping[str, object] | None = None) -> NamespaceInfo:
        """Convert a standard namespace to a premium one while it is in use."""
        return self._ask("partibus:migrate-namespace", name, options or {})

    def reset_keys(self, name: str) -> NamespaceInfo:
        """Replace a namespace's first policy by one with new keys, which locks out users of the old keys at once."""
        return _info(self._client.request("", "partibus:reset-namespace-keys", {"name": name}))

    def delete(self, name: str) -> None:
        """Delete a namespace with all its entities and messages, and disconnect its clients."""
        self._client.request("", "partibus:delete-namespace", {"name": name})

    def _ask(self, operation: str, name: str, options: Mapping[str, object]) -> NamespaceInfo:
        return _info(self._client.request("", operation, {"name": name, "options": dict(options)}))


def host_of(name: str, server: str) -> str:
    """Return the host name of a namespace on the server called ``server``.

    Its first label is the namespace's name. An address has no labels: in that case the name alone is a host name, which
    DNS must know.
    """
    bare = server.strip("[]")
    try:
        address = ip_address(bare)
    except ValueError:
        labels = bare.split(".")
        if labels[-1].lower() == "localhost":
            return f"{name}.localhost"
        return ".".join([name, *(labels[1:] if labels[0].lower() == "default" else labels)])
    return f"{name}.localhost" if address.is_loopback else name


def _info(body: Mapping[str, object]) -> NamespaceInfo:
    limits = body.get("limits")
    options: dict[str, object] = {"tier": text(body, "tier"), "throttling": text(body, "throttling")}
    options |= {name: integer(body, name) for name in (*NUMBERS, *THROTTLING)}
    options["limits"] = {str(key): value for key, value in limits.items()} if isinstance(limits, dict) else {}
    return NamespaceInfo(
        name=text(body, "name"),
        is_default=body.get("default") is True,
        options=options,
        entities=integer(body, "entities"),
        connections=integer(body, "connections"),
        created_ms=integer(body, "created-ms"),
        updated_ms=integer(body, "updated-ms"),
        policy=text(body, "policy") if "policy" in body else "",
        primary_key=text(body, "primary-key") if "primary-key" in body else "",
        secondary_key=text(body, "secondary-key") if "secondary-key" in body else "",
    )
