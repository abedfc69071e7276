"""The imports of the source, read from its syntax trees: also those in functions and under TYPE_CHECKING."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    """Full dotted name: `partibus.amqp.codec.types`."""
    path: Path
    tree: ast.Module

    @property
    def place(self) -> str:
        """The name that arrows use: `amqp.codec.types`; `__init__` for the package itself."""
        return place_of(self.name)


@dataclass(frozen=True)
class Import:
    """One import statement's target in one module."""

    importer: Module
    line: int
    target: str
    """Full dotted name of the imported module."""

    def __str__(self) -> str:
        return f"{self.importer.path.relative_to(SOURCE.parent)}:{self.line} imports {self.target}"


def place_of(name: str) -> str:
    """Name a module as arrows do: relative to the package partibus."""
    return "__init__" if name == "partibus" else name.removeprefix("partibus.")


def read_modules(source: Path = SOURCE) -> list[Module]:
    """All modules below a source folder, in the order of their paths."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return modules


def read_imports(modules: list[Module]) -> list[Import]:
    """Every import of every module; `from package import module` counts as an import of the module."""
    names = {module.name for module in modules}
    return [
        Import(module, node.lineno, target)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in _targets(module, node, names)
    ]


def _targets(module: Module, node: ast.Import | ast.ImportFrom, names: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        is_package = module.path.name == "__init__.py"
        parts = module.name.split(".")
        package = parts[: len(parts) - node.level + is_package]
        base = ".".join([*package, base] if base else package)
    members = [f"{base}.{alias.name}" for alias in node.names]
    return [member if member in names else base for member in members]
