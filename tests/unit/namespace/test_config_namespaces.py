"""A Config.json with several namespaces: one of them is the default one, the others are made by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.namespace.catalog import Catalog
from partibus.namespace.config_apply import apply_namespaces
from partibus.namespace.config_document import ConfigError
from partibus.namespace.config_json import Config, parse_config_json
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import Tier


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, 16)
    yield catalog
    catalog.close()


def config(*names: str, queue: dict[str, Any] | None = None) -> Config:
    """Each with a queue that is called as it is, and perhaps one more."""
    namespaces = [{"Name": name, "Queues": [{"Name": f"of-{name}"}, *([queue] if queue else [])]} for name in names]
    return parse_config_json(json.dumps({"UserConfig": {"Namespaces": namespaces}}).encode())


def found(catalog: Catalog) -> dict[str, list[str]]:
    return {
        record.name: [entity.description.name for entity in catalog.of(record.namespace_id).list_entities()]
        for record in catalog.list_namespaces()
    }


@pytest.mark.parametrize(
    ("names", "default"),
    [
        (["first-1", "second-2"], "first-1"),
        (["x", "second-2"], "x"),
        (["first-1", "sbemulatorns"], "sbemulatorns"),
        (["first-1", "SbEmulatorNs", "third-3"], "SbEmulatorNs"),
        (["first-1", "default"], "default"),
    ],
)
def test_one_is_the_default_one_and_the_others_are_made(catalog: Catalog, names: list[str], default: str) -> None:
    apply_namespaces(catalog, config(*names), 1_000)
    others = {name: [f"of-{name}"] for name in names if name != default}
    assert found(catalog) == {"default": [f"of-{default}"], **others}


def test_the_same_file_again_changes_nothing(catalog: Catalog) -> None:
    for now_ms in (1_000, 2_000):
        apply_namespaces(catalog, config("first-1", "second-2"), now_ms)
    second = catalog.list_namespaces()[1]
    assert (second.created_ms, second.updated_ms) == (1_000, 1_000)
    within = catalog.of(second.namespace_id)
    assert [entity.updated_ms for entity in within.list_entities()] == [1_000]
    assert len(within.namespace_policies()) == 1


def test_one_that_is_there_keeps_its_options_and_keys(catalog: Catalog) -> None:
    options = NamespaceOptions(tier=Tier.PREMIUM, partition_count=2)
    record = catalog.create_namespace("Second-2", options, 500, ())
    apply_namespaces(catalog, config("first-1", "second-2"), 1_000)
    assert catalog.list_namespaces()[1] == record
    (entity,) = catalog.of(record.namespace_id).list_entities()
    assert len(entity.placements) == 2


def test_all_of_it_or_nothing(catalog: Catalog) -> None:
    queue = {"Name": "q", "Properties": {"RequiresSession": True}}
    apply_namespaces(catalog, config("first-1", "second-2", queue=queue), 1_000)
    before = found(catalog)
    new = config("other-1", "third-3")
    (refused,) = config("x", "second-2", queue={"Name": "q"}).others
    with pytest.raises(ConfigError, match=r"RequiresSession of the queue 'q'"):
        apply_namespaces(catalog, replace(new, others=(*new.others, refused)), 2_000)
    assert found(catalog) == before


@pytest.mark.parametrize(
    ("names", "path", "words"),
    [
        (["a", "b"], "$.UserConfig.Namespaces[1].Name", "6 to 50 letters"),
        (["first-1", "second_2"], "$.UserConfig.Namespaces[1].Name", "6 to 50 letters"),
        (["a", "sbemulatorns"], "$.UserConfig.Namespaces[0].Name", "6 to 50 letters"),
        (["first-1", "FIRST-1"], "$.UserConfig.Namespaces[1].Name", "already the name"),
        (["sbemulatorns", "Default"], "$.UserConfig.Namespaces[1].Name", "the default namespace"),
    ],
)
def test_names_that_can_not_be_are_refused_with_their_place(names: list[str], path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*names)
    assert words in {problem.path: problem.text for problem in caught.value.problems}[path]
