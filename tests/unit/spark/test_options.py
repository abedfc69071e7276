"""Options: what is taken, what is refused and with which words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from partibus.spark.errors import OptionError
from partibus.spark.option_table import OPTIONS, Option
from partibus.spark.options import Options

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
    assert options.messages_per_split is None
    assert (options.mode, options.cursor, options.fail_on_data_loss) == ("browse", None, None)
    assert (options.include_body, options.include_properties, options.body_schema) == (True, True, "")
    assert options.poll_timeout_ms == 1000


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    options = Options.parse(
        {"CONNECTION": CONNECTION, "Entity": " /orders/ ", "rowsperbatch": "5", "PositionsPerTask": "7"}
    )
    assert (options.entity, options.rows_per_batch, options.messages_per_split) == ("orders", 5, 7)


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
        ("messagesPerSparkPartition", "-1", "is -1; it must be between 1 and 1,099,511,627,776"),
    ],
)
def test_number_out_of_bounds_names_value_and_bounds(name: str, value: str, words: str) -> None:
    assert refusal(**GOOD, **{name: value}) == f"option {name!r} {words}"


@pytest.mark.parametrize(
    ("given", "entity"),
    [
        ({"entity": "t", "subscription": "s"}, "t/Subscriptions/s"),
        ({"entity": "t", "subscription": "s", "subQueue": "dead-letter"}, "t/Subscriptions/s/$DeadLetterQueue"),
        ({"entity": "q", "subQueue": "Transfer-Dead-Letter"}, "q/$Transfer/$DeadLetterQueue"),
        ({"entity": "q/$Transfer/$DeadLetterQueue"}, "q/$Transfer/$DeadLetterQueue"),
    ],
)
def test_subscriptions_and_sub_queues_have_options_too(given: dict[str, str], entity: str) -> None:
    options = Options.parse(GOOD | given)
    assert options.entity == entity
    base = entity.replace("/$DeadLetterQueue", "").replace("/$Transfer", "")
    assert options.dead_letter_source == (None if base == entity else base)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"entity": "t/Subscriptions/s", "subscription": "s"}, "option 'subscription' is given, but 'entity' names"),
        ({"entity": "q/$DeadLetterQueue", "subQueue": "dead-letter"}, "option 'subQueue' is given, but 'entity' names"),
        ({"subQueue": "dead"}, "option 'subQueue' is 'dead'; it must be 'dead-letter' or 'transfer-dead-letter'"),
        ({"mode": "both"}, "option 'mode' is 'both'; it must be 'browse' or 'consume'"),
        ({"mode": "consume"}, "mode 'consume' takes a name for the reader"),
        ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss' is 'maybe'; it must be 'true' or 'false'"),
        ({"includeBody": "no"}, "option 'includeBody' is 'no'; it must be 'true' or 'false'"),
        ({"bodyFormat": "json"}, "option 'bodyFormat' is 'json', which takes the columns of the documents"),
        ({"bodySchema": "a int"}, "option 'bodySchema' takes option 'bodyFormat' to be 'json'"),
        ({"positionsPerTask": "5", "messagesPerSparkPartition": "6"}, "'messagesPerSparkPartition' is given twice"),
        ({"startingPositions": "soon"}, "option 'startingPositions' is 'soon'; it may be earliest, latest, a time"),
        ({"startingPositions": "{"}, "option 'startingPositions' is no JSON"),
        ({"startingPositions": '{"a": 1}'}, "option 'startingPositions' has the partition 'a'"),
        ({"startingPositions": '{"1": "x"}'}, "has 'x' for partition 1; a position is a whole number from 0"),
        ({"endingPositions": '{"1": -3}'}, "option 'endingPositions' has -3 for partition 1"),
        ({"startingPositions": '{"sequenceNumbers": {"1": 844424930131970}}'}, "but it is of partition 3"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(given: dict[str, str], words: str) -> None:
    assert words in refusal(**GOOD | given)


@pytest.mark.parametrize(
    ("given", "connection"),
    [
        (
            {"endpoint": "sb://localhost:5672/", "keyName": "reader", "key": KEY},
            f"Endpoint=sb://localhost:5672/;SharedAccessKeyName=reader;SharedAccessKey={KEY}",
        ),
        (
            {"endpoint": "localhost", "token": "SharedAccessSignature sr=x&sig=y&se=1&skn=z"},
            "Endpoint=sb://localhost/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=1&skn=z",
        ),
    ],
)
def test_connection_may_be_given_in_parts(given: dict[str, str], connection: str) -> None:
    assert Options.parse({"entity": "q", **given}).connection == connection


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": "localhost"}, "option 'endpoint' goes with 'keyName' and 'key', or with 'token' alone"),
        ({"endpoint": "localhost", "key": KEY}, "option 'endpoint' goes with 'keyName' and 'key'"),
        ({"endpoint": "localhost", "key": KEY, "keyName": "a", "token": "x"}, "or with 'token' alone"),
        ({"endpoint": "localhost:0", "token": KEY}, "option 'endpoint': port of the Endpoint is 0"),
        ({"endpoint": "http://localhost", "token": KEY}, "option 'endpoint': Endpoint is"),
        ({"connection": CONNECTION, "token": KEY}, "option 'token' is given beside 'connection'"),
        ({"key": KEY}, "option 'key' goes with 'endpoint'"),
    ],
)
def test_parts_of_a_connection_that_do_not_fit_are_refused_without_showing_the_key(
    given: dict[str, str], words: str
) -> None:
    text = refusal(entity="q", **given)
    assert words in text
    assert KEY not in text


def test_promise_that_browsing_can_not_keep_is_refused() -> None:
    words = "browsing beside live consumers promises nothing"
    with pytest.raises(OptionError, match=words):
        Options.parse(GOOD).check_stream(GOOD)
    insisting = GOOD | {"failOnDataLoss": "true"}
    with pytest.raises(OptionError, match=words):
        Options.parse(insisting).check_batch()
    with pytest.raises(OptionError, match=words):
        Options.parse(insisting).check_stream(insisting)
    for accepted in ({"failOnDataLoss": "false"}, {"cursor": "report"}, {"cursor": "report", "failOnDataLoss": "true"}):
        Options.parse(GOOD | accepted).check_stream(GOOD | accepted)
    Options.parse(GOOD).check_batch()


def test_batch_does_not_consume_and_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="a batch can't have mode 'consume'"):
        Options.parse(GOOD | {"mode": "consume", "cursor": "c"}).check_batch()
    ending = GOOD | {"cursor": "c", "EndingPositions": "latest"}
    with pytest.raises(OptionError, match="option 'endingPositions' is for batches"):
        Options.parse(ending).check_stream(ending)


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


def option_row(option: Option) -> str:
    default = "none" if option.default is None else str(option.default).lower()
    return f"| `{option.name}` | {f'{option.default:,}' if type(option.default) is int else default} | {option.help} |"


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [option.name for option in OPTIONS if option_row(option) not in page] == []
