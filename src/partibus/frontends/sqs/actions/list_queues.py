"""ListQueues, GetQueueUrl, ListDeadLetterSourceQueues: which queues there are."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, invalid_value, no_such_queue
from partibus.frontends.sqs.names import QueueName, is_queue_name

PAGE_MAX: Final = 1_000


def list_queues(call: Call) -> None:
    """Answer with the URLs of the region's queues whose names have a prefix, in pages if the request says so.

    A client with the policy of one queue sees that queue alone.
    """
    prefix: str = call.members.get("QueueNamePrefix", "")
    queues = call.state.queues_of(call.broker).all(call.broker, call.caller.region)
    names = [one.name for one in queues if one.name.name.startswith(prefix) and call.sees(one.name)]
    page, token = _page(call, names)
    call.answer(_with_token("QueueUrls", [call.url_of(name) for name in page], token))


def list_dead_letter_source_queues(call: Call) -> None:
    """Answer with the URLs of the queues that have this one as their dead-letter queue."""
    target = call.queue()
    queues = call.state.queues_of(call.broker).all(call.broker, target.name.region)
    names = [one.name for one in queues if one.redrive is not None and one.redrive.target == target.name]
    names = [name for name in names if call.sees(name)]
    page, token = _page(call, names)
    answer = _with_token("queueUrls", [call.url_of(name) for name in page], token)
    call.answer({"queueUrls": []} | answer)


def get_queue_url(call: Call) -> None:
    """Answer with the URL of a queue by its name."""
    short: str = call.required("QueueName")
    owner = call.members.get("QueueOwnerAWSAccountId")
    if not is_queue_name(short) or (owner and owner != call.home.account):
        raise no_such_queue()
    queue = call.named(QueueName(call.caller.region, short))
    call.answer({"QueueUrl": call.url_of(queue.name)})


def _page(call: Call, names: Sequence[QueueName]) -> tuple[Sequence[QueueName], str | None]:
    """Return one page of names, and the token of the next one if the request wants pages and more remain."""
    most, token = call.members.get("MaxResults"), call.members.get("NextToken")
    if most is not None and not 1 <= most <= PAGE_MAX:
        raise invalid_value(most, "MaxResults", f"MaxResults must be an integer between 1 and {PAGE_MAX}.")
    if token:
        after = name_of_token(token)
        names = [name for name in names if name.name > after]
    page = names[: most or PAGE_MAX]
    more = most is not None and len(names) > len(page)
    return page, urlsafe_b64encode(page[-1].name.encode()).decode() if more else None


def name_of_token(token: str) -> str:
    """Return the last name of the page before. Raises `SqsError`."""
    try:
        name = urlsafe_b64decode(token.encode("ascii")).decode("ascii")
    except ValueError:
        name = ""
    if not is_queue_name(name):
        raise SqsError("InvalidParameterValue", "Invalid or expired next token.")
    return name


def _with_token(member: str, urls: list[str], token: str | None) -> dict[str, object]:
    answer: dict[str, object] = {}
    if urls:
        answer[member] = urls
    if token is not None:
        answer["NextToken"] = token
    return answer
