"""Replies of `$management` nodes: the status properties are spelled in camel case here (trap 23, section 6.4)."""

from partibus.amqp.codec.types import Int, Symbol
from partibus.errors import PartibusError
from partibus.frontends.amqp.errors import CONDITIONS
from partibus.frontends.amqp.node import Reply

ANSWER_BYTES_MAX = 8 << 20
"""Of messages that one answer brings: what is more, the next request asks for."""


def success(body: dict[object, object] | None = None) -> Reply:
    """200 with a body."""
    return Reply({"statusCode": Int(200), "statusDescription": "OK"}, body if body is not None else {})


def no_content(condition: str | None = None) -> Reply:
    """204: nothing there, which is no error; some operations name a condition all the same."""
    properties: dict[str, object] = {"statusCode": Int(204), "statusDescription": "No Content"}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return Reply(properties)


def failure(error: PartibusError) -> Reply:
    """The status code and condition of an error; clients prefer the condition."""
    condition, code = CONDITIONS[type(error)]
    return Reply({"statusCode": Int(code), "statusDescription": str(error), "errorCondition": Symbol(condition)})
