"""Tokens of an identity provider: which are good, for what, and how its keys are read."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
import weakref
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from partibus.errors import Unauthorized, UnusableFile
from partibus.namespace.access import AccessPolicies, Right
from partibus.node import identity
from partibus.node.identity import REFRESH_S, IdentityProvider, Keys, load_keys, read_settings, values_of
from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

OWNER, SENDER, RECEIVER = (f"Azure Service Bus Data {name}" for name in ("Owner", "Sender", "Receiver"))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def other() -> Issuer:
    return Issuer()


class Loop(asyncio.SelectorEventLoop):
    """Its time is the test's."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


async def until_read() -> bool:
    """Wait for the reading of keys, the only other task of the loop; tell whether there was one."""
    reading = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*reading)
    return bool(reading)


def provider_of(folder: Path, issuer: Issuer, loop: asyncio.AbstractEventLoop, **settings: Any) -> IdentityProvider:
    """Make a provider whose keys are read."""
    made = IdentityProvider(read_settings(issuer.write(folder, **settings)), loop)

    async def read() -> None:
        made.begin()
        await until_read()

    loop.run_until_complete(read())
    return made


@pytest.fixture
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def provider(tmp_path: Path, issuer: Issuer, loop: asyncio.AbstractEventLoop) -> IdentityProvider:
    return provider_of(tmp_path, issuer, loop)


@pytest.mark.parametrize(("role", "rights"), [(OWNER, Right.MANAGE), (SENDER, Right.SEND), (RECEIVER, Right.LISTEN)])
def test_a_role_gives_its_rights_on_the_default_namespace_and_nothing_of_the_server(
    provider: IdentityProvider, issuer: Issuer, role: str, rights: Right
) -> None:
    (grant,) = provider.of("default").grants(issuer.token(roles=[role]))
    assert (grant.rights, grant.path, grant.operates) == (rights, (), False)
    with pytest.raises(Unauthorized, match="has no role in the namespace 'acme'"):
        provider.of("acme").grants(issuer.token(roles=[role]))


def test_roles_are_mapped_by_what_the_operator_says(
    tmp_path: Path, issuer: Issuer, loop: asyncio.AbstractEventLoop
) -> None:
    roles = {
        "orders-senders": {"role": SENDER, "namespace": "acme", "entity": "Orders"},
        "readers": {"role": RECEIVER, "namespace": "acme"},
    }
    provider = provider_of(tmp_path, issuer, loop, roles=roles, roles_claim="realm_access.roles")
    token = issuer.token(realm_access={"roles": ["readers", "orders-senders", "unknown"]})
    reader, sender = provider.of("Acme").grants(token)
    now_s = time.time()
    assert sender.allows(("orders",), Right.SEND, now_s)
    assert not sender.allows(("orders", "more"), Right.SEND, now_s), "another entity"
    assert not sender.allows(("others",), Right.SEND, now_s)
    assert reader.allows(("others",), Right.LISTEN, now_s)
    with pytest.raises(Unauthorized, match="no role"):
        provider.of("acme").grants(issuer.token(roles=[OWNER]))


def unsigned(issuer: Issuer) -> str:
    _, body, _ = issuer.token(roles=[OWNER]).split(".")
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": issuer.key_id}).encode()).decode().rstrip("=")
    return f"{none}.{body}."


def shared_secret(issuer: Issuer) -> str:
    """Signed with what is public as if it were a secret: the oldest trick."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60, "roles": [OWNER]}
    parts = [json.dumps(one).encode() for one in ({"alg": "HS256", "kid": issuer.key_id}, claims)]
    signed = b".".join(base64.urlsafe_b64encode(one).rstrip(b"=") for one in parts)
    secret = issuer.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")
    return f"{signed.decode()}.{signature.decode()}"


BAD: dict[str, tuple[Callable[[Issuer, Issuer], str], str]] = {
    "expired": (lambda mine, _: mine.token(roles=[OWNER], exp=int(time.time()) - 61), "has expired"),
    "not yet": (lambda mine, _: mine.token(roles=[OWNER], nbf=int(time.time()) + 300), "not valid"),
    "endless": (lambda mine, _: mine.token(roles=[OWNER], exp=None), "not valid"),
    "audience": (lambda mine, _: mine.token(roles=[OWNER], aud="https://other"), "for another audience"),
    "no audience": (lambda mine, _: mine.token(roles=[OWNER], aud=None), "not valid"),
    "issuer": (lambda mine, _: mine.token(roles=[OWNER], iss="https://other"), "not valid"),
    "no issuer": (lambda mine, _: mine.token(roles=[OWNER], iss=None), "not valid"),
    "forged": (lambda _, other: other.token(roles=[OWNER]), "not valid"),
    "none": (lambda mine, _: unsigned(mine), "not valid"),
    "secret": (lambda mine, _: shared_secret(mine), "not valid"),
    "other key": (lambda mine, _: mine.token(roles=[OWNER], headers={"kid": "k2"}), "signed with the key 'k2'"),
    "no token": (lambda *_: "SharedAccessSignatur sr=", "neither a shared access signature nor"),
    "deep": (lambda *_: base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.e30", "neither"),
    "long": (lambda *_: "a" * 20_000, "20000 characters, but may have 16384"),
    "no role": (lambda mine, _: mine.token(roles=["Reader"]), "has no role"),
    "roles of another form": (lambda mine, _: mine.token(roles=[[OWNER], 7]), "has no role"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_good_token_is_refused_with_the_reason(
    provider: IdentityProvider, issuer: Issuer, other: Issuer, case: str
) -> None:
    make, reason = BAD[case]
    assert provider.of("default").grants(issuer.token(roles=[OWNER])), "a good one passes"
    with pytest.raises(Unauthorized, match=reason):
        provider.of("default").grants(make(issuer, other))


def test_a_clock_that_is_a_little_behind_is_borne(provider: IdentityProvider, issuer: Issuer) -> None:
    now_s = int(time.time())
    assert provider.of("default").grants(issuer.token(roles=[OWNER], nbf=now_s + 30))
    (grant,) = provider.of("default").grants(issuer.token(roles=[OWNER], exp=now_s - 30))
    assert grant.expires_s == now_s + 30


def test_an_unknown_key_has_the_keys_read_again_and_not_for_each_token(tmp_path: Path, issuer: Issuer) -> None:
    loop, reads = Loop(), []
    new = Issuer("key-2")

    def load(source: str) -> Keys:
        reads.append(source)
        return load_keys(source)

    provider = IdentityProvider(read_settings(issuer.write(tmp_path)), loop, load)

    async def settle() -> None:
        await until_read()

    async def ask(text: str) -> int:
        called = 0

        def then() -> None:
            nonlocal called
            called += 1

        waits = provider.fetch_for(text, then)
        await settle()
        assert called == int(waits)
        return called

    async def run() -> None:
        provider.begin()
        await settle()
        assert not await ask(issuer.token())
        (tmp_path / "keys.jwks").write_text(json.dumps({"keys": [new.public]}))
        for _ in range(100):
            assert not await ask(new.token())
        assert len(reads) == 1
        loop.now_s += REFRESH_S
        assert await ask(new.token())
        assert provider.check(new.token())
        for _ in range(100):
            assert not await ask(issuer.token())
        assert len(reads) == 2
        with pytest.raises(Unauthorized, match="signed with the key 'key-1'"):
            provider.check(issuer.token())

    loop.run_until_complete(run())
    loop.close()


def test_tokens_that_waited_for_keys_are_checked_one_a_turn(tmp_path: Path, issuer: Issuer) -> None:
    """A stranger may have sent hundreds of tokens while the keys were read, and each check takes some time."""
    loop = Loop()
    provider = IdentityProvider(read_settings(issuer.write(tmp_path)), loop)
    turn = 0
    called: list[int] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(called) < 50:
            loop.call_soon(count)

    async def run() -> None:
        provider.begin()
        assert all(provider.fetch_for(issuer.token(), lambda: called.append(turn)) for _ in range(50))
        assert await until_read()
        count()
        for _ in range(60):
            await asyncio.sleep(0)

    loop.run_until_complete(run())
    loop.close()
    assert len(called) == 50
    assert max(map(called.count, called)) <= 3


def test_keys_stay_when_they_can_not_be_read_anew(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    provider = provider_of(tmp_path, issuer, loop)
    (tmp_path / "keys.jwks").write_text("{")
    loop.now_s += identity.KEEP_S

    async def run() -> None:
        assert not provider.fetch_for(issuer.token(), lambda: None), "its key is known: it need not wait"
        await until_read()

    loop.run_until_complete(run())
    assert provider.check(issuer.token())
    assert "can't be read" in caplog.text
    loop.close()


class Serving(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, dict[str, str], bytes]]] = []

    def do_GET(self) -> None:
        status, headers, body = self.answers[0]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_keys_come_from_an_address_within_bounds(issuer: Issuer) -> None:
    with HTTPServer(("127.0.0.1", 0), Serving) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/keys"
        Serving.answers[:] = [(200, {}, json.dumps({"keys": [issuer.public]}).encode())]
        assert list(load_keys(address)) == ["key-1"]
        Serving.answers[:] = [(200, {}, b" " * (identity.KEYS_BYTES_MAX + 1))]
        with pytest.raises(ValueError, match="more than"):
            load_keys(address)
        Serving.answers[:] = [(302, {"Location": "file:///etc/passwd"}, b"")]
        with pytest.raises(OSError, match="302"):
            load_keys(address)
        server.shutdown()


def test_secrets_weak_keys_and_strange_ones_are_left_out(tmp_path: Path, issuer: Issuer) -> None:
    path = tmp_path / "keys"
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}
    weak = Issuer("weak", 1_024).public
    sealing = {**issuer.public, "use": "enc", "kid": "sealing"}
    strange = [7, {}, {"kty": "RSA"}, {"kty": ["RSA"]}]
    path.write_text(json.dumps({"keys": [secret, weak, sealing, *strange, issuer.public]}))
    assert list(load_keys(str(path))) == ["key-1"]
    path.write_text(json.dumps({"keys": [secret, weak]}))
    with pytest.raises(ValueError, match="no public key"):
        load_keys(str(path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithms": ["none"]}, "the algorithm 'none'"),
        ({"algorithms": ["HS256"]}, "the algorithm 'HS256'"),
        ({"algorithms": []}, "no algorithm"),
        ({"audiences": []}, "an issuer and its audiences"),
        ({"issuer": ""}, "an issuer and its audiences"),
        ({"roles": {"x": {"role": "Owner"}}}, "the role 'Owner'"),
        ({"keys": "http://login.example/keys"}, "without TLS"),
        ({"leeway_s": 3_600}, "leeway_s 3600"),
        ({"colour": "red"}, "another form"),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(
    tmp_path: Path, issuer: Issuer, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnusableFile, match=reason):
        read_settings(issuer.write(tmp_path, **changes))


def test_without_a_provider_the_refusal_says_what_to_configure(issuer: Issuer) -> None:
    with pytest.raises(Unauthorized, match=r"serve with --identity FILE \(docs/access.md\)"):
        AccessPolicies(()).check_any_token(issuer.token(), "sb://localhost/q", 0)


def test_a_claim_is_found_by_its_name_or_by_a_path() -> None:
    claims = {"https://x.test/roles": ["a"], "realm": {"roles": ["b", 7]}, "scp": "c d"}
    assert values_of(claims, "https://x.test/roles") == ["a"]
    assert values_of(claims, "realm.roles") == ["b"]
    assert values_of(claims, "scp") == ["c d", "c", "d"]
    assert values_of(claims, "realm.roles.more") == []


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens whose signatures were checked."""
    seen: list[str] = []
    original = jwt.decode

    def decode(text: str, *arguments: Any, **more: Any) -> Any:
        seen.append(text)
        return original(text, *arguments, **more)

    monkeypatch.setattr("partibus.node.identity.jwt.decode", decode)
    return seen


def test_a_token_of_many_connections_is_checked_once(
    provider: IdentityProvider, issuer: Issuer, decoded: list[str]
) -> None:
    token, another = issuer.token(roles=[OWNER]), issuer.token(roles=[SENDER])
    for _ in range(3):
        assert provider.of("default").grants(token)[0].rights == Right.MANAGE
        assert provider.of("default").grants(another)[0].rights == Right.SEND
    assert decoded == [token, another]
    for _ in range(2):
        with pytest.raises(Unauthorized):
            provider.of("default").grants(token[:-8] + "AAAAAAAA")
    assert len(decoded) == 4, "a refused token is checked each time"


def test_a_token_that_was_good_is_checked_again_after_its_end(
    provider: IdentityProvider, issuer: Issuer, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    token = issuer.token(roles=[OWNER], exp=int(now_s) - 30)
    assert provider.of("default").grants(token)
    monkeypatch.setattr("partibus.node.identity.time.time", lambda: now_s + 29)
    assert provider.of("default").grants(token)
    assert len(decoded) == 1
    monkeypatch.setattr("partibus.node.identity.time.time", lambda: now_s + 31)
    provider.of("default").grants(token)
    assert len(decoded) == 2


def test_a_token_of_a_withdrawn_key_is_good_until_the_keys_are_read(
    tmp_path: Path, issuer: Issuer, other: Issuer, decoded: list[str]
) -> None:
    loop = Loop()
    provider = provider_of(tmp_path, issuer, loop)
    token = issuer.token(roles=[OWNER])
    assert provider.of("default").grants(token)
    other.write(tmp_path)
    loop.now_s += 4_000

    async def show() -> None:
        provider.fetch_for(token, lambda: None)
        assert await until_read()

    loop.run_until_complete(show())
    with pytest.raises(Unauthorized, match="not valid"):
        provider.of("default").grants(token)
    loop.close()


class Claims(dict[str, Any]):
    """Claims whose end can be seen."""


def test_few_tokens_are_remembered(
    provider: IdentityProvider, issuer: Issuer, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "CHECKED_MAX", 3)
    kept: list[weakref.ref[Claims]] = []
    original = jwt.decode

    def decode(*arguments: Any, **more: Any) -> Claims:
        claims = Claims(original(*arguments, **more))
        kept.append(weakref.ref(claims))
        return claims

    monkeypatch.setattr("partibus.node.identity.jwt.decode", decode)
    tokens = [issuer.token(roles=[OWNER], jti=str(number)) for number in range(10)]
    for token in tokens:
        provider.of("default").grants(token)
        assert 1 <= sum(one() is not None for one in kept) <= 3
    assert provider.of("default").grants(tokens[0])
    assert len(decoded) == 11
