"""The rules of a tier for new and changed entities, on every way that leads to the catalog."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.clock import ManualClock
from partibus.errors import ArgumentError, PartibusError, QuotaExceeded
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_json import parse_config_json
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.namespace import Namespace
from partibus.namespace.namespace_options import DEFAULT_NAME, NamespaceOptions
from partibus.namespace.properties import options_of
from partibus.namespace.tiers import Tier
from tests.unit.namespace.catalogs import database
from tests.unit.namespace.tiered import limited, of_tier

PARTITIONED = EntityOptions(partitioned=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, 16)
    yield catalog
    catalog.close()


def made(
    catalog: Catalog, name: str = "q", kind: EntityKind = EntityKind.QUEUE, options: EntityOptions | None = None
) -> tuple[EntityOptions, int]:
    """The options that it was made with, and how many partitions it has."""
    record = catalog.create(EntityDescription(name, options or EntityOptions(), kind), 0)
    assert catalog.get(name) == record
    return record.description.options, len(record.placements)


BASIC_LACKS = [
    ("RequiresSession", EntityOptions(requires_session=True)),
    ("RequiresDuplicateDetection", EntityOptions(requires_duplicate_detection=True)),
    ("ForwardTo", EntityOptions(forward_to="other")),
    ("ForwardDeadLetteredMessagesTo", EntityOptions(forward_dead_lettered_to="other")),
    ("EnableExpress", EntityOptions(express=True)),
]


@pytest.mark.parametrize(("name", "options"), BASIC_LACKS, ids=[name for name, _ in BASIC_LACKS])
def test_basic_has_queues_of_the_plain_kind_only(catalog: Catalog, name: str, options: EntityOptions) -> None:
    of_tier(catalog, Tier.BASIC)
    made(catalog, "other")
    with pytest.raises(ArgumentError, match=f"{name} is .* in a namespace of the tier basic, which has no "):
        made(catalog, options=options)
    made(catalog)
    with pytest.raises(PartibusError, match=name):
        catalog.update("q", options, 1)
    assert catalog.get("q").description.options == made(catalog, "r")[0]


def test_basic_has_no_topics_and_keeps_messages_for_two_weeks(catalog: Catalog) -> None:
    of_tier(catalog, Tier.BASIC)
    for kind, path in ((EntityKind.TOPIC, "t"), (EntityKind.SUBSCRIPTION, "t/Subscriptions/s")):
        with pytest.raises(ArgumentError, match=f"'{kind.value}', but must be queue in a namespace of the tier basic"):
            made(catalog, path, kind)
    assert made(catalog)[0].default_ttl_ms == 14 * 86_400_000
    assert made(catalog, "short", options=EntityOptions(default_ttl_ms=5))[0].default_ttl_ms == 5
    longest = EntityOptions(default_ttl_ms=14 * 86_400_000)
    assert made(catalog, "longest", options=longest)[0] == longest
    with pytest.raises(ArgumentError, match=r"'P14DT0\.001S', but must be at most P14D in a namespace"):
        made(catalog, "longer", options=EntityOptions(default_ttl_ms=14 * 86_400_000 + 1))
    assert made(catalog, "many", options=PARTITIONED)[1] == 16


@pytest.mark.row("P6")
@pytest.mark.parametrize("partitions", [1, 2, 4, 8, 16])
def test_in_premium_the_namespace_says_how_many_partitions(catalog: Catalog, partitions: int) -> None:
    of_tier(catalog, Tier.PREMIUM, partitions)
    several = partitions > 1
    for name, kind in (
        ("q", EntityKind.QUEUE),
        ("t", EntityKind.TOPIC),
        ("t/Subscriptions/s", EntityKind.SUBSCRIPTION),
    ):
        options, count = made(catalog, name, kind)
        assert (options.partitioned if name != "t/Subscriptions/s" else several, count) == (several, partitions)
    assert catalog.get("t/Subscriptions/s").description.options.partitioned is several
    stores = [place.store_no for place in catalog.get("q").placements]
    assert len(set(stores)) == partitions
    if several:
        assert made(catalog, "asked", options=PARTITIONED)[1] == partitions
        catalog.update("asked", replace(PARTITIONED, max_delivery_count=3, max_message_size_kb=1024), 1)
        assert len(catalog.get("asked").placements) == partitions
    else:
        with pytest.raises(ArgumentError, match="EnablePartitioning is True, but must be false in a premium namespace"):
            made(catalog, "asked", options=PARTITIONED)


def test_a_record_that_has_lost_a_partition_is_noticed_whatever_the_count(tmp_path: Path, catalog: Catalog) -> None:
    of_tier(catalog, Tier.PREMIUM, 4)
    made(catalog)
    database(catalog).execute("DELETE FROM placement WHERE partition_no = 3")
    with pytest.raises(PartibusError, match="with 3 of its 4 partitions"):
        catalog.get("q")


def test_more_partitions_than_stores_are_refused_when_the_namespace_is_made(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, 2)
    options = NamespaceOptions(tier=Tier.PREMIUM, partition_count=4)
    more = "partition_count is 4, but must be at most 2, the number of stores. Serve with at least 4 stores"
    with pytest.raises(ArgumentError, match=more):
        catalog.create_namespace("acme-1", options, 0, ())
    with pytest.raises(ArgumentError, match=more):
        catalog.update_namespace(DEFAULT_NAME, lambda _: options, 0)
    with pytest.raises(ArgumentError, match="EnablePartitioning is True, but must be false with 2 stores"):
        made(catalog, options=PARTITIONED)
    catalog.close()


@pytest.mark.row("P21", "P23")
@pytest.mark.parametrize(
    ("tier", "partitions", "refused_gb", "allowed"),
    [
        (Tier.STANDARD, 1, 7, "1024, 2048, 3072, 4096, 5120 in a namespace of the tier standard."),
        (Tier.STANDARD, 1, 10, "1024, 2048, 3072, 4096, 5120 in a namespace of the tier standard."),
        (Tier.BASIC, 1, 80, "1024, 2048, 3072, 4096, 5120 in a namespace of the tier basic."),
        (Tier.PREMIUM, 1, 7, "1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920 in"),
        (Tier.PREMIUM, 4, 40, "10240, 20480 in a namespace of the tier premium, for each of its 4 partitions."),
    ],
)
def test_sizes_of_the_tier_are_allowed_and_others_refused(
    catalog: Catalog, tier: Tier, partitions: int, refused_gb: int, allowed: str
) -> None:
    of_tier(catalog, tier, partitions)
    with pytest.raises(
        ArgumentError, match=f"MaxSizeInMegabytes is {refused_gb * 1024}, but must be one of .*{allowed}"
    ):
        made(catalog, options=EntityOptions(max_size_mb=refused_gb * 1024))
    assert made(catalog, options=EntityOptions(max_size_mb=5 * 1024))[0].max_size_mb == 5 * 1024


@pytest.mark.row("P23")
@pytest.mark.parametrize(
    ("tier", "partitions", "size_mb", "next_step"),
    [
        (Tier.STANDARD, 1, 7 * 1024, "raise the limit entity_size_mb of the namespace, or use a premium namespace."),
        (Tier.PREMIUM, 4, 80 * 1024, "Take another value, or raise the limit entity_total_mb of the namespace."),
        (Tier.PREMIUM, 1, 7 * 1024, "Take another value, or raise the limit entity_size_mb of the namespace."),
    ],
)
def test_a_size_that_a_client_asks_for_is_refused_with_those_of_the_tier(
    catalog: Catalog, tier: Tier, partitions: int, size_mb: int, next_step: str
) -> None:
    """Refuse it over AMQP, HTTP and in a Config.json: the property's own check names no size that the tier has not."""
    of_tier(catalog, tier, partitions)
    with pytest.raises(ArgumentError) as caught:
        made(catalog, options=options_of(EntityKind.QUEUE, {"MaxSizeInMegabytes": size_mb}))
    assert f"in a namespace of the tier {tier.value}" in str(caught.value)
    assert str(caught.value).endswith(next_step)
    assert tier is Tier.PREMIUM or "10240" not in str(caught.value)


@pytest.mark.row("P22")
def test_five_gigabytes_in_sixteen_partitions_are_eighty(catalog: Catalog) -> None:
    namespace = Namespace(catalog, ManualClock(0))
    queue = namespace.create("q", EntityOptions(partitioned=True, max_size_mb=5 * 1024))
    assert queue.partition_size_max_bytes == 5 << 30
    assert queue.size_max_bytes == 80 << 30


@pytest.mark.row("A11")
@pytest.mark.parametrize(
    ("tier", "partitions", "given", "refused"),
    [
        (Tier.STANDARD, 1, 256, [255, 257, 1024]),
        (Tier.PREMIUM, 1, 1024, [257, 1023, 102_401]),
        (Tier.PREMIUM, 4, 1024, [512, 1025, 102_400]),
    ],
)
def test_largest_messages_of_the_tier(
    catalog: Catalog, tier: Tier, partitions: int, given: int, refused: list[int]
) -> None:
    of_tier(catalog, tier, partitions)
    assert made(catalog)[0].max_message_size_kb == given
    for size in refused:
        with pytest.raises(ArgumentError, match=f"MaxMessageSizeInKilobytes is {size}, but must be .*{tier.value}"):
            made(catalog, "other", options=EntityOptions(max_message_size_kb=size))
    if partitions == 1 and tier is Tier.PREMIUM:
        assert (
            made(catalog, "large", options=EntityOptions(max_message_size_kb=102_400))[0].max_message_size_kb == 102_400
        )


def test_a_namespace_may_have_other_limits_than_its_tier(catalog: Catalog) -> None:
    limited(catalog, message_kb=512, entity_size_mb=10_240, entity_total_mb=10_240)
    options = EntityOptions(max_message_size_kb=512, max_size_mb=10_240)
    assert made(catalog, options=options)[0] == options
    with pytest.raises(ArgumentError, match="smaller than any size that there is"):
        made(catalog, "wide", options=PARTITIONED)
    limited(catalog, entities=1)
    with pytest.raises(QuotaExceeded, match="quota of 1 entities"):
        made(catalog, "two")


def test_what_came_from_another_tier_keeps_what_it_has(catalog: Catalog) -> None:
    standard = {
        "wide": EntityOptions(partitioned=True, max_size_mb=5 * 1024, express=True),
        "plain": EntityOptions(requires_session=True),
    }
    before = {name: made(catalog, name, options=options) for name, options in standard.items()}
    of_tier(catalog, Tier.PREMIUM, 4)
    for name, (options, count) in before.items():
        record = catalog.get(name)
        assert (record.description.options, len(record.placements)) == (options, count)
        changed = replace(options, max_delivery_count=3)
        assert catalog.update(name, changed, 1).description.options == changed
        assert len(catalog.get(name).placements) == count
    with pytest.raises(
        ArgumentError, match="EnableExpress is True, but must be false in a namespace of the tier premium"
    ):
        made(catalog, "new", options=EntityOptions(express=True))
    with pytest.raises(ArgumentError, match="EnableExpress"):
        catalog.update("plain", replace(standard["plain"], express=True), 1)
    assert made(catalog, "new")[1] == 4


def applied(namespace: Namespace, queues: dict[str, dict[str, object]]) -> tuple[int, int, int]:
    entities = [{"Name": name, "Properties": properties} for name, properties in queues.items()]
    document = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": entities}]}}
    return namespace.apply(parse_config_json(json.dumps(document).encode()))


def test_a_config_file_means_the_same_in_every_tier(catalog: Catalog) -> None:
    namespace = Namespace(catalog, ManualClock(0))
    queues: dict[str, dict[str, object]] = {"wide": {"EnablePartitioning": True}, "plain": {}}
    assert applied(namespace, queues) == (2, 0, 0)
    of_tier(catalog, Tier.PREMIUM, 2)
    assert applied(namespace, queues) == (0, 0, 2)
    queues["new"] = {"EnablePartitioning": False, "LockDuration": "PT30S"}
    assert applied(namespace, queues) == (1, 0, 2)
    assert applied(namespace, queues) == (0, 0, 3), "its largest message has the default of the tier"
    assert {len(catalog.get(name).placements) for name in queues} == {16, 1, 2}
    assert catalog.get("new").description.options.max_message_size_kb == 1024


@pytest.mark.parametrize(
    ("properties", "where"),
    [({"RequiresSession": True}, "RequiresSession"), ({"ForwardTo": "other"}, "ForwardTo")],
)
def test_a_config_file_with_what_the_tier_lacks_is_refused_whole(
    catalog: Catalog, properties: dict[str, object], where: str
) -> None:
    of_tier(catalog, Tier.BASIC)
    namespace = Namespace(catalog, ManualClock(0))
    with pytest.raises(ConfigError, match=f"{where} is .* in a namespace of the tier basic"):
        applied(namespace, {"other": {}, "q": properties})
    assert catalog.list_entities() == []


@pytest.mark.row("P9")
@pytest.mark.parametrize(
    "change", [lambda old: replace(old, partitioned=False), lambda old: replace(old, requires_session=True)]
)
def test_what_is_for_life_is_so_in_premium_too(
    catalog: Catalog, change: Callable[[EntityOptions], EntityOptions]
) -> None:
    of_tier(catalog, Tier.PREMIUM, 2)
    options, _ = made(catalog)
    with pytest.raises(PartibusError, match="for life"):
        catalog.update("q", change(options), 1)
