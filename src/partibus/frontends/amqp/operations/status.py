"""Replies of `$management` nodes: the status properties are spelled in camel case here (trap 23, section 6.4)."""

from partibus.amqp.codec.types import Int, Symbol
from partibus.errors import PartibusError
from partibus.frontends.amqp.errors import CONDITIONS
from partibus.frontends.amqp.node import Reply

ANSWER_BYTES_MAX = 8 << 20
"""The bytes of messages in one answer; a client requests the rest with its next request."""


def success(body: dict[object, object] | None = None) -> Reply:
    """Return 200 with a body."""
    return Reply({"statusCode": Int(200), "statusDescription": "OK"}, body if body is not None else {})


def no_content(condition: str | None = None) -> Reply:
    """Return 204, an empty result that is no error; some operations add a condition."""
    properties: dict[str, object] = {"statusCode": Int(204), "statusDescription": "No Content"}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return Reply(properties)


def failure(error: PartibusError) -> Reply:
    """Return the status code and condition of an error; clients prefer the condition."""
    condition, code = CONDITIONS[type(error)]
    return Reply({"statusCode": Int(code), "statusDescription": str(error), "errorCondition": Symbol(condition)})
