"""pytest plug-in: tests and product are compiled once, and not by each worker.

The workers of a fresh clone import the same modules at the same time, and each would compile all of them: 15 s of
processor time a worker, most of it for the assertions of tests, which pytest rewrites. So their parent compiles what
has changed before it starts them, on all cores.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import re
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.assertion import AssertionState
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, get_cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REWRITTEN = re.compile(r"(test_.*|conftest)\.py$")
HEADER = importlib.util.MAGIC_NUMBER + b"\x03\x00\x00\x00"
"""The beginning of a file that pytest writes; the hash of the source follows."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Compile before the workers start, if there are several."""
    if len(specs) > 1:
        compile_changed(config, config.rootpath)


def compile_changed(config: pytest.Config, project: Path) -> list[Path]:
    """Compile what has changed in product and tests; returns the modules whose assertions were rewritten."""
    modules = [path for folder in ("src", "tests") for path in (project / folder).rglob("*.py")]
    changed = [path for path in modules if REWRITTEN.match(path.name) and not _is_fresh(path)]
    work = [*changed, *(path for path in modules if not REWRITTEN.match(path.name))]
    cores = os.cpu_count() or 1
    processes = [
        get_context("fork").Process(target=_compile, args=(config, work[core::cores])) for core in range(cores)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return changed


def _cached(path: Path) -> Path:
    return get_cache_dir(path) / (path.stem + PYC_TAIL)


def _is_fresh(path: Path) -> bool:
    try:
        with _cached(path).open("rb") as file:
            return file.read(16) == HEADER + importlib.util.source_hash(path.read_bytes())[:8]
    except OSError:
        return False


def _compile(config: pytest.Config, paths: Sequence[Path]) -> None:
    """Write what the import would. A module with an error is left to a worker, which reports it."""
    state = AssertionState(config, "rewrite")
    for path in paths:
        if not REWRITTEN.match(path.name):
            compileall.compile_file(path, quiet=2)
            continue
        try:
            source_hash, code = _rewrite_test(path, config)
        except (SyntaxError, ValueError):
            continue
        cached = _cached(path)
        cached.parent.mkdir(exist_ok=True)
        _write_pyc(state, code, source_hash, cached)
