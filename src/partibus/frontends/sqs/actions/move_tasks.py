"""StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask."""

import json
from base64 import b64decode, b64encode
from typing import Any, Final

from msgspec.structs import replace

from partibus.errors import StoreUnavailable
from partibus.frontends.sqs.actions.queue_attributes import counts_of
from partibus.frontends.sqs.attributes import MESSAGES
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value
from partibus.frontends.sqs.movers import CANCELLING, RUNNING, UNDER_WAY
from partibus.frontends.sqs.names import QueueName, queue_of_arn
from partibus.frontends.sqs.queues import SqsQueue, change_options
from partibus.namespace.access import Right
from partibus.namespace.entities import MoveTask, SqsOptions
from partibus.routing.entity import Inspection, inspect_each

KEPT_MAX: Final = 10
"""Tasks of a queue that are remembered, the newest ones."""
RATE_MAX: Final = 500
_ARN_MAX: Final = 2_048


def start_message_move_task(call: Call) -> None:
    """Begin to move the messages of a dead-letter queue."""
    source = _queue(call, "SourceArn")
    destination = _queue(call, "DestinationArn") if call.members.get("DestinationArn") else None
    rate = call.members.get("MaxNumberOfMessagesPerSecond")
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise invalid_value(rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {RATE_MAX}.")
    queues = call.state.queues_of(call.broker).all(call.broker, source.name.region)
    origins = [one for one in queues if one.redrive is not None and one.redrive.target == source.name]
    if not origins:
        raise SqsError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
    if destination is not None and destination.fifo != source.fifo:
        raise SqsError("InvalidParameterValue", "Source and destination queues must be of the same type.")
    if destination is not None and destination.name == source.name:
        raise SqsError("InvalidParameterValue", "Source queue arn and destination queue arn must be different.")
    if destination is None:
        for origin in origins:
            call.check(Right.SEND, origin.name)

    def counted(inspection: Inspection) -> None:
        if not inspection.found:
            raise StoreUnavailable("No messaging store of the queue can be used now.")
        task = MoveTask(
            task_id=call.state.new_uuid(),
            started_ms=call.broker.clock.now_ms(),
            source_arn=source.arn,
            destination_arn="" if destination is None else destination.arn,
            rate=rate or 0,
            to_move=int(counts_of(inspection)[MESSAGES]),
            is_new=True,
        )

        def begin(old: SqsOptions) -> SqsOptions:
            if any(one.status in UNDER_WAY for one in old.moves):
                raise SqsError(
                    "InvalidParameterValue",
                    "There is already a task running. Only one active task is allowed for a source queue arn at a "
                    "given time.",
                )
            return replace(old, moves=(task, *old.moves[: KEPT_MAX - 1]))

        change_options(call.broker, call.home, source, begin)
        call.answer({"TaskHandle": _handle(task)})
        call.state.look_for_tasks()

    inspect_each(call.entity(source).route, call.guarded(counted), count_scheduled=True)


def list_message_move_tasks(call: Call) -> None:
    """Answer with the newest tasks of a queue."""
    source = _queue(call, "SourceArn")
    most = call.members.get("MaxResults", 1)
    if not 1 <= most <= KEPT_MAX:
        raise invalid_value(most, "MaxResults", f"Must be between 1 and {KEPT_MAX}.")
    call.answer({"Results": [_shown(task, _moved(call, task)) for task in source.options.moves[:most]]})


def cancel_message_move_task(call: Call) -> None:
    """End a task; what it has moved stays moved."""
    task_id, arn = read_task_handle(call.required("TaskHandle"))
    name, source = _named(call, "SourceArn", arn)

    def cancel(old: SqsOptions) -> SqsOptions:
        if not any(one.task_id == task_id and one.status in UNDER_WAY for one in old.moves):
            raise _no_task()
        return replace(
            old,
            moves=tuple(replace(one, status=CANCELLING) if one.task_id == task_id else one for one in old.moves),
        )

    change_options(call.broker, call.home, source, cancel)
    moved = next((one.moved for one in call.named(name).options.moves if one.task_id == task_id), 0)
    call.answer({"ApproximateNumberOfMessagesMoved": call.state.movers.moved(task_id, moved)})


def _queue(call: Call, parameter: str) -> SqsQueue:
    """Return the queue of an ARN, if the client may manage it. Raises `SqsError`."""
    return _named(call, parameter, call.required(parameter))[1]


def _named(call: Call, parameter: str, arn: str) -> tuple[QueueName, SqsQueue]:
    name = queue_of_arn(call.home, arn[:_ARN_MAX])
    try:
        if name is not None:
            return name, call.named(name, Right.MANAGE)
    except SqsError as error:
        if not error.code.endswith("NonExistentQueue"):
            raise
    raise SqsError(
        "ResourceNotFoundException", f"The resource that you specified for the {parameter} parameter doesn't exist."
    )


def _handle(task: MoveTask) -> str:
    return b64encode(json.dumps({"taskId": task.task_id, "sourceArn": task.source_arn}).encode()).decode()


def read_task_handle(text: str) -> tuple[str, str]:
    """Return id and source ARN of a task. Raises `SqsError`."""
    try:
        found = json.loads(b64decode(text, validate=True)) if len(text) <= _ARN_MAX else None
        if isinstance(found, dict) and isinstance(found["taskId"], str) and isinstance(found["sourceArn"], str):
            return found["taskId"], found["sourceArn"]
    except (ValueError, KeyError, RecursionError):
        pass
    raise SqsError("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")


def _no_task() -> SqsError:
    return SqsError("ResourceNotFoundException", "Task does not exist.")


def _moved(call: Call, task: MoveTask) -> int:
    """Return how many messages the list says that a task has moved.

    Clients expect the full count together with the end, so a task at work lacks one until the catalog has both.
    """
    now = call.state.movers.moved(task.task_id, task.moved)
    return max(task.moved, min(now, task.to_move - 1))


def _shown(task: MoveTask, moved: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": task.source_arn,
        "ApproximateNumberOfMessagesMoved": moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_ms,
    }
    if task.status == RUNNING:
        shown["TaskHandle"] = _handle(task)
    if task.destination_arn:
        shown["DestinationArn"] = task.destination_arn
    if task.rate:
        shown["MaxNumberOfMessagesPerSecond"] = task.rate
    if task.failure:
        shown["FailureReason"] = task.failure
    return shown
