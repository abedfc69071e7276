"""How far a restore has come, across processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.errors import InvalidOperation
from partibus.restore.run import MADE, Progress

RESTORE = {"backup": "/b", "entity": "orders", "into": "side", "to": "sb://one:5671/"}


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = Progress(path, RESTORE)
    assert (progress.next_pos(3, 0), progress.sent) == (0, 0)
    progress.note(3, 0, 201, 200)
    progress.note(3, 1, 5, 4)
    again = Progress(path, RESTORE)
    assert [again.next_pos(*place) for place in ((3, 0), (3, 1), (4, 0))] == [201, 5, 0]
    assert again.sent == 204
    assert [one.name for one in tmp_path.iterdir()] == ["progress.json"]


@pytest.mark.parametrize("key", ["backup", "entity", "into", "to"])
def test_that_of_another_restore_is_refused(tmp_path: Path, key: str) -> None:
    Progress(tmp_path / "p", RESTORE).note(0, 0, 1, 1)
    with pytest.raises(InvalidOperation, match="of another restore"):
        Progress(tmp_path / "p", {**RESTORE, key: "else"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sent": "x", "next": {}}'])
def test_what_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(InvalidOperation, match="no progress"):
        Progress(tmp_path / "p", RESTORE)


def test_that_of_another_backup_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    Progress(tmp_path / "p", {**RESTORE, MADE: "1"}).note(0, 0, 1, 1)
    assert Progress(tmp_path / "p", {**RESTORE, MADE: "1"}).sent == 1
    with pytest.raises(InvalidOperation, match="of another restore"):
        Progress(tmp_path / "p", {**RESTORE, MADE: "2"})


def test_one_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    Progress(tmp_path / "p", RESTORE).note(0, 0, 1, 1)
    assert Progress(tmp_path / "p", {**RESTORE, MADE: "1"}).sent == 1
