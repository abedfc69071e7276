"""The bounds and the completion of access policies: generated keys, and times."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from partibus.errors import ArgumentError, EntityExists, EntityNotFound
from partibus.namespace.access import EMULATOR_KEY, KEY_CHARS_MIN, ROOT_POLICY, Right, SasPolicy
from partibus.namespace.keys_file import new_key

TEXT_MAX = 256
"""Characters of a name or key."""


def policy_path(owner: str, name: str) -> str:
    """Return the name of a policy in errors."""
    return f"{owner}/AuthorizationRules/{name}" if owner else f"AuthorizationRules/{name}"


def first_policies(now_ms: int) -> tuple[SasPolicy, ...]:
    """Return the policies of a new namespace: one with all rights and keys of its own."""
    return completed([SasPolicy(ROOT_POLICY, Right.MANAGE, "", "")], (), now_ms)


def completed(
    policies: Iterable[SasPolicy], known: Sequence[SasPolicy], now_ms: int, make_key: Callable[[], str] = new_key
) -> tuple[SasPolicy, ...]:
    """Return the complete policies of an entity, in order of name.

    ``known`` are its present ones, whose times stay where nothing changes. An empty key is generated. Raises
    `ArgumentError` for an invalid name, key or set of rights, and for a repeated name.
    """
    old = {policy.name: policy for policy in known}
    new: dict[str, SasPolicy] = {}
    for policy in policies:
        if policy.name in new:
            raise ArgumentError("KeyName", policy.name, "in the list once", "Leave the other out.")
        new[policy.name] = _completed(policy, old.get(policy.name), now_ms, make_key)
    return tuple(policy for _, policy in sorted(new.items()))


def without(policies: Sequence[SasPolicy], owner: str, name: str) -> tuple[SasPolicy, ...]:
    """Return all policies but the one of that name. Raises EntityNotFound."""
    _find(policies, owner, name)
    return tuple(policy for policy in policies if policy.name != name)


def with_policy(policies: Sequence[SasPolicy], policy: SasPolicy) -> list[SasPolicy]:
    """Return the policies with this one added or replaced."""
    return [*(known for known in policies if known.name != policy.name), policy]


def regenerated(policies: Sequence[SasPolicy], owner: str, name: str, *, secondary: bool) -> list[SasPolicy]:
    """Return the policies with a new key in one of them. Raises EntityNotFound for an unknown name."""
    old = _find(policies, owner, name)
    return with_policy(
        policies, replace(old, secondary_key=new_key()) if secondary else replace(old, primary_key=new_key())
    )


def check_not_fixed(is_fixed: bool, name: str) -> None:
    """Raise EntityExists for a policy of the keys file, which is changed there."""
    if is_fixed:
        raise EntityExists(f"{policy_path('', name)} of keys.json")


def _find(policies: Sequence[SasPolicy], owner: str, name: str) -> SasPolicy:
    for policy in policies:
        if policy.name == name:
            return policy
    raise EntityNotFound(policy_path(owner, name))


def _completed(policy: SasPolicy, known: SasPolicy | None, now_ms: int, make_key: Callable[[], str]) -> SasPolicy:
    name = policy.name
    if not 1 <= len(name) <= TEXT_MAX or not name.isprintable():
        raise ArgumentError("KeyName", name, f"1 to {TEXT_MAX} printable characters")
    if policy.rights not in (
        Right.SEND,
        Right.LISTEN,
        Right.SEND | Right.LISTEN,
        Right.MANAGE,
    ):
        raise ArgumentError("Rights", str(policy.rights), "Send, Listen, both, or Manage, which implies both")
    kept = () if known is None else known.keys
    for field, key in (("PrimaryKey", policy.primary_key), ("SecondaryKey", policy.secondary_key)):
        if len(key) > TEXT_MAX:
            raise ArgumentError(field, f"{len(key)} characters", f"at most {TEXT_MAX} characters long")
        if key == EMULATOR_KEY:
            raise ArgumentError(field, "the emulator's", "a key that not everybody knows", "Leave it out: one is made.")
        if 0 < len(key) < KEY_CHARS_MIN and key not in kept:
            raise ArgumentError(
                field,
                f"{len(key)} characters",
                f"at least {KEY_CHARS_MIN} characters long, so that it can't be guessed",
                "Leave it out: one is made.",
            )
    primary = policy.primary_key or make_key()
    secondary = policy.secondary_key or make_key()
    if known is not None and (known.rights, *known.keys) == (policy.rights, primary, secondary):
        return known
    created_ms = now_ms if known is None else known.created_ms
    return SasPolicy(name, policy.rights, primary, secondary, created_ms, now_ms)
