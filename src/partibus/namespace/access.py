"""Who may do what: shared access policies, and the grants that come of showing a key or a token (SAS).

A policy has a name, two keys of which either is good (so that one can be replaced while the other is in use), and
rights. A grant is what a connection holds after it proved itself: rights on everything at or below one path, until some
time. Links and requests ask the grant, each for what it is about to do.
"""

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Flag

from partibus.errors import Unauthorized, shown
from partibus.namespace.sas import Path, Token, parse_resource, parse_token, utf8

ROOT_POLICY = "RootManageSharedAccessKey"
"""The policy that every namespace has from its first start, with all rights."""

EMULATOR_KEY = "SAS_KEY_VALUE"
"""The key that Microsoft's emulator takes and every example shows: no secret, so only good when asked for."""


class Right(Flag):
    """What a policy allows. Manage implies the others."""

    SEND = 1
    LISTEN = 2
    MANAGE = 7


@dataclass(frozen=True, slots=True)
class SasPolicy:
    """A shared access policy of the namespace. Never printed with its keys."""

    name: str
    rights: Right
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are good; one that is empty is switched off."""
        return tuple(key for key in (self.primary_key, self.secondary_key) if key)


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of one policy on the entities at or below ``path``, until ``expires_s`` (Unix seconds; None: for good)."""

    policy_name: str
    rights: Right
    path: Path
    expires_s: int | None

    def allows(self, path: Path, right: Right, now_s: float) -> bool:
        """Whether it is good for ``right`` on ``path`` now."""
        alive = self.expires_s is None or now_s < self.expires_s
        return alive and right in self.rights and path[: len(self.path)] == self.path


class AccessPolicies:
    """The policies of a namespace by name."""

    def __init__(self, policies: Iterable[SasPolicy], *, emulator: bool = False) -> None:
        """``emulator`` also takes `EMULATOR_KEY` for the `ROOT_POLICY`."""
        self._policies = {policy.name: policy for policy in policies}
        self._emulator = emulator

    def __iter__(self) -> Iterator[SasPolicy]:
        return iter(self._policies.values())

    def __contains__(self, name: str) -> bool:
        return name in self._policies

    def policy(self, name: str) -> SasPolicy:
        """Unauthorized when there is none of that name."""
        policy = self._policies.get(name)
        if policy is None:
            raise _no_such_policy(name)
        return policy

    def keys(self, name: str) -> tuple[str, ...]:
        """All keys that are good for a policy. Unauthorized when there is none of that name."""
        keys = self.policy(name).keys
        return (*keys, EMULATOR_KEY) if self._emulator and name == ROOT_POLICY else keys

    def check_key(self, name: str, key: str) -> Grant:
        """The grant of a client that shows a policy's name and key in the clear (SASL PLAIN): the whole namespace, for
        as long as the connection lives. Unauthorized otherwise."""
        good = [hmac.compare_digest(utf8(key), utf8(known)) for known in self.keys(name)]
        if not any(good):
            raise Unauthorized(
                f"The key shown for the access policy {shown(name)} is not one of its keys. "
                "Check SharedAccessKey of the client."
            )
        return Grant(name, self.policy(name).rights, (), None)

    def check_token(self, text: str, audience: str, now_s: float, leeway_s: float = 0) -> Grant:
        """The grant of a token that is shown for ``audience``, the resource that the client is about to use.

        Unauthorized when it is malformed, names no policy, is not signed with one of the policy's keys, has expired
        (more than ``leeway_s`` ago), or is for something else than the audience or what that lies in.
        """
        token = parse_token(text)
        name = self._signing_policy(token)
        expires_s = token.expires_s + int(leeway_s)
        if now_s >= expires_s:
            raise Unauthorized(
                f"The token expired {int(now_s) - token.expires_s} s ago. Get a new one, or compare the clocks."
            )
        resource = token.resource
        if not resource.covers(parse_resource(audience)):
            raise Unauthorized(
                f"The token is for {shown(token.signed_resource)} and not for {shown(audience)}. "
                "Sign the entity that is used, or the namespace."
            )
        return Grant(name, self.policy(name).rights, resource.path, expires_s)

    def _signing_policy(self, token: Token) -> str:
        """Name of the policy that the token is signed with a key of."""
        known = [name for name in token.policy_names if name in self]
        for name in known:
            if token.is_signed_by_any(self.keys(name)):
                return name
        if not known:
            raise _no_such_policy(token.policy_names[0])
        raise Unauthorized(
            f"The token is not signed with a key of the access policy {shown(known[0])}. "
            "Check SharedAccessKey of the client."
        )


def _no_such_policy(name: str) -> Unauthorized:
    """The refusal of a name that no policy has."""
    return Unauthorized(
        f"There is no access policy {shown(name)} in this namespace. Check SharedAccessKeyName of the client."
    )
