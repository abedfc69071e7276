"""AddPermission, RemovePermission: statements of the queue's access policy, which is stored and returned."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from partibus.frontends.sqs.actions.queue_attributes import change_queue
from partibus.frontends.sqs.attributes import POLICY
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, missing
from partibus.frontends.sqs.shapes import SHAPES
from partibus.namespace.access import Right

ACTIONS_MAX: Final = 7
GRANTABLE: Final = (
    "*",
    "SendMessage",
    "ReceiveMessage",
    "DeleteMessage",
    "ChangeMessageVisibility",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
)
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_VERSION: Final = "2008-10-17"


def add_permission(call: Call) -> None:
    """Add a statement to the policy."""
    queue = call.queue(Right.MANAGE)
    label = _label(call)
    accounts: list[str] = call.members.get("AWSAccountIds", [])
    actions: list[str] = call.members.get("Actions", [])
    if not accounts:
        raise invalid_value("[]", "PrincipalId", "Unable to verify.")
    if not actions:
        raise missing("Actions")
    if len(actions) > ACTIONS_MAX:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for account in accounts:
        if _ACCOUNT.fullmatch(account) is None:
            raise invalid_value(f"[{account[:50]}]", "PrincipalId", "Unable to verify.")
    for action in actions:
        if action not in GRANTABLE:
            is_known = action in SHAPES
            owner, choice = "Only the queue owner is allowed to invoke this action.", ", ".join(GRANTABLE)
            reason = owner if is_known else f"Please specify one of {choice}."
            raise invalid_value(f"SQS:{action[:80]}", "ActionName", reason)
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all(principals)},
        "Action": _one_or_all([f"SQS:{action}" for action in actions]),
        "Resource": queue.arn,
    }

    def change(old: Mapping[str, str]) -> Mapping[str, str]:
        policy, statements = statements_of(old.get(POLICY, ""))
        if not policy:
            policy = {"Version": _VERSION, "Id": f"{queue.arn}/SQSDefaultPolicy"}
        if any(one.get("Sid") == label for one in statements):
            raise invalid_value(label, "Label", "Already exists.")
        return dict(old) | {POLICY: json.dumps(policy | {"Statement": [*statements, statement]})}

    change_queue(call, queue, change, (POLICY,))
    call.answer_when_followed()


def remove_permission(call: Call) -> None:
    """Remove the statement of a label; the policy goes with its last one."""
    queue = call.queue(Right.MANAGE)
    label = _label(call)

    def change(old: Mapping[str, str]) -> Mapping[str, str]:
        policy, statements = statements_of(old.get(POLICY, ""))
        left = [one for one in statements if one.get("Sid") != label]
        if len(left) == len(statements):
            raise invalid_value(label, "Label", "can't find label.")
        new = dict(old)
        del new[POLICY]
        return new | {POLICY: json.dumps(policy | {"Statement": left})} if left else new

    change_queue(call, queue, change, (POLICY,))
    call.answer_when_followed()


def _label(call: Call) -> str:
    label: str = call.required("Label")
    if _LABEL.fullmatch(label) is None:
        raise invalid_value(
            label[:200],
            "Label",
            "Label can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )
    return label


def statements_of(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a checked policy and its statements; both are empty for an empty text."""
    policy: dict[str, Any] = json.loads(text) if text else {}
    found = policy.get("Statement", [])
    return policy, [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
