"""Signed requests of SQS as bytes, in both protocols.

They cost a client little, and may be sent again for some minutes.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

from partibus.frontends.sqs.shapes import SHAPES, Kind, Member

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"


def form_of(action: str, members: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of the Query protocol for the members of an action."""
    parameters = {"Action": action, "Version": "2012-11-05"}
    known = {member.name: member for member in SHAPES[action].members} if action in SHAPES else {}
    for name, value in members.items():
        parameters |= _parameters(known.get(name), name, value)
    return parameters


def _parameters(member: Member | None, name: str, value: Any) -> dict[str, str]:
    """Return the parameters of one member. A list is numbered from 1; an unknown member is a text."""
    if member is None or member.kind in (Kind.TEXT, Kind.INTEGER):
        return {name: str(value)}
    prefix, found = member.prefixes[0], {}
    for number, item in enumerate(value.items() if isinstance(value, Mapping) else value, 1):
        place = f"{prefix}.{number}"
        if member.kind is Kind.TEXTS:
            found[place] = item
        elif member.kind is Kind.TEXT_MAP:
            key, text = member.pair
            found |= {f"{place}.{key}": item[0], f"{place}.{text}": item[1]}
        elif member.kind is Kind.ATTRIBUTES:
            found[f"{place}.Name"] = item[0]
            found |= {f"{place}.Value.{part}": text for part, text in item[1].items()}
        else:
            for one in member.members:
                if one.name in item:
                    below = _parameters(one, one.name, item[one.name])
                    found |= {f"{place}.{path}": text for path, text in below.items()}
    return found


class Signer:
    """Makes signed requests to one SQS port, of AWS JSON 1.0 or the Query protocol."""

    def __init__(
        self,
        port: int,
        key_id: str,
        secret: str,
        *,
        now_s: Callable[[], float] = time.time,
        region: str = "us-east-1",
        session: str = "",
    ) -> None:
        """Sign with a key for a region. ``session``: the text of a security token, sent and signed."""
        self.port = port
        self._now_s = now_s
        self._region = region
        self._session = session
        self._key_id = key_id
        self._secret = secret
        self._day = ""
        self._key = b""

    def request(self, action: str, members: Mapping[str, object]) -> bytes:
        """Return the bytes of a signed request."""
        return self.signed(json.dumps(members).encode(), JSON, f"AmazonSQS.{action}")

    def form(self, action: str, members: Mapping[str, Any], path: str = "/") -> bytes:
        """Return the bytes of a signed request of the Query protocol."""
        return self.signed(urlencode(form_of(action, members)).encode(), FORM, "", path)

    def signed(self, body: bytes, kind: str, target: str, path: str = "/") -> bytes:
        """Return the bytes of a signed request with any body."""
        stamp = self._stamp()
        headers = {"content-type": kind, "host": f"127.0.0.1:{self.port}", "x-amz-date": stamp}
        if self._session:
            headers["x-amz-security-token"] = self._session
        if target:
            headers["x-amz-target"] = target
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signature = self._signature(stamp, f"POST\n{path}\n\n{lines}\n{names}\n{sha256(body).hexdigest()}")
        fields = "".join(f"{name.title()}: {value}\r\n" for name, value in headers.items())
        return (
            f"POST {path} HTTP/1.1\r\n{fields}Accept-Encoding: identity\r\n"
            f"x-amzn-query-mode: true\r\nUser-Agent: partibus-test\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._key_id}/{self._scope(stamp)}, SignedHeaders={names}, "
            f"Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def presigned(self, action: str, members: Mapping[str, Any], *, expires_s: int) -> bytes:
        """Return the bytes of a GET whose URL is signed."""
        stamp, host = self._stamp(), f"127.0.0.1:{self.port}"
        query = form_of(action, members) | {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self._key_id}/{self._scope(stamp)}",
            "X-Amz-Date": stamp,
            "X-Amz-Expires": str(expires_s),
            "X-Amz-SignedHeaders": "host",
        }
        text = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        signature = self._signature(stamp, f"GET\n/\n{text}\nhost:{host}\n\nhost\n{sha256(b'').hexdigest()}")
        return f"GET /?{text}&X-Amz-Signature={signature} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    def _stamp(self) -> str:
        return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now_s()))

    def _scope(self, stamp: str) -> str:
        return f"{stamp[:8]}/{self._region}/sqs/aws4_request"

    def _signature(self, stamp: str, canonical: str) -> str:
        day = stamp[:8]
        if day != self._day:
            self._day, self._key = day, self._derived(day)
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{self._scope(stamp)}\n{sha256(canonical.encode()).hexdigest()}"
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    def _derived(self, day: str) -> bytes:
        key = f"AWS4{self._secret}".encode()
        for part in (day, self._region, "sqs", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key
