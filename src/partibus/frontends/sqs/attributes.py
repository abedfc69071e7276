"""Attributes of queues: which there are, their bounds, and which options of the entity they are.

Values are texts on the wire. Here they are normalised, so that two spellings of one value compare equal. Retention and
redrive are also options of the entity, which the broker acts on; the rest is what only SQS knows.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from partibus.frontends.sqs.errors import SqsError, invalid_value, is_encodable
from partibus.frontends.sqs.names import Home, QueueName, arn_of, queue_of_arn, read_arn

FIFO_QUEUE: Final = "FifoQueue"
REDRIVE_POLICY: Final = "RedrivePolicy"
REDRIVE_ALLOW_POLICY: Final = "RedriveAllowPolicy"
POLICY: Final = "Policy"
KMS_KEY: Final = "KmsMasterKeyId"
KMS_REUSE: Final = "KmsDataKeyReusePeriodSeconds"
MANAGED_SSE: Final = "SqsManagedSseEnabled"
VISIBILITY: Final = "VisibilityTimeout"
DELAY: Final = "DelaySeconds"
WAIT: Final = "ReceiveMessageWaitTimeSeconds"
RETENTION: Final = "MessageRetentionPeriod"
MAX_SIZE: Final = "MaximumMessageSize"
CONTENT_BASED: Final = "ContentBasedDeduplication"
SCOPE: Final = "DeduplicationScope"
LIMIT: Final = "FifoThroughputLimit"
MESSAGES: Final = "ApproximateNumberOfMessages"
DELAYED: Final = "ApproximateNumberOfMessagesDelayed"
NOT_VISIBLE: Final = "ApproximateNumberOfMessagesNotVisible"
COUNTS: Final = (MESSAGES, NOT_VISIBLE, DELAYED)

VISIBILITY_MAX_S: Final = 43_200
MESSAGE_BYTES_MAX: Final = 1_048_576
RECEIVES_MAX: Final = 1_000
SOURCES_MAX: Final = 10
TEXT_MAX: Final = 65_536
"""Characters of a policy."""
_KMS_REUSE_DEFAULT: Final = "300"


class Bounds(NamedTuple):
    """An attribute that is a number."""

    least: int
    most: int
    default: int


NUMBERS: Final[Mapping[str, Bounds]] = {
    VISIBILITY: Bounds(0, VISIBILITY_MAX_S, 30),
    DELAY: Bounds(0, 900, 0),
    WAIT: Bounds(0, 20, 0),
    RETENTION: Bounds(60, 1_209_600, 345_600),
    MAX_SIZE: Bounds(1_024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    KMS_REUSE: Bounds(60, 86_400, 300),
}
_INTEGER: Final = re.compile(r"-?[0-9]{1,12}")
_BOOLEANS: Final = {"true": "true", "false": "false"}
_FIFO_CHOICES: Final = {SCOPE: ("queue", "messageGroup"), LIMIT: ("perQueue", "perMessageGroupId")}
_FIFO_NAMES: Final = (CONTENT_BASED, SCOPE, LIMIT)
_TEXTS: Final = (POLICY, REDRIVE_POLICY, REDRIVE_ALLOW_POLICY, KMS_KEY)
SETTABLE: Final = frozenset((*NUMBERS, *_TEXTS, MANAGED_SSE, FIFO_QUEUE, *_FIFO_NAMES))
READ_ONLY: Final = ("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", *COUNTS)
READABLE: Final = SETTABLE | set(READ_ONLY)

DEFAULTS: Final[dict[str, str]] = {name: str(bounds.default) for name, bounds in NUMBERS.items()} | {
    MANAGED_SSE: "true"
}
FIFO_DEFAULTS: Final[dict[str, str]] = {
    FIFO_QUEUE: "true",
    CONTENT_BASED: "false",
    SCOPE: "queue",
    LIMIT: "perQueue",
}


def unknown(name: str) -> SqsError:
    """Return the error for an attribute that does not exist, or not on this kind of queue."""
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")


def _bad(name: str, reason: str = "") -> SqsError:
    return SqsError(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason and f' Reason: {reason}'}"
    )


def normalised(given: Mapping[str, str], *, fifo: bool, creating: bool) -> dict[str, str]:
    """Return the attributes of a request in their one spelling. Raises `SqsError` for the first that is wrong."""
    found = {}
    for name, value in given.items():
        if name not in SETTABLE:
            raise unknown(name)
        if not fifo:
            if name in (FIFO_QUEUE, CONTENT_BASED):
                raise unknown(name)
            if name in _FIFO_CHOICES:
                raise SqsError(
                    "InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."
                )
        found[name] = _value(name, value, creating=creating)
    if found.get(KMS_KEY) and found.get(MANAGED_SSE) == "true":
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS "
            "SSE.",
        )
    return found


def _value(name: str, value: str, *, creating: bool) -> str:
    bounds = NUMBERS.get(name)
    if bounds is not None:
        if _INTEGER.fullmatch(value) is None or not bounds.least <= int(value) <= bounds.most:
            raise _bad(name)
        return str(int(value))
    if name in (MANAGED_SSE, CONTENT_BASED, FIFO_QUEUE):
        boolean = _BOOLEANS.get(value.lower())
        if boolean is None:
            raise _bad(name)
        if name == FIFO_QUEUE and boolean == "false" and not creating:
            raise _bad(name, "Modifying queue type is not supported.")
        if name == FIFO_QUEUE and boolean == "false":
            raise _bad(name)
        return boolean
    choices = _FIFO_CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            raise _bad(name)
        return value
    if len(value) > TEXT_MAX or not is_encodable(value):
        raise _bad(name)
    if name == POLICY and value:
        _json_object(value, lambda: _bad(name))
    return _with_number(value) if name == REDRIVE_POLICY and value else value


def _with_number(policy: str) -> str:
    """Return a redrive policy with its count as a number, as the service shows it; clients may write it as text."""
    try:
        found = json.loads(policy)
    except (ValueError, RecursionError):
        return policy  # refused by `read_redrive`
    count = found.get("maxReceiveCount") if isinstance(found, dict) else None
    if not isinstance(count, str) or _INTEGER.fullmatch(count) is None or not 1 <= int(count) <= RECEIVES_MAX:
        return policy
    return json.dumps(found | {"maxReceiveCount": int(count)}, separators=(",", ":"))


def _json_object(text: str, error: Callable[[], SqsError]) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise error() from None
    if not isinstance(found, dict):
        raise error()
    return found


# -- policies about dead letters --------------------------------------------------------------------------------------


class Redrive(NamedTuple):
    """A queue's redrive policy."""

    target: QueueName
    receives_max: int


def read_redrive(home: Home, text: str, source: QueueName) -> Redrive | None:
    """Return a redrive policy; None for an empty text. Raises `SqsError`; the target may not exist."""
    if not text:
        return None

    def refused(reason: str) -> SqsError:
        return invalid_value(text, REDRIVE_POLICY, reason)

    policy = _json_object(text, lambda: refused("Redrive policy is not a valid JSON map."))
    arn, count = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    if arn is None or arn == "":
        raise refused("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
    if count is None:
        raise refused("Redrive policy does not contain mandatory attribute: maxReceiveCount.")
    if isinstance(count, str) and _INTEGER.fullmatch(count):
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= RECEIVES_MAX:
        raise refused(
            f"Invalid value for maxReceiveCount: {policy['maxReceiveCount']}, valid values are from 1 to "
            f"{RECEIVES_MAX} both inclusive."
        )
    if not isinstance(arn, str) or read_arn(arn) is None:
        raise refused("Invalid value for deadLetterTargetArn.")
    target = queue_of_arn(home, arn)
    if target is None or target.region != source.region:
        raise refused("Dead letter target must be a queue of this account and region, given by its ARN.")
    if target.name.endswith(".fifo") != source.name.endswith(".fifo"):
        raise refused("Dead-letter queue must be same type of queue as the source.")
    return Redrive(target, count)


class RedriveAllow(NamedTuple):
    """The queues that may have this one as their dead-letter queue."""

    permission: str = "allowAll"
    sources: tuple[str, ...] = ()

    def allows(self, arn: str) -> bool:
        """Tell whether the queue of an ARN may."""
        return self.permission == "allowAll" or (self.permission == "byQueue" and arn in self.sources)


def read_redrive_allow(text: str) -> RedriveAllow:
    """Return a redrive allow policy. Raises `SqsError`."""
    if not text:
        return RedriveAllow()

    def refused(reason: str) -> SqsError:
        return invalid_value(text, REDRIVE_ALLOW_POLICY, reason)

    policy = _json_object(text, lambda: refused("Redrive allow policy is not a valid JSON map."))
    permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns", [])
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise refused("redrivePermission must be allowAll, denyAll or byQueue.")
    if not isinstance(sources, list) or not all(isinstance(arn, str) for arn in sources):
        raise refused("sourceQueueArns must be a list of ARNs.")
    if (permission == "byQueue") != bool(sources):
        raise refused("sourceQueueArns must be given with byQueue, and only with it.")
    if len(sources) > SOURCES_MAX:
        raise refused(f"sourceQueueArns has at most {SOURCES_MAX} ARNs.")
    return RedriveAllow(permission, tuple(sources))


# -- what is kept ------------------------------------------------------------------------------------------------------


def merged(old: Mapping[str, str], changes: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    """Return all set attributes after a change, without those that are unset.

    Raises `SqsError` for values that contradict each other.
    """
    new = dict(old) | dict(changes)
    if changes.get(KMS_KEY):
        new[MANAGED_SSE] = "false"
    elif changes.get(MANAGED_SSE) == "true":
        new.pop(KMS_KEY, None)
    defaults = DEFAULTS | FIFO_DEFAULTS if fifo else DEFAULTS
    if new.get(LIMIT, "perQueue") == "perMessageGroupId" and new.get(SCOPE, "queue") == "queue":
        raise _bad(LIMIT, "perMessageGroupId is only allowed when DeduplicationScope is messageGroup.")
    return {name: value for name, value in new.items() if value != "" and value != defaults.get(name)}


def same_value(name: str, wanted: str, current: str) -> bool:
    """Tell whether two normalised values are equal; policies are compared as JSON."""
    if name in (POLICY, REDRIVE_POLICY, REDRIVE_ALLOW_POLICY) and wanted and current:
        try:
            mine, theirs = json.loads(wanted), json.loads(current)
        except (ValueError, RecursionError):
            return wanted == current
        if name == REDRIVE_POLICY and isinstance(mine, dict) and isinstance(theirs, dict):
            return {key: str(value) for key, value in mine.items()} == {k: str(v) for k, v in theirs.items()}
        return bool(mine == theirs)
    return wanted == current


def described(home: Home, queue: QueueName, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return all set values of a queue but its counts and times: an unset one without a default is missing."""
    fifo = queue.name.endswith(".fifo")
    values = dict(DEFAULTS | FIFO_DEFAULTS if fifo else DEFAULTS)
    values.update(attributes)
    if values[KMS_REUSE] == _KMS_REUSE_DEFAULT:
        del values[KMS_REUSE]
    values["QueueArn"] = arn_of(home, queue)
    return values
