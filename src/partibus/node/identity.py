"""Tokens of an identity provider: JSON web tokens (RFC 7519) of one issuer that the operator has configured.

```json
{
  "issuer": "https://login.example/tenant/v2.0",
  "audiences": ["https://servicebus.azure.net"],
  "keys": "https://login.example/tenant/keys",
  "roles_claim": "roles",
  "roles": {
    "Azure Service Bus Data Owner": {"role": "Azure Service Bus Data Owner"},
    "orders-senders": {"role": "Azure Service Bus Data Sender", "namespace": "acme-01", "entity": "orders"}
  }
}
```

The issuer's public keys come from a file or an address, read on a thread of their own, bounded in size and time. They
are kept, and read again once an hour, and when a token names a key that is not among them: at most every `REFRESH_S`,
whatever strangers send. A token is read no further than its header before its signature is checked, by an algorithm
that is listed here and fits the key: ``none`` and algorithms with shared secrets are none of them.
"""

import asyncio
import base64
import hashlib
import json
import logging
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import jwt
import msgspec
from msgspec import Struct, field
from starlette.types import ASGIApp, Receive, Scope, Send

from partibus.errors import Unauthorized, UnusableFile, shown
from partibus.namespace.access import ROLES, Grant, Identities
from partibus.namespace.namespace_options import DEFAULT_NAME

log = logging.getLogger(__name__)

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
TOKEN_CHARS_MAX: Final = 16_384
KEYS_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
FETCH_S: Final = 10.0
REFRESH_S: Final = 30.0
"""Least time between two reads of the keys that tokens with unknown keys bring about."""
KEEP_S: Final = 3_600.0
"""The age at which the keys are read again when a token comes."""
CHECKED_MAX: Final = 1_000
"""Valid tokens that are remembered until their end, or until the keys are read again."""
WAITING_MAX: Final = 1_000
"""Tokens that wait for keys."""
LEEWAY_S: Final = 60
"""The largest difference between the clocks of the issuer and of this machine."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_FAMILIES: Final = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""The prefixes of the names of algorithms, by type of a key."""
RSA_BITS_MIN: Final = 2_048
_FORM: Final = "See docs/access.md for its form."
_BEARER: Final = b"Bearer "


class RoleGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """The grant for a value of the roles claim."""

    role: str
    namespace: str = DEFAULT_NAME
    entity: str = ""
    """Path of a queue or topic; empty for all of the namespace."""


class IdentitySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    issuer: str
    audiences: list[str]
    keys: str
    """Path of a file, or address, of a JSON web key set (RFC 7517)."""
    algorithms: list[str] = field(default_factory=lambda: ["RS256", "ES256"])
    roles_claim: str = "roles"
    """Name of a claim, or names with dots between them for one that lies within another."""
    roles: dict[str, RoleGrant] = field(default_factory=lambda: {role: RoleGrant(role) for role in ROLES})
    leeway_s: int = LEEWAY_S


def read_settings(path: Path) -> IdentitySettings:
    """Read the file of an identity provider. Raise `UnusableFile`."""
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=IdentitySettings)
    except OSError as error:
        raise UnusableFile(str(path), f"can't be read ({error.strerror})", "Give a readable file.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableFile(str(path), f"has another form ({error})", _FORM) from error

    def refuse(reason: str) -> NoReturn:
        raise UnusableFile(str(path), reason, _FORM)

    for algorithm in settings.algorithms:
        if algorithm not in ALGORITHMS:
            refuse(f"names the algorithm {shown(algorithm)}, which is none of {', '.join(ALGORITHMS)}")
    if not settings.algorithms:
        refuse("names no algorithm")
    if not settings.issuer or not settings.audiences or not all(settings.audiences):
        refuse("must name an issuer and its audiences")
    for one in settings.roles.values():
        if one.role not in ROLES:
            refuse(f"names the role {shown(one.role)}, which is none of {', '.join(ROLES)}")
    if not 0 <= settings.leeway_s <= 600:
        refuse(f"has leeway_s {settings.leeway_s}, which must be 0 to 600")
    address = urlsplit(settings.keys)
    if address.scheme in ("http", "https"):
        if address.scheme == "http" and address.hostname not in _LOCAL:
            refuse("has an address of keys without TLS; a man in the middle could give keys of its own")
        return settings
    return msgspec.structs.replace(settings, keys=str(path.parent / settings.keys))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that leads elsewhere is an error: the operator has named where the keys are."""

    def redirect_request(self, *_: Any) -> None:
        return None


class PublicKey(NamedTuple):
    """One of the issuer's."""

    key: Any
    families: tuple[str, ...]
    """Prefixes of the names of fitting algorithms."""
    algorithm: str | None
    """The one that it is for; None: any that fits."""


Keys = dict[str | None, PublicKey]
"""Public keys by their ids."""


def load_keys(source: str) -> Keys:
    """Read a key set from a file or an address, by the ids of its keys; blocks. Raise OSError and ValueError."""
    text = _read_address(source) if urlsplit(source).scheme in ("http", "https") else _read_file(Path(source))
    document = json.loads(text)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"a key set is an object with an array 'keys' of at most {KEYS_MAX}")
    found: Keys = {}
    for one in listed:
        if not isinstance(one, dict) or str(one.get("kty")) not in _FAMILIES or one.get("use", "sig") != "sig":
            continue  # a shared secret, of a kind that we do not know, or one that signs nothing
        try:
            key = jwt.PyJWK.from_dict(one)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue  # others of the set are still good
        if one["kty"] == "RSA" and key.key.key_size < RSA_BITS_MIN:
            log.warning("the key %s of the identity provider is left out: it has fewer than %d bits", *_weak(one))
            continue
        key_id = one.get("kid")
        found[key_id if isinstance(key_id, str) else None] = PublicKey(key.key, _FAMILIES[one["kty"]], one.get("alg"))
    if not found:
        raise ValueError("it has no public key that signs")
    return found


def _weak(key: Mapping[str, Any]) -> tuple[str, int]:
    return shown(key.get("kid")), RSA_BITS_MIN


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(KEYS_BYTES_MAX + 1))


def _read_address(address: str) -> bytes:
    until_s = time.monotonic() + FETCH_S
    opener = urllib.request.build_opener(_NoRedirect)
    received = b""
    with opener.open(address, timeout=FETCH_S) as answer:
        while piece := answer.read1(65_536):
            received = _bounded(received + piece)
            if time.monotonic() > until_s:
                raise TimeoutError(f"the keys took more than {FETCH_S:g} s")
    return received


def _bounded(received: bytes) -> bytes:
    if len(received) > KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {KEYS_BYTES_MAX} bytes")
    return received


class IdentityProvider:
    """One issuer of tokens."""

    def __init__(
        self,
        settings: IdentitySettings,
        loop: asyncio.AbstractEventLoop,
        load: Callable[[str], Keys] = load_keys,
    ) -> None:
        self.settings = settings
        self._loop = loop
        self._load = load
        self._keys: Keys = {}
        self._read_s = float("-inf")
        """When the keys were last read, successfully or not."""
        self._named: tuple[str, str | None] = ("", None)
        """The token that was asked about last, and its key: it is asked about once to fetch keys, and once to check."""
        self._checked: dict[bytes, Mapping[str, Any]] = {}
        """The claims of valid tokens, by their hash: a client shows one token on each of its connections."""
        self._waiting: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def of(self, namespace: str) -> Identities:
        """Return the tokens' grants in a namespace."""
        return _InNamespace(self, namespace)

    def begin(self) -> None:
        """Read the keys, so that they are there for the first token."""
        self._refresh()

    def close(self) -> None:
        """Stop fetching keys."""
        if self._task is not None:
            self._task.cancel()

    def fetch_for(self, text: str, then: Callable[[], None]) -> bool:
        """Tell whether the keys are being read, since the token's is unknown; ``then`` is called afterwards."""
        old_s = self._loop.time() - self._read_s
        if self._task is None:
            known = self._key_id(text) in self._keys
            if old_s < REFRESH_S or (known and old_s < KEEP_S):
                return False
            self._refresh()
            if known:
                return False
        elif self._key_id(text) in self._keys:
            return False
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(then)
        return True

    def check(self, text: str) -> Mapping[str, Any]:
        """Return the claims of a token. Raises `Unauthorized` with the reason."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        known = self._checked.get(digest)
        if known is not None and int(known["exp"]) + self.settings.leeway_s > time.time():
            return known
        key_id = self._key_id(text)
        key = self._keys.get(key_id)
        if key is None:
            if not self._keys:
                raise Unauthorized(
                    "The keys of the identity provider could not be read yet; the broker's log says why. Try again."
                )
            raise Unauthorized(
                f"The token is signed with the key {shown(key_id)}, which the identity provider "
                f"{shown(self.settings.issuer)} does not have. Get a token of this issuer."
            )
        try:
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=self._algorithms_of(key),
                audience=self.settings.audiences,
                issuer=self.settings.issuer,
                leeway=self.settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthorized("The token has expired. Get a new one, or compare the clocks.") from None
        except jwt.InvalidAudienceError:
            raise Unauthorized(
                f"The token is for another audience than {', '.join(map(shown, self.settings.audiences))}. "
                "Ask the identity provider for one of these."
            ) from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Unauthorized(f"The token of the identity provider is not valid ({shown(str(error))}).") from None
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked[digest] = claims
        return claims

    def _algorithms_of(self, key: PublicKey) -> list[str]:
        """Return the allowed algorithms that fit the key: a token only selects one of them."""
        return [
            one for one in self.settings.algorithms if one.startswith(key.families) and key.algorithm in (None, one)
        ]

    def _key_id(self, text: str) -> str | None:
        """Return the key id of a token. Raises `Unauthorized` when the text is no token."""
        if text == self._named[0]:
            return self._named[1]
        if len(text) > TOKEN_CHARS_MAX:
            raise Unauthorized(f"The token has {len(text)} characters, but may have {TOKEN_CHARS_MAX}.")
        head = text.partition(".")[0]
        try:
            # For the choice of a key only: all of the token is checked with it. PyJWT would decode the whole token.
            header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
        except (ValueError, RecursionError) as error:
            raise Unauthorized(
                f"The token is neither a shared access signature nor a JSON web token ({shown(str(error))})."
            ) from None
        if not isinstance(header, dict):
            raise Unauthorized("The header of the JSON web token is no object.")
        key_id = header.get("kid")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys))
        self._named = text, key_id if isinstance(key_id, str) else None
        return self._named[1]

    def _refresh(self) -> None:
        if self._task is None:
            self._read_s = self._loop.time()
            self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._load, self.settings.keys)
            self._checked.clear()  # a key may have been withdrawn
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the keys of the identity provider at %s can't be read: %s", self.settings.keys, error)
        finally:
            self._task = None
            waiting, self._waiting = self._waiting, []
            self._answer(deque(waiting))

    def _answer(self, waiting: deque[Callable[[], None]]) -> None:
        """Check the tokens that have waited, one in each turn of the loop: strangers may have sent `WAITING_MAX`."""
        if waiting:
            waiting.popleft()()
        if waiting:
            self._loop.call_soon(self._answer, waiting)


def open_provider(path: Path, loop: asyncio.AbstractEventLoop) -> IdentityProvider:
    """Make the provider that a file names, and begin to read its keys. Raise `UnusableFile`."""
    provider = IdentityProvider(read_settings(path), loop)
    provider.begin()
    return provider


class _InNamespace:
    """The identities of one namespace (`partibus.namespace.access.Identities`)."""

    def __init__(self, provider: IdentityProvider, namespace: str) -> None:
        self._provider = provider
        self._namespace = namespace.lower()

    def fetch_for(self, text: str, then: Callable[[], None]) -> bool:
        return self._provider.fetch_for(text, then)

    def grants(self, text: str) -> list[Grant]:
        claims = self._provider.check(text)
        settings = self._provider.settings
        who = next((str(claims[name]) for name in ("sub", "oid", "azp", "appid") if claims.get(name)), "somebody")
        expires_s = int(claims["exp"]) + settings.leeway_s
        held = values_of(claims, settings.roles_claim)
        grants = []
        for value in held:
            one = settings.roles.get(value)
            if one is not None and one.namespace.lower() == self._namespace:
                path = tuple(one.entity.lower().strip("/").split("/")) if one.entity.strip("/") else ()
                grants.append(
                    Grant(
                        f"{one.role} of {who}"[:200], ROLES[one.role], path, expires_s, path, operates=False, sas=False
                    )
                )
        if not grants:
            raise Unauthorized(
                f"The token of {shown(who)} has no role in the namespace '{self._namespace}': its claim "
                f"{settings.roles_claim!r} has none of those that the broker is configured with. Assign one."
            )
        return grants


def values_of(claims: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a claim, by its name or by names joined with dots.

    They are the texts of a list, or the words of a text.
    """
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        return list(dict.fromkeys([value, *value.split()]))
    found: Iterable[Any] = value if isinstance(value, list) else ()
    return list(dict.fromkeys(one for one in found if isinstance(one, str)))


class WithKeys:
    """An application whose requests wait until the keys that check their tokens are read."""

    def __init__(self, app: ASGIApp, provider: IdentityProvider) -> None:
        self._app = app
        self._provider = provider

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request once the keys of its token are read."""
        for name, value in scope.get("headers", ()):
            if name == b"authorization" and value.startswith(_BEARER):
                await self._wait(value.removeprefix(_BEARER).decode("latin-1"))
        await self._app(scope, receive, send)

    async def _wait(self, text: str) -> None:
        read = asyncio.get_running_loop().create_future()
        try:
            pending = self._provider.fetch_for(text, lambda: None if read.done() else read.set_result(None))
        except Unauthorized:
            return  # the check of the token reports it
        if pending:
            await read
