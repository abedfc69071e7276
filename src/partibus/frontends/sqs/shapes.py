"""The one table of actions and their members, from which both protocols read requests and write answers.

A member has the name of the service's model. In the Query protocol a list or map has one parameter for each of its
parts, numbered from 1, under one of a few prefixes.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """The kind of a member of a request."""

    TEXT = "text"
    INTEGER = "integer"
    TEXTS = "texts"
    """A list of texts."""
    TEXT_MAP = "map"
    """A map from text to text."""
    ATTRIBUTES = "attributes"
    """A map from text to a typed value: ``DataType``, ``StringValue``, ``BinaryValue``."""
    ENTRIES = "entries"
    """The entries of a batch; each has members of its own."""


class Member(NamedTuple):
    """One member of a request."""

    name: str
    kind: Kind
    prefixes: tuple[str, ...] = ()
    """The prefixes of its parameters in the Query protocol."""
    members: "tuple[Member, ...]" = ()
    """The members of each entry."""
    pair: tuple[str, str] = ("Name", "Value")
    """The parameters of a map's key and value below a prefix."""


class Shape(NamedTuple):
    """The parameters of one action."""

    members: tuple[Member, ...]
    on_queue: bool = True
    """Whether the request names a queue by ``QueueUrl`` or, in the Query protocol, by its path."""
    on_path: bool = True
    """Whether the path of a request may name a queue."""
    has_output: bool = False
    """Whether the answer in XML has a result element."""


def _text(name: str) -> Member:
    return Member(name, Kind.TEXT)


def _integer(name: str) -> Member:
    return Member(name, Kind.INTEGER)


def _texts(name: str, *prefixes: str) -> Member:
    return Member(name, Kind.TEXTS, prefixes)


_QUEUE: Final = _text("QueueUrl")
_QUEUE_ATTRIBUTES: Final = Member("Attributes", Kind.TEXT_MAP, ("Attribute", "Attributes"))
_TAG_PAIR: Final = ("Key", "Value")
_MESSAGE: Final = (
    _text("MessageBody"),
    _integer("DelaySeconds"),
    Member("MessageAttributes", Kind.ATTRIBUTES, ("MessageAttribute", "MessageAttributes")),
    Member("MessageSystemAttributes", Kind.ATTRIBUTES, ("MessageSystemAttribute", "MessageSystemAttributes")),
    _text("MessageDeduplicationId"),
    _text("MessageGroupId"),
)
_DELETE: Final = (_text("ReceiptHandle"),)
_CHANGE: Final = (_text("ReceiptHandle"), _integer("VisibilityTimeout"))


def _batch(action: str, members: tuple[Member, ...]) -> Shape:
    entries = Member("Entries", Kind.ENTRIES, (f"{action}RequestEntry", "Entries"), (_text("Id"), *members))
    return Shape((_QUEUE, entries), has_output=True)


_PAGE: Final = (_integer("MaxResults"), _text("NextToken"))

SHAPES: Final[Mapping[str, Shape]] = {
    "AddPermission": Shape(
        (_QUEUE, _text("Label"), _texts("AWSAccountIds", "AWSAccountId"), _texts("Actions", "ActionName"))
    ),
    "CancelMessageMoveTask": Shape((_text("TaskHandle"),), on_queue=False, has_output=True),
    "ChangeMessageVisibility": Shape((_QUEUE, *_CHANGE)),
    "ChangeMessageVisibilityBatch": _batch("ChangeMessageVisibilityBatch", _CHANGE),
    "CreateQueue": Shape(
        (_text("QueueName"), _QUEUE_ATTRIBUTES, Member("tags", Kind.TEXT_MAP, ("Tag", "Tags"), pair=_TAG_PAIR)),
        on_queue=False,
        on_path=False,
        has_output=True,
    ),
    "DeleteMessage": Shape((_QUEUE, *_DELETE)),
    "DeleteMessageBatch": _batch("DeleteMessageBatch", _DELETE),
    "DeleteQueue": Shape((_QUEUE,)),
    "GetQueueAttributes": Shape((_QUEUE, _texts("AttributeNames", "AttributeName", "AttributeNames")), has_output=True),
    "GetQueueUrl": Shape((_text("QueueName"), _text("QueueOwnerAWSAccountId")), on_queue=False, has_output=True),
    "ListDeadLetterSourceQueues": Shape((_QUEUE, *_PAGE), has_output=True),
    "ListMessageMoveTasks": Shape((_text("SourceArn"), _integer("MaxResults")), on_queue=False, has_output=True),
    "ListQueues": Shape((_text("QueueNamePrefix"), *_PAGE), on_queue=False, on_path=False, has_output=True),
    "ListQueueTags": Shape((_QUEUE,), has_output=True),
    "PurgeQueue": Shape((_QUEUE,)),
    "ReceiveMessage": Shape(
        (
            _QUEUE,
            _texts("AttributeNames", "AttributeName", "AttributeNames"),
            _texts("MessageSystemAttributeNames", "MessageSystemAttributeName", "MessageSystemAttributeNames"),
            _texts("MessageAttributeNames", "MessageAttributeName", "MessageAttributeNames"),
            _integer("MaxNumberOfMessages"),
            _integer("VisibilityTimeout"),
            _integer("WaitTimeSeconds"),
            _text("ReceiveRequestAttemptId"),
        ),
        has_output=True,
    ),
    "RemovePermission": Shape((_QUEUE, _text("Label"))),
    "SendMessage": Shape((_QUEUE, *_MESSAGE), has_output=True),
    "SendMessageBatch": _batch("SendMessageBatch", _MESSAGE),
    "SetQueueAttributes": Shape((_QUEUE, _QUEUE_ATTRIBUTES)),
    "StartMessageMoveTask": Shape(
        (_text("SourceArn"), _text("DestinationArn"), _integer("MaxNumberOfMessagesPerSecond")),
        on_queue=False,
        has_output=True,
    ),
    "TagQueue": Shape((_QUEUE, Member("Tags", Kind.TEXT_MAP, ("Tag", "Tags"), pair=_TAG_PAIR))),
    "UntagQueue": Shape((_QUEUE, _texts("TagKeys", "TagKey", "TagKeys"))),
}
"""The 23 actions of version 2012-11-05."""

LIST_ELEMENTS: Final[Mapping[str, str]] = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
"""The element in XML of each item of a list. ``Successful`` has one named after its action."""

MAP_ELEMENTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}
"""The element in XML of each pair of a map, and those of its key and value."""
