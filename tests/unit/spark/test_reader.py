"""Reading a split: batches, lost connections, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, ULong
from partibus.client.browse import BrowsedMessage, PartitionRange
from partibus.client.errors import AccessDenied, Busy, ClientError, ConnectFailed, ConnectionLost, NotFound
from partibus.spark.connections import close_idle
from partibus.spark.errors import PlanError, ReadError
from partibus.spark.options import Options
from partibus.spark.planning import Split
from partibus.spark.reader import plan, read_split, rebatch

SCHEMA = pa.schema([("position", pa.int64()), ("body", pa.binary())])
OPTIONS = Options("Endpoint=sb://broker:5672;SharedAccessKeyName=n;SharedAccessKey=hush", "orders", 4, 1 << 20, None)
PAYLOAD = encode(Described(ULong(0x75), b"body"))


class Script:
    """Opens clients that hold positions 0..9 in pages of 3 and fail as told: one entry per connection, the number of
    pages before the failure."""

    def __init__(self, failure: Exception, *pages_before_failure: int | None) -> None:
        self.failure = failure
        self.left = list(pages_before_failure)
        self.reads: list[tuple[int, int]] = []

    def __call__(self, connection: str, entity: str) -> ScriptedClient:
        return ScriptedClient(self, self.left.pop(0) if self.left else None)


class ScriptedClient:
    def __init__(self, script: Script, pages_left: int | None) -> None:
        self.script = script
        self.pages_left = pages_left

    def partitions(self) -> list[PartitionRange]:
        if self.pages_left == 0:
            raise self.script.failure
        return [PartitionRange(1, 0, 10, 10), PartitionRange(0, 0, 0, 0)]

    def read(self, partition_id: int, from_pos: int, to_pos: int, max_bytes: int = 0) -> Iterator[list[BrowsedMessage]]:
        self.script.reads.append((from_pos, to_pos))
        yield []
        for start in range(from_pos, to_pos, 3):
            if self.pages_left == 0:
                raise self.script.failure
            self.pages_left = self.pages_left and self.pages_left - 1
            yield [BrowsedMessage(pos, PAYLOAD) for pos in range(start, min(start + 3, to_pos))]

    def close(self) -> None:
        """Nothing to do."""


@pytest.fixture(autouse=True)
def _no_kept_connection() -> Iterator[None]:
    yield
    close_idle()


def positions(script: Script) -> list[list[int]]:
    batches = read_split(Split(1, 0, 10), OPTIONS, SCHEMA, script)
    return [batch.column("position").to_pylist() for batch in batches]


def lost() -> Exception:
    return ConnectionLost("the peer is gone")


def test_plan_asks_every_partition() -> None:
    assert plan(OPTIONS, Script(lost())) == [Split(0, 0, 0), Split(1, 0, 10)]


def test_batches_have_the_asked_number_of_rows() -> None:
    assert positions(Script(lost())) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("pages", [0, 1, 2, 3])
def test_lost_connection_is_replaced_once_and_nothing_is_read_twice(pages: int) -> None:
    script = Script(lost(), pages)
    assert [position for batch in positions(script) for position in batch] == list(range(10))
    assert script.reads == [(0, 10), (3 * pages, 10)]


def test_second_loss_is_an_error_that_names_partition_range_and_place() -> None:
    with pytest.raises(ReadError) as caught:
        positions(Script(lost(), 1, 1))
    assert str(caught.value) == (
        "reading partition 1, positions [0, 10) of 'orders' at sb://broker:5672 stopped at position 6: "
        "the peer is gone; option 'connection' must name a broker that runs and that this machine reaches"
    )


def test_refusal_is_not_tried_again() -> None:
    script = Script(NotFound("no such queue"), 0, None)
    with pytest.raises(ReadError, match="no such queue; option 'entity' must name what exists"):
        positions(script)
    assert len(script.reads) == 1


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (lambda: ConnectFailed("refused"), "refused; option 'connection' must name a broker that runs"),
        (lambda: AccessDenied("bad token"), "bad token; the key in option 'connection'"),
        (
            lambda: NotFound("no such queue"),
            "no such queue; option 'entity' must name what exists",
        ),
        (lambda: ClientError("odd", "amqp:internal-error"), "odd; the broker's log says more"),
        (lambda: Busy("throttled"), "throttled; reading it again may succeed"),
    ],
)
def test_failed_plan_names_the_option_and_the_way_out(failure: Callable[[], Exception], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(OPTIONS, Script(failure(), 0))
    assert str(caught.value).startswith(f"cannot read 'orders' at sb://broker:5672: {words}")
    assert "hush" not in str(caught.value)


def test_payload_that_is_no_message_names_partition_and_position() -> None:
    class Garbled(ScriptedClient):
        def read(self, *_: object, **__: object) -> Iterator[list[BrowsedMessage]]:
            yield [BrowsedMessage(5, b"\x00\x53\x75\xa0\xff")]

    with pytest.raises(ReadError, match=r"partition 1, positions \[0, 10\).*position 5"):
        list(read_split(Split(1, 0, 10), OPTIONS, SCHEMA, lambda connection, entity: Garbled(Script(lost()), None)))


def test_rebatch_cuts_by_bytes_too() -> None:
    pages = [[BrowsedMessage(i, b"x" * size) for i, size in enumerate((1, 1, 50, 1, 1))], []]
    assert [[m.position for m in rows] for rows in rebatch(pages, 100, 50)] == [[0, 1, 2], [3, 4]]
