"""Tokens for `$cbs`, one per audience and connection, renewed while the connection lasts."""

import asyncio
import inspect
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Final

from partibus.amqp.codec.types import Timestamp
from partibus.client.aio.connection import Connection
from partibus.client.aio.settings import Settings, Token
from partibus.client.errors import AccessDenied, ClientError, ConnectFailed, error_from_status
from partibus.errors import shown
from partibus.namespace.sas import PREFIX, make_token

_NODE: Final = "$cbs"
LIFETIME_S: Final = 3600
"""The life of a token that the client signs itself."""
_EXPIRY_MAX_S: Final = 253_402_300_800
"""The end of the year 9999."""
_RENEW_SHARE: Final = 0.8
"""The share of a token's life after which it is renewed: a clock that is minutes off is no harm."""


class Claims:
    """The claims of one connection, made with the key, the signature or the credential of the client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._renew_at: dict[str, float] = {}
        """The Unix time of the next renewal, by audience."""

    async def authorize(self, connection: Connection, path: str) -> None:
        """Put a token for an entity by path ("" for the namespace), unless a valid one was put.

        Raises `AccessDenied`, and `ConnectFailed` if the credential has met an error of the network.
        """
        audience = self._settings.audience + path
        if connection.wall() >= self._renew_at.get(audience, 0):
            try:
                await self._put(connection, audience)
            except ConnectFailed as error:
                connection.trouble = str(error)  # Messages that wait for the link fail with it in the end.
                raise
            connection.trouble = None

    def renew_due(self, connection: Connection) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that renews tokens which are about to expire; None if there are none."""
        now = connection.wall()
        due = [audience for audience, renew_at in self._renew_at.items() if now >= renew_at]
        return self._renew(connection, due) if due else None

    def expire(self, path: str) -> None:
        """Have the token of an entity renewed: links of other entities keep theirs."""
        audience = self._settings.audience + path
        if audience in self._renew_at:
            self._renew_at[audience] = 0.0

    def forget(self) -> None:
        """Forget all tokens, because the connection is new."""
        self._renew_at.clear()

    async def _renew(self, connection: Connection, audiences: list[str]) -> None:
        for audience in audiences:
            if connection.wall() < self._renew_at.get(audience, inf):
                continue  # Renewed or forgotten meanwhile.
            # A renewal that fails is due at the next tick again, and keeps no other one waiting for long. Without one,
            # the broker detaches the links; their owners put a new token and attach again.
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(self._settings.timeout):
                    await self._put(connection, audience)

    async def _put(self, connection: Connection, audience: str) -> None:
        token = await self._make(audience, connection.wall())
        is_signature = token.text.startswith(PREFIX)
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken" if is_signature else "jwt",
            "name": audience,
            "expiration": Timestamp(int(token.expires_at * 1000)),
        }
        what = f"authorisation for '{audience}'"
        reply = await connection.node(_NODE).ask(properties, token.text, what)
        status = reply.properties.get("status-code")
        if not isinstance(status, int) or not 200 <= status < 300:
            description = str(reply.properties.get("status-description") or "")
            raise error_from_status(what, status if isinstance(status, int) else 500, description, None)
        now = connection.wall()
        self._renew_at[audience] = now + max(1.0, (token.expires_at - now) * _RENEW_SHARE)

    async def _make(self, audience: str, now: float) -> Token:
        credential, given = self._settings.credential, self._settings.connection
        expires_at = int(now) + LIFETIME_S
        if credential is not None:
            try:
                made = credential(audience)
                token = await made if inspect.isawaitable(made) else made
            except OSError as error:  # A time-out, too. It may pass, as one of the broker may.
                raise ConnectFailed(f"the credential failed for '{audience}': {error!r}") from error
            except Exception as error:
                raise AccessDenied(f"the credential failed for '{audience}': {error!r}") from error
            if not isinstance(token, Token) or not isinstance(token.text, str):
                raise AccessDenied(
                    f"the credential returned {type(token).__name__} for '{audience}'; return Token(text, expires_at)"
                )
            if not isinstance(token.expires_at, int | float) or not 0 <= token.expires_at < _EXPIRY_MAX_S:
                raise AccessDenied(
                    f"the credential's token for '{audience}' expires at {shown(token.expires_at)}; "
                    f"give seconds since 1970, 0 to {_EXPIRY_MAX_S}"
                )
            return token
        assert given is not None, "or else there is a credential"
        # A ready-made token can't be renewed. Putting it again is harmless, and shows when it has expired.
        return Token(given.signature or make_token(audience, given.key_name, given.key, expires_at), expires_at)
