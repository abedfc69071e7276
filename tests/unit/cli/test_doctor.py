"""`partibus doctor`: facts with a verdict, and an exit code that tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from partibus.cli import doctor
from partibus.cli.main import main
from partibus.spark.errors import JavaNotFound


def checks(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    found = [json.loads(line) for line in result.output.splitlines()]
    return result.exit_code, {check["name"]: check for check in found}


def test_what_is_missing_is_told_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> None:
        raise JavaNotFound("no Java here")

    monkeypatch.setattr(doctor, "find_java", no_java)
    monkeypatch.setattr("shutil.which", lambda name: None)
    status, found = checks("--data", str(tmp_path / "not" / "there" / "yet"))
    assert status == 0
    assert found["Java"]["state"] == "warn"
    assert "no Java here" in found["Java"]["advice"]
    assert "make setup" in found["Node.js"]["advice"]
    assert found["disk sync"]["found"].endswith(" ms")
    assert list(tmp_path.iterdir()) == []


def test_what_the_broker_can_not_do_without_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 30, 0))
    status, found = checks("--data", str(tmp_path))
    assert status == 1
    assert found["SQLite"]["state"] == "fail"


def test_slow_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "sync_ms", lambda place: 100.0)
    assert checks("--data", str(tmp_path))[1]["disk sync"]["state"] == "warn"


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ((3, 40, 1), "warn"),
        ((3, 44, 6), "ok"),
        ((3, 45, 0), "warn"),
        ((3, 50, 7), "ok"),
        ((3, 51, 2), "warn"),
        ((3, 51, 3), "ok"),
        ((3, 53, 4), "ok"),
    ],
)
def test_an_sqlite_with_the_bug_of_logs_that_start_over_is_told(
    version: tuple[int, int, int], state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", version)
    monkeypatch.setattr("sqlite3.sqlite_version", ".".join(map(str, version)))
    status, found = checks("--data", str(tmp_path))
    assert status == 0
    assert found["SQLite"]["state"] == state
    assert found["SQLite"]["found"] == ".".join(map(str, version))
    assert ("WAL-reset bug" in found["SQLite"]["advice"]) == (state == "warn")


def test_the_measured_directory_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "yet"
    for data, where in ((tmp_path, f"{tmp_path}: "), (missing, f"{tmp_path}, where {missing} would be made: ")):
        status, found = checks("--data", str(data))
        assert status == 0
        assert found["disk sync"]["found"].startswith(where)
        assert found["disk room"]["found"].startswith(where)
    status, found = checks("--data", "/proc")
    assert status == 1
    assert found["disk"]["found"].startswith("/proc: cannot be written (")
