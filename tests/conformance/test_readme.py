"""README.md: its commands and its program work when they are pasted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partibus.testing.broker_process import BrokerProcess
from tests.plugins import snippets

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parents[2] / "README.md"


def test_the_first_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = snippets.blocks(PAGE.read_text(encoding="utf-8"))
    (commands,) = [text for language, text in found if language == "sh" and "partibus serve" in text]
    (program,) = [text for language, text in found if "from azure" in text]
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        printed = snippets.run_shell(commands)
        assert printed.count('{"order": 1}') == 2, "peeked at, then received"
        snippets.run_python(program, PAGE, {"connection_string": broker.connection_string})
        assert broker.describe("orders").messages == 0
