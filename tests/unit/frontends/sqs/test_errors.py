"""Refusals of all actions in both protocols: code, type, status, header and text, and that nothing has happened.

The tables are those of the service's documentation and of recorded answers, written down here apart from the product's.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from partibus.frontends.sqs.actions import ACTIONS
from partibus.frontends.sqs.attributes import SETTABLE
from partibus.frontends.sqs.errors import FORMS, SqsError
from partibus.frontends.sqs.protocol import Parsed, refusal_of
from partibus.frontends.sqs.shapes import SHAPES, Kind, Member
from partibus.namespace import access
from partibus.namespace.access import Right, SasPolicy
from partibus.partition.protocol.ports import StoreError
from tests.kit.sqs_requests import FORM, JSON, Signer, form_of
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import Reply, SqsWorld

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
SQS, CORAL = "com.amazonaws.sqs#", "com.amazon.coral.service#"
PREFIX = "AWS.SimpleQueueService."
NO_QUEUE = f"{PREFIX}NonExistentQueue"

DOCUMENTED: dict[str, tuple[str, int, int]] = {
    NO_QUEUE: (f"{SQS}QueueDoesNotExist", 400, 400),
    "QueueAlreadyExists": (f"{SQS}QueueNameExists", 400, 400),
    f"{PREFIX}QueueDeletedRecently": (f"{SQS}QueueDeletedRecently", 400, 400),
    f"{PREFIX}PurgeQueueInProgress": (f"{SQS}PurgeQueueInProgress", 403, 403),
    f"{PREFIX}EmptyBatchRequest": (f"{SQS}EmptyBatchRequest", 400, 400),
    f"{PREFIX}TooManyEntriesInBatchRequest": (f"{SQS}TooManyEntriesInBatchRequest", 400, 400),
    f"{PREFIX}BatchEntryIdsNotDistinct": (f"{SQS}BatchEntryIdsNotDistinct", 400, 400),
    f"{PREFIX}InvalidBatchEntryId": (f"{SQS}InvalidBatchEntryId", 400, 400),
    f"{PREFIX}BatchRequestTooLong": (f"{SQS}BatchRequestTooLong", 400, 400),
    f"{PREFIX}MessageNotInflight": (f"{SQS}MessageNotInflight", 400, 400),
    f"{PREFIX}UnsupportedOperation": (f"{SQS}UnsupportedOperation", 400, 400),
    "InvalidAttributeName": (f"{SQS}InvalidAttributeName", 400, 400),
    "InvalidAttributeValue": (f"{SQS}InvalidAttributeValue", 400, 400),
    "InvalidMessageContents": (f"{SQS}InvalidMessageContents", 400, 400),
    "InvalidAddress": (f"{SQS}InvalidAddress", 400, 400),
    "InvalidSecurity": (f"{SQS}InvalidSecurity", 400, 400),
    "ReceiptHandleIsInvalid": (f"{SQS}ReceiptHandleIsInvalid", 400, 404),
    "ResourceNotFoundException": (f"{SQS}ResourceNotFoundException", 404, 404),
    "OverLimit": (f"{SQS}OverLimit", 403, 403),
    "RequestThrottled": (f"{SQS}RequestThrottled", 403, 403),
    "InvalidParameterValue": (f"{CORAL}InvalidParameterValueException", 400, 400),
    "MissingParameter": (f"{CORAL}MissingRequiredParameterException", 400, 400),
    "AccessDenied": (f"{CORAL}AccessDeniedException", 403, 403),
    "InvalidAction": (f"{CORAL}InvalidAction", 400, 400),
    "UnknownOperationException": (f"{CORAL}UnknownOperationException", 400, 404),
    "SerializationException": (f"{CORAL}SerializationException", 400, 400),
    "InvalidClientTokenId": (f"{CORAL}InvalidClientTokenId", 403, 403),
    "MissingAuthenticationToken": (f"{CORAL}MissingAuthenticationToken", 403, 403),
    "IncompleteSignature": (f"{CORAL}IncompleteSignature", 400, 400),
    "RequestExpired": (f"{CORAL}RequestExpired", 400, 400),
    "SignatureDoesNotMatch": (f"{CORAL}SignatureDoesNotMatch", 403, 403),
    "ServiceUnavailable": (f"{CORAL}ServiceUnavailable", 503, 503),
    "InternalFailure": (f"{CORAL}InternalFailure", 500, 500),
}
"""Code of the Query protocol -> type in JSON, and the statuses in both protocols."""


@pytest.mark.parametrize("code", DOCUMENTED)
def test_a_code_has_its_documented_form_in_both_protocols(code: str) -> None:
    json_type, status, query_status = DOCUMENTED[code]
    fault = "Sender" if status < 500 else "Receiver"
    error = SqsError(code, 'the "text" & <more>')
    in_json = refusal_of(Parsed("SendMessage", True, {}), error, "the-id")
    assert (in_json.status, in_json.query_error) == (status, f"{code};{fault}")
    assert json.loads(in_json.body) == {"__type": json_type, "message": 'the "text" & <more>'}
    in_xml = refusal_of(Parsed("SendMessage", False, {}), error, "the-id")
    assert (in_xml.status, in_xml.query_error) == (query_status, f"{code};{fault}")
    if code != "UnknownOperationException":  # which has a document of its own
        assert shape_of(in_xml.body) == [
            ("ErrorResponse", None),
            ("Error", None),
            ("Type", fault),
            ("Code", code),
            ("Message", 'the "text" & <more>'),
            ("Detail", None),
            ("RequestId", "the-id"),
        ]


def shape_of(body: bytes) -> list[tuple[str, str | None]]:
    return [(element.tag.removeprefix(NAMESPACE), element.text) for element in ElementTree.fromstring(body).iter()]


def test_no_code_is_undocumented() -> None:
    assert set(FORMS) == set(DOCUMENTED)


# -- a broker with a few queues ----------------------------------------------------------------------------------------

URL = "http://127.0.0.1:9324/000000000000/{}"
Q, FIFO, CONTENT, DEAD, GONE = (URL.format(name) for name in ("q", "f.fifo", "c.fifo", "dead", "gone"))
ARN = "arn:aws:sqs:us-east-1:000000000000:{}"
SMALL = 1_024
"""MaximumMessageSize of the queue ``q``."""
MIB = 1_048_576


@pytest.fixture
def sqs(world: World) -> SqsWorld:
    sqs = SqsWorld(world)
    for name, attributes in {
        "dead": {},
        "q": {
            "MaximumMessageSize": str(SMALL),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN.format("dead"), "maxReceiveCount": 5}),
        },
        "f.fifo": {"FifoQueue": "true"},
        "c.fifo": {"FifoQueue": "true", "ContentBasedDeduplication": "true"},
        "closed": {"RedriveAllowPolicy": '{"redrivePermission":"denyAll"}'},
        "large": {},
    }.items():
        sqs.call("CreateQueue", QueueName=name, Attributes=attributes, tags={"kept": "yes"})
    sqs.call("AddPermission", QueueUrl=Q, Label="known", AWSAccountIds=["000000000001"], Actions=["SendMessage"])
    sqs.call("SendMessage", QueueUrl=Q, MessageBody="kept")
    sqs.call("SendMessage", QueueUrl=FIFO, MessageBody="kept", MessageGroupId="g", MessageDeduplicationId="kept")
    world.access.follow("other", [SasPolicy("other", Right.MANAGE, "other-key", "")])
    return sqs


def everything(sqs: SqsWorld) -> dict[str, Any]:
    """All that requests could have changed."""
    found: dict[str, Any] = {}
    for url in sqs.call("ListQueues")["QueueUrls"]:
        attributes = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        found[url] = (attributes, sqs.call("ListQueueTags", QueueUrl=url))
    return found


PROTOCOLS = pytest.mark.parametrize("protocol", ["json", "query"])


def request(signer: Signer, protocol: str, action: str, members: Mapping[str, Any]) -> bytes:
    return signer.request(action, members) if protocol == "json" else signer.form(action, members)


def assert_refused(reply: Reply, code: str, protocol: str, text: str | None = None) -> str:
    """Check all of a refusal but its words; return these."""
    json_type, status, query_status = DOCUMENTED[code]
    fault = "Sender" if status < 500 else "Receiver"
    shown = reply.body.decode()
    assert reply.headers.get("x-amzn-query-error") == f"{code};{fault}", shown
    assert len(reply.headers["x-amzn-requestid"]) == 36
    if protocol == "json":
        assert (reply.status, reply.headers["content-type"]) == (status, JSON)
        assert reply.members.keys() == {"__type", "message"}
        assert reply.members["__type"] == json_type
        said = str(reply.members["message"])
    else:
        assert (reply.status, reply.headers["content-type"]) == (query_status, "text/xml")
        names = [name for name, _ in shape_of(reply.body)]
        assert names == ["ErrorResponse", "Error", "Type", "Code", "Message", "Detail", "RequestId"]
        error = reply.error
        assert (error["Type"], error["Code"], error["RequestId"]) == (fault, code, reply.headers["x-amzn-requestid"])
        said = error["Message"]
    assert said
    if text is not None:
        assert text in said
    return said


# -- what any action may meet ------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {
    "AddPermission": {"QueueUrl": Q, "Label": "l", "AWSAccountIds": ["000000000001"], "Actions": ["SendMessage"]},
    "CancelMessageMoveTask": {"TaskHandle": "eyJ0YXNrSWQiOiJ4Iiwic291cmNlQXJuIjoieSJ9"},
    "ChangeMessageVisibility": {"QueueUrl": Q, "ReceiptHandle": "x", "VisibilityTimeout": 5},
    "ChangeMessageVisibilityBatch": {
        "QueueUrl": Q,
        "Entries": [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 5}],
    },
    "CreateQueue": {"QueueName": "new"},
    "DeleteMessage": {"QueueUrl": Q, "ReceiptHandle": "x"},
    "DeleteMessageBatch": {"QueueUrl": Q, "Entries": [{"Id": "a", "ReceiptHandle": "x"}]},
    "DeleteQueue": {"QueueUrl": Q},
    "GetQueueAttributes": {"QueueUrl": Q, "AttributeNames": ["All"]},
    "GetQueueUrl": {"QueueName": "q"},
    "ListDeadLetterSourceQueues": {"QueueUrl": Q},
    "ListMessageMoveTasks": {"SourceArn": ARN.format("dead")},
    "ListQueues": {},
    "ListQueueTags": {"QueueUrl": Q},
    "PurgeQueue": {"QueueUrl": Q},
    "ReceiveMessage": {"QueueUrl": Q},
    "RemovePermission": {"QueueUrl": Q, "Label": "known"},
    "SendMessage": {"QueueUrl": Q, "MessageBody": "m"},
    "SendMessageBatch": {"QueueUrl": Q, "Entries": [{"Id": "a", "MessageBody": "m"}]},
    "SetQueueAttributes": {"QueueUrl": Q, "Attributes": {"DelaySeconds": "5"}},
    "StartMessageMoveTask": {"SourceArn": ARN.format("dead")},
    "TagQueue": {"QueueUrl": Q, "Tags": {"a": "b"}},
    "UntagQueue": {"QueueUrl": Q, "TagKeys": ["kept"]},
}
"""Members with which each action would change something, or answer."""
EVERY = pytest.mark.parametrize("action", sorted(GOOD))
ON_QUEUE = pytest.mark.parametrize("action", sorted(name for name, members in GOOD.items() if "QueueUrl" in members))


def test_the_table_has_every_action() -> None:
    assert set(GOOD) == set(ACTIONS) == set(SHAPES)
    assert len(GOOD) == 23


def unsigned(protocol: str, action: str, members: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    if protocol == "json":
        body, kind = json.dumps(members).encode(), JSON
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", **headers}
    else:
        body, kind = b"&".join(f"{k}={v}".encode() for k, v in form_of(action, members).items()), FORM
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@PROTOCOLS
def test_policy_of_the_named_queue_signs_however_many_queues_have_one(
    sqs: SqsWorld, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that names no queue is only compared with the first of them."""
    monkeypatch.setattr(access, "SIGNERS_MAX", 1)
    for name in ("many-0", "many-1"):
        sqs.call("CreateQueue", QueueName=name)
        sqs.world.access.follow(name, [SasPolicy("reader", Right.LISTEN, f"{name}-key", "")])
    second = sqs.signer_of("reader", key="many-1-key")
    url = {"QueueUrl": "http://h/000000000000/many-1"}
    assert sqs.ask(request(second, protocol, "ReceiveMessage", url)).status == 200
    assert_refused(sqs.ask(request(second, protocol, "PurgeQueue", url)), "AccessDenied", protocol)
    assert_refused(sqs.ask(request(second, protocol, "ListQueues", {})), "SignatureDoesNotMatch", protocol)
    first = sqs.signer_of("reader", key="many-0-key")
    assert sqs.ask(request(first, protocol, "ListQueues", {})).status == 200
    assert_refused(sqs.ask(request(first, protocol, "ReceiveMessage", url)), "SignatureDoesNotMatch", protocol)


@PROTOCOLS
@EVERY
def test_no_action_is_carried_out_without_a_good_signature(sqs: SqsWorld, action: str, protocol: str) -> None:
    members = GOOD[action]
    before = everything(sqs)

    def refused(raw: bytes, code: str, text: str | None = None) -> None:
        assert_refused(sqs.ask(raw), code, protocol, text)

    refused(unsigned(protocol, action, members, {}), "MissingAuthenticationToken")
    refused(unsigned(protocol, action, members, {"Authorization": "Bearer x"}), "IncompleteSignature")
    refused(request(sqs.signer, protocol, action, members).replace(b", Signature=", b", Sig="), "IncompleteSignature")
    refused(request(sqs.signer_of("stranger"), protocol, action, members), "InvalidClientTokenId")
    refused(request(sqs.signer_of("root", key="wrong"), protocol, action, members), "SignatureDoesNotMatch")
    for off_s in (-901, 901):
        refused(request(sqs.signer_of("root", off_s=off_s), protocol, action, members), "RequestExpired", "15 minutes")
    if protocol == "query":
        refused(sqs.signer_of("root", off_s=-61).presigned(action, members, expires_s=60), "RequestExpired")
        refused(sqs.signer_of("root", off_s=901).presigned(action, members, expires_s=9_999), "RequestExpired")
        refused(sqs.signer_of("root", key="w").presigned(action, members, expires_s=60), "SignatureDoesNotMatch")
        refused(sqs.signer.presigned(action, members, expires_s=604_801), "IncompleteSignature", "X-Amz-Expires")
    assert everything(sqs) == before


@PROTOCOLS
@EVERY
def test_a_body_that_was_not_signed_is_refused(sqs: SqsWorld, action: str, protocol: str) -> None:
    before = everything(sqs)
    raw = request(sqs.signer, protocol, action, GOOD[action])
    head, _, body = raw.partition(b"\r\n\r\n")
    changed = body.replace(b'"', b"'", 1) if protocol == "json" else body.replace(b"2012", b"2013")
    if changed != body:
        assert_refused(sqs.ask(head + b"\r\n\r\n" + changed), "SignatureDoesNotMatch", protocol)
    assert everything(sqs) == before


@EVERY
def test_a_presigned_url_works_until_it_expires(sqs: SqsWorld, action: str) -> None:
    """The request is carried out, or refused for a reason of its own."""
    reply = sqs.ask(sqs.signer_of("root", off_s=-59).presigned(action, GOOD[action], expires_s=60), 25_000)
    own = {
        "CancelMessageMoveTask": "ResourceNotFoundException",
        "ChangeMessageVisibility": "ReceiptHandleIsInvalid",
        "DeleteMessage": "ReceiptHandleIsInvalid",
    }
    if action in own:
        assert_refused(reply, own[action], "query")
    else:
        assert reply.status == 200, reply.body
        assert shape_of(reply.body)[0][0] == f"{action}Response"


@PROTOCOLS
@ON_QUEUE
def test_a_queue_that_is_not_there(sqs: SqsWorld, action: str, protocol: str) -> None:
    text = "The specified queue does not exist" + ("." if protocol == "json" else " for this wsdl version.")
    before = everything(sqs)
    for url in (GONE, "gone", "/000000000000/gone", "http://[/q", "", "http://h/000000000000/Q", "/" * 3_000):
        reply = sqs.ask(request(sqs.signer, protocol, action, {**GOOD[action], "QueueUrl": url}))
        if url:
            assert assert_refused(reply, NO_QUEUE, protocol) == text
        else:
            assert_refused(reply, "MissingParameter", protocol, "The request must contain the parameter QueueUrl.")
    without = {name: value for name, value in GOOD[action].items() if name != "QueueUrl"}
    assert_refused(sqs.ask(request(sqs.signer, protocol, action, without)), "MissingParameter", protocol)
    # The queues of one region are not those of another, whatever the signature is good for.
    elsewhere = sqs.signer_of("root", region="eu-west-1")
    assert_refused(sqs.ask(request(elsewhere, protocol, action, GOOD[action])), NO_QUEUE, protocol)
    assert everything(sqs) == before


@PROTOCOLS
def test_a_region_that_can_be_none_is_refused(sqs: SqsWorld, protocol: str) -> None:
    reply = sqs.ask(request(sqs.signer_of("root", region="EU*"), protocol, "ListQueues", {}))
    assert_refused(reply, "SignatureDoesNotMatch", protocol, "valid region")


NEEDS: dict[str, str] = {
    **dict.fromkeys(("SendMessage", "SendMessageBatch"), "Send"),
    **dict.fromkeys(
        (
            "ReceiveMessage",
            "DeleteMessage",
            "DeleteMessageBatch",
            "ChangeMessageVisibility",
            "ChangeMessageVisibilityBatch",
        ),
        "Listen",
    ),
    **dict.fromkeys(("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListQueueTags"), "any"),
    "ListQueues": "none",
    "CancelMessageMoveTask": "after the handle",
}
"""The right that an action needs on its queue; Manage for all others."""


@PROTOCOLS
@EVERY
def test_a_right_that_is_lacking(sqs: SqsWorld, action: str, protocol: str) -> None:
    need = NEEDS.get(action, "Manage")
    before = everything(sqs)
    lacking = {
        "Send": ["listener", "other"],
        "Listen": ["sender", "other"],
        "any": ["other"],
        "Manage": ["sender", "listener", "other"],
    }
    members = GOOD[action]
    if need == "after the handle":
        started = sqs.call("StartMessageMoveTask", SourceArn=ARN.format("dead"))
        members, need, before = {"TaskHandle": started["TaskHandle"]}, "Manage", everything(sqs)
    for policy in lacking.get(need, []):
        reply = sqs.ask(request(sqs.signer_of(policy), protocol, action, members))
        assert_refused(reply, "AccessDenied", protocol, f"does not allow {action}")
    assert everything(sqs) == before


@PROTOCOLS
def test_a_key_of_one_queue_sees_no_other(sqs: SqsWorld, protocol: str) -> None:
    sqs.call(
        "CreateQueue",
        QueueName="other",
        Attributes={"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN.format("dead"), "maxReceiveCount": 5})},
    )
    sqs.world.access.follow("other", [SasPolicy("other", Right.MANAGE, "other-key", "")])
    reply = sqs.ask(request(sqs.signer_of("other"), protocol, "ListQueues", {}))
    assert reply.status == 200, reply.body
    assert b"/000000000000/other" in reply.body
    assert b"/000000000000/q" not in reply.body
    assert b"dead" not in reply.body


@PROTOCOLS
@EVERY
def test_members_of_a_wrong_type(sqs: SqsWorld, action: str, protocol: str) -> None:
    """Use wrong numbers only: in the Query protocol everything else is a text."""
    before = everything(sqs)
    for member in SHAPES[action].members:
        if protocol == "json":
            number: list[object] = [] if member.kind is Kind.INTEGER else [5]
            for wrong in (*number, True, ["x", 1], {"a": 1}, [{"Id": 5}]):
                reply = sqs.ask(request(sqs.signer, protocol, action, {**GOOD[action], member.name: wrong}))
                assert_refused(reply, "SerializationException", protocol, "must be")
        elif member.kind is Kind.INTEGER:
            for text in ("five", "1.5", "9" * 30, ""):
                reply = sqs.ask(request(sqs.signer, protocol, action, {**GOOD[action], member.name: text}))
                assert_refused(reply, "InvalidParameterValue", protocol, f"for parameter {member.name} is invalid")
    if protocol == "json":
        for body in (b"", b"[]", b"{", b"5", b'{"QueueUrl"', b"\xff"):
            reply = sqs.ask(sqs.signer.signed(body, JSON, f"AmazonSQS.{action}"), 25_000)
            if body or action != "ListQueues":
                assert_refused(reply, "SerializationException" if body else "MissingParameter", protocol)
    assert everything(sqs) == before


def test_actions_that_do_not_exist(sqs: SqsWorld) -> None:
    for target in ("AmazonSQS.Nothing", "AmazonSQS.", "Nothing", "AmazonSNS.SendMessage", "AmazonSQS.sendmessage"):
        reply = sqs.ask(sqs.signer.signed(b"{}", JSON, target))
        assert_refused(reply, "UnknownOperationException", "json")
    reply = sqs.ask(sqs.signer.form("Nothing", {}))
    assert assert_refused(reply, "InvalidAction", "query") == "The action Nothing is not valid for this endpoint."
    for action in ("ListQueues", "CreateQueue"):
        reply = sqs.ask(sqs.signer.form(action, {"QueueName": "new"}, "/000000000000/q"))
        assert_refused(reply, "InvalidAction", "query", f"The action {action} is not valid")
    none = sqs.ask(sqs.signer.signed(b"Version=2012-11-05", FORM, "", "/000000000000/q"))
    assert (none.status, none.body) == (404, b"<UnknownOperationException/>")


# -- what each action may meet -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    action: str
    members: dict[str, Any]
    code: str
    text: str = ""


INVALID, MISSING = "InvalidParameterValue", "MissingParameter"
RANGE = "must be an integer between"
ATTRIBUTES_11 = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}
POLICY = json.dumps({"deadLetterTargetArn": ARN.format("dead"), "maxReceiveCount": 1})


def attribute(name: str, data_type: str | None = "String", value: str | None = "x", **more: Any) -> dict[str, Any]:
    parts = {"DataType": data_type, "StringValue": value, **more}
    return {"MessageAttributes": {name: {key: part for key, part in parts.items() if part is not None}}}


def redrive(**policy: Any) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps(policy)}


def _cases() -> Iterator[Case]:
    yield from _permissions()
    yield from _queues()
    yield from _lists()
    yield from _tags()
    yield from _sends()
    yield from _receives()
    yield from _handles()
    yield from _tasks()


def _permissions() -> Iterator[Case]:
    good = GOOD["AddPermission"]
    for name in ("Label", "Actions"):
        without = {key: value for key, value in good.items() if key != name}
        yield Case("AddPermission", without, MISSING, f"The request must contain the parameter {name}.")
    nobody = "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify."
    yield Case("AddPermission", good | {"AWSAccountIds": []}, INVALID, nobody)
    for label in ("a b", "x" * 81, "é"):
        yield Case("AddPermission", good | {"Label": label}, INVALID, f"Value {label} for parameter Label is invalid.")
    yield Case("AddPermission", good | {"Label": "known"}, INVALID, "Already exists.")
    for account in ("1", "00000000000x", "9" * 13):
        yield Case("AddPermission", good | {"AWSAccountIds": [account]}, INVALID, "Unable to verify.")
    for granted in ("SQS:SendMessage", "sendmessage", ""):
        yield Case(
            "AddPermission", good | {"Actions": [granted]}, INVALID, f"Value SQS:{granted} for parameter ActionName"
        )
    for granted in ("CreateQueue", "DeleteQueue"):
        owner = "is invalid. Reason: Only the queue owner is allowed to invoke this action."
        yield Case("AddPermission", good | {"Actions": [granted]}, INVALID, owner)
    yield Case("AddPermission", good | {"Actions": ["SendMessage"] * 8}, "OverLimit", "8 Actions were found, maximum")
    yield Case("RemovePermission", {"QueueUrl": Q}, MISSING, "Label")
    yield Case(
        "RemovePermission", {"QueueUrl": Q, "Label": "unknown"}, INVALID, "Label is invalid. Reason: can't find label."
    )
    yield Case("RemovePermission", {"QueueUrl": Q, "Label": "a b"}, INVALID, "alphanumeric")


COUNTS: tuple[object, ...] = (0, 1_001, -1, "x", True, 1.5, [])
"""Wrong values of maxReceiveCount."""


def _queues() -> Iterator[Case]:
    yield Case("CreateQueue", {}, MISSING, "The request must contain the parameter QueueName.")
    for name in ("", "a b", "x" * 81, "a/b", "é", "a.b", ".fifo", "x" * 76 + ".fifo"):
        yield Case("CreateQueue", {"QueueName": name}, INVALID, "Can only include alphanumeric characters")
    yield Case("CreateQueue", {"QueueName": "new.fifo"}, INVALID, "FifoQueue")
    yield Case("CreateQueue", {"QueueName": "new", "Attributes": {"FifoQueue": "true"}}, INVALID, ".fifo suffix")
    yield Case("CreateQueue", {"QueueName": "new", "tags": {"": "x"}}, INVALID, "tag")
    yield Case("CreateQueue", {"QueueName": "new", "tags": {"x" * 129: "x"}}, INVALID, "tag")
    yield Case("CreateQueue", {"QueueName": "new", "tags": {"x": "x" * 257}}, INVALID, "tag")
    yield Case(
        "CreateQueue",
        {"QueueName": "new", "tags": {f"k{n}": "" for n in range(51)}},
        INVALID,
        "Too many tags added for queue new.",
    )
    exists = "A queue already exists with the same name and a different value for attribute"
    differs = {"QueueName": "dead", "Attributes": {"DelaySeconds": "5"}}
    yield Case("CreateQueue", differs, "QueueAlreadyExists", f"{exists} DelaySeconds")
    yield Case("CreateQueue", {"QueueName": "Dead"}, "QueueAlreadyExists", "the entity 'dead' exists")
    for action, given in (("CreateQueue", {"QueueName": "new"}), ("SetQueueAttributes", {"QueueUrl": Q})):
        for name, values in {
            "VisibilityTimeout": ("-1", "43201", "x", "", "1.5", "9" * 5_000, "\u0665"),
            "DelaySeconds": ("-1", "901"),
            "ReceiveMessageWaitTimeSeconds": ("-1", "21"),
            "MessageRetentionPeriod": ("59", "1209601"),
            "MaximumMessageSize": ("1023", "1048577"),
            "KmsDataKeyReusePeriodSeconds": ("59", "86401"),
            "SqsManagedSseEnabled": ("yes", ""),
            "Policy": ("{", "[]", "5", "x" * 65_537),
        }.items():
            for value in values:
                text = f"Invalid value for the parameter {name}."
                yield Case(action, given | {"Attributes": {name: value}}, "InvalidAttributeValue", text)
        for name in ("Unknown", "", "visibilitytimeout", "QueueArn", "ApproximateNumberOfMessages", "FifoQueue",
                     "ContentBasedDeduplication"):  # fmt: skip
            if (action, name) != ("CreateQueue", "FifoQueue"):
                bad = given | {"Attributes": {name: "false"}}
                yield Case(action, bad, "InvalidAttributeName", f"Unknown Attribute {name}.")
        for name in ("DeduplicationScope", "FifoThroughputLimit"):
            text = f"You can specify the {name} only when FifoQueue is set to true."
            yield Case(action, given | {"Attributes": {name: "queue"}}, "InvalidAttributeName", text)
        both = {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}
        yield Case(action, given | {"Attributes": both}, "InvalidAttributeName", "encryption")
        for policy, reason in (
            ("x", "not a valid JSON map"),
            ("[]", "not a valid JSON map"),
            ("{" * 50_000, "not a valid JSON map"),
            (json.dumps({"maxReceiveCount": 5}), "mandatory attribute: deadLetterTargetArn"),
            (json.dumps({"deadLetterTargetArn": ARN.format("dead")}), "mandatory attribute: maxReceiveCount"),
            *(
                (json.dumps({"deadLetterTargetArn": ARN.format("dead"), "maxReceiveCount": count}), "from 1 to 1000")
                for count in COUNTS
            ),
            ('{"deadLetterTargetArn":"a","maxReceiveCount":' + "9" * 5_000 + "}", "RedrivePolicy is invalid"),
            (json.dumps({"deadLetterTargetArn": ARN.format("gone"), "maxReceiveCount": 5}), "target does not exist"),
            (json.dumps({"deadLetterTargetArn": ARN.format("f.fifo"), "maxReceiveCount": 5}), "same type"),
            (json.dumps({"deadLetterTargetArn": ARN.format("closed"), "maxReceiveCount": 5}), "does not allow"),
            (json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 5}), "value for deadLetterTargetArn."),
            (
                json.dumps({"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:000000000000:dead", "maxReceiveCount": 5}),
                "account and region",
            ),
        ):
            yield Case(action, given | {"Attributes": {"RedrivePolicy": policy}}, INVALID, reason)
        for policy, reason in (
            ("x", "not a valid JSON map"),
            ('{"redrivePermission":"some"}', "must be allowAll, denyAll or byQueue"),
            ('{"redrivePermission":"byQueue"}', "with byQueue, and only with it"),
            ('{"redrivePermission":"denyAll","sourceQueueArns":["a"]}', "only with it"),
            ('{"redrivePermission":"byQueue","sourceQueueArns":"a"}', "a list of ARNs"),
            (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": ["a"] * 11}), "at most 10"),
        ):
            yield Case(action, given | {"Attributes": {"RedriveAllowPolicy": policy}}, INVALID, reason)
    fast = {"FifoThroughputLimit": "perMessageGroupId"}
    new = {"QueueName": "new.fifo"}
    yield Case(
        "CreateQueue", new | {"Attributes": {"FifoQueue": "true", **fast}}, "InvalidAttributeValue", "messageGroup"
    )
    yield Case("SetQueueAttributes", {"QueueUrl": FIFO, "Attributes": fast}, "InvalidAttributeValue", "messageGroup")
    wrong = {"QueueUrl": FIFO, "Attributes": {"DeduplicationScope": "group"}}
    yield Case("SetQueueAttributes", wrong, "InvalidAttributeValue", "DeduplicationScope")
    other = {"QueueUrl": FIFO, "Attributes": {"FifoQueue": "false"}}
    yield Case("SetQueueAttributes", other, "InvalidAttributeValue", "Modifying queue type is not supported.")
    # All or nothing: the first value would be good.
    mixed = {"QueueUrl": Q, "Attributes": {"DelaySeconds": "7", "VisibilityTimeout": "-1"}}
    yield Case("SetQueueAttributes", mixed, "InvalidAttributeValue", "VisibilityTimeout")
    yield Case("SetQueueAttributes", {"QueueUrl": Q}, MISSING, "Attributes")
    yield Case("GetQueueAttributes", {"QueueUrl": Q, "AttributeNames": ["All", "Unknown"]}, "InvalidAttributeName")
    yield Case("GetQueueAttributes", {"QueueUrl": Q, "AttributeNames": [""]}, "InvalidAttributeName", "Attribute .")


def _lists() -> Iterator[Case]:
    yield Case("GetQueueUrl", {}, MISSING, "QueueName")
    for name in ("gone", "a b", "", "Q"):
        code = NO_QUEUE if name else MISSING
        yield Case("GetQueueUrl", {"QueueName": name}, code)
    yield Case("GetQueueUrl", {"QueueName": "q", "QueueOwnerAWSAccountId": "111111111111"}, NO_QUEUE)
    for action, given in (("ListQueues", {}), ("ListDeadLetterSourceQueues", {"QueueUrl": "dead"})):
        for most in (0, -1, 1_001):
            yield Case(action, given | {"MaxResults": most}, INVALID, "MaxResults")
        for token in ("*", "YWJj IA==", "é"):
            yield Case(action, given | {"NextToken": token}, INVALID, "Invalid or expired next token.")


def _tags() -> Iterator[Case]:
    yield Case("TagQueue", {"QueueUrl": Q}, MISSING, "Tags")
    yield Case("TagQueue", {"QueueUrl": Q, "Tags": {"": "x"}}, INVALID, "tag")
    yield Case("TagQueue", {"QueueUrl": Q, "Tags": {"x": "x" * 257}}, INVALID, "tag")
    # With the one that it has there would be 51.
    yield Case(
        "TagQueue",
        {"QueueUrl": Q, "Tags": {f"k{n}": "" for n in range(50)}},
        INVALID,
        "Too many tags added for queue q.",
    )
    yield Case("UntagQueue", {"QueueUrl": Q}, INVALID, "Tag keys must be between 1 and 128 characters in length.")


def _sends() -> Iterator[Case]:
    one = {"QueueUrl": Q, "MessageBody": "m"}
    yield Case("SendMessage", {"QueueUrl": Q}, MISSING, "The request must contain the parameter MessageBody.")
    yield Case("SendMessage", one | {"MessageBody": ""}, MISSING, "MessageBody")
    for character in "\0\x08\x0b\x1f\ufffe\uffff":
        yield Case("SendMessage", one | {"MessageBody": f"a{character}"}, "InvalidMessageContents", "#x9 | #xA | #xD")
    for delay in (-1, 901):
        yield Case("SendMessage", one | {"DelaySeconds": delay}, INVALID, "DelaySeconds must be >= 0 and <= 900")
    too_long = f"One or more parameters are invalid. Reason: Message must be shorter than {SMALL} bytes."
    yield Case("SendMessage", one | {"MessageBody": "x" * (SMALL + 1)}, INVALID, too_long)
    yield Case("SendMessage", one | {"MessageBody": "é" * (SMALL // 2 + 1)}, INVALID, too_long)
    yield Case("SendMessage", one | {"MessageBody": "x" * (SMALL - 7)} | attribute("a"), INVALID, too_long)
    yield Case("SendMessage", one | {"MessageAttributes": ATTRIBUTES_11}, INVALID, "exceeds the allowed maximum [10]")
    for name in ("", "a b", ".a", "a.", "a..b", "AWS.a", "aws.A", "Amazon.x", "x" * 257, "a*"):
        yield Case("SendMessage", one | attribute(name), INVALID, "message attribute name")
    yield Case("SendMessage", one | attribute("a", None), INVALID, "must contain a non-empty attribute type")
    for data_type in ("Text", "string", "String.", "Number." + "x" * 257, "StringList"):
        yield Case("SendMessage", one | attribute("a", data_type), INVALID, "invalid message attribute type")
    for value in ("", None):
        yield Case(
            "SendMessage",
            one | attribute("a", "String", value),
            INVALID,
            "Message (user) attribute 'a' must contain a non-empty value of type 'String'.",
        )
    yield Case("SendMessage", one | attribute("a", "Binary", "x"), INVALID, "non-empty value of type 'Binary'.")
    yield Case("SendMessage", one | attribute("a", "String", "\x01"), INVALID, "Invalid binary character")
    for number in ("x", "1e999", "1" * 39, "1e-200", "0x5", "1_000", "\u0665", "--1", "1e" + "9" * 200):
        yield Case("SendMessage", one | attribute("a", "Number", number), INVALID, "to a number")
    for system in (
        {"Other": {"DataType": "String", "StringValue": "x"}},
        {"AWSTraceHeader": {"DataType": "Number", "StringValue": "1"}},
        {"AWSTraceHeader": {"DataType": "String"}},
    ):
        yield Case("SendMessage", one | {"MessageSystemAttributes": system}, INVALID, "MessageSystemAttributes")
    yield Case("SendMessage", one | {"MessageDeduplicationId": "d"}, INVALID, "not valid for this queue type")
    for group in ("a b", "x" * 129, "é", ""):
        yield Case("SendMessage", one | {"MessageGroupId": group}, INVALID, "1 to 128 in length")
    fifo = {"QueueUrl": FIFO, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    without_group = {key: value for key, value in fifo.items() if key != "MessageGroupId"}
    yield Case("SendMessage", without_group, MISSING, "The request must contain the parameter MessageGroupId.")
    without_id = {key: value for key, value in fifo.items() if key != "MessageDeduplicationId"}
    yield Case("SendMessage", without_id, INVALID, "ContentBasedDeduplication enabled or MessageDeduplicationId")
    for name in ("a b", "x" * 129, ""):
        text = f"Value {name} for parameter MessageDeduplicationId is invalid. Reason: MessageDeduplicationId can only"
        yield Case("SendMessage", fifo | {"MessageDeduplicationId": name}, INVALID, text)
    yield Case("SendMessage", fifo | {"DelaySeconds": 1}, INVALID, "not valid for this queue type")
    # Of a FIFO batch each entry needs both, or the whole request is refused.
    for lacking in (without_group, without_id):
        entries = [{"Id": "a", **fifo}, {"Id": "b", **lacking}]
        yield Case("SendMessageBatch", {"QueueUrl": FIFO, "Entries": entries}, INVALID)
    halves = [{"Id": str(n), "MessageBody": "x" * (MIB // 2)} for n in range(2)]
    sent = "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    over = [halves[0], {"Id": "b", "MessageBody": "x" * (MIB // 2 + 1)}]
    yield Case(
        "SendMessageBatch", {"QueueUrl": URL.format("large"), "Entries": over}, f"{PREFIX}BatchRequestTooLong", sent
    )
    with_attribute = [halves[0], {"Id": "b", "MessageBody": "x" * (MIB // 2 - 7)} | attribute("a")]
    yield Case(
        "SendMessageBatch",
        {"QueueUrl": URL.format("large"), "Entries": with_attribute},
        f"{PREFIX}BatchRequestTooLong",
        sent,
    )
    # Also where the queue's own bound is lower.
    yield Case("SendMessageBatch", {"QueueUrl": Q, "Entries": over}, f"{PREFIX}BatchRequestTooLong", sent)
    for action, entry in (
        ("SendMessageBatch", {"MessageBody": "m"}),
        ("DeleteMessageBatch", {"ReceiptHandle": "x"}),
        ("ChangeMessageVisibilityBatch", {"ReceiptHandle": "x", "VisibilityTimeout": 1}),
    ):

        def batch(*ids: str, action: str = action, entry: Mapping[str, Any] = entry) -> tuple[str, dict[str, Any]]:
            return action, {"QueueUrl": Q, "Entries": [{"Id": one, **entry} for one in ids]}

        least = f"There should be at least one {action}RequestEntry in the request."
        yield Case(action, {"QueueUrl": Q}, f"{PREFIX}EmptyBatchRequest", least)
        yield Case(*batch(), f"{PREFIX}EmptyBatchRequest", least)
        eleven = "Maximum number of entries per request are 10. You have sent 11."
        yield Case(*batch(*map(str, range(11))), f"{PREFIX}TooManyEntriesInBatchRequest", eleven)
        for name in ("a b", "", "x" * 81, "é"):
            form = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at"
            yield Case(*batch("ok", name), f"{PREFIX}InvalidBatchEntryId", form)
        yield Case(*batch("a", "b", "a"), f"{PREFIX}BatchEntryIdsNotDistinct", "Id a repeated.")


def _receives() -> Iterator[Case]:
    one = {"QueueUrl": Q}
    for count in (0, -1, 11):
        text = f"Value {count} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if pro"
        yield Case("ReceiveMessage", one | {"MaxNumberOfMessages": count}, INVALID, text)
    for wait in (-1, 21):
        text = f"Value {wait} for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."
        yield Case("ReceiveMessage", one | {"WaitTimeSeconds": wait}, INVALID, text)
    for timeout in (-1, 43_201):
        yield Case("ReceiveMessage", one | {"VisibilityTimeout": timeout}, INVALID, "between 0 and 43200")
    for member in ("AttributeNames", "MessageSystemAttributeNames"):
        for name in ("Unknown", "", "sentTimestamp"):
            yield Case(
                "ReceiveMessage", one | {member: ["All", name]}, "InvalidAttributeName", f"Unknown Attribute {name}."
            )
    attempt = {"ReceiveRequestAttemptId": "a"}
    yield Case("ReceiveMessage", one | attempt, INVALID, "not valid for this queue type")
    for name in ("a b", "x" * 129, ""):
        bad = {"QueueUrl": FIFO, "ReceiveRequestAttemptId": name}
        yield Case("ReceiveMessage", bad, INVALID, "1 to 128 in length")


def _handles() -> Iterator[Case]:
    for action, more in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 5})):
        yield Case(action, {"QueueUrl": Q, **more}, MISSING, "The request must contain the parameter ReceiptHandle.")
        for handle in ("x", "AQ==", "A" * 72, "é" * 72, "x" * 10_000):
            text = f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.'
            yield Case(action, {"QueueUrl": Q, "ReceiptHandle": handle, **more}, "ReceiptHandleIsInvalid", text)


def _tasks() -> Iterator[Case]:
    gone = "ResourceNotFoundException"
    for action in ("StartMessageMoveTask", "ListMessageMoveTasks"):
        yield Case(action, {}, MISSING, "SourceArn")
        for arn in (ARN.format("gone"), "x", "arn:aws:sqs:us-east-1:111111111111:dead", ":" * 3_000):
            text = "The resource that you specified for the SourceArn parameter doesn't exist."
            yield Case(action, {"SourceArn": arn}, gone, text)
    start = {"SourceArn": ARN.format("dead")}
    text = "The resource that you specified for the DestinationArn parameter doesn't exist."
    yield Case("StartMessageMoveTask", start | {"DestinationArn": ARN.format("gone")}, gone, text)
    yield Case("StartMessageMoveTask", start | {"DestinationArn": ARN.format("f.fifo")}, INVALID, "of the same type")
    yield Case("StartMessageMoveTask", start | {"DestinationArn": ARN.format("dead")}, INVALID, "must be different")
    text = "Source queue must be configured as a Dead Letter Queue."
    yield Case("StartMessageMoveTask", {"SourceArn": ARN.format("q")}, INVALID, text)
    for rate in (0, -1, 501):
        yield Case(
            "StartMessageMoveTask",
            start | {"MaxNumberOfMessagesPerSecond": rate},
            INVALID,
            "Reason: Must be between 1 and 500.",
        )
    for most in (0, 11):
        yield Case("ListMessageMoveTasks", start | {"MaxResults": most}, INVALID, "Reason: Must be between 1 and 10.")
    yield Case("CancelMessageMoveTask", {}, MISSING, "TaskHandle")
    for handle in ("x", "e30=", "W10=", "x" * 3_000, "eyJ0YXNrSWQiOjEsInNvdXJjZUFybiI6MX0="):
        yield Case(
            "CancelMessageMoveTask", {"TaskHandle": handle}, INVALID, "Value for parameter TaskHandle is invalid."
        )
    text = "The resource that you specified for the SourceArn parameter doesn't exist."
    yield Case("CancelMessageMoveTask", GOOD["CancelMessageMoveTask"], gone, text)
    handle = b64encode(json.dumps({"taskId": "x", "sourceArn": ARN.format("dead")}).encode()).decode()
    yield Case("CancelMessageMoveTask", {"TaskHandle": handle}, gone, "Task does not exist.")


CASES = list(_cases())


def test_every_action_is_refused_somewhere() -> None:
    never = {"DeleteQueue", "ListQueueTags", "PurgeQueue"}
    assert {case.action for case in CASES} == set(ACTIONS) - never, "those meet only what any action may meet"


@PROTOCOLS
@pytest.mark.parametrize("action", sorted({case.action for case in CASES}))
def test_a_refusal_says_why_and_changes_nothing(sqs: SqsWorld, action: str, protocol: str) -> None:
    before = everything(sqs)
    for _, members, code, text in (case for case in CASES if case.action == action):
        reply = sqs.ask(request(sqs.signer, protocol, action, members))
        try:
            assert_refused(reply, code, protocol, text)
        except AssertionError as error:
            raise AssertionError(f"{members}"[:500]) from error
    sqs.world.wait(1_000)
    assert everything(sqs) == before


# -- refusals that need a history --------------------------------------------------------------------------------------


def sent_and_received(sqs: SqsWorld, url: str, **members: Any) -> dict[str, Any]:
    """Send a message and receive it."""
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m", **members)
    (message,) = sqs.call("ReceiveMessage", QueueUrl=url, AttributeNames=["All"])["Messages"]
    found: dict[str, Any] = message
    return found


@PROTOCOLS
def test_handles_of_another_queue_and_of_its_former_life(sqs: SqsWorld, protocol: str) -> None:
    handle = sent_and_received(sqs, DEAD)["ReceiptHandle"]

    def refused(text: str) -> None:
        for action, more in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 0})):
            for url in (Q, FIFO):
                members = {"QueueUrl": url, "ReceiptHandle": handle, **more}
                assert_refused(
                    sqs.ask(request(sqs.signer, protocol, action, members)), "ReceiptHandleIsInvalid", protocol, text
                )

    refused("is not valid for this queue.")
    entries = [{"Id": "a", "ReceiptHandle": handle}]
    (failed,) = sqs.call("DeleteMessageBatch", QueueUrl=Q, Entries=entries)["Failed"]
    assert failed == {
        "Id": "a",
        "SenderFault": True,
        "Code": "ReceiptHandleIsInvalid",
        "Message": f'The input receipt handle "{handle}" is not valid for this queue.',
    }
    sqs.call("DeleteQueue", QueueUrl=DEAD)
    sqs.call("CreateQueue", QueueName="dead")
    members = {"QueueUrl": DEAD, "ReceiptHandle": handle}
    reply = sqs.ask(request(sqs.signer, protocol, "DeleteMessage", members))
    assert_refused(reply, "ReceiptHandleIsInvalid", protocol, "is not valid for this queue.")


@PROTOCOLS
def test_a_visibility_timeout_past_twelve_hours_or_of_a_deleted_message(sqs: SqsWorld, protocol: str) -> None:
    handle = sent_and_received(sqs, DEAD)["ReceiptHandle"]
    members = {"QueueUrl": DEAD, "ReceiptHandle": handle, "VisibilityTimeout": 43_200}
    sqs.world.wait(1_000)
    reply = sqs.ask(request(sqs.signer, protocol, "ChangeMessageVisibility", members))
    total = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    assert_refused(reply, INVALID, protocol, total)
    without = {"QueueUrl": DEAD, "ReceiptHandle": handle}
    reply = sqs.ask(request(sqs.signer, protocol, "ChangeMessageVisibility", without))
    assert_refused(reply, MISSING, protocol, "VisibilityTimeout")
    sqs.call("DeleteMessage", QueueUrl=DEAD, ReceiptHandle=handle)
    reply = sqs.ask(request(sqs.signer, protocol, "ChangeMessageVisibility", members | {"VisibilityTimeout": 5}))
    gone = "Message does not exist or is not available for visibility timeout change."
    assert_refused(reply, INVALID, protocol, gone)


@PROTOCOLS
def test_an_expired_handle_of_a_fifo_queue(sqs: SqsWorld, protocol: str) -> None:
    url = sqs.call("CreateQueue", QueueName="x.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    handle = sent_and_received(sqs, url, MessageGroupId="g", MessageDeduplicationId="d")["ReceiptHandle"]
    sqs.world.wait(31_000)
    for action, more in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 5})):
        reply = sqs.ask(request(sqs.signer, protocol, action, {"QueueUrl": url, "ReceiptHandle": handle, **more}))
        said = assert_refused(reply, INVALID, protocol)
        assert said == f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."


@PROTOCOLS
def test_a_second_purge_and_a_name_that_was_just_deleted(sqs: SqsWorld, protocol: str) -> None:
    sqs.call("PurgeQueue", QueueUrl=DEAD)
    sqs.call("SendMessage", QueueUrl=DEAD, MessageBody="after")
    reply = sqs.ask(request(sqs.signer, protocol, "PurgeQueue", {"QueueUrl": DEAD}))
    said = assert_refused(reply, f"{PREFIX}PurgeQueueInProgress", protocol)
    assert said == "Only one PurgeQueue operation on dead is allowed every 60 seconds."
    assert (
        sqs.call("GetQueueAttributes", QueueUrl=DEAD, AttributeNames=["All"])["Attributes"][
            "ApproximateNumberOfMessages"
        ]
        == "1"
    )
    sqs.service.recreate_after_ms = 60_000
    sqs.call("DeleteQueue", QueueUrl=DEAD)
    reply = sqs.ask(request(sqs.signer, protocol, "CreateQueue", {"QueueName": "dead"}))
    said = assert_refused(reply, f"{PREFIX}QueueDeletedRecently", protocol)
    assert said.startswith("You must wait 60 seconds after deleting a queue")
    sqs.world.wait(61_000)
    assert sqs.call("CreateQueue", QueueName="dead")["QueueUrl"] == DEAD


@PROTOCOLS
def test_a_second_move_task_of_one_queue(sqs: SqsWorld, protocol: str) -> None:
    members = {"SourceArn": ARN.format("dead")}
    sqs.service.look_for_tasks = lambda: None  # type: ignore[method-assign] # it stays at its beginning
    sqs.call("StartMessageMoveTask", **members)
    reply = sqs.ask(request(sqs.signer, protocol, "StartMessageMoveTask", members))
    assert_refused(reply, INVALID, protocol, "There is already a task running.")


@PROTOCOLS
def test_too_many_messages_in_flight(sqs: SqsWorld, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive of a standard queue that does not wait is refused; others, and those of FIFO queues, are empty."""
    for module in ("frontends.sqs.polls", "partition.core.fair_queue", "partition.core.groups"):
        monkeypatch.setattr(f"partibus.{module}.IN_FLIGHT_MAX", 3)
    for number in range(4):
        sqs.call("SendMessage", QueueUrl=DEAD, MessageBody="m")
        group = {"MessageGroupId": str(number), "MessageDeduplicationId": str(number)}
        sqs.call("SendMessage", QueueUrl=CONTENT, MessageBody="m", **group)
    received = {
        url: sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=3)["Messages"] for url in (DEAD, CONTENT)
    }
    assert {url: len(messages) for url, messages in received.items()} == {DEAD: 3, CONTENT: 3}
    one = {"QueueUrl": DEAD, "MaxNumberOfMessages": 1}
    before = everything(sqs)
    reply = sqs.ask(request(sqs.signer, protocol, "ReceiveMessage", one))
    assert_refused(reply, "OverLimit", protocol, "Too many messages in flight")
    assert everything(sqs) == before, "the refused receive has taken nothing"
    for members in (one | {"WaitTimeSeconds": 1}, one | {"QueueUrl": CONTENT}):
        reply = sqs.ask(request(sqs.signer, protocol, "ReceiveMessage", members), 2_000)
        assert reply.status == 200
        assert b"Body" not in reply.body
    for url, messages in received.items():
        sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
        reply = sqs.ask(request(sqs.signer, protocol, "ReceiveMessage", {"QueueUrl": url}))
        assert reply.status == 200
        assert b"Body" in reply.body


@PROTOCOLS
def test_a_store_that_is_away(sqs: SqsWorld, protocol: str) -> None:
    """Clients send again after a 503. Receives are empty, since Celery's poller ends on a 5xx."""
    handle = sent_and_received(sqs, DEAD)["ReceiptHandle"]
    store = sqs.world.store_of("dead")
    store.fails, store.stays_away = StoreError("the disk is away", executed=False), True
    for action, members in (
        ("SendMessage", {"MessageBody": "m"}),
        ("DeleteMessage", {"ReceiptHandle": handle}),
        ("PurgeQueue", {}),
    ):
        reply = sqs.ask(request(sqs.signer, protocol, action, {"QueueUrl": DEAD, **members}), 5_000)
        assert_refused(reply, "ServiceUnavailable", protocol)
    reply = sqs.ask(request(sqs.signer, protocol, "ReceiveMessage", {"QueueUrl": DEAD}), 5_000)
    assert reply.status == 200
    assert b"Body" not in reply.body
    store.fails, store.stays_away = None, False
    sqs.world.wait(60_000)
    counts = sqs.call("GetQueueAttributes", QueueUrl=DEAD, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "1", "the one from before, whose visibility timeout has ended"


# -- batches: each entry stands or falls alone -------------------------------------------------------------------------


@PROTOCOLS
def test_entries_of_a_send_fail_alone_and_the_others_are_stored_in_order(sqs: SqsWorld, protocol: str) -> None:
    bad: dict[str, tuple[dict[str, Any], str, str]] = {
        "control": ({"MessageBody": "\x01"}, "InvalidMessageContents", "Invalid binary character"),
        "none": ({}, MISSING, "The request must contain the parameter MessageBody."),
        "long": (
            {"MessageBody": "x" * 1_025},
            INVALID,
            "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
        ),
        "late": ({"MessageBody": "m", "DelaySeconds": 901}, INVALID, "DelaySeconds"),
        "attribute": ({"MessageBody": "m", **attribute("AWS.a")}, INVALID, "attribute name"),
        "group": ({"MessageBody": "m", "MessageGroupId": "a b"}, INVALID, "1 to 128 in length"),
        "id": ({"MessageBody": "m", "MessageDeduplicationId": "d"}, INVALID, "not valid for this queue type"),
    }
    entries = [{"Id": name, **members} for name, (members, _, _) in bad.items()]
    for place, name in ((0, "first"), (4, "middle"), (9, "last")):
        entries.insert(place, {"Id": name, "MessageBody": name})
    assert len(entries) == 10
    reply = sqs.ask(request(sqs.signer, protocol, "SendMessageBatch", {"QueueUrl": Q, "Entries": entries}))
    assert reply.status == 200
    assert "x-amzn-query-error" not in reply.headers
    good, failed = results_of(reply, "SendMessageBatch")
    assert [one["Id"] for one in good] == ["first", "middle", "last"]
    assert [one["Id"] for one in failed] == list(bad)
    for one in failed:
        _, code, text = bad[one["Id"]]
        assert (one["Code"], one["SenderFault"]) == (code, "true")
        assert text in one["Message"]
    bodies = sqs.call("ReceiveMessage", QueueUrl=Q, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in bodies] == ["kept", "first", "middle", "last"]


def results_of(reply: Reply, action: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The results of a batch in either protocol, as texts."""
    if reply.is_json:
        lists = (reply.members.get("Successful", []), reply.members.get("Failed", []))
        shown = [
            [{k: str(v).lower() if v is True else str(v) for k, v in one.items()} for one in some] for some in lists
        ]
        return shown[0], shown[1]
    root = ElementTree.fromstring(reply.body)

    def under(name: str) -> list[dict[str, str]]:
        found = root.iter(f"{NAMESPACE}{name}")
        return [{child.tag.removeprefix(NAMESPACE): child.text or "" for child in one} for one in found]

    return under(f"{action}ResultEntry"), under("BatchResultErrorEntry")


@PROTOCOLS
def test_a_batch_of_which_every_entry_fails_is_answered_with_200(sqs: SqsWorld, protocol: str) -> None:
    before = everything(sqs)
    for action, entry, code in (
        ("SendMessageBatch", {"MessageBody": "\0"}, "InvalidMessageContents"),
        ("DeleteMessageBatch", {"ReceiptHandle": "x"}, "ReceiptHandleIsInvalid"),
        ("ChangeMessageVisibilityBatch", {"ReceiptHandle": "x", "VisibilityTimeout": 1}, "ReceiptHandleIsInvalid"),
        ("ChangeMessageVisibilityBatch", {"VisibilityTimeout": 1}, MISSING),
    ):
        members = {"QueueUrl": Q, "Entries": [{"Id": name, **entry} for name in ("a", "b")]}
        reply = sqs.ask(request(sqs.signer, protocol, action, members))
        assert reply.status == 200
        good, failed = results_of(reply, action)
        assert good == []
        assert [(one["Id"], one["Code"]) for one in failed] == [("a", code), ("b", code)]
        if protocol == "json":
            assert "Successful" not in reply.members
    assert everything(sqs) == before


@PROTOCOLS
def test_entries_of_deletes_and_changes_fail_alone(sqs: SqsWorld, protocol: str) -> None:
    for number in range(4):
        sqs.call("SendMessage", QueueUrl=DEAD, MessageBody=f"m{number}")
    handles = [
        one["ReceiptHandle"] for one in sqs.call("ReceiveMessage", QueueUrl=DEAD, MaxNumberOfMessages=10)["Messages"]
    ]
    entries = [
        {"Id": "good", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
        {"Id": "far", "ReceiptHandle": handles[1], "VisibilityTimeout": 43_201},
        {"Id": "none", "ReceiptHandle": handles[2]},
        {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 0},
    ]
    members = {"QueueUrl": DEAD, "Entries": entries}
    reply = sqs.ask(request(sqs.signer, protocol, "ChangeMessageVisibilityBatch", members))
    good, failed = results_of(reply, "ChangeMessageVisibilityBatch")
    assert [one["Id"] for one in good] == ["good"]
    assert [(one["Id"], one["Code"]) for one in failed] == [
        ("far", INVALID), ("none", MISSING), ("bad", "ReceiptHandleIsInvalid"),
    ]  # fmt: skip
    entries = [{"Id": "a", "ReceiptHandle": handles[1]}, {"Id": "b", "ReceiptHandle": handles[2] + "x"}]
    reply = sqs.ask(request(sqs.signer, protocol, "DeleteMessageBatch", {"QueueUrl": DEAD, "Entries": entries}))
    good, failed = results_of(reply, "DeleteMessageBatch")
    assert ([one["Id"] for one in good], [one["Id"] for one in failed]) == (["a"], ["b"])
    (visible,) = sqs.call("ReceiveMessage", QueueUrl=DEAD, MaxNumberOfMessages=10)["Messages"]
    assert visible["Body"] == "m0"


@PROTOCOLS
@pytest.mark.parametrize("kind", ["plain", "attributes", "wide", "escaped", "batch"])
def test_a_mebibyte_is_stored_and_a_byte_more_is_not(sqs: SqsWorld, protocol: str, kind: str) -> None:
    """Count bytes of UTF-8, with attributes and without system attributes, whatever they take on the wire."""
    url = URL.format("large")
    character = {"wide": "\u2603", "escaped": "\r"}.get(kind, "x")
    size = len(character.encode())
    more: dict[str, Any] = {}
    room = MIB
    if kind == "attributes":
        more = attribute("\xe4", "Number.\u2603", "5") | {
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
        }
        room -= len("\xe4Number.\u26035".encode())
    body = character * (room // size) + "x" * (room % size)
    if kind == "batch":
        parts = [body[: MIB // 10]] * 9
        parts.append(body[: MIB - 9 * (MIB // 10)])

        def members(last: str) -> dict[str, Any]:
            entries = [{"Id": str(n), "MessageBody": text} for n, text in enumerate((*parts[:9], last))]
            return {"QueueUrl": url, "Entries": entries}

        over = sqs.ask(request(sqs.signer, protocol, "SendMessageBatch", members(parts[9] + "x")))
        assert_refused(over, f"{PREFIX}BatchRequestTooLong", protocol)
        reply = sqs.ask(request(sqs.signer, protocol, "SendMessageBatch", members(parts[9])))
        assert len(results_of(reply, "SendMessageBatch")[0]) == 10
        assert waiting(sqs, url) == 10
        return
    one = {"QueueUrl": url, "MessageBody": body, **more}
    over = sqs.ask(request(sqs.signer, protocol, "SendMessage", one | {"MessageBody": body + "x"}))
    assert_refused(over, INVALID, protocol, "Message must be shorter than 1048576 bytes.")
    reply = sqs.ask(request(sqs.signer, protocol, "SendMessage", one))
    assert reply.status == 200, reply.body[:500]
    assert waiting(sqs, url) == 1
    received = sqs.ask(request(sqs.signer, protocol, "ReceiveMessage", {"QueueUrl": url}))
    if protocol == "json":
        (message,) = received.members["Messages"]
        assert message["Body"] == body
    else:
        found = ElementTree.fromstring(received.body).find(f".//{NAMESPACE}Body")
        assert found is not None
        assert found.text == body


def waiting(sqs: SqsWorld, url: str) -> int:
    attributes = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"])


@PROTOCOLS
def test_a_part_of_a_batch_is_stored_whole_or_not_at_all(sqs: SqsWorld, protocol: str) -> None:
    """The entries of one FIFO partition are one transaction; an entry that fails its checks is no part of it."""
    entries = [
        {
            "Id": str(n),
            "MessageBody": "\x01" if n == 1 else f"m{n}",
            "MessageGroupId": "g",
            "MessageDeduplicationId": str(n),
        }
        for n in range(4)
    ]
    members = {"QueueUrl": CONTENT, "Entries": entries}
    store = sqs.world.store_of("c.fifo")
    store.fails = StoreError("the disk is away", executed=False)
    reply = sqs.ask(request(sqs.signer, protocol, "SendMessageBatch", members), 2_000)
    good, failed = results_of(reply, "SendMessageBatch")
    assert good == []
    assert {one["Id"]: one["Code"] for one in failed} == {
        "0": "ServiceUnavailable", "1": "InvalidMessageContents", "2": "ServiceUnavailable", "3": "ServiceUnavailable",
    }  # fmt: skip
    assert {one["Id"]: one["SenderFault"].lower() for one in failed} == {
        "0": "false",
        "1": "true",
        "2": "false",
        "3": "false",
    }
    store.fails = None
    sqs.world.wait(5_000)
    assert waiting(sqs, CONTENT) == 0
    reply = sqs.ask(request(sqs.signer, protocol, "SendMessageBatch", members), 2_000)
    good, failed = results_of(reply, "SendMessageBatch")
    assert [one["Id"] for one in good] == ["0", "2", "3"], "no id of the failed try is remembered"
    numbers = [one["SequenceNumber"] for one in good]
    assert numbers == sorted(set(numbers))
    messages = sqs.call("ReceiveMessage", QueueUrl=CONTENT, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in messages] == ["m0", "m2", "m3"]


def test_a_count_of_receives_that_is_text_is_shown_as_a_number(sqs: SqsWorld) -> None:
    sqs.call("CreateQueue", QueueName="target")
    policy = {"deadLetterTargetArn": ARN.format("target"), "maxReceiveCount": "3"}
    url = sqs.call("CreateQueue", QueueName="counted", Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
    found = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(found["RedrivePolicy"]) == policy | {"maxReceiveCount": 3}


# -- half of a character, which JSON can write and UTF-8 can not -------------------------------------------------------

HALF = "\ud800x"


def _with_half(member: Member) -> Iterator[Any]:
    """Yield values of a member that have half of a character."""
    if member.kind is Kind.TEXT:
        yield HALF
    elif member.kind is Kind.TEXTS:
        yield [HALF]
    elif member.kind is Kind.TEXT_MAP:
        yield {HALF: "v"}
        yield from ({name: HALF} for name in (sorted(SETTABLE) if member.name == "Attributes" else ["k"]))
        if member.name == "Attributes":
            yield {"Policy": json.dumps({"Statement": HALF}, ensure_ascii=False)}
    elif member.kind is Kind.ATTRIBUTES:
        for name, data_type, value in ((HALF, "String", "v"), ("n", f"String.{HALF}", "v"), ("n", "String", HALF)):
            yield {name: {"DataType": data_type, "StringValue": value}}
        yield {"AWSTraceHeader": {"DataType": "String", "StringValue": HALF}}


TAKES_HALF = {("ListQueues", "QueueNamePrefix"), ("ReceiveMessage", "MessageAttributeNames"), ("UntagQueue", "TagKeys")}
"""Members that are compared only: no name begins with such a text, and none is one."""


@pytest.mark.parametrize("action", sorted(SHAPES))
def test_half_of_a_character_is_refused_and_no_answer_has_it(sqs: SqsWorld, action: str) -> None:
    before = everything(sqs)
    for member in SHAPES[action].members:
        for value in _with_half(member):
            reply = sqs.ask(sqs.signer.request(action, GOOD[action] | {member.name: value}))
            case = f"{member.name}: {value!r}: {reply.body.decode()}"
            is_taken = (action, member.name) in TAKES_HALF
            assert (reply.status == 200) is is_taken, case
            assert reply.status < 500, case
            json.dumps(reply.members, ensure_ascii=False).encode()  # which half of a character would not be
            assert "Serialization" not in reply.body.decode(), case
    if action not in {name for name, _ in TAKES_HALF}:
        assert everything(sqs) == before


def test_entries_with_half_of_a_character_fail_alone(sqs: SqsWorld) -> None:
    entries = [
        {"Id": "good", "MessageBody": "\U0001f600"},
        {"Id": "body", "MessageBody": HALF},
        {"Id": "value", "MessageBody": "m", **attribute("n", value=HALF)},
        {"Id": "name", "MessageBody": "m", **attribute(HALF)},
        {"Id": "group", "MessageBody": "m", "MessageGroupId": HALF},
    ]
    reply = sqs.call("SendMessageBatch", QueueUrl=DEAD, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == ["good"]
    codes = {one["Id"]: one["Code"] for one in reply["Failed"]}
    assert codes == {"body": "InvalidMessageContents", "value": INVALID, "name": INVALID, "group": INVALID}
    (message,) = sqs.call("ReceiveMessage", QueueUrl=DEAD, MaxNumberOfMessages=10)["Messages"]
    assert message["Body"] == "\U0001f600"
    (failed,) = sqs.call("DeleteMessageBatch", QueueUrl=DEAD, Entries=[{"Id": "a", "ReceiptHandle": HALF}])["Failed"]
    assert failed["Message"] == 'The input receipt handle "?x" is not a valid receipt handle.'
    reply = sqs.ask(sqs.signer.request("SendMessageBatch", {"QueueUrl": DEAD, "Entries": [{"Id": HALF}]}))
    assert_refused(reply, f"{PREFIX}InvalidBatchEntryId", "json")


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"0" * 5_000, b"\xed\xa0\x80"])
def test_a_body_with_half_of_a_character_has_to_be_json_all_the_same(sqs: SqsWorld, value: bytes) -> None:
    body = b'{"MessageBody":"\\ud800","Other":%b}' % value
    reply = sqs.ask(sqs.signer.signed(body, JSON, "AmazonSQS.SendMessage"))
    assert_refused(reply, "SerializationException", "json")
