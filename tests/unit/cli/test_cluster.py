"""`partibus cluster accept-loss`: an operator's word that a store goes on."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.store.acknowledged import FOLDER, Acknowledged, AcknowledgedCommits


def accept(data: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cluster", "accept-loss", "store-07", "--data", str(data), *arguments])
    return result.exit_code, result.output


@pytest.fixture
def record(tmp_path: Path) -> AcknowledgedCommits:
    record = AcknowledgedCommits(tmp_path, "store-07")
    record.note(Acknowledged(6, 5, 7))
    return record


def test_a_loss_is_accepted_with_its_number(tmp_path: Path, record: AcknowledgedCommits) -> None:
    assert accept(tmp_path, "--last-commit", "3") == (
        0,
        "store-07 goes on from commit 3; 3 acknowledged commits are lost.\n",
    )
    assert record.is_accepted(3)


@pytest.mark.parametrize("content", [b"", b"x"])
def test_a_damaged_record_is_no_obstacle(tmp_path: Path, record: AcknowledgedCommits, content: bytes) -> None:
    (tmp_path / FOLDER / "store-07").write_bytes(content)
    code, text = accept(tmp_path, "--last-commit", "3")
    assert (code, record.is_accepted(3)) == (0, True)
    assert "an unknown number of acknowledged commits" in text


def test_numbers_of_another_history_are_not_compared(tmp_path: Path, record: AcknowledgedCommits) -> None:
    code, text = accept(tmp_path, "--last-commit", "9")
    assert (code, record.is_accepted(9)) == (1, False)
    assert "commit 6 was acknowledged last, so nothing is lost" in text
    assert accept(tmp_path, "--last-commit", "9", "--other-history")[0] == 0
    assert record.is_accepted(9)
