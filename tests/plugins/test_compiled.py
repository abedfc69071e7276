"""Bytecode that the parent of workers writes before they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.compiled import compile_changed

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(pytester: pytest.Pytester) -> Path:
    for folder in ("src", "tests"):
        (pytester.path / folder).mkdir()
    (pytester.path / "src/product.py").write_text("def answer():\n    return 42\n")
    (pytester.path / "tests/conftest.py").touch()
    (pytester.path / "tests/helper.py").touch()
    (pytester.path / "tests/test_one.py").write_text("def test_x():\n    assert 1 + 1 == 2\n")
    return pytester.path


def compiled(project: Path) -> dict[str, int]:
    """Return the compiled files with the numbers of their inodes: pytest replaces a file that it writes."""
    return {path.name.split(".")[0]: path.stat().st_ino for path in project.rglob("*.pyc")}


def test_workers_import_what_was_compiled_before_they_started(
    project: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    config = pytester.parseconfigure()
    assert [path.name for path in compile_changed(config, project)] == ["test_one.py"]
    before = compiled(project)
    assert before.keys() == {"product", "conftest", "helper", "test_one"}
    options = ("-q", "-p", "xdist.plugin", "-p", "tests.plugins.compiled", "--import-mode=importlib", "-n", "2")
    assert pytester.runpytest_subprocess(*options, "tests").ret == 0
    assert compiled(project) == before


def test_only_what_has_changed_is_compiled(project: Path, pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure()
    compile_changed(config, project)
    assert compile_changed(config, project) == []
    changed = project / "tests/test_one.py"
    changed.write_text(changed.read_text() + "\n")
    assert compile_changed(config, project) == [changed]


def test_a_module_with_an_error_is_left_to_its_worker(project: Path, pytester: pytest.Pytester) -> None:
    (project / "tests/test_broken.py").write_text("def (")
    compile_changed(pytester.parseconfigure(), project)
    assert compiled(project).keys() == {"product", "conftest", "helper", "test_one"}
