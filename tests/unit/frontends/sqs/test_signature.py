"""Signatures are compared with botocore's signer, which is not used by the broker."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec.structs import replace

from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.signature import (
    Keys,
    Signed,
    SignedHeaders,
    canonical_request,
    check_signed_headers,
    check_time,
    is_good,
    read_signed,
    text_to_sign,
    time_ms,
)
from partibus.frontends.sqs.wire_query import parse_parameters

KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
"""The keys of the public test suite of Signature Version 4."""
HOST = "sqs.us-east-1.example.com:9324"
AT = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: AT)


def signed_by_botocore(
    method: str, target: str, headers: Mapping[str, str], body: bytes, secret: str = SECRET, token: str | None = None
) -> dict[str, str]:
    request = AWSRequest(method, f"http://{HOST}{target}", headers=dict(headers), data=body)
    SigV4Auth(Credentials(KEY_ID, secret, token), "sqs", "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()} | {"host": HOST}


def verify(method: str, target: str, headers: Mapping[str, str], body: bytes, secret: str = SECRET) -> bool:
    path, _, query = target.partition("?")
    signed = read_signed(headers, parse_parameters(query.encode()))
    assert signed is not None
    check_signed_headers(signed, headers)
    canonical = canonical_request(signed, method, path, query, headers, sha256(body).hexdigest())
    return is_good(
        signed.signature, Keys().of(secret, signed.date, signed.region).sign(text_to_sign(signed, canonical))
    )


JSON = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}


@pytest.mark.row("S13")
@pytest.mark.parametrize(
    ("method", "target", "headers", "body"),
    [
        ("POST", "/", JSON | {"x-amzn-query-mode": "true"}, b'{"MessageBody":"hello"}'),
        ("POST", "/api/sqs/", JSON, b"{}"),
        ("POST", "/000000000000/orders.fifo", JSON | {"X-Blanks": "a   b    c"}, b"{}"),
        ("POST", "/", {"Content-Type": "application/x-www-form-urlencoded"}, b"Action=ListQueues&QueueNamePrefix=a+b"),
        ("GET", "/?Action=ListQueues&QueueNamePrefix=&b=%2F%20x&a=~-_.", {}, b""),
        ("GET", "/000000000000/a%20b?z=1&a=2&a=1", {}, b""),
        ("POST", "/", JSON, b"\xff" * 100_000),
    ],
    ids=["json", "base path", "queue path", "form", "query", "encoded path", "large"],
)
def test_a_request_that_botocore_has_signed_is_good(
    method: str, target: str, headers: Mapping[str, str], body: bytes
) -> None:
    sent = signed_by_botocore(method, target, headers, body)
    assert verify(method, target, sent, body)
    assert not verify(method, target, sent, body + b" ")
    assert not verify(method, target, sent, body, secret="another")
    assert not verify("PUT", target, sent, body)


def test_a_security_token_is_part_of_the_signature() -> None:
    sent = signed_by_botocore("POST", "/", JSON, b"{}", token="a-token")
    assert verify("POST", "/", sent, b"{}")
    assert not verify("POST", "/", sent | {"x-amz-security-token": "another"}, b"{}")


def test_a_presigned_url_is_good() -> None:
    request = AWSRequest("GET", f"http://{HOST}/000000000000/q?Action=ReceiveMessage&Version=2012-11-05")
    SigV4QueryAuth(Credentials(KEY_ID, SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    url = urlsplit(request.url)
    target = f"{url.path}?{url.query}"
    assert verify("GET", target, {"host": HOST}, b"")
    assert not verify("GET", target.replace("ReceiveMessage", "PurgeQueue"), {"host": HOST}, b"")
    assert not verify("GET", target, {"host": "elsewhere"}, b"")


def test_what_was_signed_late_or_early_has_expired() -> None:
    sent = signed_by_botocore("POST", "/", JSON, b"{}")
    signed = read_signed(sent, {})
    assert signed is not None
    now_ms = time_ms(signed.timestamp)
    assert now_ms == int(AT.timestamp() * 1000)
    check_time(signed, now_ms + 15 * 60_000)
    check_time(signed, now_ms - 15 * 60_000)
    for off_ms in (15 * 60_000 + 1, -15 * 60_000 - 1):
        with pytest.raises(SqsError, match="more than 15 minutes") as refused:
            check_time(signed, now_ms + off_ms)
        assert refused.value.code == "RequestExpired"
    presigned = replace(signed, is_presigned=True, expires_s=60)
    check_time(presigned, now_ms + 60_000)
    with pytest.raises(SqsError, match="Request has expired"):
        check_time(presigned, now_ms + 60_001)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"authorization": "Bearer x"}, "IncompleteSignature"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=a/b"}, "IncompleteSignature"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=k, SignedHeaders=host, Signature=0"}, "IncompleteSignature"),
        (
            {"authorization": "AWS4-HMAC-SHA256 Credential=k/20150830/r/s3/aws4_request, SignedHeaders=host, "
             "Signature=0"},
            "SignatureDoesNotMatch",
        ),
        (
            {"authorization": "AWS4-HMAC-SHA256 Credential=k/20150829/r/sqs/aws4_request, SignedHeaders=host, "
             "Signature=0"},
            "SignatureDoesNotMatch",
        ),
        ({"x-amz-date": "yesterday"}, "IncompleteSignature"),
    ],
)  # fmt: skip
def test_a_malformed_signature_is_refused(change: Mapping[str, str], code: str) -> None:
    sent = {**signed_by_botocore("POST", "/", JSON, b"{}"), **change}
    with pytest.raises(SqsError) as refused:
        read_signed(sent, {})
    assert refused.value.code == code


def test_the_action_must_be_signed() -> None:
    signed = Signed("k", "20150830", "r", SignedHeaders(("host", "x-amz-date")), "", "", "20150830T123600Z", False, 0)
    check_signed_headers(signed, {"host": "h", "x-amz-date": "d"})
    with pytest.raises(SqsError, match="x-amz-target"):
        check_signed_headers(signed, {"host": "h", "x-amz-date": "d", "x-amz-target": "t"})


def test_a_request_without_credentials_says_nothing() -> None:
    assert read_signed({"host": HOST}, {"Action": "ListQueues"}) is None


def test_signing_keys_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.frontends.sqs.signature.KEYS_MAX", 3)
    keys = Keys()
    first = keys.of("s", "20150830", "a")
    assert keys.of("s", "20150830", "a") is first
    for region in "bcd":
        keys.of("s", "20150830", region)
    assert keys.of("s", "20150830", "a") is not first
    assert keys.of("s", "20150830", "a").sign(b"text") == first.sign(b"text")


@pytest.mark.parametrize("names", [("host",), ("host", "a%sb", "x-%"), ("x", "x")])
def test_the_lines_of_signed_headers_are_written_as_they_are_listed(names: tuple[str, ...]) -> None:
    headers = {name: f"{name} %d" for name in names}
    assert SignedHeaders(names).lines(headers) == "".join(f"{name}:{name} %d\n" for name in names)
    with pytest.raises(KeyError):
        SignedHeaders((*names, "missing")).lines(headers)
