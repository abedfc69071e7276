"""A store whose database was lost is not made anew: an empty one would hide that messages are lost."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

from partibus.client.errors import ClientError
from tests.kit.eventually import eventually
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines
from tests.robustness.ways import KEYS, drained, message

LOST = "store-03"


def schemas(server: PostgreSQLServer, name: str) -> list[str]:
    return server.sql(f"SELECT nspname FROM pg_namespace WHERE nspname = '{name}' ORDER BY 1")


def is_lost(machines: Machines, asked: str) -> bool:
    troubles = {store.name: store.trouble for store in machines.status(asked).stores if store.trouble is not None}
    return set(troubles) == {LOST} and "has lost store" in str(troubles[LOST])


def test_a_schema_that_is_gone_is_missed_while_brokers_run_and_when_they_start(
    tmp_path: Path, server: PostgreSQLServer
) -> None:
    with Machines(tmp_path, server).start("a", "b") as machines:
        machines.brokers["a"].create_queue("orders", EnablePartitioning=True)
        with machines.client("a") as client:
            client.sender("orders").send([message(number, KEYS[number]) for number in range(64)])
        schema = f"{machines.schema}_03"
        assert schemas(server, schema) == [schema]
        server.sql(f"ALTER SCHEMA {schema} RENAME TO {schema}_moved_away")
        with machines.client("a") as client:
            with suppress(ClientError):
                sent = [message(200 + number, key) for number, key in enumerate(KEYS)]
                client.sender("orders").send(sent, timeout_s=3)
            client.sender("orders").send([message(number) for number in range(100, 120)])
        for name in "ab":
            eventually("the store is missed", partial(is_lost, machines, name))
        for name in "ab":
            machines.brokers[name].stop()
        machines.brokers["a"].start()
        eventually("the store is missed", partial(is_lost, machines, "a"))
        assert schemas(server, schema) == []
        server.sql(f"ALTER SCHEMA {schema}_moved_away RENAME TO {schema}")
        machines.settle("a")
        found = Counter(drained(machines.brokers["a"], "orders", {*range(64), *range(100, 120)}))
        assert max(found.values()) == 1
