"""Options: what is taken, what is refused and with which words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from partibus.spark.errors import OptionError
from partibus.spark.options import OPTIONS, Options

KEY = "dGhpcyBpcyB0aGUgc2hhcmVkIGtleSBvZiBhIHRlc3QhIQ=="
CONNECTION = f"Endpoint=sb://localhost:5672/;SharedAccessKeyName=reader;SharedAccessKey={KEY}"
GOOD = {"connection": CONNECTION, "entity": "orders"}


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        Options.parse(options)
    return str(caught.value)


def test_defaults() -> None:
    options = Options.parse(GOOD)
    assert options.rows_per_batch == 8192
    assert options.bytes_per_fetch == 4 << 20
    assert options.positions_per_task is None


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    options = Options.parse(
        {"CONNECTION": CONNECTION, "Entity": " /orders/ ", "rowsperbatch": "5", "PositionsPerTask": "7"}
    )
    assert (options.entity, options.rows_per_batch, options.positions_per_task) == ("orders", 5, 7)


@pytest.mark.parametrize(
    "entity", ["q", "q/$DeadLetterQueue", "q/$deadletterqueue", "t/Subscriptions/s/$DeadLetterQueue"]
)
def test_entities_and_their_dead_letter_queues(entity: str) -> None:
    assert Options.parse({**GOOD, "entity": entity}).entity == entity


@pytest.mark.parametrize("missing", ["connection", "entity"])
@pytest.mark.parametrize("empty", [True, False])
def test_missing_option_is_named_with_an_example(missing: str, empty: bool) -> None:
    given = {**GOOD, missing: " "} if empty else {name: value for name, value in GOOD.items() if name != missing}
    assert refusal(**given).startswith(f"option '{missing}' is missing; add .option(\"{missing}\", ")


def test_unknown_option_names_the_closest() -> None:
    text = refusal(**GOOD, rowPerBatches="1")
    assert text.startswith("unknown option 'rowPerBatches'; did you mean 'rowsPerBatch'?")
    assert all(option.name in text for option in OPTIONS)


def test_path_of_load_is_refused_with_the_right_spelling() -> None:
    assert refusal(**GOOD, path="orders") == (
        "load('orders') gives a path; leave it out and name the queue with .option(\"entity\", 'orders')"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rowsPerBatch", "0", "is 0; it must be between 1 and 100,000"),
        ("rowsPerBatch", "many", "is 'many', not a whole number; it must be between 1 and 100,000"),
        ("bytesPerFetch", "99999999999", "is 99,999,999,999; it must be between 65,536 and 67,108,864"),
        ("positionsPerTask", "-1", "is -1; it must be between 1 and 1,099,511,627,776"),
    ],
)
def test_number_out_of_bounds_names_value_and_bounds(name: str, value: str, words: str) -> None:
    assert refusal(**GOOD, **{name: value}) == f"option {name!r} {words}"


def test_unknown_sub_queue_is_refused() -> None:
    assert "'/$DeadLetters' is no sub-queue" in refusal(**{**GOOD, "entity": "q/$DeadLetters"})


@pytest.mark.parametrize(
    "connection",
    [
        f"SharedAccessKeyName=reader;SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost;SharedAccessKey={KEY}",
        KEY,
    ],
)
def test_unusable_connection_string_is_refused_without_showing_it(connection: str) -> None:
    text = refusal(connection=connection, entity="q")
    assert "option 'connection'" in text
    assert KEY not in text


def test_shared_access_signature_stands_in_for_a_key() -> None:
    connection = "Endpoint=sb://localhost;SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    assert Options.parse({"connection": connection, "entity": "q"}).connection == connection


def test_key_is_in_no_text_of_the_options() -> None:
    options = Options.parse(GOOD)
    for text in (repr(options), str(options), f"{options}", options.where):
        assert KEY not in text
        assert "sb://localhost:5672" in text


def test_options_survive_the_way_to_a_worker() -> None:
    options = Options.parse(GOOD)
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [option.name for option in OPTIONS if f"| `{option.name}` |" not in page] == []
