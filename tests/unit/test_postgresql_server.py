"""The empty cluster that the servers of a run copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import postgresql_server
from tests.kit.postgresql_server import PostgreSQLServer


def test_cluster_is_made_once_and_again_after_a_killed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make_directory(server: PostgreSQLServer, _: Path | None) -> None:
        server.directory = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
        server.data = server.directory / "data"
        server.directory.mkdir()
        server.port = 0

    def make_cluster(server: PostgreSQLServer) -> None:
        made.append(server.data)
        server.data.mkdir()
        (server.data / "postgresql.conf").write_text("#\n")

    monkeypatch.setattr(PostgreSQLServer, "_make_directory", make_directory)
    monkeypatch.setattr(PostgreSQLServer, "_make_cluster", make_cluster)
    monkeypatch.setattr(postgresql_server, "kept_in", tmp_path)
    (tmp_path / "postgresql.part").mkdir()
    (tmp_path / "postgresql.part" / "half").touch()
    servers = [PostgreSQLServer(settings={"fsync": "off"}), PostgreSQLServer()]
    assert made == [servers[0].data]
    assert [one.name for one in (tmp_path / "postgresql").iterdir()] == ["postgresql.conf"]
    assert (tmp_path / "postgresql" / "postgresql.conf").read_text() == "#\n"
    settings = [(one.data / "postgresql.conf").read_text() for one in servers]
    assert ["fsync = 'off'" in one for one in settings] == [True, False]
    assert not (tmp_path / "postgresql.part").exists()
