"""TagQueue, UntagQueue, ListQueueTags."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, is_encodable, missing
from partibus.frontends.sqs.queues import change_options
from partibus.namespace.access import Right
from partibus.namespace.entities import SqsOptions

TAGS_MAX: Final = 50
KEY_MAX: Final = 128
VALUE_MAX: Final = 256


def check_tags(queue_name: str, tags: Mapping[str, str]) -> None:
    """Check the tags of a queue. Raises `SqsError`."""
    if len(tags) > TAGS_MAX:
        raise SqsError("InvalidParameterValue", f"Too many tags added for queue {queue_name}.")
    for key, value in tags.items():
        is_text = is_encodable(key) and is_encodable(value)
        if not is_text or not 1 <= len(key) <= KEY_MAX or len(value) > VALUE_MAX:
            raise SqsError(
                "InvalidParameterValue",
                f"The tag {key[:KEY_MAX]!r} is invalid: its key has 1 to {KEY_MAX} characters, its value at most "
                f"{VALUE_MAX}, and all of them can be encoded in UTF-8.",
            )


def tag_queue(call: Call) -> None:
    """Add tags; one with the same key is replaced."""
    queue = call.queue(Right.MANAGE)
    tags: Mapping[str, str] = call.members.get("Tags", {})
    if not tags:
        raise missing("Tags")
    name = queue.name.name
    check_tags(name, tags)

    def change(old: SqsOptions) -> SqsOptions:
        new = old.tags | dict(tags)
        check_tags(name, new)
        return replace(old, tags=new)

    change_options(call.broker, call.home, queue, change)
    call.answer_when_followed()


def untag_queue(call: Call) -> None:
    """Remove tags; unknown keys are ignored."""
    queue = call.queue(Right.MANAGE)
    keys = set(call.members.get("TagKeys", ()))
    if not keys:
        raise SqsError("InvalidParameterValue", f"Tag keys must be between 1 and {KEY_MAX} characters in length.")

    def change(old: SqsOptions) -> SqsOptions:
        return replace(old, tags={key: value for key, value in old.tags.items() if key not in keys})

    change_options(call.broker, call.home, queue, change)
    call.answer_when_followed()


def list_queue_tags(call: Call) -> None:
    """Answer with the tags."""
    tags = call.queue().options.tags
    call.answer({"Tags": tags} if tags else None)
