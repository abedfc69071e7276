"""A file system without room, a real one: small and in memory. Mounting it needs root; without, `test_crashes` has
files that may not grow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from partibus.client.errors import ClientError
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.robustness.ways import client_of, drained, message

DISK = "160m"
"""Sixteen stores keep 64 MiB back and refuse messages when less than 32 MiB are free."""
BULK_BYTES = 60_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.row("R14")
def test_messages_are_refused_and_what_is_there_can_be_received(disk: Path) -> None:
    """Refused by name; nothing that was accepted is lost, receiving makes room, and then messages are taken again."""
    with BrokerProcess(disk) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        accepted: list[int] = []
        refused: ClientError | None = None
        with client_of(broker) as client:
            sender = client.sender("orders")
            while refused is None and len(accepted) < 4_000:
                try:
                    sender.send([message(len(accepted), bulk=bytes(BULK_BYTES))])
                    accepted.append(len(accepted))
                except ClientError as error:
                    refused = error
            assert "no room" in str(refused)
            # Receiving goes on while another program fills the rest of the disk.
            with (disk / "something else").open("wb") as file, suppress(OSError):
                while file.write(bytes(1 << 20)):
                    file.flush()
            assert sorted(drained(broker, "orders", accepted)) == accepted
            (disk / "something else").unlink()

        def is_taken_again() -> bool:
            with client_of(broker) as client:
                client.sender("orders").send([OutgoingMessage(body=b"again")])
            return True

        eventually("there is room", is_taken_again)
        with client_of(broker) as client:
            (again,) = client.receiver("orders").receive(1, timeout_s=EVENTUALLY_S)
            assert again.body == b"again"
