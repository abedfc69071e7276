"""The actions of SQS, one file each with its batch twin."""

from collections.abc import Callable, Mapping
from typing import Final

from partibus.frontends.sqs.actions.change_visibility import change_visibility, change_visibility_batch
from partibus.frontends.sqs.actions.create_queue import create_queue
from partibus.frontends.sqs.actions.delete_message import delete_message, delete_message_batch
from partibus.frontends.sqs.actions.delete_queue import delete_queue
from partibus.frontends.sqs.actions.list_queues import get_queue_url, list_dead_letter_source_queues, list_queues
from partibus.frontends.sqs.actions.move_tasks import (
    cancel_message_move_task,
    list_message_move_tasks,
    start_message_move_task,
)
from partibus.frontends.sqs.actions.permissions import add_permission, remove_permission
from partibus.frontends.sqs.actions.purge_queue import purge_queue
from partibus.frontends.sqs.actions.queue_attributes import get_queue_attributes, set_queue_attributes
from partibus.frontends.sqs.actions.receive_message import receive_message
from partibus.frontends.sqs.actions.send_message import send_message, send_message_batch
from partibus.frontends.sqs.actions.tags import list_queue_tags, tag_queue, untag_queue
from partibus.frontends.sqs.calls import Call

ACTIONS: Final[Mapping[str, Callable[[Call], None]]] = {
    "AddPermission": add_permission,
    "CancelMessageMoveTask": cancel_message_move_task,
    "ChangeMessageVisibility": change_visibility,
    "ChangeMessageVisibilityBatch": change_visibility_batch,
    "CreateQueue": create_queue,
    "DeleteMessage": delete_message,
    "DeleteMessageBatch": delete_message_batch,
    "DeleteQueue": delete_queue,
    "GetQueueAttributes": get_queue_attributes,
    "GetQueueUrl": get_queue_url,
    "ListDeadLetterSourceQueues": list_dead_letter_source_queues,
    "ListMessageMoveTasks": list_message_move_tasks,
    "ListQueues": list_queues,
    "ListQueueTags": list_queue_tags,
    "PurgeQueue": purge_queue,
    "ReceiveMessage": receive_message,
    "RemovePermission": remove_permission,
    "SendMessage": send_message,
    "SendMessageBatch": send_message_batch,
    "SetQueueAttributes": set_queue_attributes,
    "StartMessageMoveTask": start_message_move_task,
    "TagQueue": tag_queue,
    "UntagQueue": untag_queue,
}

OF_MESSAGES: Final = frozenset(
    {
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
        "DeleteMessage",
        "DeleteMessageBatch",
        "ReceiveMessage",
        "SendMessage",
        "SendMessageBatch",
    }
)
"""The actions that cost credits by the message, or none. The others are requests about queues."""
