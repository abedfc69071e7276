"""Requests and answers in both protocols."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import REQUEST_ERRORS, PartibusError
from partibus.frontends.sqs.actions import ACTIONS
from partibus.frontends.sqs.errors import _CODES, FORMS, SqsError, no_such_queue, of_core
from partibus.frontends.sqs.protocol import Parsed, Request, answer_to, parse, refusal_of
from partibus.frontends.sqs.shapes import SHAPES
from partibus.frontends.sqs.web import speaks_sqs
from partibus.frontends.sqs.wire_json import VALUES_MAX, read_json
from partibus.frontends.sqs.wire_query import NAMESPACE, PARAMETERS_MAX, escaped, parse_parameters

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
JSON = {"content-type": "application/x-amz-json-1.0"}


def by_query(action: str, parameters: Mapping[str, str], path: str = "/") -> Parsed:
    body = urlencode({"Action": action, "Version": "2012-11-05", **parameters}).encode()
    return parse(Request("POST", path, "", FORM, body, None))


def by_json(action: str, document: object) -> Parsed:
    headers = JSON | {"x-amz-target": f"AmazonSQS.{action}"}
    return parse(Request("POST", "/", "", headers, json.dumps(document).encode(), None))


def test_every_action_has_a_shape_and_a_handler() -> None:
    assert set(SHAPES) == set(ACTIONS)
    assert len(SHAPES) == 23


PAIRS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("DeleteQueue", {"QueueUrl": "http://h/1/q"}, {"QueueUrl": "http://h/1/q"}),
    (
        "CreateQueue",
        {"QueueName": "q", "Attributes": {"DelaySeconds": "1", "Policy": ""}, "tags": {"k": "v"}},
        {
            "QueueName": "q",
            "Attribute.1.Name": "DelaySeconds",
            "Attribute.1.Value": "1",
            "Attribute.2.Name": "Policy",
            "Attribute.2.Value": "",
            "Tag.1.Key": "k",
            "Tag.1.Value": "v",
        },
    ),
    (
        "SendMessage",
        {
            "QueueUrl": "u",
            "MessageBody": 'é "x"\r\n+&=%',
            "DelaySeconds": 3,
            "MessageAttributes": {
                "a": {"DataType": "String", "StringValue": "s"},
                "b": {"DataType": "Binary", "BinaryValue": "AAE="},
            },
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "t"}},
        },
        {
            "QueueUrl": "u",
            "MessageBody": 'é "x"\r\n+&=%',
            "DelaySeconds": "3",
            "MessageAttribute.1.Name": "a",
            "MessageAttribute.1.Value.DataType": "String",
            "MessageAttribute.1.Value.StringValue": "s",
            "MessageAttributes.2.Name": "b",
            "MessageAttributes.2.Value.DataType": "Binary",
            "MessageAttributes.2.Value.BinaryValue": "AAE=",
            "MessageSystemAttribute.1.Name": "AWSTraceHeader",
            "MessageSystemAttribute.1.Value.DataType": "String",
            "MessageSystemAttribute.1.Value.StringValue": "t",
        },
    ),
    (
        "ChangeMessageVisibilityBatch",
        {
            "QueueUrl": "u",
            "Entries": [
                {"Id": "x", "ReceiptHandle": "h", "VisibilityTimeout": 5},
                {"Id": "y", "ReceiptHandle": "i", "VisibilityTimeout": 6},
            ],
        },
        {
            "QueueUrl": "u",
            "ChangeMessageVisibilityBatchRequestEntry.1.Id": "x",
            "ChangeMessageVisibilityBatchRequestEntry.1.ReceiptHandle": "h",
            "ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeout": "5",
            "ChangeMessageVisibilityBatchRequestEntry.2.Id": "y",
            "ChangeMessageVisibilityBatchRequestEntry.2.ReceiptHandle": "i",
            "ChangeMessageVisibilityBatchRequestEntry.2.VisibilityTimeout": "6",
        },
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": "u", "AttributeNames": ["All"], "MessageAttributeNames": ["a", "b"], "MaxNumberOfMessages": 10},
        {
            "QueueUrl": "u",
            "AttributeName.1": "All",
            "MessageAttributeName.2": "b",
            "MessageAttributeName.1": "a",
            "MaxNumberOfMessages": "10",
        },
    ),
    (
        "AddPermission",
        {"QueueUrl": "u", "Label": "l", "AWSAccountIds": ["1"], "Actions": ["SendMessage"]},
        {"QueueUrl": "u", "Label": "l", "AWSAccountId.1": "1", "ActionName.1": "SendMessage"},
    ),
    ("UntagQueue", {"QueueUrl": "u", "TagKeys": ["a"]}, {"QueueUrl": "u", "TagKey.1": "a"}),
]


@pytest.mark.row("S13")
@pytest.mark.parametrize(("action", "document", "parameters"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_both_protocols_read_the_same(action: str, document: object, parameters: Mapping[str, str]) -> None:
    mine, theirs = by_json(action, document), by_query(action, parameters)
    assert mine.error is None
    assert theirs.error is None
    assert mine.members == theirs.members
    assert (mine.action, theirs.action) == (action, action)


def test_integers_may_be_texts_in_json() -> None:
    assert by_json("ListQueues", {"MaxResults": "5"}).members == {"MaxResults": 5}
    for wrong in (True, 1.5, "five", [1]):
        assert code_of(by_json("ListQueues", {"MaxResults": wrong})) == "SerializationException"


def test_null_and_unknown_members_are_left_out_in_json() -> None:
    entry: dict[str, object] = {"Id": "a", "MessageBody": "m", "DelaySeconds": None, "Other": [{}]}
    parsed = by_json("SendMessageBatch", {"QueueUrl": "q", "Entries": [entry], "Other": {}, "Third": None})
    assert parsed.members == {"QueueUrl": "q", "Entries": [{"Id": "a", "MessageBody": "m"}]}


def code_of(parsed: Parsed) -> str | None:
    return None if parsed.error is None else parsed.error.code


@pytest.mark.parametrize(
    ("action", "document"),
    [
        ("SendMessage", []),
        ("SendMessage", {"MessageBody": 1}),
        ("SendMessage", {"MessageAttributes": []}),
        ("SendMessage", {"MessageAttributes": {"a": "b"}}),
        ("SendMessage", {"MessageAttributes": {"a": {"DataType": 1}}}),
        ("SendMessage", {"MessageAttributes": {"a": {"BinaryValue": "*"}}}),
        ("SendMessageBatch", {"Entries": {}}),
        ("SendMessageBatch", {"Entries": ["x"]}),
        ("CreateQueue", {"Attributes": {"a": 1}}),
        ("ReceiveMessage", {"AttributeNames": "All"}),
        ("ReceiveMessage", {"AttributeNames": [1]}),
    ],
)
def test_wrong_types_are_refused(action: str, document: object) -> None:
    assert code_of(by_json(action, document)) == "SerializationException"


@pytest.mark.parametrize("body", [b"{", b'{"a":"\xff"}', b'"\\ud800"', b"[" * 100_000, b"nul"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    headers = JSON | {"x-amz-target": "AmazonSQS.ListQueues"}
    assert code_of(parse(Request("POST", "/", "", headers, body, None))) == "SerializationException"


def test_unknown_actions() -> None:
    assert code_of(by_json("Nothing", {})) == "UnknownOperationException"
    unknown = by_query("Nothing", {})
    assert unknown.error is not None
    assert (unknown.error.code, str(unknown.error)) == (
        "InvalidAction",
        "The action Nothing is not valid for this endpoint.",
    )
    assert code_of(by_query("ListQueues", {}, "/000000000000/q")) == "InvalidAction"
    assert code_of(by_query("GetQueueUrl", {"QueueName": "q"}, "/000000000000/q")) is None
    none = parse(Request("GET", "/000000000000/q", "", {}, b"", None))
    answer = refusal_of(none, none.error or no_such_queue(), "id")
    assert (answer.status, answer.body) == (404, b"<UnknownOperationException/>")


def test_the_parameter_wins_over_the_path() -> None:
    assert (by_query("PurgeQueue", {}, "/000000000000/q").members or {})["QueueUrl"] == "/000000000000/q"
    assert (by_query("PurgeQueue", {"QueueUrl": "u"}, "/000000000000/q").members or {})["QueueUrl"] == "u"


def test_a_form_may_be_a_url() -> None:
    query = "Action=SendMessage&MessageBody=a%20b+c&QueueUrl=u"
    assert parse(Request("GET", "/", query, {}, b"", None)).members == {"MessageBody": "a b c", "QueueUrl": "u"}


@given(st.binary(max_size=60) | st.text("%4gG1a+é", max_size=40).map(str.encode))
def test_escapes_are_read_as_the_standard_library_reads_them(raw: bytes) -> None:
    raw = raw.replace(b"&", b"").replace(b"=", b"")
    expected = unquote_to_bytes(raw.replace(b"+", b" "))
    try:
        found = parse_parameters(b"a=" + raw)["a"].encode()
    except SqsError:
        with pytest.raises(UnicodeDecodeError):
            expected.decode()
    else:
        assert found == expected


ERROR = SqsError("InvalidParameterValue", 'Value "x" & <y> is wrong.')


def test_an_error_in_json() -> None:
    answer = refusal_of(Parsed("SendMessage", True, {}), ERROR, "id")
    assert (answer.status, answer.query_error) == (400, "InvalidParameterValue;Sender")
    assert json.loads(answer.body) == {
        "__type": "com.amazon.coral.service#InvalidParameterValueException",
        "message": 'Value "x" & <y> is wrong.',
    }
    gone = refusal_of(Parsed("SendMessage", True, {}), no_such_queue(), "id")
    assert json.loads(gone.body)["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    assert gone.query_error == "AWS.SimpleQueueService.NonExistentQueue;Sender"


def test_an_error_in_xml() -> None:
    answer = refusal_of(Parsed("SendMessage", False, {}), no_such_queue(), "the-id")
    root = ElementTree.fromstring(answer.body)
    found = {element.tag.removeprefix(f"{{{NAMESPACE}}}"): element.text for element in root.iter()}
    assert root.tag == f"{{{NAMESPACE}}}ErrorResponse"
    assert found["Type"] == "Sender"
    assert found["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert found["Message"] == "The specified queue does not exist for this wsdl version."
    assert found["RequestId"] == "the-id"
    handle = SqsError("ReceiptHandleIsInvalid", "x")
    assert refusal_of(Parsed("DeleteMessage", False, {}), handle, "").status == 404
    assert refusal_of(Parsed("DeleteMessage", True, {}), handle, "").status == 400


def test_every_error_of_the_core_has_a_code() -> None:
    for kind in REQUEST_ERRORS:
        error = kind.__new__(kind)
        PartibusError.__init__(error, "text")
        assert of_core(error).code in FORMS
    assert set(_CODES.values()) <= set(FORMS)


MESSAGES = {
    "Messages": [
        {
            "MessageId": "1",
            "Body": 'a<b>&"\r\n',
            "Attributes": {"SenderId": "me"},
            "MessageAttributes": {"n": {"StringValue": "5", "DataType": "Number"}, "b": {"BinaryValue": b"\0"}},
        }
    ]
}


def test_an_answer_in_xml() -> None:
    answer = answer_to(Parsed("ReceiveMessage", False, {}), MESSAGES, "the-id")
    root = ElementTree.fromstring(answer.body)
    prefix = f"{{{NAMESPACE}}}"
    message = root.find(f"{prefix}ReceiveMessageResult/{prefix}Message")
    assert message is not None
    assert message.findtext(f"{prefix}Body") == 'a<b>&"\r\n'
    assert b"&#xD;" in answer.body
    assert b"&quot;" in answer.body
    assert message.findtext(f"{prefix}Attribute/{prefix}Name") == "SenderId"
    values = [value.text for value in message.findall(f"{prefix}MessageAttribute/{prefix}Value/*")]
    assert values == ["5", "Number", "AA=="]
    assert root.findtext(f"{prefix}ResponseMetadata/{prefix}RequestId") == "the-id"


def test_an_answer_in_json() -> None:
    answer = answer_to(Parsed("ReceiveMessage", True, {}), MESSAGES, "id")
    assert json.loads(answer.body)["Messages"][0]["MessageAttributes"]["b"] == {"BinaryValue": "AA=="}
    assert answer_to(Parsed("ReceiveMessage", True, {}), None, "id").body == b"{}"


def test_an_answer_without_output_has_no_result_and_an_empty_one_has() -> None:
    assert b"Result" not in answer_to(Parsed("DeleteMessage", False, {}), None, "id").body
    assert b"<ReceiveMessageResult/>" in answer_to(Parsed("ReceiveMessage", False, {}), None, "").body
    batch = answer_to(Parsed("DeleteMessageBatch", False, {}), {"Successful": [{"Id": "a"}]}, "").body
    assert b"<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>" in batch


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")))
def test_escaped_text_is_read_back(text: str) -> None:
    assert (ElementTree.fromstring(f"<a>{escaped(text)}</a>").text or "") == text


@given(st.binary(max_size=400), st.sampled_from([FORM, JSON | {"x-amz-target": "AmazonSQS.SendMessageBatch"}]))
def test_any_bytes_are_read_or_refused(body: bytes, headers: dict[str, str]) -> None:
    parsed = parse(Request("POST", "/", "", headers, body, None))
    assert parsed.error is not None or parsed.members is not None


@given(st.lists(st.tuples(st.text("A.1cdtionEr", max_size=12), st.text(max_size=5)), max_size=20))
def test_any_parameters_are_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    for action in ("SendMessageBatch", "CreateQueue", "ReceiveMessage"):
        body = urlencode([("Action", action), *pairs]).encode("utf-8", "replace")
        parsed = parse(Request("POST", "/", "", FORM, body, None))
        assert parsed.error is not None or parsed.members is not None


def test_bodies_of_too_many_values_are_refused_before_they_are_built() -> None:
    shape = SHAPES["ReceiveMessage"]
    many = b'{"AttributeNames":[' + b'"a",' * (VALUES_MAX + 1) + b'"a"]}'
    with pytest.raises(SqsError, match="values"):
        read_json(shape, many)
    text = b'{"QueueUrl":"' + b'\\",[{' * 100_000 + b'"}'
    assert read_json(shape, text) == {"QueueUrl": '",[{' * 100_000}
    assert code_of(parse(Request("POST", "/", "", FORM, b"a=1&" * PARAMETERS_MAX, None))) == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "expected"),
    [
        ("POST", "/", "", {"x-amz-target": "AmazonSQS.ListQueues"}, True),
        ("POST", "/any", "", {"authorization": "AWS4-HMAC-SHA256 Credential=x"}, True),
        ("GET", "/", "Action=ListQueues", {}, True),
        ("POST", "/000000000000/q", "", FORM, True),
        ("POST", "/", "", FORM, True),
        ("POST", "/portal/login", "", FORM, False),
        ("POST", "/orders/messages", "", FORM, False),
        ("GET", "/orders", "Action=ListQueues", {}, False),
        ("GET", "/", "", {}, False),
        ("PUT", "/orders", "api-version=2017-04", {"authorization": "SharedAccessSignature sr="}, False),
    ],
)
def test_the_http_port_knows_requests_of_sqs(
    method: str, path: str, query: str, headers: dict[str, str], *, expected: bool
) -> None:
    assert speaks_sqs(method, path, query, headers) is expected


@given(st.text())
def test_every_answer_in_xml_can_be_read(text: str) -> None:
    attribute = {"StringValue": text, "DataType": "String"}
    message = {"Body": text, "Attributes": {"AWSTraceHeader": text}, "MessageAttributes": {text: attribute}}
    answer = answer_to(Parsed("ReceiveMessage", False, {}), {"Messages": [message]}, "id")
    refusal = refusal_of(Parsed("ReceiveMessage", False, {}), SqsError("InvalidParameterValue", text), "id")
    for body in (answer.body, refusal.body):
        assert ElementTree.fromstring(body) is not None
    allowed = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    assert allowed in [element.text or "" for element in ElementTree.fromstring(answer.body).iter()]


def by_query_json(action: str, accept: str = "application/json") -> Parsed:
    query = f"Action={action}" if action else ""
    return parse(Request("GET", "/000000000000/q", query, {"accept": accept}, b"", None))


@pytest.mark.parametrize("accept", ["application/json", "text/plain, Application/JSON;q=0.9", "application/json, */*"])
def test_an_answer_of_the_query_protocol_is_json_for_a_client_that_accepts_it(accept: str) -> None:
    answer = answer_to(by_query_json("ReceiveMessage", accept), MESSAGES, "the-id")
    assert (answer.status, answer.content_type) == (200, "application/json")
    value = {"StringValue": "5", "DataType": "Number"}
    assert json.loads(answer.body) == {
        "ReceiveMessageResponse": {
            "ReceiveMessageResult": {
                "messages": [
                    {
                        "MessageId": "1",
                        "Body": 'a<b>&"\r\n',
                        "Attributes": [{"Name": "SenderId", "Value": "me"}],
                        "MD5OfMessageAttributes": None,
                        "MessageAttributes": [
                            {"Name": "n", "Value": value},
                            {"Name": "b", "Value": {"BinaryValue": "AA=="}},
                        ],
                    }
                ]
            },
            "ResponseMetadata": {"RequestId": "the-id"},
        }
    }


def test_an_answer_in_json_of_the_query_protocol_has_no_result_without_output_and_nulls_in_an_empty_one() -> None:
    assert json.loads(answer_to(by_query_json("DeleteMessage"), None, "i").body) == {
        "DeleteMessageResponse": {"ResponseMetadata": {"RequestId": "i"}}
    }
    results = {
        "ReceiveMessage": {"messages": None},
        "GetQueueAttributes": {"Attributes": None},
        "ListQueueTags": {"Tags": None},
    }
    for action, result in results.items():
        document = json.loads(answer_to(by_query_json(action), None, "i").body)
        assert document[f"{action}Response"][f"{action}Result"] == result
    urls = json.loads(answer_to(Parsed("ListQueues", False, {}, accepts_json=True), {"QueueUrls": ["u"]}, "i").body)
    assert urls["ListQueuesResponse"]["ListQueuesResult"] == {"NextToken": None, "queueUrls": ["u"]}
    tags = json.loads(answer_to(by_query_json("ListQueueTags"), {"Tags": {"k": "v"}}, "i").body)
    assert tags["ListQueueTagsResponse"]["ListQueueTagsResult"] == {"Tags": [{"Key": "k", "Value": "v"}]}


def test_a_refusal_of_the_query_protocol_in_json() -> None:
    refused = by_query_json("ListQueues")
    assert refused.error is not None
    answer = refusal_of(refused, refused.error, "the-id")
    assert (answer.status, answer.content_type) == (400, "application/json")
    assert json.loads(answer.body) == {
        "Error": {
            "Code": "InvalidAction",
            "Message": "The action ListQueues is not valid for this endpoint.",
            "Type": "Sender",
        },
        "RequestId": "the-id",
    }
    gone = json.loads(refusal_of(by_query_json("ReceiveMessage"), no_such_queue(), "i").body)
    assert gone["Error"]["Message"] == "The specified queue does not exist for this wsdl version."
    nameless = by_query_json("")
    assert nameless.error is not None
    answer = refusal_of(nameless, nameless.error, "i")
    assert (answer.status, answer.body) == (404, b"<UnknownOperationException/>")
    assert answer.content_type == "text/xml"


@pytest.mark.parametrize("accept", ["", "*/*", "text/xml", "application/jsonp", "application/x-amz-json-1.0"])
def test_an_answer_of_the_query_protocol_is_xml_for_other_clients(accept: str) -> None:
    answer = answer_to(by_query_json("ReceiveMessage", accept), MESSAGES, "i")
    assert answer.content_type == "text/xml"
    assert ElementTree.fromstring(answer.body) is not None


def test_the_only_pair_of_a_map_needs_no_number_in_the_query_protocol() -> None:
    given = {"QueueUrl": "u", "Attribute.Name": "VisibilityTimeout", "Attribute.Value": "35"}
    parsed = by_query("SetQueueAttributes", given)
    assert parsed.members == {"QueueUrl": "u", "Attributes": {"VisibilityTimeout": "35"}}
    parsed = by_query("TagQueue", {"QueueUrl": "u", "Tag.Key": "k", "Tag.Value": "v"})
    assert parsed.members == {"QueueUrl": "u", "Tags": {"k": "v"}}
    attribute = {"Name": "a", "Value.DataType": "String", "Value.StringValue": "s"}
    parsed = by_query("SendMessage", {f"MessageAttribute.{part}": text for part, text in attribute.items()})
    assert parsed.members == {"MessageAttributes": {"a": {"DataType": "String", "StringValue": "s"}}}


def test_a_pair_without_a_number_is_ignored_beside_numbered_ones() -> None:
    given = {"Attribute.Name": "DelaySeconds", "Attribute.Value": "1", "Attribute.1.Name": "Policy"}
    assert by_query("SetQueueAttributes", given).members == {"Attributes": {"Policy": ""}}
    entry = {"SendMessageBatchRequestEntry.Name": "a", "SendMessageBatchRequestEntry.Id": "b"}
    assert by_query("SendMessageBatch", entry).members == {}
