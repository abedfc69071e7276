"""Answers of the Query protocol in JSON, for clients that accept ``application/json``.

The documents follow the XML form, not AWS JSON 1.0: an envelope named after the action, maps as lists of pairs, and
null for what a message or a list does not have.
"""

from collections.abc import Mapping
from typing import Any, Final

from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.shapes import MAP_ELEMENTS, Shape
from partibus.frontends.sqs.wire_json import encode_json

CONTENT_TYPE: Final = "application/json"
_NAMES: Final[Mapping[str, str]] = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""The members that have another name than in AWS JSON 1.0."""
_NULLS: Final[Mapping[str, Mapping[str, None]]] = {
    "GetQueueAttributes": {"Attributes": None},
    "ListDeadLetterSourceQueues": {"NextToken": None, "queueUrls": None},
    "ListQueueTags": {"Tags": None},
    "ListQueues": {"NextToken": None, "queueUrls": None},
    "ReceiveMessage": {"messages": None},
}
"""The members of each action's result that are null, not left out: clients read them without a check."""
_NULLS_OF_MESSAGE: Final = {"Attributes": None, "MD5OfMessageAttributes": None, "MessageAttributes": None}


def accepts_json(headers: Mapping[str, str]) -> bool:
    """Tell whether a client names JSON among the types that it accepts."""
    types = headers.get("accept", "").lower().split(",")
    return any(one.partition(";")[0].strip() == CONTENT_TYPE for one in types)


def write_query_json(action: str, shape: Shape, output: Mapping[str, Any] | None, request_id: str) -> bytes:
    """Return the JSON of an answer."""
    response: dict[str, Any] = {}
    if shape.has_output:
        response[f"{action}Result"] = {**_NULLS.get(action, {}), **_members(output or {})}
    response["ResponseMetadata"] = {"RequestId": request_id}
    return encode_json({f"{action}Response": response})


def write_query_json_error(error: SqsError, request_id: str) -> bytes:
    """Return the JSON of a refusal."""
    fault = "Sender" if error.is_sender_fault else "Receiver"
    shown = {"Code": error.code, "Message": error.query_message, "Type": fault}
    return encode_json({"Error": shown, "RequestId": request_id})


def _members(members: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): _value(name, value) for name, value in members.items()}


def _value(name: str, value: Any) -> Any:
    if name == "Messages":
        return [{**_NULLS_OF_MESSAGE, **_members(message)} for message in value]
    if isinstance(value, dict) and name in MAP_ELEMENTS:
        _, key_name, value_name = MAP_ELEMENTS[name]
        return [{key_name: key, value_name: item} for key, item in value.items()]
    return value
