"""Signature Version 4, verified on the server: who signed a request, and whether it is as it was signed.

A signature covers the method, the path, the query, the headers that ``SignedHeaders`` names, and the SHA-256 of the
body. The key that signs is derived from the secret for one day, region and service. `Keys` keeps derived keys with
their part of HMAC done, so that a request costs one hash of its body and three short ones.
"""

import hmac
import re
from calendar import timegm
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from msgspec import Struct

from partibus.frontends.sqs.errors import SqsError

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sqs"
TERMINATOR: Final = "aws4_request"
SKEW_MS: Final = 15 * 60_000
"""The largest difference between the client's clock and ours."""
EXPIRES_MAX_S: Final = 7 * 86_400
"""The longest life of a presigned URL."""
KEYS_MAX: Final = 1_000
"""Derived keys that are kept; past it the oldest goes."""
EMPTY_HASH: Final = sha256(b"").hexdigest()
_DATE: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")
_BLANKS: Final = re.compile(r"  +")
_FIELDS_MAX: Final = 4_096
"""Characters of an Authorization header: a session's headers come to some 500."""
_SCOPES_MAX: Final = 500
"""Remembered beginnings of Authorization headers: 2 MB at most."""
_TIMES_MAX: Final = 100
"""Remembered times of signing: clients that sign many requests sign them within the same seconds."""
_MUST_BE_SIGNED: Final = ("host", "x-amz-date", "x-amz-target")
_QUERY_MAX: Final = 1_000
"""Parameters of a presigned URL."""


class Signed(Struct, frozen=True, gc=False):
    """The fields of a request about its signature."""

    key_id: str
    date: str
    """The day of the scope, ``yyyymmdd``."""
    region: str
    headers: "SignedHeaders"
    scope: str
    """Day, region, service and terminator."""
    signature: str
    timestamp: str
    """The time of signing, ``yyyymmddThhmmssZ``."""
    is_presigned: bool
    expires_s: int
    """The life of a presigned URL from the time of signing."""


class SignedHeaders:
    """The names of the signed headers, as listed, with their part of the canonical request."""

    __slots__ = ("_form", "_values", "covers_all", "joined", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        """``names`` are in lower case."""
        self.names = names
        self.joined = ";".join(names)
        self.covers_all = set(_MUST_BE_SIGNED).issubset(names)
        """Whether everything is signed that has to be."""
        # Two calls get and write all values. The getter returns a tuple for several names only, so the first one is
        # there twice, and the second time it is written with no characters.
        self._values = itemgetter(*names, names[0])
        self._form = "".join([f"{name.replace('%', '%%')}:%s\n" for name in names]) + "%.0s"

    def lines(self, headers: Mapping[str, str]) -> str:
        """Return the canonical lines of the headers. Raises `KeyError` with the name of one that is missing."""
        lines: str = self._form % self._values(headers)
        return lines


def read_signed(headers: Mapping[str, str], query: Mapping[str, str]) -> Signed | None:
    """Read what a request says about its signature; None if it says nothing. Names of headers are in lower case.

    Raises `SqsError` with the code IncompleteSignature.
    """
    given = headers.get("authorization")
    if given is not None:
        return _of_header(given, headers)
    if "X-Amz-Signature" in query or "X-Amz-Credential" in query:
        return _of_query(query)
    return None


def _of_header(given: str, headers: Mapping[str, str]) -> Signed:
    begin, _, signature = given.rpartition("Signature=")
    scope = _SCOPES.get(begin)
    timestamp = headers.get("x-amz-date")
    if scope is None or timestamp is None or "," in signature:
        return _of_new_header(given, headers)
    if not signature:
        raise _incomplete("the Authorization header must have Signature")
    if not timestamp.startswith(scope.date):
        _check_timestamp(timestamp, scope.date)
    return Signed(*scope, signature.strip(), timestamp, False, 0)


def _of_new_header(given: str, headers: Mapping[str, str]) -> Signed:
    """Read an Authorization header whose beginning is not known, and remember that."""
    scheme, _, rest = given.partition(" ")
    if scheme != ALGORITHM or len(rest) > _FIELDS_MAX:
        raise _incomplete(f"the Authorization header must begin with {ALGORITHM}")
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, sign, value = part.strip().partition("=")
        if sign:
            fields[name] = value
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not fields.get(name):
            raise _incomplete(f"the Authorization header must have {name}")
    timestamp = headers.get("x-amz-date")
    if timestamp is None:
        raise _incomplete("the request must have the header X-Amz-Date")
    scope = _scope(fields["Credential"], fields["SignedHeaders"])
    _check_timestamp(timestamp, scope.date)
    begin, _, signature = given.rpartition("Signature=")
    if signature.strip() == fields["Signature"]:
        while len(_SCOPES) >= _SCOPES_MAX:
            del _SCOPES[next(iter(_SCOPES))]
        _SCOPES[begin] = scope
    return Signed(*scope, fields["Signature"], timestamp, False, 0)


def _of_query(query: Mapping[str, str]) -> Signed:
    names = ("X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Date", "X-Amz-Expires")
    values = [query.get(name, "") for name in names]
    for name, value in zip(names, values, strict=True):
        if not value:
            raise _incomplete(f"the URL must have {name}")
    if query.get("X-Amz-Algorithm") != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}")
    credential, names_signed, signature, timestamp, expires = values
    if not (expires.isascii() and expires.isdigit()) or not 1 <= int(expires[:9]) <= EXPIRES_MAX_S:
        raise _incomplete(f"X-Amz-Expires must be 1 to {EXPIRES_MAX_S} seconds")
    scope = _scope(credential, names_signed)
    _check_timestamp(timestamp, scope.date)
    return Signed(*scope, signature, timestamp, True, int(expires))


class _Scope(NamedTuple):
    """The fields that are equal in all signatures of one client; the first fields of `Signed`."""

    key_id: str
    date: str
    region: str
    headers: SignedHeaders
    scope: str


_SCOPES: Final[dict[str, _Scope]] = {}
"""Scopes by the beginnings of Authorization headers, which stay the same for a day."""


def _scope(credential: str, names: str) -> _Scope:
    scope = credential.rsplit("/", 4)
    if len(scope) != 5 or not scope[0]:
        raise _incomplete("Credential must be KEY/DATE/REGION/sqs/aws4_request")
    key_id, date, region, service, terminator = scope
    if service != SERVICE or terminator != TERMINATOR:
        raise SqsError("SignatureDoesNotMatch", f"Credential should be scoped to {SERVICE}/{TERMINATOR}.")
    return _Scope(
        key_id, date, region, SignedHeaders(tuple(names.lower().split(";"))), f"{date}/{region}/{SERVICE}/{TERMINATOR}"
    )


def _check_timestamp(timestamp: str, date: str) -> None:
    time_ms(timestamp)
    if timestamp[:8] != date:
        raise SqsError("SignatureDoesNotMatch", "Date in Credential scope does not match YYYYMMDD of X-Amz-Date.")


def check_time(signed: Signed, now_ms: int) -> None:
    """Check the time of signing. Raises `SqsError` with the code RequestExpired."""
    at_ms = time_ms(signed.timestamp)
    if signed.is_presigned:
        if now_ms > at_ms + signed.expires_s * 1000 or at_ms - now_ms > SKEW_MS:
            raise SqsError("RequestExpired", "Request has expired.")
    elif abs(now_ms - at_ms) > SKEW_MS:
        raise SqsError(
            "RequestExpired",
            f"The request was signed at {signed.timestamp}, more than {SKEW_MS // 60_000} minutes from now. "
            "Check the clock of the client.",
        )


@lru_cache(maxsize=_TIMES_MAX)
def time_ms(timestamp: str) -> int:
    """Return ms since 1970 of ``yyyymmddThhmmssZ``. Raises `SqsError` for another form, or for no such time."""
    match = _DATE.fullmatch(timestamp)
    if match is None:
        raise _incomplete("X-Amz-Date must be of the form YYYYMMDDThhmmssZ")
    year, month, day, hour, minute, second = map(int, match.groups())
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise _incomplete("X-Amz-Date must be a date")
    return timegm((year, month, day, hour, minute, second)) * 1000


class SigningKey:
    """A derived key, with the hashes of its two pads, by which HMAC-SHA256 begins (RFC 2104).

    Two copies of these hashes take a third of the time of `hmac.digest`, which pads the key for each text.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        """Take a key of 32 bytes; a longer one than the hash's block of 64 would have to be hashed first."""
        padded = key.ljust(sha256().block_size, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))

    def sign(self, text: bytes) -> str:
        """Return the signature of a text."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest()


class Keys:
    """Derived signing keys by secret, day and region."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str], SigningKey] = {}

    def of(self, secret: str, date: str, region: str) -> SigningKey:
        """Return the key that signs for a day and region."""
        found = self._keys.get((secret, date, region))
        if found is None:
            key = hmac.digest(b"AWS4" + secret.encode("utf-8", "surrogateescape"), date.encode(), "sha256")
            for part in (region, SERVICE, TERMINATOR):
                key = hmac.digest(key, part.encode("utf-8", "surrogateescape"), "sha256")
            while len(self._keys) >= KEYS_MAX:
                del self._keys[next(iter(self._keys))]
            found = self._keys[secret, date, region] = SigningKey(key)
        return found


def canonical_request(
    signed: Signed, method: str, path: str, query: str, headers: Mapping[str, str], body_hash: str
) -> str:
    """Return the canonical request. ``path`` and ``query`` are as on the wire, header values without outer blanks."""
    try:
        lines = signed.headers.lines(headers)
    except KeyError as missing:
        name = missing.args[0][:100]
        raise SqsError("SignatureDoesNotMatch", f"The header '{name}' is signed, and the request has none.") from None
    if "  " in lines:
        lines = _BLANKS.sub(" ", lines)
    return (
        f"{method}\n{'/' if path == '/' else _canonical_path(path)}\n{_canonical_query(query) if query else ''}\n"
        f"{lines}\n{signed.headers.joined}\n{body_hash}"
    )


def _canonical_path(path: str) -> str:
    """Return the path with empty and dot segments taken out, encoded once more, as every service but S3 has it."""
    if not path:
        return "/"
    if "//" in path or "/." in path:
        parts: list[str] = []
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        path = f"/{'/'.join(parts)}{'/' if path.endswith('/') and parts else ''}"
    return quote(path.encode("latin-1", "replace"), safe="/~")


def _canonical_query(query: str) -> str:
    """Return the parameters sorted, without the signature; each is encoded in one way."""
    pairs = []
    parts = query.split("&", _QUERY_MAX)
    if len(parts) > _QUERY_MAX:
        raise _incomplete(f"a signed URL has at most {_QUERY_MAX} parameters")
    for part in parts:
        name, _, value = part.partition("=")
        if name == "X-Amz-Signature" or not part:
            continue
        pairs.append((quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")))
    pairs.sort()
    return "&".join(f"{name}={value}" for name, value in pairs)


def text_to_sign(signed: Signed, canonical: str) -> bytes:
    """Return what a key signs for a canonical request."""
    hashed = sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{ALGORITHM}\n{signed.timestamp}\n{signed.scope}\n{hashed}".encode("utf-8", "surrogateescape")


def check_signed_headers(signed: Signed, headers: Mapping[str, str]) -> None:
    """Check that what decides about the request is signed. Raises `SqsError`."""
    for name in ("host",) if signed.is_presigned else _MUST_BE_SIGNED:
        if name not in signed.headers.names and (name == "host" or name in headers):
            raise SqsError("SignatureDoesNotMatch", f"The header '{name}' must be signed.")


def is_good(given: str, expected: str) -> bool:
    """Compare signatures in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _incomplete(what: str) -> SqsError:
    return SqsError("IncompleteSignature", f"The request's signature is incomplete: {what}.")
