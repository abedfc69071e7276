"""Any token is a grant or Unauthorized; the tokens that are made are good, and no longer after any change."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import Unauthorized
from partibus.namespace.access import AccessPolicies, Right, SasPolicy
from partibus.namespace.sas import PREFIX, make_token

KEY = "key+/="
names = st.text(min_size=1, max_size=20).filter(lambda name: "%" not in name and max(name) <= "\ud7ff")
segments = st.lists(st.text("abcXYZ019-_.~", min_size=1, max_size=8), max_size=4)


def policies(name: str) -> AccessPolicies:
    return AccessPolicies([SasPolicy(name, Right.SEND, KEY, "")])


@given(names, segments, st.integers(1, 10**11))
def test_a_made_token_is_good_until_it_expires(name: str, path: list[str], expires_s: int) -> None:
    resource = "/".join(["sb://h:5671", *path])
    grant = policies(name).check_token(make_token(resource, name, KEY, expires_s), resource, expires_s - 1)
    assert (grant.policy_name, grant.expires_s) == (name, expires_s)
    assert grant.path == tuple(segment.lower() for segment in path)


@given(st.data())
def test_a_changed_signed_part_is_refused(data: st.DataObject) -> None:
    token = make_token("sb://host/queue", "p", KEY, 2_000)
    end = token.index("&skn=")
    at = data.draw(st.integers(len(PREFIX), end - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda char: char != token[at]))
    changed = token[:at] + other + token[at + 1 :]
    with contextlib.suppress(Unauthorized):
        policies("p").check_token(changed, "sb://host/queue", 0)
        # Only a signature that decodes to the same bytes may pass.
        assert token.index("&sig=") < at < token.index("&se=")


@given(st.text() | st.text("srigekn=&%+2Fa1", max_size=60).map(PREFIX.__add__), st.text())
def test_any_text_is_refused_in_one_way(token: str, audience: str) -> None:
    with contextlib.suppress(Unauthorized):
        policies("p").check_token(token, audience, 0)
        raise AssertionError("a token that nobody signed was accepted")
