"""Small files that are replaced: after a crash at any moment the old content is there or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from partibus.cluster.ownership import Identity
from partibus.durable import replace_file
from partibus.namespace.policies import _write_owner_only
from partibus.node.certificates import _write
from partibus.node.joining import note_run
from partibus.node.settings import MARK
from partibus.restore.run import Progress
from partibus.store.backup import LIST, Backup, _write_list
from partibus.store.opening import LISTING, _ListingFile

WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda directory: replace_file(directory / "file", b"new"),
    LISTING: lambda directory: _ListingFile(directory).save(),
    "keys.json": lambda directory: _write_owner_only(directory / "keys.json", b"new"),
    "server.pem": lambda directory: _write(directory / "server.pem", b"new", 0o600),
    MARK: lambda directory: note_run(directory, {}, "catalog", "cluster", Identity("a", "run-1")),
    LIST: lambda directory: _write_list(directory, Backup(0, {}, [], True)),
    "progress.json": lambda directory: Progress(directory / "progress.json", {}).note(0, 0, 1, 1),
}


@pytest.mark.parametrize("name", WRITERS)
def test_content_is_synced_before_the_file_has_its_name_and_the_directory_after(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    done: list[str] = []
    sync = os.fsync
    replace = Path.replace

    def synced(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append("named")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    WRITERS[name](tmp_path)
    content, *others = done
    assert Path(content).parent == tmp_path
    assert others == ["named", str(tmp_path)]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).stat().st_mode & 0o077 == 0
