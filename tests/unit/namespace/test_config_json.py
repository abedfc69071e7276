"""Config.json: the emulator's own form is read, anything else is refused with its place and a way out."""

import json
from pathlib import Path
from typing import Any

import pytest

from partibus.filters.model import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.namespace.config_document import SIZE_MAX_BYTES, ConfigError
from partibus.namespace.config_json import Config, parse_config_json, read_config_json
from partibus.namespace.entities import EntityOptions, EntityStatus

QUEUES = "$.UserConfig.Namespaces[0].Queues"
TOPICS = "$.UserConfig.Namespaces[0].Topics"

EMULATOR_QUEUE = {
    "Name": "queue.1",
    "Properties": {
        "DeadLetteringOnMessageExpiration": False,
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "ForwardDeadLetteredMessagesTo": "",
        "ForwardTo": "",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 3,
        "RequiresDuplicateDetection": False,
        "RequiresSession": False,
    },
}


def emulator_topic() -> dict[str, Any]:
    return {
        "Name": "topic.1",
        "Properties": {
            "DefaultMessageTimeToLive": "PT1H",
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "RequiresDuplicateDetection": False,
        },
        "Subscriptions": [
            {
                "Name": "subscription.1",
                "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3, "RequiresSession": False},
                "Rules": [
                    {
                        "Name": "app-prop-filter-1",
                        "Properties": {
                            "FilterType": "Correlation",
                            "CorrelationFilter": {"ContentType": "application/json", "Properties": {"prop1": "value1"}},
                        },
                    },
                    {
                        "Name": "sql-filter",
                        "Properties": {
                            "FilterType": "Sql",
                            "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                            "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                        },
                    },
                ],
            }
        ],
    }


def document(queues: object = (), topics: object = (), **user_config: object) -> bytes:
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    return json.dumps({"UserConfig": {"Namespaces": [namespace], **user_config}}).encode()


def problems(text: bytes) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config_json(text)
    assert all(str(problem) in str(caught.value) for problem in caught.value.problems)
    return {problem.path: problem.text for problem in caught.value.problems}


def queue_problems(**properties: object) -> dict[str, str]:
    found = problems(document([{"Name": "q", "Properties": properties}]))
    return {path.removeprefix(f"{QUEUES}[0].Properties."): text for path, text in found.items()}


def topic_problems(topic: dict[str, Any]) -> dict[str, str]:
    """Return problems by paths below the topic."""
    found = problems(document(topics=[topic]))
    return {path.removeprefix(f"{TOPICS}[0]."): text for path, text in found.items()}


def test_the_form_of_the_emulator_is_read(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_bytes(b"\xef\xbb\xbf" + document([EMULATOR_QUEUE, {"Name": "q2"}], Logging={"Type": "File"}))
    config = read_config_json(file)
    assert (config.file, config.namespace_name) == (str(file), "sbemulatorns")
    first, second = config.queues
    assert (first.path, first.description.name) == (f"{QUEUES}[0]", "queue.1")
    assert first.description.options == EntityOptions(
        default_ttl_ms=3_600_000, duplicate_detection_window_ms=20_000, max_delivery_count=3
    )
    assert (second.path, second.description.options) == (f"{QUEUES}[1]", EntityOptions())


@pytest.mark.row("P25")
def test_properties_of_the_service_extend_it() -> None:
    properties = {
        "EnablePartitioning": True,
        "EnableBatchedOperations": False,
        "EnableExpress": False,
        "MaxSizeInMegabytes": 5120,
        "AutoDeleteOnIdle": "PT10M",
        "RequiresSession": True,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT1M",
        "PartibusRedeliveryDelay": "PT0S",
        "Status": "ReceiveDisabled",
        "UserMetadata": "m",
        "MaxMessageSizeInKilobytes": 512,
    }
    config = parse_config_json(document([{"Name": "q", "Properties": properties}]))
    assert config.queues[0].description.options == EntityOptions(
        partitioned=True,
        batched_operations=False,
        max_size_mb=5120,
        auto_delete_on_idle_ms=600_000,
        requires_session=True,
        requires_duplicate_detection=True,
        duplicate_detection_window_ms=60_000,
        status=EntityStatus.RECEIVE_DISABLED,
        user_metadata="m",
        max_message_size_kb=512,
    )


def test_queues_topics_and_logging_may_be_left_out() -> None:
    text = b'{"UserConfig": {"Namespaces": [{"Name": "ns"}]}}'
    assert parse_config_json(text, "f") == Config("f", "ns", ())


def test_a_misspelt_property_is_named_with_what_was_meant() -> None:
    found = queue_problems(LockDuraton="PT1M")
    assert list(found) == ["LockDuraton"]
    assert "is unknown; known here: LockDuration, MaxDeliveryCount" in found["LockDuraton"]
    assert found["LockDuraton"].endswith("Did you mean LockDuration?")


def test_a_wrong_value_is_named_with_what_is_allowed() -> None:
    assert queue_problems(LockDuration="PT1H", MaxDeliveryCount="3") == {
        "LockDuration": "LockDuration is 'PT1H', but must be a duration from 5 s to 5 min (PT5S to PT5M).",
        "MaxDeliveryCount": "MaxDeliveryCount is '3', but must be an integer from 1 to 2147483647.",
    }


def test_properties_that_do_not_go_together_are_named() -> None:
    found = queue_problems(RequiresSession=True, PartibusRedeliveryDelay="PT5S", LockDuration="PT1S")
    assert list(found) == ["LockDuration", "PartibusRedeliveryDelay"]
    assert "must be PT0S where RequiresSession is true" in found["PartibusRedeliveryDelay"]


def test_all_problems_are_told_together() -> None:
    text = json.dumps(
        {
            "UserConfig": {
                "Namespaces": [
                    {
                        "Name": "n s",
                        "Queues": [{"Name": "q", "Properties": {"LockDuration": 5}}, {"name": "q"}, 7],
                        "Topic": [],
                    }
                ],
                "Logging": {"Type": "Syslog"},
            },
            "x y": 1,
        }
    ).encode()
    found = problems(text)
    assert set(found) == {
        '$["x y"]',
        "$.UserConfig.Logging.Type",
        "$.UserConfig.Namespaces[0].Name",
        "$.UserConfig.Namespaces[0].Topic",
        f"{QUEUES}[0].Properties.LockDuration",
        f"{QUEUES}[1]",
        f"{QUEUES}[1].name",
        f"{QUEUES}[2]",
    }
    assert (
        found["$.UserConfig.Logging.Type"]
        == "is 'Syslog', but must be one of File, Console, File,Console, Console,File."
    )
    assert found[f"{QUEUES}[1]"] == "Name is missing; add it"
    assert found[f"{QUEUES}[1].name"].endswith("Did you mean Name?")
    assert found[f"{QUEUES}[2]"] == "is 7, but must be an object {…}."
    assert found["$.UserConfig.Namespaces[0].Topic"].endswith("Did you mean Topics?")


def test_names_are_given_once_among_queues_and_topics() -> None:
    found = problems(document([{"Name": "Orders"}, {"Name": "orders"}], [{"Name": "ORDERS"}]))
    again = f"is already the name at {QUEUES}[0].Name (names compare without case); rename one"
    assert found == {f"{QUEUES}[1].Name": f"'orders' {again}", f"{TOPICS}[0].Name": f"'ORDERS' {again}"}


def test_a_bad_entity_name_is_refused() -> None:
    assert "'rules' is reserved" in problems(document([{"Name": "a/rules"}]))[f"{QUEUES}[0].Name"]


def test_a_member_given_twice_is_refused() -> None:
    text = b'{"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": [{"Name": "a", "Name": "b"}]}]}}'
    assert problems(text) == {f"{QUEUES}[0].Name": "is there more than once; keep one"}


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (b'{\n  "UserConfig": {,}\n}', "line 2, column 18", "is no JSON: "),
        (b"", "line 1, column 1", "is no JSON: "),
        (b'{"a": "\xff"}', "line 1, column 8", "not UTF-8"),
        (b'{"a": 1}\n\xff', "line 2, column 1", "not UTF-8"),
        (b"[" * 200_000, "$", "nested too deeply"),
        (b'{"UserConfig": NaN}', "$", "NaN is no JSON number"),
        (b" " * (SIZE_MAX_BYTES + 1), "$", "Split it"),
        (b"[]", "$", "must be an object"),
        (b"{}", "$", "UserConfig is missing"),
        (b'{"UserConfig": null}', "$.UserConfig", "must be an object"),
        (b'{"UserConfig": {}}', "$.UserConfig", "Namespaces is missing"),
        (b'{"UserConfig": {"Namespaces": {}}}', "$.UserConfig.Namespaces", "must be an array"),
        (b'{"UserConfig": {"Namespaces": []}}', "$.UserConfig.Namespaces", "must have a namespace"),
    ],
)
def test_what_has_another_form_is_refused_with_its_place(text: bytes, path: str, words: str) -> None:
    assert words in problems(text)[path]


def test_a_number_of_a_million_digits_is_refused_like_any_other() -> None:
    text = document([{"Name": "q", "Properties": {"MaxDeliveryCount": 777}}]).replace(b"777", b"7" * 1_000_000)
    assert "must be an integer" in problems(text)[f"{QUEUES}[0].Properties.MaxDeliveryCount"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json is refused.*\n.*No such file"):
        read_config_json(tmp_path / "nothing.json")


def test_the_topics_of_the_emulator_are_read() -> None:
    topic = emulator_topic()
    topic["Subscriptions"].append({"Name": "everything"})
    (read,) = parse_config_json(document(topics=[topic])).topics
    assert (read.path, read.description.name) == (f"{TOPICS}[0]", "topic.1")
    assert read.description.options == EntityOptions(default_ttl_ms=3_600_000, duplicate_detection_window_ms=20_000)
    filtered, everything = read.subscriptions
    assert filtered.description.name == "topic.1/Subscriptions/subscription.1"
    assert filtered.description.options == EntityOptions(max_delivery_count=3)
    assert filtered.rules == (
        Rule("app-prop-filter-1", CorrelationFilter(content_type="application/json", properties={"prop1": "value1"})),
        Rule(
            "sql-filter",
            SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'"),
            SqlAction("SET sys.To = 'Entity'"),
        ),
    )
    assert everything.rules == (Rule("$Default", TrueFilter()),)


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a ="}}, "SqlFilter"),
        (
            {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}, "Action": {"SqlExpression": "SET"}},
            "Action",
        ),
    ],
)
def test_what_is_no_sql_is_refused_with_its_place(properties: dict[str, object], path: str) -> None:
    topic = emulator_topic()
    topic["Subscriptions"][0]["Rules"] = [{"Name": "r", "Properties": properties}]
    (problem,) = topic_problems(topic).items()
    assert problem[0] == f"Subscriptions[0].Rules[0].Properties.{path}.SqlExpression"
    assert "column" in problem[1] or "character" in problem[1]


def test_topics_are_checked_as_strictly_as_queues() -> None:
    topic = emulator_topic()
    topic["Properties"]["LockDuration"] = "PT1M"
    subscription = topic["Subscriptions"][0]
    subscription["Properties"]["MaxDeliveryCount"] = 0
    subscription["Propertys"] = {}
    topic["Subscriptions"].append({"Name": "Subscription.1"})
    found = topic_problems(topic)
    assert found.keys() == {
        "Properties.LockDuration",
        "Subscriptions[0].Propertys",
        "Subscriptions[0].Properties.MaxDeliveryCount",
        "Subscriptions[1].Name",
    }
    assert "must be an integer from 1" in found["Subscriptions[0].Properties.MaxDeliveryCount"]


@pytest.mark.parametrize(
    ("properties", "path", "words"),
    [
        ({"FilterType": "Sqll", "SqlFilter": {"SqlExpression": "1=1"}}, ".FilterType", "Did you mean Sql?"),
        ({"SqlFilter": {"SqlExpression": "1=1"}}, "", "FilterType is missing"),
        ({"FilterType": "Sql"}, "", "SqlFilter is missing; FilterType Sql needs it"),
        ({"FilterType": "Sql", "SqlFilter": {}}, ".SqlFilter", "SqlExpression is missing"),
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": 1}}, ".SqlFilter.SqlExpression", "must be text"),
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "x" * 1025}}, ".SqlFilter.SqlExpression", "1024"),
        (
            {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}, "CorrelationFilter": {"To": "x"}},
            ".CorrelationFilter",
            "does not go with FilterType Sql",
        ),
        ({"FilterType": "Correlation", "CorrelationFilter": {}}, ".CorrelationFilter", "is empty"),
        ({"FilterType": "Correlation", "CorrelationFilter": {"Labl": "x"}}, ".CorrelationFilter.Labl", "mean Label?"),
        ({"FilterType": "Correlation", "CorrelationFilter": {"To": 1}}, ".CorrelationFilter.To", "must be text"),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a b": []}}},
            '.CorrelationFilter.Properties["a b"]',
            "must be text, a number, true or false",
        ),
        (
            {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}, "Action": {"Sql": "SET a = 1"}},
            ".Action.Sql",
            "SqlExpression",
        ),
    ],
)
def test_rules_are_checked(properties: dict[str, object], path: str, words: str) -> None:
    topic = emulator_topic()
    topic["Subscriptions"][0]["Rules"] = [{"Name": "r", "Properties": properties}]
    assert words in topic_problems(topic)[f"Subscriptions[0].Rules[0].Properties{path}"]


def test_rule_names_are_given_once_per_subscription() -> None:
    topic = emulator_topic()
    rule = topic["Subscriptions"][0]["Rules"][0]
    topic["Subscriptions"][0]["Rules"] = [rule, rule]
    assert list(topic_problems(topic)) == ["Subscriptions[0].Rules[1].Name"]
