"""A primary with a synchronous standby: what is acknowledged is on both, and the standby can go on (row S1)."""

import pytest

from partibus.store.postgresql import parse_address
from tests.contract.stores import enqueued, new_address, positions
from tests.kit.postgresql_server import PASSWORD, USER, PostgreSQLServer
from tests.unit.store.postgresql.places import open_store


@pytest.mark.row("S1")
def test_the_standby_has_what_was_acknowledged_and_the_store_goes_on_with_it() -> None:
    with PostgreSQLServer() as primary:
        standby = PostgreSQLServer.standby_of(primary, "other_room")
        try:
            standby.start()
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'other_room'")
            primary.sql("SELECT pg_reload_conf()")
            wait_for_copies(primary)
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            (address,) = parse_address(f"postgresql://{USER}:{PASSWORD}@{hosts}/postgres")
            assert address.name == f"postgresql://{USER}@{hosts}/postgres?schema=partibus"
            store = open_store(address)
            assert store.durability == "2 copies, synchronous"
            for pos in range(20):
                store.commit(enqueued(pos))

            primary.kill()
            standby.promote()
            # The connection is lost; the same commit finds the other server, which has all that was acknowledged.
            store.commit(enqueued(20))
            assert positions(store) == list(range(21))
            assert store.last_commit == 21
            again = store.reopen()
            assert again.durability == "1 copy"
            again.close()
        finally:
            standby.remove()


def wait_for_copies(primary: PostgreSQLServer) -> None:
    for _ in range(200):
        if primary.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == ["1"]:
            return
    raise AssertionError("the standby did not become synchronous")


def test_a_store_without_standbys_says_so() -> None:
    store = open_store(new_address())
    assert store.durability == "1 copy"
    store.close()
