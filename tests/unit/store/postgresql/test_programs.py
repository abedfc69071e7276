"""Which server a test or `make chaos` runs."""

from pathlib import Path

from tests.kit.postgresql_server import programs_of_system


def test_the_newest_whole_server_of_the_system(tmp_path: Path) -> None:
    assert programs_of_system(tmp_path / "nothing") is None
    for version in ("9", "15", "16", "common"):
        (tmp_path / version / "bin").mkdir(parents=True)
    assert programs_of_system(tmp_path) is None, "clients only"
    for version in ("9", "15", "common"):
        (tmp_path / version / "bin" / "postgres").touch()
    assert programs_of_system(tmp_path) == tmp_path / "15" / "bin"
