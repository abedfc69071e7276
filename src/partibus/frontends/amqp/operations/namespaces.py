"""Namespaces of the server: create, list, get, update, migrate, delete, and new keys.

They are on the default namespace's `$management` node: a client that may manage it is the server's operator. Options
are maps by the names of `OPTIONS`; null for a number of the tier restores the tier's value. Answers to ``create``,
``get`` and new keys hold keys: the creator of a namespace passes them on. The node answers a change when every broker
applies it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec.structs import replace

from partibus.errors import ArgumentError, did_you_mean
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.request import body_of, mapping, success, text
from partibus.namespace.access import ROOT_POLICY, Right, SasPolicy
from partibus.namespace.broker import Broker
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.tiers import Tier
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings

CREATE: Final = "partibus:create-namespace"
LIST: Final = "partibus:list-namespaces"
GET: Final = "partibus:get-namespace"
UPDATE: Final = "partibus:update-namespace"
MIGRATE: Final = "partibus:migrate-namespace"
DELETE: Final = "partibus:delete-namespace"
RESET_KEYS: Final = "partibus:reset-namespace-keys"

LIMITS: Final = "limits"
OPTIONS: Final[dict[str, str]] = {
    "tier": "tier",
    "partitions": "partition_count",
    "units": "units",
    "units-min": "units_min",
    "units-max": "units_max",
    LIMITS: "limits",
}
"""Name in requests and answers -> field of `NamespaceOptions`; those of `THROTTLING` are on the same level."""
THROTTLING: Final[dict[str, str]] = {
    "throttling" if name == "policy" else name.replace("_", "-").replace("per-s", "per-second"): name
    for name in ThrottlingSettings.__struct_fields__
}
"""Name in requests and answers -> field of `ThrottlingSettings`."""
_UNITS: Final = ("units", "units_min", "units_max")
_INT_MAX: Final = (1 << 63) - 1


def create(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Make a namespace of that ``name`` with a policy of all rights; reply with its description."""
    arguments = body_of(body)
    with _named_as_asked():
        broker = namespaces.create(text(arguments, "name"), _changed(NamespaceOptions(), _options(arguments)))
    namespaces.when_followed(lambda: respond(success(_described(broker) | _keys(broker) | _counts(broker, 0))))


def list_all(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Reply with all namespaces, in order of name."""
    body_of(body)

    def counted(connections: Mapping[str, int]) -> None:
        brokers = sorted(namespaces, key=lambda broker: broker.namespace.name.lower())
        found = [_described(one) | _counts(one, connections.get(one.namespace.name, 0)) for one in brokers]
        respond(success({"namespaces": found}))

    _ask_connections(namespaces, counted)


def get(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Reply with one namespace, including its policy of all rights if that still exists."""
    _reply_with(namespaces, namespaces.named(text(body_of(body), "name")), respond, keys=True)


def update(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Change the given options only; reply with the result."""
    arguments = body_of(body)
    given = _options(arguments)
    with _named_as_asked():
        broker = namespaces.update(text(arguments, "name"), lambda old: _changed(old, given))
    namespaces.when_followed(lambda: _reply_with(namespaces, broker, respond))


def migrate(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Make it a premium namespace while it is in use, with the other given options; reply with the result.

    It no longer uses credits afterwards.
    """
    arguments = body_of(body)
    given = {"tier": Tier.PREMIUM.value, "throttling": ThrottlingPolicy.OFF.value, **_options(arguments)}
    with _named_as_asked():
        broker = namespaces.migrate(text(arguments, "name"), lambda old: _changed(old, given))
    namespaces.when_followed(lambda: _reply_with(namespaces, broker, respond))


def delete(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Delete a namespace with its content and disconnect its clients."""
    namespaces.delete(text(body_of(body), "name"))
    namespaces.when_followed(lambda: respond(success()))


def reset_keys(namespaces: Namespaces, body: object, respond: Respond) -> None:
    """Restore the initial policy of a namespace with new keys; reply with the result.

    This restores access for an owner who has lost the keys.
    """
    broker = namespaces.named(text(body_of(body), "name"))
    broker.policies.set("", SasPolicy(ROOT_POLICY, Right.MANAGE, "", ""))
    namespaces.when_followed(lambda: _reply_with(namespaces, broker, respond, keys=True))


# -- from requests to options ------------------------------------------------------------------------------------------


@contextmanager
def _named_as_asked() -> Iterator[None]:
    """Name the request's option in errors about a field."""
    try:
        yield
    except ArgumentError as error:
        names = {field: name for name, field in (OPTIONS | THROTTLING).items()}
        if error.field not in names:
            raise
        raise ArgumentError(names[error.field], error.value, error.bound, error.next_step) from error


def _options(arguments: Mapping[object, object]) -> dict[str, object]:
    """Return options by the names of `OPTIONS` and `THROTTLING`. Raises `ArgumentError` for any other name."""
    known = (*OPTIONS, *THROTTLING)
    found: dict[str, object] = {}
    for name, value in mapping(arguments, "options").items():
        if not isinstance(name, str) or name not in known:
            raise ArgumentError("name of an option", name, f"one of {', '.join(known)}", did_you_mean(str(name), known))
        found[str(name)] = value
    return found


def _changed(old: NamespaceOptions, given: Mapping[str, object]) -> NamespaceOptions:
    """Return the options with the given changes. Raises `ArgumentError`.

    Without a range of units the number of units is the range.
    """
    changes: dict[str, Any] = {}
    throttling: dict[str, Any] = {}
    for name, value in given.items():
        if name in THROTTLING:
            throttling[THROTTLING[name]] = value if name == "throttling" else _integer(name, value)
        elif name == LIMITS:
            changes["limits"] = _limits(old.limits, value)
        elif name == "tier":
            changes["tier"] = _tier(value)
        else:
            changes[OPTIONS[name]] = _integer(name, value)
    if "units" in changes and not {"units_min", "units_max"} & changes.keys() and old.units_min == old.units_max:
        changes |= dict.fromkeys(_UNITS, changes["units"])
    elif "units" not in changes and {"units_min", "units_max"} & changes.keys():
        least, most = changes.get("units_min", old.units_min), changes.get("units_max", old.units_max)
        changes["units"] = max(least, min(old.units, most))
    if throttling:
        changes["throttling"] = replace(old.throttling, **throttling)
    return replace(old, **changes)


def _limits(old: Mapping[str, int], given: object) -> dict[str, int]:
    limits = dict(old)
    for name, value in mapping({LIMITS: given}, LIMITS).items():
        if value is None:
            limits.pop(str(name), None)
        else:
            limits[str(name)] = _integer(f"limit {name}", value)
    return limits


def _tier(value: object) -> Tier:
    try:
        return Tier(value)
    except ValueError:
        raise ArgumentError("tier", value, f"one of {', '.join(tier.value for tier in Tier)}") from None


def _integer(name: str, value: object) -> int:
    """Convert AMQP's narrow integers, a subclass of Python's, to plain integers for the check of options."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _INT_MAX:
        raise ArgumentError(name, value, "a whole number")
    return int(value)


# -- from namespaces to answers ----------------------------------------------------------------------------------------


def _reply_with(namespaces: Namespaces, broker: Broker, respond: Respond, *, keys: bool = False) -> None:
    def counted(connections: Mapping[str, int]) -> None:
        counts = _counts(broker, connections.get(broker.namespace.name, 0))
        respond(success(_described(broker) | (_keys(broker) if keys else {}) | counts))

    _ask_connections(namespaces, counted)


def _ask_connections(namespaces: Namespaces, then: Callable[[Mapping[str, int]], None]) -> None:
    """Count the AMQP connections to all brokers by namespace name, without those that have none."""

    def asked(status: Mapping[Any, Any]) -> None:
        found: dict[str, int] = {}
        for one in status["brokers"]:
            for name, connections in one.get("namespaces", {}).items():
                found[name] = found.get(name, 0) + connections
        then(found)

    namespaces.default.ask_status(asked)


def _described(broker: Broker) -> dict[object, object]:
    record = broker.namespace.record
    options = record.options
    described: dict[object, object] = {"name": record.name, "default": broker.is_default}
    described |= {name: getattr(options, field) for name, field in OPTIONS.items()}
    described |= {name: getattr(options.throttling, field) for name, field in THROTTLING.items()}
    return described | {
        "tier": options.tier.value,
        "throttling": options.throttling.policy.value,
        LIMITS: dict(options.limits),
        "created-ms": record.created_ms,
        "updated-ms": record.updated_ms,
    }


def _counts(broker: Broker, connections: int) -> dict[object, object]:
    return {"entities": len(broker.namespace), "connections": connections}


def _keys(broker: Broker) -> dict[object, object]:
    """Return the keys of the initial policy, or of another one of all rights."""
    able = [policy for policy in broker.access if policy.rights is Right.MANAGE]
    for policy in sorted(able, key=lambda one: one.name != ROOT_POLICY)[:1]:
        return {"policy": policy.name, "primary-key": policy.primary_key, "secondary-key": policy.secondary_key}
    return {}
