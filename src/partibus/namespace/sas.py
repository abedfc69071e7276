"""Shared access signatures: tokens that prove the knowledge of a policy's key without showing it.

```text
 SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry, Unix seconds>&skn=<policy>      in any order
 signature = base64(HMAC-SHA256(UTF-8 of the key text, <sr as it stands in the token> LF <se>))
```

A verifier must accept the forms of real clients: one encodes ``skn`` twice and writes a space as ``+``; some escape in
lower case; one signs a resource with its query, one a bare ``host:port``. So the signature is computed over the text as
it stands, and the resource is compared leniently, by host and path segments.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from functools import cache, lru_cache

from msgspec import Struct

from partibus.errors import Unauthorized, shown

Path = tuple[str, ...]
"""Segments of an entity's or sub-entity's path in lower case; empty for the namespace."""

PREFIX = "SharedAccessSignature "
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")

_TEXT_MAX = 8192
_EXPIRY_DIGITS_MAX = 12
_DECODINGS_MAX = 3
_CLAIMS = ("sr", "sig", "se", "skn")


class Resource(Struct, frozen=True):
    """A resource that a token covers, or an audience that a token is used for.

    It has a host, and a path by segments, all in lower case.
    """

    host: str
    path: Path

    def covers(self, other: "Resource") -> bool:
        """Tell whether ``other`` is this resource or lies below it."""
        return self.host == other.host and other.path[: len(self.path)] == self.path


class Token(Struct, frozen=True):
    """A parsed token, nothing of it proved. The texts of ``signed_resource`` and ``signed_expiry`` are as received."""

    signed_resource: str
    signed_expiry: str
    signed: bytes
    """The bytes that are signed."""
    signature: bytes
    policy_names: tuple[str, ...]
    """Possible readings of ``skn``."""

    @property
    def resource(self) -> Resource:
        """The resource that the token covers."""
        return parse_resource(self.signed_resource)

    @property
    def expires_s(self) -> int:
        """The end of the token, in Unix seconds."""
        return int(self.signed_expiry)

    def is_signed_by(self, key: str) -> bool:
        """Tell whether the key has signed it."""
        return hmac.compare_digest(self.signature, hmac.digest(utf8(key), self.signed, "sha256"))


@lru_cache(128)
def parse_resource(text: str) -> Resource:
    """Parse a resource: drop scheme, port and query, undo percent-encoding, trim slashes.

    Never raises: an odd text is an odd resource that covers no entity of ours.
    """
    for _ in range(_DECODINGS_MAX):
        if "%" not in text:
            break
        text = _unquoted(text)
    text = text.lower().partition("?")[0]
    _, scheme_end, rest = text.partition("://")
    authority, *path = (rest if scheme_end else text).split("/")
    return Resource(_without_port(authority), tuple(filter(None, path)))


@lru_cache(128)
def parse_token(text: str) -> Token:
    """Parse a token; tokens are parsed several times, and HTTP clients send one with each request.

    Raises `Unauthorized`, naming the claim, when one is missing, given twice, or malformed.
    """
    if not text.startswith(PREFIX):
        raise Unauthorized("The token is no shared access signature: it must begin with 'SharedAccessSignature sr='.")
    if len(text) > _TEXT_MAX:
        raise Unauthorized(f"The token has {len(text)} characters, but may have {_TEXT_MAX}.")
    claims: dict[str, str] = {}
    for pair in text.removeprefix(PREFIX).strip().split("&"):
        name, _, value = pair.partition("=")
        if name in claims:
            raise Unauthorized(f"The token has the claim {shown(name)} twice.")
        claims[name] = value
    for name in _CLAIMS:
        if not claims.get(name):
            raise Unauthorized(f"The token has no claim '{name}'; it needs {', '.join(_CLAIMS)}.")
    expiry = claims["se"]
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= _EXPIRY_DIGITS_MAX):
        raise Unauthorized(f"The token's expiry 'se' is {shown(expiry)}, but must be Unix seconds in digits.")
    signed = _signed(claims["sr"], expiry)
    return Token(claims["sr"], expiry, signed, _signature_bytes(claims["sig"]), _policy_names(claims["skn"]))


def check_audience(text: str) -> None:
    """Raise Unauthorized for a longer one than any token can name."""
    if len(text) > _TEXT_MAX:
        raise Unauthorized(f"The audience has {len(text)} characters, but may have {_TEXT_MAX}. Name one entity.")


def make_token(resource: str, key_name: str, key: str, expires_s: int) -> str:
    """Return a token for a resource such as ``sb://host/queue``, valid until ``expires_s`` (Unix seconds)."""
    signed_resource = _quoted(resource)
    signature = base64.b64encode(hmac.digest(utf8(key), _signed(signed_resource, str(expires_s)), "sha256")).decode()
    return f"{PREFIX}sr={signed_resource}&sig={_quoted(signature)}&se={expires_s}&skn={_quoted(key_name)}"


def _quoted(text: str) -> str:
    """Percent-encode all but unreserved characters, as `urllib.parse.quote`, whose import takes a client 3 ms."""
    return "".join([chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode()])


_USUAL_ESCAPES = tuple(
    (escape, character) for character in ":/=+" for escape in {f"%{ord(character):02X}", f"%{ord(character):02x}"}
)


def _unquoted(text: str) -> str:
    """Undo one level of percent-encoding.

    The library takes ten times as long, and few texts have other escapes than the usual ones.
    """
    if "%" in text:
        for escape, character in _USUAL_ESCAPES:
            text = text.replace(escape, character)
    return _unquote()(text) if "%" in text else text


@cache
def _unquote() -> Callable[[str], str]:
    """Import `urllib.parse` on first use: a client never needs it."""
    from urllib.parse import unquote

    return unquote


def _signed(signed_resource: str, signed_expiry: str) -> bytes:
    return utf8(f"{signed_resource}\n{signed_expiry}")


def utf8(text: str) -> bytes:
    """Encode any text, also one with lone surrogates, which JSON can express."""
    return text.encode("utf-8", "surrogatepass")


def _signature_bytes(text: str) -> bytes:
    try:
        return binascii.a2b_base64(_unquoted(text), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise Unauthorized("The token's signature 'sig' is no percent-encoded base64.") from error


def _policy_names(text: str) -> tuple[str, ...]:
    """Return the possible names: each step of decoding, also with ``+`` as space, the most plausible first."""
    if "%" not in text and "+" not in text:
        return (text,)
    names: dict[str, None] = {}
    for _ in range(_DECODINGS_MAX):
        text = _unquoted(text)
        names[text] = None
        names[text.replace("+", " ")] = None
        if "%" not in text:
            break
    return tuple(names)


def _without_port(authority: str) -> str:
    host, colon, port = authority.rpartition(":")
    return host if colon and port.isdigit() else authority
