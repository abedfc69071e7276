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
