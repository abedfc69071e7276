"""Policies, their file, and what showing a key gives."""

import base64
import contextlib
import json
import stat
from pathlib import Path

import pytest

from partibus.errors import Unauthorized, UnusableFile
from partibus.namespace import access
from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY, AccessPolicies, Grant, Right, SasPolicy
from partibus.namespace.policies import FILE_NAME, load_policies
from partibus.namespace.sas import Path as EntityPath
from partibus.namespace.sas import Resource, Token, make_token, parse_token
from tests.robustness.work import work_of


def write_keys(directory: Path, document: object, mode: int = 0o600) -> Path:
    path = directory / FILE_NAME
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(mode)
    return path


def policy(**changes: object) -> dict[str, object]:
    return {"version": 1, "policies": [{"name": "p", "rights": ["Send"], "primaryKey": "k" * 16} | changes]}


def test_manage_implies_send_and_listen() -> None:
    grant = Grant("p", Right.MANAGE, (), None)
    assert all(grant.allows(("q",), right, 0) for right in Right)
    assert not Grant("p", Right.SEND | Right.LISTEN, (), None).allows(("q",), Right.MANAGE, 0)


def test_a_policy_is_never_printed_with_its_keys() -> None:
    assert repr(SasPolicy("p", Right.SEND, "secret1", "secret2")).count("secret") == 0


def test_a_shown_key_gives_the_namespace() -> None:
    policies = AccessPolicies([SasPolicy("p", Right.LISTEN, "first", "second")])
    assert policies.check_key("p", "first") == policies.check_key("p", "second") == Grant("p", Right.LISTEN, (), None)


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("p", "third", "not one of its keys"),
        ("p", "", "not one of its keys"),
        ("p", "f\ud800", "not one of its keys"),
        ("P", "first", "no access policy 'P'"),
        ("", "first", "no access policy ''"),
        (ROOT_POLICY, EMULATOR_KEY, "no access policy"),
    ],
)
def test_another_key_or_name_is_refused(name: str, key: str, reason: str) -> None:
    policies = AccessPolicies([SasPolicy("p", Right.LISTEN, "first", "")])
    with pytest.raises(Unauthorized, match=reason) as caught:
        policies.check_key(name, key)
    assert "first" not in str(caught.value)


class _Segment(str):
    """A part of a path that counts how often it is hashed."""

    __slots__ = ()
    hashed = 0

    def __hash__(self) -> int:
        _Segment.hashed += 1
        return super().__hash__()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_token_of_thousands_of_segments_costs_what_a_short_one_does(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Its signature is not checked yet when its owner is looked for."""
    policies = AccessPolicies([SasPolicy("p", Right.LISTEN, "key", "")])
    policies.follow("/".join("a" * depth), [SasPolicy("p", Right.SEND, "other", "")])
    token = make_token("sb://h/" + "a/" * 2_000, "p", "wrong", 10)
    path = tuple(map(_Segment, "a" * 2_000))
    monkeypatch.setattr(access, "parse_token", lambda text: Parsed(parse_token(text), path))
    _Segment.hashed = 0
    with pytest.raises(Unauthorized, match="not signed with a key"):
        policies.check_token(token, "sb://h/a", 0)
    assert _Segment.hashed <= 10 * depth


class Parsed:
    """A token whose path is another one."""

    def __init__(self, token: Token, path: EntityPath) -> None:
        self._token = token
        self.resource = Resource(token.resource.host, path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._token, name)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tokens_of_entities_at_any_depth_are_found(depth: int) -> None:
    policies = AccessPolicies([])
    for length in range(1, 4):
        policies.follow("/".join("a" * length), [SasPolicy(f"p{length}", Right.SEND, "key", "")])
    audience = "sb://h/" + "/".join("a" * depth)
    assert policies.check_token(make_token(audience, f"p{depth}", "key", 10), audience, 0).owner == ("a",) * depth
    policies.follow("/".join("a" * depth), [])
    with pytest.raises(Unauthorized, match="no access policy"):
        policies.check_token(make_token(audience, f"p{depth}", "key", 10), audience, 0)


def in_entities(count: int) -> AccessPolicies:
    """A namespace with a policy "listen" of its own, and one in each of its entities."""
    policies = AccessPolicies([SasPolicy("listen", Right.LISTEN, "of-all", "")])
    for number in range(count):
        policies.follow(f"q{number:04}", [SasPolicy("listen", Right.LISTEN, f"key-{number}", f"other-{number}")])
    return policies


def test_what_a_stranger_can_name_costs_the_same_however_many_entities_have_it() -> None:
    def shown_to(policies: AccessPolicies) -> int:
        def show() -> None:
            for name, key in (("listen", "wrong"), ("listen", "key-2"), ("unknown", "key-2")):
                with contextlib.suppress(Unauthorized):
                    policies.check_key(name, key)
            assert len(policies.signing_keys("listen")) <= 1 + 2 * access.SIGNERS_MAX
            assert policies.signing_keys("unknown") == []

        return work_of(show)

    few, many = in_entities(access.SIGNERS_MAX), in_entities(10 * access.SIGNERS_MAX)
    assert shown_to(many) <= 1.01 * shown_to(few)


def test_a_shown_key_gives_the_entity_that_has_it() -> None:
    policies = in_entities(200)
    for key in ("key-150", "other-150"):
        assert policies.check_key("listen", key).path == ("q0150",)
    assert policies.check_key("listen", "of-all").path == ()
    policies.follow("q0150", [SasPolicy("listen", Right.MANAGE, "key-151", "key-151")])
    with pytest.raises(Unauthorized, match="not one of its keys"):
        policies.check_key("listen", "other-150")
    assert policies.check_key("listen", "key-151") == Grant("listen", Right.MANAGE, ("q0150",), None, ("q0150",))
    policies.follow("q0150", [])
    assert policies.check_key("listen", "key-151").path == ("q0151",)
    policies.close()
    with pytest.raises(Unauthorized, match="no access policy"):
        policies.check_key("listen", "key-151")


def test_the_policy_of_the_named_entity_signs_beside_the_namespaces() -> None:
    policies = in_entities(200)
    assert policies.in_entities("listen", ("q0150",))
    assert [(grant.owner, grant.key) for grant in policies.signing_keys("listen", ("q0150",))] == [
        ((), "of-all"),
        (("q0150",), "key-150"),
        (("q0150",), "other-150"),
    ]
    owners = list(dict.fromkeys(grant.owner for grant in policies.signing_keys("listen")))
    assert owners == [(), *((f"q{number:04}",) for number in range(access.SIGNERS_MAX))]
    assert not policies.in_entities("listen", ("none",))
    assert policies.in_entities("listen")
    assert not policies.in_entities("root")


def test_an_audience_longer_than_any_token_is_refused() -> None:
    policies = AccessPolicies([SasPolicy("p", Right.LISTEN, "key", "")])
    token = make_token("sb://h", "p", "key", 10)
    assert policies.check_token(token, "sb://h/" + "q/" * 4_000, 0).rights == Right.LISTEN
    with pytest.raises(Unauthorized, match="The audience has 9007 characters, but may have 8192"):
        policies.check_token(token, "sb://h/" + "q" * 9_000, 0)


def test_first_start_makes_an_owner_only_file_with_random_keys(tmp_path: Path) -> None:
    (made,) = load_policies(tmp_path)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert (made.name, made.rights) == (ROOT_POLICY, Right.MANAGE)
    assert made.primary_key != made.secondary_key
    assert {len(base64.b64decode(key, validate=True)) for key in made.keys} == {32}
    assert list(load_policies(tmp_path)) == [made]


def test_two_data_directories_have_different_keys(tmp_path: Path) -> None:
    made: list[SasPolicy] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made += load_policies(tmp_path / name)
    assert len({key for each in made for key in each.keys}) == 4


def test_what_an_interrupted_first_start_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f".{FILE_NAME}.part").write_text('{"versi')
    (made,) = load_policies(tmp_path)
    assert made.name == ROOT_POLICY
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o777])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_keys(tmp_path, policy(), mode)
    with pytest.raises(UnusableFile, match=f"mode {mode:o}.*chmod 600 .*{FILE_NAME}"):
        load_policies(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_emulators_key_is_good_only_when_told(tmp_path: Path) -> None:
    token = make_token("sb://localhost/q", ROOT_POLICY, EMULATOR_KEY, 1_000)
    strict, lenient = load_policies(tmp_path), load_policies(tmp_path, emulator=True)
    with pytest.raises(Unauthorized):
        strict.check_token(token, "sb://localhost/q", 0)
    with pytest.raises(Unauthorized):
        strict.check_key(ROOT_POLICY, EMULATOR_KEY)
    assert lenient.check_token(token, "sb://localhost/q", 0).rights == Right.MANAGE
    assert lenient.check_key(ROOT_POLICY, EMULATOR_KEY).rights == Right.MANAGE
    (root,) = lenient
    assert lenient.check_key(ROOT_POLICY, root.primary_key).rights == Right.MANAGE


def test_the_emulators_key_is_no_key_of_other_policies(tmp_path: Path) -> None:
    write_keys(tmp_path, policy())
    with pytest.raises(Unauthorized):
        load_policies(tmp_path, emulator=True).check_key("p", EMULATOR_KEY)


def test_an_edited_file_is_read(tmp_path: Path) -> None:
    write_keys(tmp_path, policy(rights=["Send", "Listen"], secondaryKey="ключ-из-16-знаков"))
    (read,) = load_policies(tmp_path)
    assert read == SasPolicy("p", Right.SEND | Right.LISTEN, "k" * 16, "ключ-из-16-знаков")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", '"version": 1'),
        ({"version": 1}, 'array "policies"'),
        ({"version": 2, "policies": []}, "version 2, newer than 1. Use a newer version"),
        ({"version": 1, "policies": ["p"]}, r"policies\[0\] must be an object"),
        (policy(colour="red"), r"policies\[0\] must be an object of name"),
        (policy(name=""), r"policies\[0\].name must be text"),
        (policy(rights=["Read"]), "must be an array of Send, Listen, Manage"),
        (policy(rights=[]), "must be an array of Send, Listen, Manage"),
        (policy(rights=[["Send"]]), "must be an array of Send, Listen, Manage"),
        (policy(primaryKey=""), "must have a primaryKey or a secondaryKey"),
        (policy(primaryKey=7), "must have a primaryKey or a secondaryKey"),
        (policy(primaryKey="k" * 15), r"policies\[0\] has a key of 15 characters, but needs 16"),
        (policy(secondaryKey="x"), r"policies\[0\] has a key of 1 characters, but needs 16"),
        (policy(secondaryKey=EMULATOR_KEY), "the emulator's key, .* --emulator"),
        ({"version": 1, "policies": policy()["policies"] * 2}, "names a policy twice"),  # type: ignore[operator]
    ],
)
def test_another_form_is_refused_and_left_as_it_was(tmp_path: Path, document: object, reason: str) -> None:
    path = write_keys(tmp_path, document)
    before = path.read_bytes()
    with pytest.raises(UnusableFile, match=reason) as caught:
        load_policies(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert path.read_bytes() == before


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"nowhere/keys\.json: can't be used \(No such file"):
        load_policies(tmp_path / "nowhere")


def test_a_stranger_does_not_learn_from_a_refusal_that_an_entity_has_a_policy() -> None:
    policies = AccessPolicies([SasPolicy("root", Right.MANAGE, "key", "")])
    policies.follow("here", [SasPolicy("p", Right.SEND, "other", "")])
    texts = set()
    for entity in ("here", "gone"):
        audience = f"sb://h/{entity}"
        with pytest.raises(Unauthorized) as caught:
            policies.check_token(make_token(audience, "p", "wrong", 10), audience, 0)
        texts.add(str(caught.value))
    assert len(texts) == 1
