"""Shared access policies, and the grants for keys and tokens (SAS).

A policy has a name, rights, and two valid keys, so that one can be replaced while the other is in use. It belongs to
the namespace or to one queue or topic, and is valid there and below. A grant is what a connection holds after it proved
its identity: rights on everything at or below one path, until some time. Links and requests check the grant for each
operation. After a change of the policies they ask for its present rights (`renewed`).
"""

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag
from secrets import token_bytes
from typing import Protocol, TypeVar

from partibus.errors import Unauthorized, shown
from partibus.namespace.names import SUBSCRIPTIONS
from partibus.namespace.sas import PREFIX, Path, Token, check_audience, parse_resource, parse_token, utf8

ROOT_POLICY = "RootManageSharedAccessKey"
"""The policy that every namespace has from its first start, with all rights."""

EMULATOR_KEY = "SAS_KEY_VALUE"
"""The key that Microsoft's emulator takes and every example shows: no secret, so only good when asked for."""

KEY_CHARS_MIN = 16
"""The least length of a new key. 16 random letters and digits are 95 bits; keys that the broker makes have 44
characters of base64.
"""

SIGNERS_MAX = 100
"""The entities whose policies of one name may sign a request that names none of them. Each of their keys takes some
five microseconds to try.
"""

K = TypeVar("K")

NOT_OPERATOR = (
    "This concerns the server or its keys, and needs a key of the operator. Tokens of an identity provider open "
    "entities only, and so does the emulator's key where the broker listens on other addresses than this machine's own."
)


class Right(Flag):
    """The rights of a policy. Manage implies the others."""

    SEND = 1
    LISTEN = 2
    MANAGE = 7


RIGHTS = {"Send": Right.SEND, "Listen": Right.LISTEN, "Manage": Right.MANAGE}
"""The rights by the service's names."""


def rights_of(names: Iterable[str]) -> Right:
    """Return all rights that are named. Raises KeyError for a word that names none."""
    combined = Right(0)
    for name in names:
        combined |= RIGHTS[name]
    return combined


def names_of(rights: Right) -> list[str]:
    """Return the words of all rights, with those that Manage implies (dialect section 9.3)."""
    return [name for name in ("Manage", "Send", "Listen") if RIGHTS[name] in rights]


ROLES = {
    "Azure Service Bus Data Owner": Right.MANAGE,
    "Azure Service Bus Data Sender": Right.SEND,
    "Azure Service Bus Data Receiver": Right.LISTEN,
}
"""The rights of an identity provider's tokens, by the service's names of roles."""


@dataclass(frozen=True, slots=True)
class SasPolicy:
    """A shared access policy of the namespace or an entity. Never printed with its keys."""

    name: str
    rights: Right
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are good; one that is empty is switched off."""
        return tuple(filter(None, (self.primary_key, self.secondary_key)))


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of one policy on the entities at or below ``path``, until ``expires_s`` (Unix seconds; None: no end)."""

    policy_name: str
    rights: Right
    path: Path
    expires_s: int | None
    owner: Path = ()
    """Path of the entity whose policy it is; empty for the namespace. Never longer than ``path``."""
    key: str = field(default="", repr=False, compare=False)
    """The key that was shown, or that the token is signed with."""
    operates: bool = True
    """Whether Manage on the default namespace is the operator's, with all keys and namespaces of the server."""
    sas: bool = True
    """Whether an access policy granted it; otherwise a token of an identity provider, valid until its end."""

    def allows(self, path: Path, right: Right, now_s: float) -> bool:
        """Tell whether it is good for ``right`` on ``path`` now."""
        alive = self.expires_s is None or now_s < self.expires_s
        if not alive or right not in self.rights or path[: len(self.path)] != self.path:
            return False
        return not self.owner or self._is_of_owner(path)

    def _is_of_owner(self, path: Path) -> bool:
        """Tell whether a path belongs to the grant's owner.

        Names of entities are paths, too: the policy of ``a`` opens ``a/Subscriptions/s`` and ``a/$management``, but not
        another entity, ``a/b``.
        """
        below = path[len(self.owner) :]
        return not below or below[0] == SUBSCRIPTIONS.lower() or below[0].startswith("$")


class Identities(Protocol):
    """Grants for tokens of an identity provider in one namespace."""

    def grants(self, text: str) -> list[Grant]:
        """Return the grants of a token, at least one. Raises `Unauthorized`."""
        ...

    def fetch_for(self, text: str, then: Callable[[], None]) -> bool:
        """Tell whether the keys that check the token are being fetched; ``then`` is called behind it."""
        ...


class AccessPolicies:
    """The policies of a namespace by name, and those of its entities."""

    def __init__(
        self, policies: Iterable[SasPolicy], *, emulator: bool = False, emulator_operates: bool = True
    ) -> None:
        """Begin with ``policies``, which can't be changed here.

        ``emulator`` also accepts `EMULATOR_KEY` for the `ROOT_POLICY`. Unless ``emulator_operates``, that key opens the
        entities of the namespace and no operation of the server.
        """
        self._emulator_operates = emulator_operates
        self.identities: Identities | None = None
        """None: no identity provider is configured."""
        self._fixed = {policy.name: policy for policy in policies}
        self._added: dict[Path, dict[str, SasPolicy]] = {}
        """The added policies by path of the entity, empty for the namespace. No entry is empty."""
        self._owners: dict[str, set[Path]] = {}
        """The entities that have a policy, by its name. No entry is empty."""
        self._holders: dict[tuple[str, bytes], set[Path]] = {}
        """The same by name and key, as `_digest` has it. Thousands of entities may have policies of one name, and a
        stranger can name it; comparing all their keys would take some microseconds each.
        """
        self._secret = token_bytes(32)
        self._depths: Counter[int] = Counter()
        """How many of the paths in ``_added`` have a length; no count is 0."""
        self._emulator = emulator
        self.version = 0
        """Rises with every change."""
        self.on_changed: list[Callable[[], None]] = []
        self.answers_to: Callable[[str], bool] = lambda host: True
        """Whether a host is the namespace's, so that a token for it may be."""

    def __iter__(self) -> Iterator[SasPolicy]:
        """Iterate over the policies of the namespace."""
        return iter([*self._fixed.values(), *self._of(()).values()])

    def __contains__(self, name: str) -> bool:
        return self._find((), name) is not None

    def is_fixed(self, name: str) -> bool:
        """Tell whether a policy of the namespace comes from the keys file and can't be changed here."""
        return name in self._fixed

    def follow(self, path: str, policies: Iterable[SasPolicy]) -> None:
        """Replace the policies of an entity; with an empty path, those of the namespace beside the fixed ones."""
        owner = _segments(path)
        new = {policy.name: policy for policy in policies}
        old = self._of(owner)
        if new == old:
            return
        if not old:
            self._depths[len(owner)] += 1
        if new:
            self._added[owner] = new
        else:
            del self._added[owner]
            self._depths -= Counter((len(owner),))
        self.version += 1
        if owner:
            self._index(owner, old, new)
        for call in list(self.on_changed):
            call()

    def close(self) -> None:
        """Make all policies invalid: the namespace was deleted."""
        self._fixed = {}
        self._added = {}
        self._owners = {}
        self._holders = {}
        self._depths = Counter()
        self._emulator = False
        self.version += 1

    def policy(self, name: str) -> SasPolicy:
        """Return a policy of the namespace. Raises `Unauthorized` when none has that name."""
        return self._policy((), name)

    def _policy(self, owner: Path, name: str) -> SasPolicy:
        policy = self._find(owner, name)
        if policy is None:
            raise _no_such_policy(name)
        return policy

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the valid keys of a policy of the namespace. Raises Unauthorized when none has that name."""
        return self._keys((), self.policy(name))

    def check_key(self, name: str, key: str) -> Grant:
        """Return the grant of a client that sends a policy's name and key in the clear (SASL PLAIN).

        It covers all that the policy covers, for as long as the connection lives. Raises `Unauthorized`.
        """
        of_namespace = self._find((), name)
        keys = () if of_namespace is None else self._keys((), of_namespace)
        is_of_namespace = True in [hmac.compare_digest(utf8(key), utf8(known)) for known in keys]
        owners = [()] if is_of_namespace else self._holders.get((name, self._digest(key)))
        if owners:
            owner = min(owners)
            return Grant(name, self._policy(owner, name).rights, owner, None, owner, key, self._operates(key))
        if of_namespace is None and name not in self._owners:
            raise _no_such_policy(name)
        raise Unauthorized(
            f"The key shown for the access policy {shown(name)} is not one of its keys. "
            "Check SharedAccessKey of the client."
        )

    def signing_keys(self, name: str, path: Path = ()) -> list[Grant]:
        """Return a grant for each key with which a client can sign as the policy ``name``; ``Grant.key`` is the key.

        The policy may be the namespace's, or that of the entity at ``path``, which has one (`in_entities`). Without a
        path it may be that of any entity, but only of the first `SIGNERS_MAX`: a verifier tries every key.
        """
        owners = [path] if path else sorted(self._owners.get(name, ()))[:SIGNERS_MAX]
        return [
            Grant(name, policy.rights, owner, None, owner, key, self._operates(key))
            for owner in ((), *owners)
            if (policy := self._find(owner, name)) is not None
            for key in self._keys(owner, policy)
        ]

    def in_entities(self, name: str, path: Path | None = None) -> bool:
        """Tell whether the entity at a path has a policy of its own of that name; None: any entity."""
        return name in self._owners if path is None else path in self._owners.get(name, ())

    def check_token(self, text: str, audience: str, now_s: float, leeway_s: float = 0) -> Grant:
        """Return the grant of a token for ``audience``, the resource that the client is about to use.

        Raises `Unauthorized` when the token is malformed, names no policy of the namespace or of the signed resource,
        is not signed with one of the policy's keys, has expired (more than ``leeway_s`` ago), is for another namespace,
        or covers neither the audience nor a resource above it.
        """
        check_audience(audience)
        token = parse_token(text)
        resource = token.resource
        owner, policy, key = self._signer(token, resource.path)
        expires_s = token.expires_s + int(leeway_s)
        if now_s >= expires_s:
            raise Unauthorized(
                f"The token expired {int(now_s) - token.expires_s} s ago. Get a new one, or compare the clocks."
            )
        if not self.answers_to(resource.host):
            raise Unauthorized(
                f"The token is for {shown(token.signed_resource)}, which is in another namespace. "
                "Sign the host name by which this one is called."
            )
        if not resource.covers(parse_resource(audience)):
            raise Unauthorized(
                f"The token is for {shown(token.signed_resource)} and not for {shown(audience)}. "
                "Sign the entity that is used, or the namespace."
            )
        return Grant(policy.name, policy.rights, resource.path, expires_s, owner, key, self._operates(key))

    def check_any_token(self, text: str, audience: str, now_s: float, leeway_s: float = 0) -> list[Grant]:
        """Return the grants of a shared access signature (`check_token`) or of an identity provider's token.

        Raises `Unauthorized`.
        """
        if text.startswith(PREFIX):
            return [self.check_token(text, audience, now_s, leeway_s)]
        if self.identities is None:
            raise Unauthorized(
                "The token is no shared access signature: it does not begin with 'SharedAccessSignature sr='. This "
                "broker takes no tokens of an identity provider. Use a key, or serve with --identity FILE "
                "(docs/access.md)."
            )
        return self.identities.grants(text)

    def fetch_keys(self, text: str, then: Callable[[], None]) -> bool:
        """Tell whether the keys that check a token are being fetched; ``then`` is called afterwards.

        Raises `Unauthorized`.
        """
        return not text.startswith(PREFIX) and self.identities is not None and self.identities.fetch_for(text, then)

    def _operates(self, key: str) -> bool:
        return self._emulator_operates or key != EMULATOR_KEY

    def renewed(self, grant: Grant) -> Grant | None:
        """Return a grant with its policy's present rights.

        None when the policy, or the key that the client sent, is no longer valid.
        """
        if not grant.sas:
            return grant
        policy = self._find(grant.owner, grant.policy_name)
        if policy is None or grant.key not in self._keys(grant.owner, policy):
            return None
        return grant if policy.rights == grant.rights else replace(grant, rights=policy.rights)

    def _signer(self, token: Token, path: Path) -> tuple[Path, SasPolicy, str]:
        """Return the owner and the policy that a token is signed for, and the key."""
        owners: list[Path] = [()]
        if self._depths:
            # Not every prefix of the path: nothing is proved yet, and a token has room for thousands of segments.
            owners += [path[:depth] for depth in sorted(self._depths) if 0 < depth <= len(path)]
        is_known = False
        of_namespace: SasPolicy | None = None
        signer: tuple[Path, SasPolicy, str] | None = None
        for owner in owners:
            for name in token.policy_names:
                policy = self._find(owner, name)
                if policy is None:
                    continue
                is_known = True
                if not owner:
                    of_namespace = of_namespace or policy
                # Every key is tried whatever the others gave: how long it takes says nothing about them.
                for key in self._keys(owner, policy):
                    if token.is_signed_by(key) and signer is None:
                        signer = owner, policy, key
        if signer is not None:
            return signer
        if of_namespace is not None:
            raise Unauthorized(
                f"The token is not signed with a key of the access policy {shown(of_namespace.name)}. "
                "Check SharedAccessKey of the client."
            )
        if not is_known:
            for key in ("", ""):  # takes as long as for a policy of an entity
                token.is_signed_by(key)
        # A text of its own for a policy of an entity would tell a stranger that the entity exists.
        raise Unauthorized(
            f"There is no access policy {shown(token.policy_names[0])} in this namespace, or the token is not signed "
            "with a key of it. Check SharedAccessKeyName and SharedAccessKey of the client."
        )

    def _index(self, owner: Path, old: Mapping[str, SasPolicy], new: Mapping[str, SasPolicy]) -> None:
        """Follow a change of an entity's policies in the tables by name."""
        for policy in old.values():
            _leave(self._owners, policy.name, owner)
            for key in policy.keys:
                _leave(self._holders, (policy.name, self._digest(key)), owner)
        for policy in new.values():
            self._owners.setdefault(policy.name, set()).add(owner)
            for key in policy.keys:
                self._holders.setdefault((policy.name, self._digest(key)), set()).add(owner)

    def _digest(self, key: str) -> bytes:
        """Return what stands for a key in a table: how long a look-up takes tells nothing about the key."""
        return hmac.digest(self._secret, utf8(key), "sha256")

    def _keys(self, owner: Path, policy: SasPolicy) -> tuple[str, ...]:
        return (
            (*policy.keys, EMULATOR_KEY)
            if self._emulator and (owner, policy.name) == ((), ROOT_POLICY)
            else policy.keys
        )

    def _find(self, owner: Path, name: str) -> SasPolicy | None:
        fixed = None if owner else self._fixed.get(name)
        return fixed or self._of(owner).get(name)

    def _of(self, owner: Path) -> dict[str, SasPolicy]:
        return self._added.get(owner, {})


def _leave(table: dict[K, set[Path]], key: K, owner: Path) -> None:
    """Take an owner out of an entry, and an empty entry out of the table. Two keys of a policy may be equal."""
    owners = table.get(key, set())
    owners.discard(owner)
    if not owners:
        table.pop(key, None)


def _segments(path: str) -> Path:
    return tuple(path.lower().split("/")) if path else ()


def _no_such_policy(name: str) -> Unauthorized:
    """Return the error for an unknown policy name."""
    return Unauthorized(
        f"There is no access policy {shown(name)} in this namespace. Check SharedAccessKeyName of the client."
    )
