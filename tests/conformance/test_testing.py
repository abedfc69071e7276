"""docs/testing.md: the fixture and the program work when they are pasted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.plugins import snippets

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    test, program = [text for _, text in snippets.blocks(PAGE.read_text(encoding="utf-8"))]
    (tmp_path / "test_orders.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "made"),
        ".",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
    (tmp_path / "durable.py").write_text(program)
    ran = subprocess.run([sys.executable, "durable.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"
