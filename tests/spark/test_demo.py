"""The demo as a whole, in processes of its own: broker, senders, Spark, proof, report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROWS = 700
SCRIPT = """
import sys
from pathlib import Path
from partibus.demo.run import run_demo

if __name__ == "__main__":
    sys.exit(0 if run_demo(int(sys.argv[1]), Path(sys.argv[2]), senders=2) else 1)
"""


@pytest.mark.timeout(300)
def test_demo_proves_that_what_was_sent_was_read(tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, script, str(ROWS), out], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROOF OK" in done.stdout
    assert f"{ROWS} sent, {ROWS} read" in done.stdout
    assert str(out / "report.html") in done.stdout.replace("\n", "")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "PROOF OK" in page
    assert page.count("<svg") == 2
    assert {path.name for path in (out / "tables").iterdir()} == {"flights", "delays", "partitions", "keys"}
    flights = pq.read_table(out / "tables" / "flights")
    assert sorted(flights["message_id"].to_pylist()) == [f"flight-{row:06d}" for row in range(ROWS)]
    assert set(pq.read_table(out / "tables" / "partitions")["partition_id"].to_pylist()) == set(range(16))
