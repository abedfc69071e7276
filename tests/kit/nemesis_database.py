"""A database server with a synchronous standby, behind ways that can be bad, and what happens to the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.eventually import eventually, pause
from tests.kit.fault_proxy import FaultProxy
from tests.kit.nemesis import Nemesis
from tests.kit.postgresql_server import PASSWORD, USER, PostgreSQLServer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_REOPENED_MS = 10_000
_AWAY_S = 1.0


class Pair:
    """A primary and a standby; whichever is which, the same URL leads to both."""

    def __init__(self, *, standby: bool, programs: Path | None = None) -> None:
        """``standby``: False is a server alone, which is quicker to make. ``programs``: those of the wheel if None."""
        self._servers = [PostgreSQLServer(programs).start()]
        self.ways = [FaultProxy(("127.0.0.1", self._servers[0].port))]
        if standby:
            self._follow()
            self.ways.append(FaultProxy(("127.0.0.1", self._servers[1].port)))

    @property
    def has_standby(self) -> bool:
        return len(self.ways) > 1

    def url(self, parameters: str) -> str:
        """Return the URL by way of the ways."""
        hosts = ",".join(f"127.0.0.1:{way.port}" for way in self.ways)
        return f"postgresql://{USER}:{PASSWORD}@{hosts}/postgres?{parameters}"

    def restart(self, nemesis: Nemesis) -> str:
        """The primary crashes and comes back."""
        began_ms = nemesis.now_ms()
        self._servers[0].kill()
        pause(_AWAY_S)
        self._servers[0].start()
        nemesis.forgotten(began_ms, "the database was away", _REOPENED_MS)
        return "killed the database and started it again"

    def fail_over(self, nemesis: Nemesis) -> str:
        """The primary is lost for good, the standby takes its place, and gets a new one."""
        began_ms = nemesis.now_ms()
        lost, self._servers = self._servers[0], self._servers[1:]
        lost.kill()
        self._servers[0].promote()
        lost.remove()
        self._follow()
        for way in self.ways:
            if way.target == ("127.0.0.1", lost.port):
                way.target = ("127.0.0.1", self._servers[1].port)
        nemesis.forgotten(began_ms, "another database is the primary", _REOPENED_MS)
        return "lost the database for good; its standby took its place"

    def _follow(self) -> None:
        """Make a standby of the primary, and have commits wait for it."""
        primary = self._servers[0]
        standby = PostgreSQLServer.standby_of(primary)
        self._servers.append(standby)
        standby.start()
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.sql("SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        eventually("the standby is synchronous", lambda: primary.sql(query) == ["1"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for way in self.ways:
            way.close()
        for server in self._servers:
            server.remove()
