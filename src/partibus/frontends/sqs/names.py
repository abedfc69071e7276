"""Names of queues in their three forms: URL, ARN, and the entity's name here."""

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from partibus.frontends.sqs.errors import SqsError, no_such_queue

FIFO_SUFFIX: Final = ".fifo"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_NAME_RULE: Final = "Can only include alphanumeric characters, hyphens, or underscores"
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
_URL_MAX: Final = 2_048
_URLS_MAX: Final = 1_000
"""Queue URLs whose parts are remembered: 8 MB at most."""


class Home(NamedTuple):
    """The region and account of this server's queues, and their default quota."""

    region: str = "us-east-1"
    """The region whose queues have entities of the same name. Entities of other regions begin with ``region/``."""
    account: str = "000000000000"
    url: str = ""
    """The beginning of queue URLs; empty: as the client has addressed the request."""
    one_region: bool = False
    """Whether every region is the home region."""
    partitions_max: int = 8
    """The most partitions of a FIFO queue of high throughput. 8 carry 2,400 requests/s, the quota of most regions."""


class QueueName(NamedTuple):
    """A queue by region and name."""

    region: str
    name: str


def is_queue_name(name: str) -> bool:
    """Tell whether a queue can be called so."""
    return len(name) <= 80 and _NAME.fullmatch(name.removesuffix(FIFO_SUFFIX)) is not None


def check_queue_name(name: str, *, fifo: bool) -> None:
    """Check the name of a new queue. Raises `SqsError`."""
    if not is_queue_name(name):
        raise SqsError("InvalidParameterValue", f"{_NAME_RULE}. 1 to 80 in length")
    if fifo and not name.endswith(FIFO_SUFFIX):
        raise SqsError(
            "InvalidParameterValue",
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
            ".fifo suffix and be 1 to 80 in length",
        )
    if not fifo and name.endswith(FIFO_SUFFIX):
        raise SqsError(
            "InvalidParameterValue",
            f"{_NAME_RULE}. 1 to 80 in length. The suffix .fifo needs the attribute FifoQueue with the value true.",
        )


def region_of(home: Home, scope: str | None) -> str:
    """Return the region that a credential scope names; the home region for none. Raises `SqsError`."""
    if scope is None or scope == home.region or home.one_region:
        return home.region
    if _REGION.fullmatch(scope) is None:
        raise SqsError("SignatureDoesNotMatch", "Credential should be scoped to a valid region.")
    return scope


def entity_name(home: Home, queue: QueueName) -> str:
    """Return the name of a queue's entity."""
    return queue.name if queue.region == home.region else f"{queue.region}/{queue.name}"


def path_of(home: Home, queue: QueueName) -> tuple[str, ...]:
    """Return the path of a queue's entity, as grants have it."""
    return tuple(entity_name(home, queue).lower().split("/"))


def queue_of_entity(home: Home, name: str) -> QueueName | None:
    """Return the queue of an entity, or None if its name can't be one."""
    region, slash, short = name.rpartition("/")
    if not is_queue_name(short) or (slash and (_REGION.fullmatch(region) is None or region == home.region)):
        return None
    return QueueName(region if slash else home.region, short)


def arn_of(home: Home, queue: QueueName) -> str:
    """Return the ARN of a queue."""
    return f"arn:aws:sqs:{queue.region}:{home.account}:{queue.name}"


class QueueArn(NamedTuple):
    """The parts of a queue's ARN."""

    region: str
    account: str
    name: str


def read_arn(arn: str) -> QueueArn | None:
    """Return the parts of an ARN, or None if it can be that of no queue."""
    parts = arn.split(":", 6)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs":
        return None
    if _REGION.fullmatch(parts[3]) is None or not is_queue_name(parts[5]):
        return None
    return QueueArn(*parts[3:])


def queue_of_arn(home: Home, arn: str) -> QueueName | None:
    """Return the queue that an ARN names, or None if it is no ARN of this account."""
    read = read_arn(arn)
    if read is None or read.account != home.account:
        return None
    return QueueName(home.region if home.one_region else read.region, read.name)


def url_of(home: Home, queue: QueueName, base: str) -> str:
    """Return the URL of a queue; ``base`` is scheme and host as the client has addressed the request."""
    return f"{home.url or base}/{home.account}/{queue.name}"


@lru_cache(maxsize=_URLS_MAX)
def name_of_url(url: str) -> tuple[str | None, str]:
    """Return region and name that a queue URL, its path or a bare name gives; the region is mostly None.

    Raises `SqsError` for a text that can be neither.
    """
    if len(url) > _URL_MAX:
        raise no_such_queue()
    path = url
    if "://" in url:
        try:
            path = urlsplit(url).path
        except ValueError:
            raise no_such_queue() from None
    parts = [part for part in unquote(path).split("/") if part]
    if not parts or not is_queue_name(parts[-1]):
        raise no_such_queue()
    if len(parts) >= 4 and parts[-4] == "queue" and _REGION.fullmatch(parts[-3]):
        return parts[-3], parts[-1]
    return None, parts[-1]
