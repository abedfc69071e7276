"""Authorization over HTTP: the claims of requests (dialect sections 2.4, 2.5, 9.1)."""

from dataclasses import replace
from urllib.parse import quote

from starlette.requests import Request

from partibus.clock import Clock
from partibus.errors import Unauthorized, shown
from partibus.namespace.access import NOT_OPERATOR, AccessPolicies, Grant, Right
from partibus.namespace.sas import Path
from partibus.units.account import CLAIMED

LEEWAY_S = 300
"""A client renews its token up to a minute after its end, and clocks of machines differ by some more."""

_BEARER = "Bearer "


class Claims:
    """Checks tokens of requests."""

    def __init__(self, access: AccessPolicies, wall_clock: Clock) -> None:
        """Tokens expire by ``wall_clock``, whatever the broker's own clock says (D26)."""
        self._access = access
        self._wall_clock = wall_clock

    def check(self, request: Request, path: Path, right: Right) -> Grant:
        """Return the grant of a request about ``path``, segments in lower case. Raises `Unauthorized`."""
        token = request.headers.get("authorization")
        if token is None:
            raise _no_token()
        return self._checked(self._grant(request, token, path, path, right), path, right)

    def _checked(self, grant: Grant, path: Path, right: Right) -> Grant:
        if not self.allows(grant, path, right):
            raise Unauthorized(
                f"The access policy {shown(grant.policy_name)} does not allow this: {_name(right)} is needed on "
                f"'{'/'.join(path) or 'the namespace'}'. Use a policy that has it."
            )
        return grant

    def check_entity(self, request: Request, path: Path, entity: Path, right: Right, *, narrow: bool) -> Grant:
        """Check as `check` a request to ``path``, which lies below ``entity`` and is about it.

        ``narrow``: a token for a path between the two is valid, too, since clients sign the address that they use.
        """
        token = request.headers.get("authorization")
        if token is None:
            raise _no_token()
        grant = self._grant(request, token, path, entity, right)
        if narrow and len(grant.path) > len(entity):
            grant = replace(grant, path=entity)
        return self._checked(grant, entity, right)

    def check_target(self, request: Request, grant: Grant, header: str, path: Path) -> None:
        """Check the right to manage another entity, by a token in ``header`` or by the grant itself.

        Raises `Unauthorized`.
        """
        token = request.headers.get(header)
        if token is None and self.allows(grant, path, Right.MANAGE):
            return
        target = "/".join(path)
        if token is None:
            raise Unauthorized(f"Forwarding to '{target}' needs Manage on it, by a token in the header {header}.")
        if not self.allows(self._grant(request, token, path, path, Right.MANAGE), path, Right.MANAGE):
            raise Unauthorized(f"The token in the header {header} does not have Manage on '{target}'.")

    def allows(self, grant: Grant, path: Path, right: Right) -> bool:
        """Tell whether a grant permits ``right`` on ``path`` now."""
        return grant.allows(path, right, self._wall_clock.now_ms() / 1000)

    def _grant(self, request: Request, token: str, path: Path, about: Path, right: Right) -> Grant:
        """Return the one of a token's grants that has ``right`` on ``about``, if any does."""
        audience = f"{request.url.scheme}://{host_of(request)}/{quote('/'.join(path))}"
        now_s = self._wall_clock.now_ms() / 1000
        grants = self._access.check_any_token(token.removeprefix(_BEARER), audience, now_s, LEEWAY_S)
        note_claim(request)
        return next((grant for grant in grants if self.allows(grant, about, right)), grants[0])

    def check_operator(self, request: Request) -> None:
        """Raise `Unauthorized` unless the request shows Manage on the namespace and is the operator's."""
        if not self.check(request, (), Right.MANAGE).operates:
            raise Unauthorized(NOT_OPERATOR)


def note_claim(request: Request) -> None:
    """Note that a request has a valid claim: the namespace pays for it (`partibus.units.account.Bill`)."""
    if (claimed := request.scope.get(CLAIMED)) is not None:
        claimed()


def _no_token() -> Unauthorized:
    return Unauthorized("The request has no Authorization header. Sign in with a shared access signature.")


def host_of(request: Request) -> str:
    """Host and port as the client knows them."""
    return request.headers.get("host") or request.url.netloc


def _name(right: Right) -> str:
    return (right.name or str(right)).capitalize()
