"""A broker of our own for the time of a measurement."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from partibus.bench.load import BenchError

_START_S: Final = 30.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.002


class TemporaryBroker:
    """`partibus serve` on free ports with its data in ``directory``, which stays. Stopped when it is left."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        """``environment``: more variables than this process has. ``arguments``: more flags of ``serve``."""
        self.directory = directory
        self._environment = environment or {}
        self._arguments = list(arguments)
        self._ready_file = directory / "ready.json"
        self._log = directory / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] = {}
        self.start_s = 0.0
        """Seconds from the last start of the process to readiness."""

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return int(self._ready["pid"])

    @property
    def broker_pids(self) -> list[int]:
        """The process ids of several brokers in the order of their starts; ``pid`` is their supervisor's then."""
        return [int(broker["pid"]) for broker in self._ready["brokers"]]

    @property
    def connection(self) -> str:
        """The connection string."""
        return str(self._ready["connection_string"])

    @property
    def amqp_port(self) -> int:
        """The port for AMQP."""
        return int(self._ready["amqp_port"])

    @property
    def ready(self) -> Mapping[str, Any]:
        """The content of the ready file."""
        return self._ready

    @property
    def tls_ports(self) -> tuple[int, int]:
        """The TLS ports of AMQP and of HTTP, of a broker that was told to serve over TLS."""
        return int(self._ready["amqps_port"]), int(self._ready["https_port"])

    def start(self) -> None:
        """Start the broker. Raises `BenchError` with its error output if it does not become ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        arguments = ["--data", str(self.directory / "data"), "--amqp-port", "0", "--http-port", "0"]
        arguments += ["--ready-file", str(self._ready_file), *self._arguments]
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from partibus.cli.main import main; main()", "serve", *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - started > _START_S:
                words = self._log.read_text(errors="replace").strip().splitlines()
                self.stop()
                raise BenchError(f"the broker did not start: {words[-1] if words else 'it said nothing'}")
            time.sleep(_POLL_S)
        self.start_s = time.monotonic() - started

    def _is_ready(self) -> bool:
        """Tell whether the ready file is complete: it may exist before."""
        try:
            self._ready = json.loads(self._ready_file.read_text())
        except (OSError, ValueError):
            return False
        return True

    def stop(self) -> None:
        """Stop the broker as an operator would; kill it if it needs too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
