"""Namespaces of a server: operations of the default one's `$management` node, for who may manage that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from partibus.client.client import Client
from partibus.client.endpoint import Endpoint
from partibus.client.values import integer, maps, text
from partibus.namespace.connection_string import ConnectionString

NUMBERS: Final = ("partitions", "units", "units-min", "units-max")
"""Options beside ``tier``, ``throttling`` and ``limits`` that say what a namespace is."""
THROTTLING: Final = (
    "credits-per-second",
    "period-ms",
    "send-credits",
    "receive-credits",
    "peek-credits",
    "management-credits",
    "filter-credits",
)
"""Options beside ``throttling`` that say how it is throttled."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace as the broker describes it now."""

    name: str
    is_default: bool
    """It is served under every host name that names no other one."""
    options: Mapping[str, object]
    """``tier``, ``throttling``, ``limits`` (those that are others than the tier's), and a number for each of `NUMBERS`
    and `THROTTLING`."""
    entities: int
    connections: int
    """Over AMQP, to all brokers."""
    created_ms: int
    updated_ms: int
    policy: str = ""
    """Of all rights; empty where it was not asked for, or there is none, as its keys."""
    primary_key: str = field(default="", repr=False)
    secondary_key: str = field(default="", repr=False)

    @property
    def tier(self) -> str:
        return str(self.options["tier"])

    def connection_string(self, endpoint: Endpoint) -> str:
        """By which its clients reach it where this client reaches the server; empty without a policy."""
        if not self.policy:
            return ""
        host = endpoint.host if self.is_default else host_of(self.name, endpoint.host)
        known = ConnectionString(
            host=host, port=endpoint.port, key_name=self.policy, key=self.primary_key, emulator=not endpoint.tls
        )
        return known.text


class Namespaces:
    """Every call raises the `ClientError` that the broker answered with."""

    def __init__(self, client: Client) -> None:
        """``client`` is one of the default namespace."""
        self._node = client.management()

    def create(self, name: str, options: Mapping[str, object] | None = None) -> NamespaceInfo:
        """Options are those of `NamespaceInfo`; what is left out has its default. The answer has the keys."""
        return self._ask("partibus:create-namespace", name, options or {})

    def list(self) -> list[NamespaceInfo]:
        """By name, without keys."""
        return [_info(one) for one in maps(self._node.request("partibus:list-namespaces", {}), "namespaces")]

    def get(self, name: str) -> NamespaceInfo:
        """With the keys."""
        return _info(self._node.request("partibus:get-namespace", {"name": name}))

    def update(self, name: str, options: Mapping[str, object]) -> NamespaceInfo:
        """Change options, with effect at once; what is left out stays, and a limit that is None is the tier's again."""
        return self._ask("partibus:update-namespace", name, options)

    def migrate(self, name: str, options: Mapping[str, object] | None = None) -> NamespaceInfo:
        """Make a premium namespace of a standard one while it is in use."""
        return self._ask("partibus:migrate-namespace", name, options or {})

    def reset_keys(self, name: str) -> NamespaceInfo:
        """Make its first policy anew, with new keys: who uses the old ones is locked out at once."""
        return _info(self._node.request("partibus:reset-namespace-keys", {"name": name}))

    def delete(self, name: str) -> None:
        """With all its entities and messages; its clients are disconnected."""
        self._node.request("partibus:delete-namespace", {"name": name})

    def _ask(self, operation: str, name: str, options: Mapping[str, object]) -> NamespaceInfo:
        return _info(self._node.request(operation, {"name": name, "options": dict(options)}))


def host_of(name: str, server: str) -> str:
    """The host name that leads to a namespace where the server is called ``server``: its first label is the
    namespace's name. An address has no labels: there the name alone is a host that DNS must know."""
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
