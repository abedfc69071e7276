"""RabbitMQ as a peer: Debian's rabbitmq-server with its AMQP 1.0 plug-in, on ports and in directories of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from partibus.bench.load import BenchError

BIN = Path("/usr/lib/rabbitmq/bin")
_START_S = 60.0
_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
amqp1_0.default_user = guest
amqp1_0.protocol_strict_mode = false
"""


def is_installed() -> bool:
    return (BIN / "rabbitmq-server").exists() and shutil.which("erl") is not None


class RabbitMq:
    """One node, started on entering and stopped on leaving; its data stay in ``directory``."""

    user = password = "guest"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
        self._process: subprocess.Popen[bytes] | None = None

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

    def __enter__(self) -> Self:
        if not is_installed():
            raise BenchError("RabbitMQ is not installed: apt-get install rabbitmq-server, or leave it out: --no-peers")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "rabbitmq.conf").write_text(_CONFIG.format(port=self.port))
        (self.directory / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(BIN / "rabbitmq-server")], env=self._environment, stdout=log, stderr=log, cwd=self.directory
            )
        try:
            self._await_start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    self._control("await_startup")
                    return
            time.sleep(0.2)
        raise BenchError(f"RabbitMQ did not start; see {self.directory / 'server.log'}")

    def stop(self) -> None:
        """The node, and the port mapper that it started."""
        if self._process is None:
            return
        if self._process.poll() is None:
            try:
                self._control("stop")
                self._process.wait(30)
            except (BenchError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._process = None
        subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)

    def _control(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(BIN / "rabbitmqctl"), "-q", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"rabbitmqctl {arguments[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
