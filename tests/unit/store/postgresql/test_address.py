"""Where a store is."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from partibus.partition.protocol.ports import StoreError
from partibus.store.postgresql import parse_address


def test_a_url_is_read_as_libpq_reads_it_and_named_without_its_password() -> None:
    (address,) = parse_address("postgresql://me:s%40cret@db.example:5433/queues?connect_timeout=3")
    assert (address.schema, address.name) == ("partibus", "postgresql://me@db.example:5433/queues?schema=partibus")
    assert conninfo_to_dict(address.conninfo) == {
        "user": "me", "password": "s@cret", "host": "db.example", "port": "5433", "dbname": "queues",
        "target_session_attrs": "read-write",
    }  # fmt: skip
    assert address.connect_timeout_s == 3, "it takes precedence over the broker's own"


def test_several_hosts() -> None:
    (address,) = parse_address("postgres://a:1,b:2/db?target_session_attrs=any&schema=s1")
    assert address.name == "postgresql://a:1,b:2/db?schema=s1"
    assert conninfo_to_dict(address.conninfo)["target_session_attrs"] == "any"


def test_several_stores_in_one_database() -> None:
    addresses = parse_address("postgresql:///db?host=/run/pg&stores=3&schema=q")
    assert [address.schema for address in addresses] == ["q_00", "q_01", "q_02"]
    assert len({address.name for address in addresses}) == 3


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:secret@h/db?schema=A-b", "schema='A-b': give 1 to 32 of a-z"),
        ("postgresql://u:secret@h/db?schema=" + "a" * 33, "give 1 to 32"),
        ("postgresql://u:secret@h/db?stores=0", "stores='0': give 1 to 64"),
        ("postgresql://u:secret@h/db?stores=many", "stores='many'"),
        ("postgresql://u:secret@h/db?connect_timeout=soon", "connect_timeout='soon': give whole seconds"),
        ("postgresql://u:secret@h/db?password=secret&nonsense=1", "nonsense"),
        ("postgresql://u:secret@[::1/db", "is no address of a store"),
    ],
)
def test_what_is_no_address_is_refused_without_the_password(url: str, reason: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_address(url)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
