"""The bounds of each tier: the table of numbers, and the possible namespaces."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.errors import ArgumentError, InvalidOperation
from partibus.namespace.namespace_options import (
    NamespaceOptions,
    check_migration,
    check_namespace_options,
    check_update,
    options_from_plain,
    options_to_plain,
)
from partibus.namespace.tiers import (
    LIMITS,
    Feature,
    Tier,
    TierLimits,
    check_has,
    has,
    limits_of,
)

BASIC = NamespaceOptions(tier=Tier.BASIC)
STANDARD = NamespaceOptions()
PREMIUM = NamespaceOptions(tier=Tier.PREMIUM)


def test_every_number_of_the_table_is_one_of_a_namespace_and_in_its_own_range() -> None:
    assert tuple(limit.name for limit in LIMITS) == TierLimits._fields
    for limit in LIMITS:
        least, most = limit.span
        assert all(least <= limit.of(tier) <= most for tier in Tier), limit.name
        assert limit.what
        assert limit.source


@pytest.mark.row("A11")
def test_the_numbers_of_the_service() -> None:
    standard, premium = limits_of(STANDARD), limits_of(PREMIUM)
    assert (standard.entities, standard.partitioned_entities, standard.connections) == (10_000, 100, 5_000)
    assert (standard.entity_size_mb, premium.entity_size_mb, standard.entity_total_mb) == (
        5 * 1024,
        80 * 1024,
        80 * 1024,
    )
    assert (standard.message_kb, standard.batch_kb) == (256, 256)
    assert (premium.message_kb, premium.partitioned_message_kb, premium.batch_kb) == (100 * 1024, 1024, 1024)
    assert limits_of(BASIC) == standard


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@pytest.mark.parametrize("tier", Tier)
def test_every_number_can_be_another_one(tier: Tier, limit: object) -> None:
    assert isinstance(limit, type(LIMITS[0]))
    for value in limit.span:
        options = NamespaceOptions(tier=tier, limits={limit.name: value})
        check_namespace_options(options)
        assert getattr(limits_of(options), limit.name) == value
        assert options_from_plain(options_to_plain(options)) == options
    for value in (limit.span[0] - 1, limit.span[1] + 1, -1):
        with pytest.raises(ArgumentError, match=f"limit {limit.name} is {value}, but must be an integer from"):
            check_namespace_options(NamespaceOptions(tier=tier, limits={limit.name: value}))


def test_a_limit_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ArgumentError, match=r"limit is 'entitys', but must be one of entities, .*Did you mean entities\?"
    ):
        check_namespace_options(NamespaceOptions(limits={"entitys": 1}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (replace(PREMIUM, partition_count=3), "partition_count is 3, but must be one of 1, 2, 4, 8, 16, 32, 64"),
        (replace(PREMIUM, partition_count=128), "partition_count is 128"),
        (replace(PREMIUM, partition_count=0), "partition_count is 0"),
        (replace(STANDARD, partition_count=4), "partition_count is 4, but must be 1 in the tier standard"),
        (replace(BASIC, partition_count=2), "must be 1 in the tier basic"),
        (replace(STANDARD, units=2, units_max=2), "units is 2, but must be 1 in the tier standard"),
        (replace(STANDARD, units_max=4), "units_max is 4, but must be 1 in the tier standard"),
        (replace(PREMIUM, units=3), "units is 3, but must be one of 1, 2, 4, 8, 16"),
        (replace(PREMIUM, units=2), "units is 2, but must be from 1 to 1, the range"),
        (replace(PREMIUM, units=4, units_min=8, units_max=4), "units_min is 8, but must be at most 4, the most"),
        (replace(PREMIUM, units=16, units_max=8), "units is 16, but must be from 1 to 8, the range"),
        (replace(PREMIUM, units=True), "units is True"),
    ],
)
def test_impossible_namespaces_are_refused_with_field_value_and_what_is_allowed(
    options: NamespaceOptions, says: str
) -> None:
    with pytest.raises(ArgumentError, match=says):
        check_namespace_options(options)


def test_possible_ones_are_not() -> None:
    for partitions in (1, 2, 4, 8, 16, 32, 64):
        check_namespace_options(replace(PREMIUM, partition_count=partitions))
    check_namespace_options(replace(PREMIUM, units=4, units_min=1, units_max=16))
    check_namespace_options(BASIC)


def test_tier_and_partitions_are_for_life_but_for_the_way_to_premium() -> None:
    premium = replace(PREMIUM, partition_count=4)
    with pytest.raises(ArgumentError, match="partition_count is 2, but must be 4, which a namespace has for life"):
        check_update(premium, replace(premium, partition_count=2))
    with pytest.raises(ArgumentError, match="tier is 'premium', but must be standard, as it is"):
        check_update(STANDARD, premium)
    check_update(premium, replace(premium, units=2, units_max=2))
    check_migration(STANDARD, premium)
    with pytest.raises(InvalidOperation, match="of the tier premium can't be migrated"):
        check_migration(premium, STANDARD)
    with pytest.raises(InvalidOperation, match="of the tier basic can't be migrated"):
        check_migration(BASIC, premium)
    with pytest.raises(ArgumentError, match="tier is 'basic', but must be premium"):
        check_migration(STANDARD, BASIC)


def test_what_a_tier_lacks_is_refused_by_its_name() -> None:
    assert [feature for feature in Feature if not has(Tier.STANDARD, feature)] == []
    assert not has(Tier.PREMIUM, Feature.EXPRESS)
    check_has(Tier.PREMIUM, Feature.TRANSACTIONS)
    with pytest.raises(InvalidOperation, match=r"tier basic has no transactions\. Use .* the tier standard or premium"):
        check_has(Tier.BASIC, Feature.TRANSACTIONS)


def test_the_page_shows_the_table() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "tiers.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    shown = {row[0].strip("`"): row[1:] for row in rows}
    for limit in LIMITS:
        least, most = (f"{number:,}" for number in limit.span)
        numbers = [f"{number:,}" for number in limit.of_tiers]
        assert shown[limit.name] == [*numbers, limit.unit, limit.what, limit.source, f"{least} to {most}"]
    for feature in Feature:
        assert shown[feature.value] == ["yes" if has(tier, feature) else "no" for tier in Tier]
