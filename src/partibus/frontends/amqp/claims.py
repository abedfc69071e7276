"""The rights of a connection: its grants, shown by SASL PLAIN or through `$cbs`, and the `$cbs` node itself."""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from partibus.amqp.codec.types import Int
from partibus.amqp.section_encoding import encode_application_properties
from partibus.clock import Clock
from partibus.errors import PartibusError, Unauthorized
from partibus.frontends.amqp.errors import status_of
from partibus.frontends.amqp.node import Reply, Request, Respond
from partibus.namespace.access import NOT_OPERATOR, AccessPolicies, Grant, Right
from partibus.namespace.sas import Path

PUT_TOKEN = "put-token"
TOKEN_REQUEST_BYTES = 32 << 10
"""The largest put-token request: the largest accepted token is half of it."""
NO_RIGHT = Right(0)
"""The empty right, which every grant includes."""
GRANTS_MAX = 1_000
"""The most tokens that one connection can show; a renewed token replaces the former one."""


class Guard(Protocol):
    """A rate limit on invalid tokens."""

    def may_try(self, token: str) -> bool:
        """Tell whether to check a token."""
        ...

    def shown(self, token: str, respond: Callable[[], None], *, good: bool) -> None:
        """Note a checked token; answer now, or later."""
        ...


def _do_nothing() -> None:
    """Stand for a callback that is not needed."""


class Claims:
    """The grants of one connection."""

    guard: Guard | None = None

    def __init__(
        self,
        policies: AccessPolicies,
        clock: Clock,
        admit: Callable[[], None] = _do_nothing,
        on_added: Callable[[], None] = _do_nothing,
    ) -> None:
        """Begin without grants.

        ``admit`` is called before each grant; an error that it raises refuses the grant. ``on_added`` is called after
        it.
        """
        self._policies = policies
        self._clock = clock
        self._admit = admit
        self._on_added = on_added
        self._grants: dict[tuple[str, Path, Path], Grant] = {}
        self._by_path: dict[int, dict[Path, list[Grant]]] | None = None
        """The grants by path, in a dictionary for each length of path; None: to be made again. A connection with many
        links and tokens finds the few grants for each link there.
        """
        self._version = policies.version
        """The version of the policies that the grants were checked against."""

    def log_in(self, policy_name: str, key: str) -> None:
        """Add the grant of a SASL PLAIN login. Raises `Unauthorized`."""
        self._add(self._policies.check_key(policy_name, key))

    def show_token(self, token: str, audience: str) -> None:
        """Add the grant of a token for an audience. Raises `Unauthorized` and `ArgumentError`."""
        for grant in self._policies.check_any_token(token, audience, self._now_s()):
            self._add(grant)

    def fetch_keys(self, token: str, then: Callable[[], None]) -> bool:
        """Tell whether the keys that check a token are being fetched; ``then`` is called afterwards.

        Raises `Unauthorized`.
        """
        return self._policies.fetch_keys(token, then)

    def require_operator(self) -> None:
        """Raise `Unauthorized` unless a grant is the operator's."""
        if not any(grant.operates and grant.allows((), Right.MANAGE, self._now_s()) for grant in self._grants.values()):
            raise Unauthorized(NOT_OPERATOR)

    def require(self, right: Right, path: Path) -> None:
        """Raise `Unauthorized` unless a grant allows ``right`` on ``path`` now."""
        if not self._allow(right, path):
            raise Unauthorized(
                f"The connection has no valid claim with the right {(right.name or '').capitalize()} on "
                f"'{'/'.join(path) or 'the namespace'}'. Use a policy that has it, and a token that has not expired."
            )

    def require_some(self, path: Path) -> None:
        """Raise `Unauthorized` unless a grant of any right covers ``path`` now.

        The text is the same whether ``path`` exists or not.
        """
        if not self._allow(NO_RIGHT, path):
            raise Unauthorized(
                f"The connection has no valid claim on '{'/'.join(path)}'. "
                "Put a token to $cbs first that is good for it and has not expired."
            )

    @property
    def ends_s(self) -> int | None:
        """The end of the first grant to end, in Unix seconds; None if all last as long as the connection."""
        first: int | None = None
        for grant in self._grants.values():
            if grant.expires_s is not None and (first is None or grant.expires_s < first):
                first = grant.expires_s
        return first

    def drop_expired(self) -> None:
        """Remove the grants that have ended."""
        now_s = self._now_s()
        self._by_path = None
        self._grants = {
            key: grant for key, grant in self._grants.items() if grant.expires_s is None or now_s < grant.expires_s
        }

    @property
    def hold(self) -> bool:
        """Whether a grant is valid now."""
        now_s = self._now_s()
        return any(grant.expires_s is None or now_s < grant.expires_s for grant in self._grants.values())

    def release(self) -> None:
        """Drop the references to a connection that has ended."""
        self.guard = None
        self._admit = self._on_added = _do_nothing

    def _allow(self, right: Right, path: Path) -> bool:
        if self._version != self._policies.version:
            self._renew()
        now_s = self._now_s()
        by_path = self._by_path
        if by_path is None:
            by_path = self._by_path = {}
            for grant in self._grants.values():
                by_path.setdefault(len(grant.path), {}).setdefault(grant.path, []).append(grant)
        for length, grants in by_path.items():
            for grant in grants.get(path[:length], ()):
                if grant.allows(path, right, now_s):
                    return True
        return False

    def _renew(self) -> None:
        """Check the grants again after a change of the policies."""
        self._version = self._policies.version
        self._by_path = None
        renewed = ((key, self._policies.renewed(grant)) for key, grant in self._grants.items())
        self._grants = {key: grant for key, grant in renewed if grant is not None}

    def _add(self, grant: Grant) -> None:
        key = (grant.policy_name, grant.owner, grant.path)
        if len(self._grants) >= GRANTS_MAX and key not in self._grants:
            raise Unauthorized(f"The connection has shown {GRANTS_MAX} tokens already, the most. Use fewer audiences.")
        self._admit()
        self._grants[key] = grant
        self._by_path = None
        self._on_added()

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1000


class CbsNode:
    """The `$cbs` node: put-token (section 2.2). The names of its reply properties have hyphens (trap 23)."""

    request_bytes_max: Final = TOKEN_REQUEST_BYTES

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def handle(self, request: Request, respond: Respond) -> None:
        """Answer 202, or the status of the error."""
        token, audience = request.body, request.properties.get("name")
        if request.operation != PUT_TOKEN:
            respond(_reply(400, f"The operation is {request.operation!r}, but $cbs knows only {PUT_TOKEN!r}."))
        elif not isinstance(token, str) or not isinstance(audience, str):
            respond(
                _reply(400, "put-token needs a string body (the token) and a string property 'name' (the audience).")
            )
        else:
            try:
                if self._claims.fetch_keys(token, lambda: self._show(token, audience, respond)):
                    return
            except PartibusError as error:
                respond(_reply(status_of(error), str(error)))
                return
            self._show(token, audience, respond)

    def _show(self, token: str, audience: str, respond: Respond) -> None:
        guard = self._claims.guard
        if guard is not None and not guard.may_try(token):
            respond(_reply(503, "Too many tokens of this policy were refused from your address. Try again later."))
            return
        reply = _ACCEPTED
        is_good = True
        try:
            self._claims.show_token(token, audience)
        except PartibusError as error:
            reply = _reply(status_of(error), str(error))
            is_good = not isinstance(error, Unauthorized)
        if guard is None:
            respond(reply)
        else:
            guard.shown(token, partial(respond, reply), good=is_good)


def _reply(code: int, text: str) -> Reply:
    return Reply({"status-code": Int(code), "status-description": text})


_ACCEPTED = _reply(202, "Accepted")
_ACCEPTED.encoded = encode_application_properties(_ACCEPTED.properties)
