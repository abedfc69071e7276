"""A broker as its users run it: a child process on free ports, with its own data directory and log.

```python
with BrokerProcess(tmp_path) as broker:
    broker.create_queue("orders", EnablePartitioning=True)
    client = ServiceBusClient.from_connection_string(broker.connection_string)
```

At the end of the block the broker stops gracefully. `BrokerFailed` is raised when its exit code or its log show an
error, so that no test passes in spite of an error inside the broker. A test may `stop` or `kill` the broker and `start`
it again any number of times; data and ports stay.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self
from urllib.request import Request, urlopen

from partibus.client.extensions.entities import Entities, EntityInfo
from partibus.client.sync import connect
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token

COMMAND = (sys.executable, "-c", "from partibus.cli.main import main; main()")
"""The command `partibus`, run by this interpreter."""

READY_S = 90
STOP_S = 90
"""Seconds to wait for a start and for a stop, on a machine that is busy with other work."""
_LOOK_S = 0.01

_PORTS = range(20_000, 32_000)
"""Ports below the range from which operating systems take the local port of a connection."""
_PORT_NAMES = ("amqp_port", "http_port", "sqs_port")
_TLS_PORT_NAMES = ("amqps_port", "https_port", "sqs_tls_port")


def reserve_port(holder: object) -> int:
    """Return the number of a free port on loopback, which no other caller gets as long as ``holder`` lives.

    A server that is stopped and started again needs its port for itself in between, when the operating system may give
    a port that it chose, by the number 0, to any connection. The reservation is a UDP socket of the same number: it
    ends with this process, whatever happens. Raises OSError after 1,000 ports that were all taken.
    """
    for _ in range(1000):
        reserved = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reserved.bind(("127.0.0.1", random.choice(_PORTS)))
            socket.create_server(reserved.getsockname()).close()
        except OSError:
            reserved.close()
        else:
            weakref.finalize(holder, reserved.close)
            return int(reserved.getsockname()[1])
    raise OSError(f"1,000 ports of {_PORTS.start} to {_PORTS.stop - 1} were all in use: stop other servers")


class Process(Protocol):
    """The process of a broker, with the methods of `subprocess.Popen`."""

    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102
    def send_signal(self, sig: int) -> None: ...  # noqa: D102
    def terminate(self) -> None: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102


class BrokerFailed(AssertionError):
    """The broker did not start, did not stop, or met an error; the text ends with its log."""


class BrokerProcess:
    """A broker that `start`, or entering the context, starts."""

    launch: ClassVar[Callable[..., Process]] = subprocess.Popen
    """Starts a process, with the arguments of `subprocess.Popen`."""

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any] | None = None,
        emulator: bool = True,
        tls: bool = False,
        arguments: tuple[str, ...] = (),
        command: tuple[str, ...] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a broker whose files are in ``folder``.

        ``config`` is the content of a Config.json. With ``emulator`` the broker accepts the emulator's well-known key.
        With ``tls`` it also serves over TLS, with the development certificate. ``arguments`` are further flags of
        `partibus serve`. ``command`` replaces `COMMAND`, and ``environment`` is added to that of this process.
        """
        self.folder = folder
        self.data = folder / "data"
        self._log = folder / "broker.log"
        self._ready_file = folder / "ready.json"
        self._arguments = ["--data", str(self.data), "--ready-file", str(self._ready_file), *arguments]
        if emulator:
            self._arguments.append("--emulator")
        if config is not None:
            config_file = folder / "Config.json"
            config_file.write_text(json.dumps(config, indent=2))
            self._arguments += ["--config", str(config_file)]
        self._command = command
        self._environment = dict(environment or {})
        self._child: Process | None = None
        self._named_ports = (*_PORT_NAMES, *(_TLS_PORT_NAMES if tls else ()))
        self.ready: Mapping[str, Any] = {name: reserve_port(self) for name in self._named_ports}
        """The content of the ready file of the latest start; before the first one, the ports."""
        self._now_ms = 0
        """The manual clock when it was last read; 0: it never was."""

    @property
    def connection_string(self) -> str:
        """The operator's connection string."""
        return str(self.ready["connection_string"])

    @property
    def port(self) -> int:
        """The port for AMQP over plain TCP."""
        return int(self.ready["amqp_port"])

    @property
    def http_url(self) -> str:
        """The address of the HTTP port, without a final slash."""
        return f"http://127.0.0.1:{self.ready['http_port']}"

    @property
    def sqs_url(self) -> str:
        """The endpoint of SQS, without a slash at its end."""
        return f"http://127.0.0.1:{self.ready['sqs_port']}"

    @property
    def amqps_port(self) -> int:
        """The port for AMQP over TLS."""
        return int(self.ready["amqps_port"])

    @property
    def https_url(self) -> str:
        """The address of the HTTPS port, without a final slash."""
        return f"https://localhost:{self.ready['https_port']}"

    @property
    def sqs_tls_url(self) -> str:
        """The endpoint of SQS over TLS, without a slash at its end."""
        return f"https://localhost:{self.ready['sqs_tls_port']}"

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that clients must trust for the development certificate."""
        return self.data / "certs" / "ca.pem"

    @property
    def log(self) -> str:
        """The output of the broker in all its runs."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the broker, on the ports of its former run if there was one, and wait until it is ready.

        Raises `BrokerFailed`. No process is left running after an exception of any kind.
        """
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name.replace('_', '-')}={self.ready[name]}" for name in self._named_ports]
        with self._log.open("ab") as log:
            self._child = child = self.launch(
                [*self._command, "serve", *ports, *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
            )
        for _ in range(int(READY_S / _LOOK_S)):
            if self._ready_file.exists():
                self.ready = json.loads(self._ready_file.read_text())
                self._catch_up()
                return
            try:
                code = child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            raise self._failed(f"ended with exit code {code} before it was ready")
        raise self._failed(f"was not ready within {READY_S} s")

    def _catch_up(self) -> None:
        """Move a manual clock, which starts with the machine's time, to the time that was last read."""
        stood_ms = self._now_ms
        if stood_ms and (behind_ms := stood_ms - self.now_ms()) > 0:
            self.advance(behind_ms)

    def stop(self) -> None:
        """Stop the broker by SIGTERM and wait for its end.

        Raises `BrokerFailed` unless the exit code is 0 and the log has no traceback.
        """
        if self._child is None:
            return
        self._child.terminate()
        try:
            code = self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not end within {STOP_S} s of SIGTERM") from None
        finally:
            self.kill()  # also when this wait was interrupted
        if code != 0:
            raise self._failed(f"ended with exit code {code} after SIGTERM")
        if "Traceback" in self.log:
            raise self._failed("has logged a traceback")

    def hang_up(self) -> None:
        """Make the broker read its certificate again, by SIGHUP."""
        if self._child is not None:
            self._child.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """End the broker by SIGKILL, so that it can write nothing more."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def restart(self) -> None:
        """Stop the broker and start it again."""
        self.stop()
        self.start()

    def create_queue(self, name: str, **properties: object) -> str:
        """Create a queue, its properties given by the service's names; return its name."""
        with connect(self.connection_string) as client:
            Entities(client).create_queue(name, properties)
        return name

    def create_topic(self, name: str, **properties: object) -> str:
        """Create a topic, its properties given by the service's names; return its name."""
        with connect(self.connection_string) as client:
            Entities(client).create_topic(name, properties)
        return name

    def create_subscription(self, topic: str, name: str, **properties: object) -> str:
        """Create a subscription that selects every message; return its path."""
        with connect(self.connection_string) as client:
            return Entities(client).create_subscription(topic, name, properties).name

    def update_queue(self, name: str, **properties: object) -> None:
        """Change the given properties of a queue, by the service's names."""
        with connect(self.connection_string) as client:
            Entities(client).update(name, properties)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages."""
        with connect(self.connection_string) as client:
            Entities(client).delete(name)

    def describe(self, queue: str) -> EntityInfo:
        """Return a queue with its counts."""
        with connect(self.connection_string) as client:
            return Entities(client).get(queue)

    def advance(self, milliseconds: int) -> int:
        """Move the clock of a broker that runs with ``--clock manual``.

        On return everything that is due at the new time has run. Returns the broker's time in ms since 1970.
        """
        connection = parse_connection_string(self.connection_string)
        token = make_token(self.http_url, connection.key_name, connection.key, SystemClock().now_ms() // 1000 + 60)
        request = Request(
            f"{self.http_url}/$partibus/clock/advance",
            json.dumps({"milliseconds": milliseconds}).encode(),
            {"Authorization": token, "Content-Type": "application/json"},
        )
        with urlopen(request, timeout=READY_S) as response:
            self._now_ms = int(json.load(response)["now_ms"])
        return self._now_ms

    def now_ms(self) -> int:
        """Return the time of a broker that runs with ``--clock manual``, in ms since 1970."""
        return self.advance(0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    def _failed(self, what: str) -> BrokerFailed:
        return BrokerFailed(f"the broker {what}; its log:\n{self.log}")


def run_to_the_end(*arguments: str, timeout_s: float = READY_S) -> subprocess.CompletedProcess[str]:
    """Run `partibus` with arguments that end by themselves; return exit code, standard output and standard error.

    Raises `subprocess.TimeoutExpired`.
    """
    command = [*COMMAND, *arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = BrokerProcess.launch(command, stdout=output, stderr=errors, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            code = child.wait(timeout_s)
        finally:
            child.kill()
            child.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), errors.read().decode())
