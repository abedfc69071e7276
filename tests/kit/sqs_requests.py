"""Signed requests of SQS as bytes: they cost a client little, and may be sent again for some minutes."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256

_REGION = "us-east-1"


class Signer:
    """Makes signed requests of AWS JSON 1.0 to one SQS port."""

    def __init__(self, port: int, key_id: str, secret: str, *, now_s: Callable[[], float] = time.time) -> None:
        self.port = port
        self._now_s = now_s
        self._key_id = key_id
        self._secret = secret
        self._day = ""
        self._key = b""

    def request(self, action: str, members: Mapping[str, object]) -> bytes:
        """Return the bytes of a signed request."""
        body = json.dumps(members).encode()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now_s()))
        day, host, target = stamp[:8], f"127.0.0.1:{self.port}", f"AmazonSQS.{action}"
        if day != self._day:
            self._day, self._key = day, self._derived(day)
        names = "content-type;host;x-amz-date;x-amz-target"
        kind = "application/x-amz-json-1.0"
        canonical = (
            f"POST\n/\n\ncontent-type:{kind}\nhost:{host}\nx-amz-date:{stamp}\nx-amz-target:{target}\n\n{names}\n"
            f"{sha256(body).hexdigest()}"
        )
        scope = f"{day}/{_REGION}/sqs/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        return (
            f"POST / HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\nX-Amz-Target: {target}\r\n"
            f"x-amzn-query-mode: true\r\nContent-Type: {kind}\r\nUser-Agent: partibus-test\r\nX-Amz-Date: {stamp}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._key_id}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def _derived(self, day: str) -> bytes:
        key = f"AWS4{self._secret}".encode()
        for part in (day, _REGION, "sqs", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key
