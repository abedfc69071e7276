"""Stores in PostgreSQL: alone, under a broker, and a plain queue table beside them, on one server with fsync on.

    python -m bench.postgresql [--messages N] [--seconds N] [--programs DIRECTORY]

The queue table is what one writes first: a row per message, taken with ``FOR UPDATE SKIP LOCKED`` and deleted, each in
a transaction of its own; pgbench drives it with sixteen clients. The server comes with the test requirements;
``--programs`` names another one's (Debian's: /usr/lib/postgresql/15/bin). Its CPU includes its background processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from bench.brokers import attach
from bench.proton import build
from bench.store import MESSAGE, cpu_seconds, enqueue, settle
from partibus.bench.scenarios import TemporaryBroker, both, receive, send
from partibus.partition.protocol.ports import Writes
from partibus.store.generations import Owner
from partibus.store.postgresql import PostgreSQLStore, parse_address
from tests.kit.postgresql_server import PostgreSQLServer

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "bench" / "postgresql"
STORES = 16
ALONE = ((100, 1), (1_000, 1), (100, STORES))
"""Messages in a commit, stores that commit at once."""
_CLIENTS = 16

Row = dict[str, object]


def server_cpu_s(server: PostgreSQLServer) -> float:
    """User and system time of the server's processes that run now, and of those that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        if path.parent.name == str(server.pid):
            ticks += own + ended
        elif fields[1] == str(server.pid):
            ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


def life_of_batches(batch: int, batches: int) -> list[Writes]:
    """Each commit brings a batch and its lock, and takes the batch before away."""
    commits = []
    for index in range(batches):
        writes = enqueue(index * batch, batch)
        if index:
            settle(writes, (index - 1) * batch, batch)
        commits.append(writes)
    return commits


def measure_alone(server: PostgreSQLServer, batch: int, stores: int, messages: int) -> Row:
    """Whole life cycles, one writer per store: a commit brings a batch and removes one."""
    url = server.url(parameters=f"schema=alone_{batch}_{stores}&stores={stores}")
    opened = [
        PostgreSQLStore.open(address, store_id=f"store-{index:02}", owner=Owner("bench", f"run-{index}"))
        for index, address in enumerate(parse_address(url))
    ]
    commits = life_of_batches(batch, max(2, messages // batch // stores))

    def work(store: PostgreSQLStore) -> None:
        for writes in commits:
            store.commit(writes)

    threads = [Thread(target=work, args=(store,)) for store in opened]
    server_s, process_s = server_cpu_s(server), cpu_seconds(resource.RUSAGE_SELF)
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - began
    count = len(commits) * batch * stores
    row: Row = {
        "scenario": "postgresql",
        "what": "stores alone, without a broker",
        "stores": stores,
        "messages_per_commit": batch,
        "messages_per_s": round(count / wall_s),
        "server_cpu_us": round((server_cpu_s(server) - server_s) / count * 1e6, 1),
        "store_cpu_us": round((cpu_seconds(resource.RUSAGE_SELF) - process_s) / count * 1e6, 1),
    }
    for store in opened:
        store.close()
    return row


def measure_queue_table(server: PostgreSQLServer, seconds: int) -> Row:
    """Messages through a table, by pgbench: half of the transactions send, half receive."""
    server.sql("CREATE TABLE queue_table (id bigserial PRIMARY KEY, data bytea NOT NULL)")
    scripts = {
        "send": f"INSERT INTO queue_table (data) VALUES (decode(repeat('6d', {len(MESSAGE)}), 'hex'));",
        "receive": "DELETE FROM queue_table WHERE id = (SELECT id FROM queue_table ORDER BY id "
        "FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING data;",
    }
    files = []
    for name, script in scripts.items():
        path = server.directory / f"{name}.sql"
        path.write_text(script + "\n")
        path.chmod(0o644)
        files += ["--file", f"{path}@1"]
    server_s = server_cpu_s(server)
    output = server.run(
        "pgbench", "--no-vacuum", "--protocol", "prepared", "--client", str(_CLIENTS), "--jobs", "2",
        "--time", str(seconds), *files, server.conninfo(),
    )  # fmt: skip
    (rate,) = [float(line.split()[2]) for line in output.splitlines() if line.startswith("tps")]
    (left,) = server.sql("SELECT count(*) FROM queue_table")
    through = rate * seconds / 2
    return {
        "scenario": "postgresql",
        "what": "queue table, SKIP LOCKED, pgbench",
        "clients": _CLIENTS,
        "messages_per_s": round(rate / 2),
        "left": int(left),
        "server_cpu_us": round((server_cpu_s(server) - server_s) / through * 1e6, 1),
    }


def measure_broker(server: PostgreSQLServer, program: Path, messages: int) -> Iterator[Row]:
    """A plain queue, which has one store, and a partitioned one over sixteen: the foreign client."""
    url = server.url(parameters=f"schema=broker&stores={STORES}")
    with TemporaryBroker(WORK / "broker", arguments=("--store", url)) as broker:
        peer = attach(broker, program)
        for kind in peer.kinds:
            target = peer.queue(kind)
            for scenario in (send, receive, both):
                server_s = server_cpu_s(server)
                result = scenario(target, peer.foreign, count=messages)
                cpu_us = (server_cpu_s(server) - server_s) / messages * 1e6
                row = result.as_dict() | {"scenario": "postgresql", "run": result.scenario}
                yield row | {"server_cpu_us": round(cpu_us, 1)}


@contextmanager
def a_server(programs: Path | None) -> Iterator[PostgreSQLServer]:
    """Start a server with room for what the measurements keep busy; durability as it comes."""
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with PostgreSQLServer(programs, settings) as server:
        yield server


def measure_postgresql(program: Path, messages: int, seconds: int, programs: Path | None = None) -> Iterator[Row]:
    """All of it, in one run on one server."""
    shutil.rmtree(WORK, ignore_errors=True)
    with a_server(programs) as server:
        (version,) = server.sql("SELECT version()")
        for batch, stores in ALONE:
            yield measure_alone(server, batch, stores, messages) | {"server": " ".join(version.split()[:2])}
        yield measure_queue_table(server, seconds)
        yield from measure_broker(server, program, messages)


def main() -> None:
    """Print a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=10, help="for the queue table")
    parser.add_argument("--programs", type=Path, help="directory of another PostgreSQL's programs")
    given = parser.parse_args()
    for row in measure_postgresql(build(WORK.parent), given.messages, given.seconds, given.programs):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
