"""Other brokers, as Debian packages them, each on free ports of loopback and in a directory of its own.

Debian's ActiveMQ has no AMQP 1.0 (`activemq-amqp` is not packaged), so it can't be compared by the same client.

| broker | Debian's package | before it acknowledges a message |
|---|---|---|
| RabbitMQ, classic queue | rabbitmq-server | the message store syncs its file |
| RabbitMQ, quorum queue | rabbitmq-server | the log of the one node is synced |
| NATS JetStream | nats-server | the file system has the message; a sync follows within two minutes |
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from partibus.bench.load import BenchError

_START_S = 60.0


class Server:
    """A broker's process, started on entering and stopped on leaving; its data stay in ``directory``."""

    name: ClassVar[str]
    package: ClassVar[str]
    """Debian's."""
    program: ClassVar[Path]
    port: int

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def is_installed(cls) -> bool:
        return cls.program.exists()

    @property
    def pid(self) -> int:
        """The process whose CPU counts."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        if not self.is_installed():
            raise BenchError(
                f"{self.name} is not installed: apt-get install {self.package}, or leave it out: --no-peers"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
            self._await_start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, by force after half a minute."""
        if self._process is None:
            return
        if self._process.poll() is None:
            try:
                self._ask_to_stop(self._process)
                self._process.wait(30)
            except (BenchError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._process = None

    def _start(self) -> None:
        raise NotImplementedError

    def _ask_to_stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.directory)

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise BenchError(f"{self.name} did not start; see {self.directory / 'server.log'}")


_RABBITMQ = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
amqp1_0.default_user = guest
amqp1_0.protocol_strict_mode = false
"""


class RabbitMq(Server):
    """One node with the AMQP 1.0 plug-in."""

    name = "RabbitMQ"
    package = "rabbitmq-server"
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    user = password = "guest"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port, dist_port, epmd_port = _free_ports(3)
        self._environment = os.environ | {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    @classmethod
    def is_installed(cls) -> bool:
        return super().is_installed() and shutil.which("erl") is not None

    @property
    def pid(self) -> int:
        """The Erlang machine's process."""
        return int((self.directory / "pid").read_text())

    @property
    def version(self) -> str:
        return self._control("version").strip()

    def declare(self, name: str, kind: str) -> str:
        """A durable queue, ``classic`` or ``quorum``; returns its address on AMQP 1.0 links."""
        self._control(
            "eval",
            f'rabbit_amqqueue:declare({{resource,<<"/">>,queue,<<"{name}">>}}, true, false, '
            f'[{{<<"x-queue-type">>,longstr,<<"{kind}">>}}], none, <<"guest">>).',
        )
        return f"/amq/queue/{name}"

    def stop(self) -> None:
        """The node, and the port mapper that it started."""
        if self._process is not None:
            super().stop()
            subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)

    def _start(self) -> None:
        (self.directory / "rabbitmq.conf").write_text(_RABBITMQ.format(port=self.port))
        (self.directory / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        self._run([str(self.program)], self._environment)

    def _await_start(self) -> None:
        super()._await_start()
        self._control("await_startup")

    def _ask_to_stop(self, process: subprocess.Popen[bytes]) -> None:
        self._control("stop")

    def _control(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.program.with_name("rabbitmqctl")), "-q", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"rabbitmqctl {arguments[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout


_NATS = """\
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{ store_dir: "{directory}/jetstream" }}
"""


class Nats(Server):
    """One server with JetStream on files."""

    name = "NATS JetStream"
    package = "nats-server"
    program = Path("/usr/sbin/nats-server")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (self.port,) = _free_ports(1)

    @property
    def version(self) -> str:
        return _debian_version(self.package)

    def _start(self) -> None:
        settings = self.directory / "nats.conf"
        settings.write_text(_NATS.format(directory=self.directory, port=self.port))
        self._run([str(self.program), "-c", str(settings)], os.environ)


def _debian_version(package: str) -> str:
    """The version of an installed package, without Debian's part."""
    command = ["dpkg-query", "-W", "-f", "${Version}", package]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return found.partition("-")[0].partition("+")[0]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
