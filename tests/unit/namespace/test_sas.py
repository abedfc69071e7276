"""Tokens as the client libraries make them, and every reason to refuse one."""

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from azure.servicebus._pyamqp.utils import generate_sas_token
from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import Unauthorized
from partibus.namespace.access import AccessPolicies, Grant, Right, SasPolicy
from partibus.namespace.names import parse_address
from partibus.namespace.sas import PREFIX, Resource, make_token, parse_resource, parse_token

NOW = 1_700_000_000
LATER = NOW + 3600
KEY = "c2VjcmV0+/="
OTHER_KEY = "b3RoZXI="
ROOT = "RootManageSharedAccessKey"
AUDIENCE = "sb://ns.example/q"

POLICIES = AccessPolicies(
    [
        SasPolicy(ROOT, Right.MANAGE, KEY, OTHER_KEY),
        SasPolicy("na me/x", Right.SEND, KEY, ""),
        SasPolicy("listen", Right.LISTEN, "only listens", ""),
    ]
)


def signed(resource: str, expiry: str = str(LATER), key: str = KEY) -> str:
    """Percent-encoded signature over the texts as they are."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest).decode(), safe="")


def verify(token: str, audience: str = AUDIENCE, now_s: float = NOW, leeway_s: float = 0) -> Grant:
    return POLICIES.check_token(token, audience, now_s, leeway_s)


def test_signature_is_the_one_that_openssl_makes() -> None:
    # printf 'sb%%3A%%2F%%2Fns.example%%2Fq\n1700000000' | openssl dgst -sha256 -hmac 'c2VjcmV0+/=' -binary | base64
    expected = "OeES3XhDhUPFeRc30A6/WChcheFioMo56Ah7NQ2OP3w="
    token = make_token("sb://ns.example/q", ROOT, KEY, 1_700_000_000)
    assert parse_token(token).signature == base64.b64decode(expected)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_texts_are_encoded_as_other_clients_encode_them(text: str) -> None:
    claims = dict(pair.split("=") for pair in make_token(text, text, KEY, LATER).removeprefix(PREFIX).split("&"))
    assert claims["sr"] == claims["skn"] == quote(text, safe="")
    assert claims["sig"] == signed(claims["sr"])


def test_own_token_is_good_for_what_it_names() -> None:
    assert verify(make_token(AUDIENCE, ROOT, KEY, LATER)) == Grant(ROOT, Right.MANAGE, ("q",), LATER)


@pytest.mark.parametrize("name", [ROOT, "na me/x"])
def test_token_of_the_python_client(name: str) -> None:
    token = generate_sas_token(AUDIENCE, name, KEY, LATER)  # type: ignore[no-untyped-call]
    assert isinstance(token, str)
    assert verify(token).policy_name == name


def test_either_key_is_good() -> None:
    assert verify(make_token(AUDIENCE, ROOT, OTHER_KEY, LATER)).policy_name == ROOT


def test_claims_come_in_any_order_and_escapes_in_any_case() -> None:
    resource = "https%3a%2f%2fns.example%3a5300%2fq%3fapi-version%3d2021-05"
    token = f"SharedAccessSignature sig={signed(resource)}&se={LATER}&skn={ROOT}&sr={resource}"
    assert verify(token).path == ("q",)


@pytest.mark.parametrize("skn", ["na%20me%2Fx", "na+me%2Fx", "na%2Bme%252Fx", "na%2520me%252fx", "na me/x"])
def test_policy_name_is_decoded_however_often_it_was_encoded(skn: str) -> None:
    resource = quote(AUDIENCE, safe="")
    grant = verify(f"SharedAccessSignature sr={resource}&sig={signed(resource)}&se={LATER}&skn={skn}")
    assert grant == Grant("na me/x", Right.SEND, ("q",), LATER)


def test_a_key_is_taken_as_text_and_never_decoded() -> None:
    assert verify(make_token(AUDIENCE, "listen", "only listens", LATER)).rights == Right.LISTEN


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("sb://ns.example/q", Resource("ns.example", ("q",))),
        ("sb://NS.example:5671/Q/", Resource("ns.example", ("q",))),
        ("https://localhost:5300", Resource("localhost", ())),
        ("localhost:5300", Resource("localhost", ())),
        ("localhost:5300/T/Subscriptions/S", Resource("localhost", ("t", "subscriptions", "s"))),
        ("amqps%3A%2F%2Fh%2Fa%2Fb", Resource("h", ("a", "b"))),
        ("https://h/q?api-version=2021-05", Resource("h", ("q",))),
        ("sb://[::1]:5672/q", Resource("[::1]", ("q",))),
        ("sb://[::1]/q", Resource("[::1]", ("q",))),
        ("", Resource("", ())),
    ],
)
def test_resources_are_read_leniently(text: str, resource: Resource) -> None:
    assert parse_resource(text) == resource


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("sb://h/", "sb://h/q"),
        ("sb://h", "amqps://h:5671/q/$management"),
        ("sb://h/q", "sb://h/Q/$DeadLetterQueue"),
        ("h:5300", "https://h:5300/q"),
        ("sb://h/t", "sb://h/t/Subscriptions/s"),
        ("sb://h/a/b", "sb://h:1/a/b"),
    ],
)
def test_a_resource_covers_what_lies_in_it(resource: str, audience: str) -> None:
    verify(make_token(resource, ROOT, KEY, LATER), audience)


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("sb://h/q", "sb://h/other"),
        ("sb://h/q", "sb://h/q2"),
        ("sb://h/q", "sb://h/"),
        ("sb://h/q/$management", "sb://h/q"),
        ("sb://other/q", "sb://h/q"),
        ("q", "sb://h/q"),
        ("/q", "sb://h/q"),
        ("sb://h/q", ""),
    ],
)
def test_a_resource_covers_nothing_else(resource: str, audience: str) -> None:
    with pytest.raises(Unauthorized, match=r"The token is for .* and not for"):
        verify(make_token(resource, ROOT, KEY, LATER), audience)


@pytest.mark.parametrize("key", ["wrong", "", KEY.lower(), "only listens", base64.b64decode(OTHER_KEY).decode()])
def test_another_key_is_refused(key: str) -> None:
    with pytest.raises(Unauthorized, match="not signed with a key of the access policy 'RootManage"):
        verify(make_token(AUDIENCE, ROOT, key, LATER))


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(Unauthorized, match="no access policy 'nobody'"):
        verify(make_token(AUDIENCE, "nobody", KEY, LATER))


def test_the_signature_covers_resource_and_expiry_as_they_stand() -> None:
    token = make_token(AUDIENCE, ROOT, KEY, LATER)
    for changed in (
        token.replace("%2Fq", "%2Fr"),
        token.replace("%2F", "%2f"),
        token.replace(f"se={LATER}", f"se={LATER + 1}"),
        token.replace(f"se={LATER}", f"se=0{LATER}"),
    ):
        assert changed != token
        with pytest.raises(Unauthorized, match="not signed"):
            verify(changed, "sb://ns.example/")


def test_an_expired_token_is_refused_with_its_age() -> None:
    token = make_token(AUDIENCE, ROOT, KEY, NOW)
    with pytest.raises(Unauthorized, match="expired 0 s ago"):
        verify(token)
    with pytest.raises(Unauthorized, match="expired 90 s ago"):
        verify(token, now_s=NOW + 90.5)
    assert verify(token, now_s=NOW - 0.5).policy_name == ROOT


def test_a_leeway_bears_clocks_that_differ() -> None:
    token = make_token(AUDIENCE, ROOT, KEY, NOW)
    assert verify(token, now_s=NOW + 299, leeway_s=300).expires_s == NOW + 300
    with pytest.raises(Unauthorized, match="expired"):
        verify(token, now_s=NOW + 300, leeway_s=300)


@pytest.mark.parametrize("missing", ["sr", "sig", "se", "skn"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_claim_is_named(missing: str, empty: bool) -> None:
    pairs = make_token(AUDIENCE, ROOT, KEY, LATER).removeprefix("SharedAccessSignature ").split("&")
    kept = [pair for pair in pairs if not pair.startswith(f"{missing}=")] + ([f"{missing}="] if empty else [])
    with pytest.raises(Unauthorized, match=f"no claim '{missing}'"):
        verify("SharedAccessSignature " + "&".join(kept))


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "no shared access signature"),
        ("eyJhbGciOi.x.y", "no shared access signature"),
        ("SharedAccessSignature", "no shared access signature"),
        ("SharedAccessSignature ", "no claim"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=1&skn=x&sr=b", "'sr' twice"),
        ("SharedAccessSignature sr=a&sig=!&se=1&skn=x", "base64"),
        ("SharedAccessSignature sr=a&sig=ü&se=1&skn=x", "base64"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=soon&skn=x", "'soon', but must be Unix seconds"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=-1&skn=x", "Unix seconds"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=1.5&skn=x", "Unix seconds"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=٣&skn=x", "Unix seconds"),
        ("SharedAccessSignature sr=a&sig=YQ%3D%3D&se=9999999999999&skn=x", "Unix seconds"),
        ("SharedAccessSignature sr=" + "a" * 10_000, "may have 8192"),
    ],
)
def test_a_malformed_token_is_refused(token: str, reason: str) -> None:
    with pytest.raises(Unauthorized, match=reason):
        verify(token)


def test_a_grant_is_for_its_path_its_rights_and_its_time() -> None:
    grant = verify(make_token(AUDIENCE, "na me/x", KEY, LATER))
    for allowed in ("q", "Q", "/q/$management", "amqps://any/q/$DeadLetterQueue"):
        assert grant.allows(parse_address(allowed).segments, Right.SEND, NOW)
    assert not grant.allows(("q2",), Right.SEND, NOW)
    assert not grant.allows((), Right.SEND, NOW)
    assert not grant.allows(("q",), Right.LISTEN, NOW)
    assert not grant.allows(("q",), Right.MANAGE, NOW)
    assert not grant.allows(("q",), Right.SEND, LATER)


def test_no_refusal_shows_a_key_or_signature() -> None:
    token = make_token(AUDIENCE, ROOT, "wrong key", LATER)
    with pytest.raises(Unauthorized) as caught:
        verify(token)
    assert not any(secret in str(caught.value) for secret in (KEY, OTHER_KEY, "wrong key", signed(AUDIENCE)))
