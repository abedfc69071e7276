"""Several namespaces in one server: which one a host names, what each has for itself, and how brokers agree on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.errors import ArgumentError, EntityExists, EntityNotFound, InvalidOperation, Unauthorized
from partibus.namespace.access import ROOT_POLICY, Right, SasPolicy
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.sas import make_token
from partibus.namespace.tiers import Tier
from tests.unit.namespace.catalogs import database
from tests.unit.namespace.servers import NOW_MS, Cluster, Member

STANDARD = NamespaceOptions()
LATER_S = NOW_MS // 1000 + 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for member in cluster.members:
        member.catalog.close()


@pytest.fixture
def member(cluster: Cluster) -> Member:
    return cluster.join()


@pytest.fixture
def namespaces(member: Member) -> Namespaces:
    return member.namespaces


class TestHosts:
    @pytest.mark.parametrize(
        ("host", "name"),
        [
            ("acme-1.localhost", "Acme-1"),
            ("ACME-1.servicebus.windows.net", "Acme-1"),
            ("acme-1", "Acme-1"),
            ("acme-1:5672", "Acme-1"),
            ("acme-1.plant.example:5671", "Acme-1"),
            ("default.plant.example", "default"),
            ("acme-10.localhost", "default"),
            ("www.acme-1.localhost", "default"),
            ("localhost", "default"),
            ("127.0.0.1:5672", "default"),
            ("[::1]:5672", "default"),
            ("", "default"),
            (None, "default"),
        ],
    )
    def test_the_first_label_names_the_namespace_and_every_other_host_the_default_one(
        self, namespaces: Namespaces, host: str | None, name: str
    ) -> None:
        namespaces.create("Acme-1", STANDARD)
        assert namespaces.of_host(host).namespace.name == name

    @pytest.mark.parametrize(
        "name", ["short", "a" * 51, "1acme-x", "acme-x-", "acme.x", "acme_xx", "acme x", "äcme-xx"]
    )
    def test_what_is_no_label_is_no_name(self, namespaces: Namespaces, name: str) -> None:
        with pytest.raises(ArgumentError, match="6 to 50 letters, digits and hyphens"):
            namespaces.create(name, STANDARD)
        assert len(namespaces) == 1

    def test_the_host_name_of_the_server_itself_is_no_name(self, namespaces: Namespaces) -> None:
        """Else nobody would find the default namespace any more."""
        for name in ("localhost", "LOCALHOST"):
            with pytest.raises(ArgumentError, match="must be another name than localhost"):
                namespaces.create(name, STANDARD)
        assert namespaces.of_host("localhost:5672") is namespaces.default

    def test_a_name_is_taken_whatever_its_case_also_the_default_ones(self, namespaces: Namespaces) -> None:
        namespaces.create("Acme-1", STANDARD)
        for name in ("acme-1", "ACME-1", "default", "DEFAULT"):
            with pytest.raises(EntityExists):
                namespaces.create(name, STANDARD)


class TestApart:
    def test_each_has_entities_of_its_own_under_the_same_names(self, namespaces: Namespaces) -> None:
        acme, bravo = namespaces.create("acme-1", STANDARD), namespaces.create("bravo-1", STANDARD)
        made = [
            broker.create_queue("orders", {"EnablePartitioning": True}) for broker in (acme, bravo, namespaces.default)
        ]
        rows = [place.partition_row for entity in made for place in entity.queue.partitions]
        assert len({entity.queue.entity_id for entity in made}) == 3
        assert len(set(rows)) == 3 * 16
        acme.update("orders", {"LockDuration": "PT5S"})
        assert [entity.queue.lock_duration_ms for entity in made] == [5_000, 60_000, 60_000]
        bravo.delete("orders")
        assert [entity.queue.deleted for entity in made] == [False, True, False]
        with pytest.raises(EntityNotFound):
            bravo.entity("orders")

    def test_topics_and_forwarding_stay_inside(self, namespaces: Namespaces) -> None:
        acme, bravo = namespaces.create("acme-1", STANDARD), namespaces.create("bravo-1", STANDARD)
        for broker in (acme, bravo):
            broker.create_topic("flights", {})
        acme.create_subscription("flights", "late", {})
        assert len(bravo.namespace.topic("flights").subscriptions) == 0
        bravo.create_queue("target", {})
        with pytest.raises(ArgumentError, match="an existing queue or topic"):
            acme.create_queue("source", {"ForwardTo": "target"})

    @pytest.mark.parametrize("name", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
    def test_a_target_by_an_address_in_another_namespace_is_refused(self, namespaces: Namespaces, name: str) -> None:
        acme, bravo = namespaces.create("acme-1", STANDARD), namespaces.create("bravo-1", STANDARD)
        for broker in (acme, bravo):
            broker.create_queue("target", {})
        acme.create_queue("source", {name: "sb://acme-1.localhost/target"})
        for create in (acme.create_queue, lambda _, properties: acme.update("source", properties)):
            with pytest.raises(ArgumentError, match="a queue or topic of this namespace"):
                create("other", {name: "sb://bravo-1.localhost/target"})

    def test_a_partition_that_is_woken_wakes_no_other_namespace(self, member: Member) -> None:
        acme = member.namespaces.create("acme-1", STANDARD)
        member.namespaces.default.create_queue("q", {})
        queue = acme.create_queue("q", {}).queue
        row = queue.partitions[0].partition_row
        member.namespaces.wake_partitions([row, 999_999])
        assert member.store.woken == [row]
        assert member.namespaces.queue_of(row) is queue
        acme.delete("q")
        assert member.namespaces.queue_of(row) is None

    def test_quotas_are_of_each(self, namespaces: Namespaces) -> None:
        acme = namespaces.create("acme-1", replace(STANDARD, limits={"entities": 1}))
        acme.create_queue("one", {})
        with pytest.raises(Exception, match="1 entities"):
            acme.create_queue("two", {})
        namespaces.default.create_queue("one", {})
        namespaces.default.create_queue("two", {})


class TestKeys:
    def test_each_begins_with_a_policy_of_all_rights_and_keys_of_its_own(self, namespaces: Namespaces) -> None:
        (of_acme,) = namespaces.create("acme-1", STANDARD).access
        (of_bravo,) = namespaces.create("bravo-1", STANDARD).access
        assert (of_acme.name, of_acme.rights) == (ROOT_POLICY, Right.MANAGE)
        keys = [*of_acme.keys, *of_bravo.keys, *namespaces.default.access.keys(ROOT_POLICY)]
        assert len(set(keys)) == len(keys)

    def test_a_key_is_good_in_its_own_only(self, namespaces: Namespaces) -> None:
        acme, bravo = namespaces.create("acme-1", STANDARD), namespaces.create("bravo-1", STANDARD)
        brokers = [acme, bravo, namespaces.default]
        for broker in brokers:
            key = broker.access.keys(ROOT_POLICY)[0]
            for other in brokers:
                if other is broker:
                    other.access.check_key(ROOT_POLICY, key)
                else:
                    with pytest.raises(Unauthorized):
                        other.access.check_key(ROOT_POLICY, key)

    def test_a_token_for_one_is_none_for_another_though_both_have_the_key(self, namespaces: Namespaces) -> None:
        acme, bravo = namespaces.create("acme-1", STANDARD), namespaces.create("bravo-1", STANDARD)
        for broker in (acme, bravo, namespaces.default):
            broker.policies.set("", SasPolicy("same", Right.SEND, "the-same-key-of-both", "the-other-key-of-both"))
        for host, good in (("acme-1.localhost", acme), ("bravo-1", bravo), ("localhost", namespaces.default)):
            resource = f"sb://{host}/q"
            token = make_token(resource, "same", "the-same-key-of-both", LATER_S)
            for broker in namespaces:
                if broker is good:
                    assert broker.access.check_token(token, resource, NOW_MS / 1000).rights is Right.SEND
                else:
                    with pytest.raises(Unauthorized, match="in another namespace"):
                        broker.access.check_token(token, resource, NOW_MS / 1000)


class TestOptions:
    def test_what_can_not_be_is_refused_and_nothing_made(self, namespaces: Namespaces) -> None:
        with pytest.raises(ArgumentError, match="partition_count is 3"):
            namespaces.create("acme-1", NamespaceOptions(tier=Tier.PREMIUM, partition_count=3))
        assert len(namespaces) == 1

    def test_an_update_is_of_what_the_catalog_has(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        first.namespaces.create("acme-1", STANDARD)
        cluster.carry()
        first.namespaces.update("acme-1", lambda old: replace(old, limits={**old.limits, "entities": 5}))
        second.namespaces.update("acme-1", lambda old: replace(old, limits={**old.limits, "policies": 3}))
        cluster.carry()
        for member in (first, second):
            record = member.namespaces.named("ACME-1").namespace.record
            assert record.options.limits == {"entities": 5, "policies": 3}
            assert record.updated_ms > record.created_ms

    def test_the_default_one_is_updated_too_and_stays(self, cluster: Cluster) -> None:
        member = cluster.join()
        member.namespaces.update("default", lambda old: replace(old, limits={"entities": 5}))
        again = cluster.join()
        assert again.namespaces.default.namespace.record.options.limits == {"entities": 5}
        assert again.names() == ["default"]
        with pytest.raises(InvalidOperation, match="which stays"):
            member.namespaces.delete("Default")

    def test_the_tier_and_the_partitions_are_no_options_of_an_update(self, namespaces: Namespaces) -> None:
        namespaces.create("acme-1", NamespaceOptions(tier=Tier.PREMIUM, partition_count=2))
        with pytest.raises(ArgumentError, match="tier is 'standard'"):
            namespaces.update("acme-1", lambda old: replace(old, tier=Tier.STANDARD, partition_count=1))
        with pytest.raises(ArgumentError, match="partition_count is 4"):
            namespaces.update("acme-1", lambda old: replace(old, partition_count=4))

    def test_what_is_not_there_can_not_be_changed(self, namespaces: Namespaces) -> None:
        for change in (
            lambda: namespaces.update("nobody", lambda old: old),
            lambda: namespaces.migrate("nobody", lambda old: old),
            lambda: namespaces.delete("nobody"),
            lambda: namespaces.named("nobody"),
        ):
            with pytest.raises(EntityNotFound, match="nobody"):
                change()


class TestDeleting:
    def test_everything_in_it_goes_when_nobody_uses_it_any_more(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        acme = first.namespaces.create("acme-1", STANDARD)
        acme.create_topic("t", {})
        acme.create_subscription("t", "s", {})
        queue = acme.create_queue("q", {"EnablePartitioning": True}).queue
        cluster.carry()
        entity = second.namespaces.named("acme-1").entity("q")
        first.namespaces.delete("Acme-1")
        assert queue.deleted
        assert first.store.dropped == [], "clients of the other broker may still hold messages"
        dropped = {row for row, _ in first.catalog.dropped_partitions()}
        cluster.carry()
        assert entity.queue.deleted
        assert len(first.store.dropped) == 18
        assert set(first.store.dropped) == dropped
        assert second.store.dropped == [], "one sees to it"
        assert first.catalog.dropped_partitions() == []

    def test_rows_of_subscriptions_go_before_their_topics(self, member: Member, cluster: Cluster) -> None:
        acme = member.namespaces.create("acme-1", STANDARD)
        topic = acme.create_topic("t", {}).queue
        subscription = acme.create_subscription("t", "s", {}).queue
        member.namespaces.delete("acme-1")
        cluster.carry()
        assert member.store.dropped == [subscription.partitions[0].partition_row, topic.partitions[0].partition_row]

    def test_one_of_the_same_name_sees_nothing_of_it(self, cluster: Cluster) -> None:
        member = cluster.join()
        acme = member.namespaces.create("acme-1", replace(STANDARD, limits={"entities": 1}))
        key = acme.access.keys(ROOT_POLICY)[0]
        old = acme.create_queue("q", {}).queue
        acme.policies.set("q", SasPolicy("of-q", Right.SEND, "k" * 16, "l" * 16))
        member.namespaces.delete("acme-1")
        new = member.namespaces.create("acme-1", STANDARD)
        assert (len(new.namespace), new.namespace.record.options) == (0, STANDARD)
        assert new.namespace.record.namespace_id != acme.namespace.record.namespace_id
        with pytest.raises(Unauthorized):
            new.access.check_key(ROOT_POLICY, key)
        queue = new.create_queue("q", {}).queue
        assert queue.policies == ()
        assert queue.partitions[0].partition_row != old.partitions[0].partition_row
        assert cluster.join().names() == ["default", "acme-1"]

    def test_what_was_shown_in_it_is_good_no_more(self, namespaces: Namespaces) -> None:
        acme = namespaces.create("acme-1", STANDARD)
        grant = acme.access.check_key(ROOT_POLICY, acme.access.keys(ROOT_POLICY)[0])
        version = acme.access.version
        namespaces.delete("acme-1")
        assert acme.access.version > version
        assert acme.access.renewed(grant) is None
        assert namespaces.of_host("acme-1.localhost") is namespaces.default

    def test_many_entities_are_few_statements(self, member: Member) -> None:
        acme = member.namespaces.create("acme-1", replace(STANDARD, limits={"entities": 10_000}))
        with member.catalog.together():
            for number in range(300):
                acme.create_queue(f"q{number}", {})
        statements: list[str] = []
        database(member.catalog).set_trace_callback(statements.append)
        member.catalog.delete_namespace("acme-1")
        assert len(set(statements)) < 20
        assert len(member.catalog.dropped_partitions()) == 300


class TestSeveralBrokers:
    def test_what_one_does_the_others_follow(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        changed: list[str] = []
        deleted: list[str] = []
        second.namespaces.on_changed.append(lambda broker: changed.append(broker.namespace.name))
        second.namespaces.on_deleted.append(lambda broker: deleted.append(broker.namespace.name))
        first.namespaces.create("acme-1", STANDARD).create_queue("q", {})
        assert second.names() == ["default"]
        cluster.carry()
        assert [queue.name for queue in second.namespaces.named("acme-1").namespace] == ["q"]
        first.namespaces.update("acme-1", lambda old: replace(old, limits={"entities": 5}))
        cluster.carry()
        first.namespaces.delete("acme-1")
        cluster.carry()
        assert (changed, deleted) == (["acme-1", "acme-1"], ["acme-1"])
        assert second.names() == ["default"]

    def test_a_change_is_answered_when_all_have_followed(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        done: list[list[str]] = []
        first.namespaces.create("acme-1", STANDARD)
        first.namespaces.when_followed(lambda: done.append(second.names()))
        assert done == []
        cluster.carry()
        assert done == [["default", "acme-1"]]

    def test_an_entity_of_a_namespace_that_is_news_itself(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        acme = first.namespaces.create("acme-1", STANDARD)
        cluster.lose()
        acme.create_queue("q", {})
        cluster.carry()
        assert second.namespaces.named("acme-1").namespace.queue("q").name == "q"

    def test_an_entity_of_a_namespace_that_is_gone_is_no_news(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        acme = first.namespaces.create("acme-1", STANDARD)
        number = acme.namespace.record.namespace_id
        cluster.carry()
        first.namespaces.delete("acme-1")
        cluster.carry()
        second.namespaces.follow({"entity": "q", "namespace": number})
        assert second.names() == ["default"]

    def test_whoever_has_missed_changes_goes_by_the_whole_catalog(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        for name in ("stays-1", "goes-1"):
            first.namespaces.create(name, STANDARD).create_queue("old", {})
        cluster.carry()
        entity = second.namespaces.named("stays-1").entity("old")
        stays = first.namespaces.named("stays-1")
        stays.delete("old")
        stays.create_queue("new", {})
        stays.policies.set("", SasPolicy("more", Right.SEND, "a-key-of-16-characters", "b-key-of-16-characters"))
        first.namespaces.update("stays-1", lambda old: replace(old, limits={"entities": 5}))
        first.namespaces.delete("goes-1")
        first.namespaces.create("comes-1", STANDARD).create_queue("q", {})
        first.namespaces.default.create_queue("mine", {})
        cluster.lose()
        second.namespaces.follow_all()
        assert second.names() == ["default", "stays-1", "comes-1"]
        followed = second.namespaces.named("stays-1")
        assert entity.queue.deleted
        assert [queue.name for queue in followed.namespace] == ["new"]
        assert followed.namespace.record.options.limits == {"entities": 5}
        assert "more" in followed.access
        assert [queue.name for queue in second.namespaces.named("comes-1").namespace] == ["q"]
        assert [queue.name for queue in second.namespaces.default.namespace] == ["mine"]
        second.namespaces.follow_all()  # once more changes nothing
        assert second.names() == ["default", "stays-1", "comes-1"]

    def test_of_what_is_as_it_was_nothing_is_read_again(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        acme = first.namespaces.create("acme-1", STANDARD)
        for number in range(20):
            acme.create_queue(f"q{number}", {})
        cluster.carry()
        acme.update("q7", {"LockDuration": "PT5S"})
        cluster.lose()
        statements: list[str] = []
        database(second.catalog).set_trace_callback(statements.append)
        second.namespaces.follow_all()
        assert second.namespaces.named("acme-1").namespace.queue("q7").lock_duration_ms == 5_000
        assert len(statements) < 60

    def test_what_others_have_made_or_changed_is_told(self, cluster: Cluster) -> None:
        first, second = cluster.join(), cluster.join()
        told: list[str | None] = []
        second.namespaces.on_followed.append(lambda queue: told.append(None if queue is None else queue.name))
        first.namespaces.default.create_queue("q", {})
        first.namespaces.default.update("q", {"LockDuration": "PT5S"})
        first.namespaces.create("acme-1", STANDARD).create_queue("mine", {})
        second.namespaces.default.create_queue("own", {})
        cluster.carry()
        assert told == ["q", "q", "mine"]
        first.namespaces.default.delete("q")
        cluster.carry()
        second.namespaces.follow_all()
        assert told == ["q", "q", "mine", None]
