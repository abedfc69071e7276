"""Access policies: list, set, regenerate a key, delete, on the namespace's `$management` node.

Answers hold keys: a client that may manage the namespace may read them. ``entity`` is the path of an entity; empty for
the namespace. Changes also apply to open connections. The node answers when every broker applies them.
"""

from collections.abc import Mapping

from partibus.errors import ArgumentError
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.request import body_of, boolean, items, optional_text, success, text
from partibus.namespace.access import RIGHTS, Right, SasPolicy, names_of, rights_of
from partibus.namespace.broker import Broker

LIST = "partibus:list-policies"
SET = "partibus:set-policy"
REGENERATE = "partibus:regenerate-key"
DELETE = "partibus:delete-policy"


def list_all(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with the policies of one owner."""
    respond(success({"policies": [_described(policy) for policy in broker.policies.of(_owner(body_of(body)))]}))


def set_one(broker: Broker, body: object, respond: Respond) -> None:
    """Make a policy, or change the rights and keys of the one of that name; reply with it.

    A new policy gets new keys for missing ones; an old one keeps them.
    """
    arguments = body_of(body)
    owner, name = _owner(arguments), text(arguments, "name")
    old = next((policy for policy in broker.policies.of(owner) if policy.name == name), None)
    primary = optional_text(arguments, "primary-key") or (old.primary_key if old else "")
    secondary = optional_text(arguments, "secondary-key") or (old.secondary_key if old else "")
    policy = broker.policies.set(owner, SasPolicy(name, _rights(arguments), primary, secondary))
    broker.when_followed(lambda: respond(success(_described(policy))))


def regenerate(broker: Broker, body: object, respond: Respond) -> None:
    """Replace the primary key, or the ``secondary``, by a new one; reply with the policy."""
    arguments = body_of(body)
    policy = broker.policies.regenerate_key(
        _owner(arguments), text(arguments, "name"), secondary=boolean(arguments, "secondary")
    )
    broker.when_followed(lambda: respond(success(_described(policy))))


def delete(broker: Broker, body: object, respond: Respond) -> None:
    """Delete a policy and the access of its users."""
    arguments = body_of(body)
    broker.policies.delete(_owner(arguments), text(arguments, "name"))
    broker.when_followed(lambda: respond(success()))


def _owner(arguments: Mapping[object, object]) -> str:
    return optional_text(arguments, "entity") or ""


def _rights(arguments: Mapping[object, object]) -> Right:
    names = [str(name) for name in items(arguments, "rights", "rights")]
    try:
        return rights_of(names)
    except KeyError:
        raise ArgumentError("rights", names, f"some of {', '.join(RIGHTS)}") from None


def _described(policy: SasPolicy) -> dict[object, object]:
    return {
        "name": policy.name,
        "rights": names_of(policy.rights),
        "primary-key": policy.primary_key,
        "secondary-key": policy.secondary_key,
    }
