"""Access policies of entities and of the namespace: what they may be, where they are good, what a change does to what
was shown before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.clock import ManualClock
from partibus.errors import ArgumentError, EntityExists, EntityNotFound, QuotaExceeded, Unauthorized
from partibus.limits import Limits
from partibus.namespace.access import EMULATOR_KEY, AccessPolicies, Grant, Right, SasPolicy, names_of, rights_of
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.namespace import Namespace
from partibus.namespace.policies import completed
from partibus.namespace.sas import make_token
from partibus.routing.partitions import Numbers

ROOT = SasPolicy("root", Right.MANAGE, "root-key", "")
NOW_S = 1_000.0
LATER = 2_000


def unused(*_: object) -> object:
    raise AssertionError("no partition is used here")


class World:
    """A broker over a catalog; ``again`` is what another one, or the next start, makes of it."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(5_000)
        self.catalog = Catalog(folder, 16)
        self.access, self.broker = self.again()
        self.broker.namespace.create("a")
        self.broker.namespace.create("a/b")

    def again(self) -> tuple[AccessPolicies, Broker]:
        access = AccessPolicies([ROOT])
        namespace = Namespace(self.catalog, self.clock)
        return access, Broker(namespace, access, self.clock, Numbers(), Limits(), unused)  # type: ignore[arg-type]

    def token(self, policy: SasPolicy, resource: str, *, secondary: bool = False) -> Grant:
        key = policy.secondary_key if secondary else policy.primary_key
        return self.access.check_token(make_token(resource, policy.name, key, LATER), resource, NOW_S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.catalog.close()


def test_keys_are_made_and_times_kept(world: World) -> None:
    made = world.broker.policies.set("A", SasPolicy("p", Right.SEND, "", ""))
    assert len({made.primary_key, made.secondary_key}) == 2
    assert (made.created_ms, made.modified_ms) == (5_000, 5_000)
    assert world.broker.policies.of("a") == (made,)
    world.clock.advance(10)
    changed = world.broker.policies.set("a", SasPolicy("p", Right.LISTEN, made.primary_key, made.secondary_key))
    assert (changed.keys, changed.created_ms, changed.modified_ms) == (made.keys, 5_000, 5_010)
    world.clock.advance(10)
    assert world.broker.policies.set("a", changed) == changed
    assert made.primary_key not in repr(made)


@pytest.mark.parametrize(
    ("path", "good"),
    [
        (("a",), True),
        (("a", "$management"), True),
        (("a", "$deadletterqueue"), True),
        (("a", "subscriptions", "s"), True),
        (("a", "b"), False),
        (("other",), False),
        ((), False),
    ],
)
def test_a_policy_is_good_at_its_entity_and_below(world: World, path: tuple[str, ...], good: bool) -> None:
    policy = world.broker.policies.set("a", SasPolicy("p", Right.SEND, "", ""))
    for grant in (
        world.token(policy, "sb://host/a"),
        world.token(policy, "sb://host/A", secondary=True),
        world.access.check_key("p", policy.primary_key),
    ):
        assert grant.allows(path, Right.SEND, NOW_S) is good
        assert not grant.allows(path, Right.LISTEN, NOW_S)


@pytest.mark.parametrize("resource", ["sb://host", "sb://host/", "sb://host/other"])
def test_an_entitys_policy_signs_nothing_else(world: World, resource: str) -> None:
    policy = world.broker.policies.set("a", SasPolicy("p", Right.MANAGE, "", ""))
    with pytest.raises(Unauthorized):
        world.token(policy, resource)


def test_policies_of_one_name_are_told_apart_by_their_keys(world: World) -> None:
    of_a = world.broker.policies.set("a", SasPolicy("root", Right.SEND, "", ""))
    of_b = world.broker.policies.set("a/b", SasPolicy("root", Right.LISTEN, "", ""))
    assert world.token(of_a, "sb://host/a").rights is Right.SEND
    assert world.token(of_b, "sb://host/a/b").rights is Right.LISTEN
    assert world.token(ROOT, "sb://host/a/b").rights is Right.MANAGE
    assert world.access.check_key("root", of_b.primary_key).path == ("a", "b")
    with pytest.raises(Unauthorized):
        world.token(of_b, "sb://host/a")
    with pytest.raises(Unauthorized):
        world.access.check_key("root", "no key")


def test_policies_of_the_namespace_stand_beside_the_fixed_ones(world: World) -> None:
    policy = world.broker.policies.set("", SasPolicy("more", Right.LISTEN, "", ""))
    assert world.broker.policies.of("") == (ROOT, policy)
    assert world.token(policy, "sb://host/a").allows(("a",), Right.LISTEN, NOW_S)
    for refused in (lambda: world.broker.policies.set("", ROOT), lambda: world.broker.policies.delete("", "root")):
        with pytest.raises(EntityExists, match=r"root of keys\.json"):
            refused()


def test_a_new_key_ends_what_the_old_one_opened(world: World) -> None:
    policy = world.broker.policies.set("a", SasPolicy("p", Right.SEND, "", ""))
    shown, spared = world.token(policy, "sb://host/a"), world.token(policy, "sb://host/a", secondary=True)
    version = world.access.version
    renewed = world.broker.policies.regenerate_key("a", "p")
    assert world.access.version > version
    assert (renewed.primary_key != policy.primary_key, renewed.secondary_key) == (True, policy.secondary_key)
    assert world.access.renewed(shown) is None
    assert world.access.renewed(spared) == spared
    with pytest.raises(Unauthorized, match="not signed"):
        world.token(policy, "sb://host/a")
    world.broker.policies.regenerate_key("a", "p", secondary=True)
    assert world.access.renewed(spared) is None


def test_other_rights_count_for_what_was_shown(world: World) -> None:
    policy = world.broker.policies.set("a", SasPolicy("p", Right.SEND, "", ""))
    shown = world.token(policy, "sb://host/a")
    called: list[int] = []
    world.access.on_changed.append(lambda: called.append(world.access.version))
    world.broker.policies.set("a", SasPolicy("p", Right.LISTEN, policy.primary_key, policy.secondary_key))
    renewed = world.access.renewed(shown)
    assert renewed is not None
    assert (renewed.rights, renewed.path, renewed.expires_s) == (Right.LISTEN, shown.path, shown.expires_s)
    assert called == [world.access.version]


def test_what_is_deleted_opens_nothing(world: World) -> None:
    policy = world.broker.policies.set("a", SasPolicy("p", Right.SEND, "", ""))
    other = world.broker.policies.set("a/b", SasPolicy("p", Right.SEND, "", ""))
    shown, elsewhere = world.token(policy, "sb://host/a"), world.token(other, "sb://host/a/b")
    world.broker.policies.delete("a", "p")
    assert (world.access.renewed(shown), world.access.renewed(elsewhere)) == (None, elsewhere)
    with pytest.raises(EntityNotFound, match="a/AuthorizationRules/p"):
        world.broker.policies.delete("a", "p")
    world.broker.namespace.delete("a/b")
    world.broker.follow({"entity": "a/b"})
    assert world.access.renewed(elsewhere) is None


def test_others_and_the_next_start_know_them(world: World) -> None:
    access, broker = world.again()
    policy = world.broker.policies.set("a", SasPolicy("p", Right.SEND, "", ""))
    more = world.broker.policies.set("", SasPolicy("more", Right.LISTEN, "", ""))
    broker.follow({"entity": "a"})
    broker.follow({"entity": ""})
    for known in (access, world.again()[0]):
        assert [one.name for one in known] == ["root", "more"]
        assert known.keys("more") == more.keys
        assert known.check_key("p", policy.primary_key).path == ("a",)


def test_twelve_are_the_most(world: World) -> None:
    for number in range(12):
        world.broker.policies.set("a", SasPolicy(f"p{number}", Right.SEND, "", ""))
    with pytest.raises(QuotaExceeded, match="'a' is at its quota of 12 authorization rules"):
        world.broker.policies.set("a", SasPolicy("one-more", Right.SEND, "", ""))
    assert len(world.broker.policies.of("a")) == 12


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (SasPolicy("", Right.SEND, "k", "l"), "KeyName"),
        (SasPolicy("x" * 257, Right.SEND, "k", "l"), "KeyName"),
        (SasPolicy("a\nb", Right.SEND, "k", "l"), "KeyName"),
        (SasPolicy("p", Right(0), "k", "l"), "Rights"),
        (SasPolicy("p", Right.SEND, "secret" * 100, "l" * 16), "PrimaryKey"),
        (SasPolicy("p", Right.SEND, "k" * 16, EMULATOR_KEY), "SecondaryKey"),
        (SasPolicy("p", Right.SEND, "secret", ""), "PrimaryKey"),
        (SasPolicy("p", Right.SEND, "", "secret-of-15-ch"), "SecondaryKey"),
    ],
)
def test_what_can_be_no_policy_is_refused_without_its_keys(policy: SasPolicy, field: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        completed([policy], (), 0)
    assert caught.value.field == field
    assert "secret" not in str(caught.value)
    assert EMULATOR_KEY not in str(caught.value)


def test_a_short_key_of_an_earlier_version_stays_until_it_is_changed() -> None:
    known = [SasPolicy("p", Right.SEND, "short", "l" * 16, 1, 1)]
    more = SasPolicy("q", Right.SEND, "", "")
    assert completed([*known, more], known, 2)[0] is known[0]
    with pytest.raises(ArgumentError, match="at least 16 characters"):
        completed([SasPolicy("p", Right.SEND, "shorter", "l" * 16)], known, 2)


def test_a_name_is_given_once_in_a_list() -> None:
    with pytest.raises(ArgumentError, match="in the list once"):
        completed([SasPolicy("p", Right.SEND, "", ""), SasPolicy("p", Right.LISTEN, "", "")], (), 0)


def test_rights_have_the_words_of_the_service() -> None:
    assert names_of(Right.MANAGE) == ["Manage", "Send", "Listen"]
    assert names_of(Right.SEND | Right.LISTEN) == ["Send", "Listen"]
    for rights in (Right.MANAGE, Right.SEND, Right.LISTEN, Right.SEND | Right.LISTEN):
        assert rights_of(names_of(rights)) == rights
