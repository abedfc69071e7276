"""Imports follow the arrows of arrows.toml, and the modules that touch the world stay where it says."""

from __future__ import annotations

import ast
import sys
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.layers.imports import Import, Module, place_of, read_imports, read_modules

DATA = tomllib.loads(Path(__file__).with_name("arrows.toml").read_text(encoding="utf-8"))
ARROWS: dict[str, list[str]] = DATA["arrows"]
OUTSIDE: dict[str, list[str]] = DATA["outside"]
APART: list[str] = DATA["apart"]["below"]


@cache
def modules() -> list[Module]:
    """The modules of the source; read when the first test asks, not by each worker that collects this file."""
    return read_modules()


@cache
def imports() -> list[Import]:
    """The imports of all modules."""
    return read_imports(modules())


@cache
def ours() -> frozenset[str]:
    """The packages of the project."""
    return frozenset(module.name.partition(".")[0] for module in modules())


def covers(name: str, place: str) -> bool:
    """Whether a name of arrows.toml is that place or a package above it; `*` stands for one part."""
    parts, names = place.split("."), name.split(".")
    return len(names) <= len(parts) and all(map(fnmatchcase, parts, names))


@cache
def rule_of(place: str) -> str | None:
    """The longest name in the arrows that covers a place."""
    return max((name for name in ARROWS if covers(name, place)), key=len, default=None)


def is_allowed_inside(importer: str, target: str) -> bool:
    """Whether the arrows let one place import another."""
    rule = rule_of(importer)
    return rule is not None and any(covers(name, target) for name in [rule, *ARROWS[rule]])


def is_allowed_outside(importer: str, target: str) -> bool:
    """Whether a place may import a module that is not ours."""
    top = target.partition(".")[0]
    if top in OUTSIDE:
        return any(covers(name, importer) for name in OUTSIDE[top])
    return top in sys.stdlib_module_names


def is_ours(target: str) -> bool:
    """Whether a module belongs to the project."""
    return target.partition(".")[0] in ours()


def circles(among: list[Module], edges: list[Import]) -> list[set[str]]:
    """Return the sets of modules each of which reaches the others by imports."""
    names = {module.name for module in among}
    targets: dict[str, set[str]] = {name: set() for name in names}
    for edge in edges:
        if edge.target in names and edge.target != edge.importer.name:
            targets[edge.importer.name].add(edge.target)
    reached = {name: _reached(name, targets) for name in names}
    found = {frozenset({name} | {other for other in reached[name] if name in reached[other]}) for name in names}
    return [set(circle) for circle in sorted(found, key=sorted) if len(circle) > 1]


def _reached(name: str, targets: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        new = targets[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def fail_with(wrong: list[Import], advice: str) -> None:
    """Fail and list the imports that are wrong, if there are any."""
    if wrong:
        pytest.fail(
            "\n".join(
                [*map(str, wrong), advice],
            ),
            pytrace=False,
        )


def test_every_module_is_on_the_map() -> None:
    unlisted = sorted({module.place for module in modules() if rule_of(module.place) is None})
    assert not unlisted, f"tests/layers/arrows.toml does not say what these may import: {unlisted}"


def test_imports_follow_the_arrows() -> None:
    wrong = [i for i in imports() if is_ours(i.target) and not is_allowed_inside(i.importer.place, place_of(i.target))]
    fail_with(wrong, "tests/layers/arrows.toml has no such arrow")


def test_the_world_is_touched_only_where_the_map_says() -> None:
    wrong = [i for i in imports() if not is_ours(i.target) and not is_allowed_outside(i.importer.place, i.target)]
    fail_with(wrong, "tests/layers/arrows.toml, [outside], says who may")


def test_packages_kept_apart_do_not_import_one_another() -> None:
    packages = {m.place for m in modules() if m.path.name == "__init__.py"}

    def sibling(place: str) -> str | None:
        """`frontends.amqp` for everything in that package; None outside such packages."""
        for above in APART:
            if covers(above, place):
                package = ".".join(place.split(".")[: above.count(".") + 2])
                return package if package in packages and package != above else None
        return None

    wrong = [
        i
        for i in imports()
        if (mine := sibling(i.importer.place)) and (theirs := sibling(place_of(i.target))) and mine != theirs
    ]
    fail_with(wrong, "packages side by side here share what lies above them, not each other")


def test_arrows_have_no_cycle() -> None:
    order = tuple(TopologicalSorter(ARROWS).static_order())
    assert order.index("partition") < order.index("store") < order.index("node") < order.index("cli")


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Imports in functions and under TYPE_CHECKING count."""
    assert circles(modules(), imports()) == [], "put what both need into one of them, or into a module that both import"


def test_a_circle_is_found() -> None:
    tree = ast.Module([], [])
    a, b, c, d = (Module(name, Path(), tree) for name in "abcd")
    edges = [Import(a, 1, "b"), Import(b, 1, "c"), Import(c, 1, "a"), Import(c, 1, "d"), Import(d, 1, "d")]
    assert circles([a, b, c, d], edges) == [{"a", "b", "c"}]


def test_every_module_says_what_it_is() -> None:
    assert [str(module.path) for module in modules() if not ast.get_docstring(module.tree)] == []
