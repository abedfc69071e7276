"""Send one message, or a batch in JSON."""

from functools import partial

from starlette.responses import Response

from partibus.errors import InvalidOperation, QuotaExceeded
from partibus.frontends.rest.data.calls import DataCall
from partibus.frontends.rest.requests import (
    BodyTooLarge,
    answer_of,
    check_not_exhausted,
    others_first,
    pay_for_sends,
    read_body,
)
from partibus.message import Message
from partibus.namespace.entity import Entity
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.send import OnSent, send
from partibus.throttling.uses import Operation

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"
_KIB = 1024
BATCH_BODY_MAX = 4 * 1024 * _KIB
"""Bytes of a batch in JSON, whatever its messages may have."""
AT_ONCE_MAX = 256
"""Messages of a batch that are made before others have their turn."""
JSON_FACTOR = 8
"""The bound of a JSON batch per byte of messages: a byte may take six in JSON, and syntax takes some more."""


def _send(entity: Entity, batch: list[Message], on_sent: OnSent) -> None:
    if entity.tracer is not None:
        on_sent = entity.tracer.sending(entity.queue.name, [[message.data for message in batch]], on_sent)
    send(entity.route, [batch], on_sent)


async def send_messages(call: DataCall) -> Response:
    """201 once all are stored; else the first refusal. A batch stands or falls as one in each partition (D8)."""
    queue = call.entity.queue
    if call.kind != SubqueueKind.ACTIVE:
        raise InvalidOperation(f"No client can send to '{call.address.path}'. Send to '{queue.name}'.")
    call.entity.check_send()
    check_not_exhausted(call.broker, Operation.SEND)
    headers = call.request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() == BATCH_TYPE:
        most = min(BATCH_BODY_MAX, JSON_FACTOR * queue.batch_size_max_bytes)
        batch = []
        for message in call.reader.from_batch(await read_body(call.request, most), queue):
            batch.append(message)
            if len(batch) % AT_ONCE_MAX == 0:
                await others_first()
    else:
        most = queue.batch_size_max_bytes
        try:
            body = await read_body(call.request, most)
        except BodyTooLarge:
            raise QuotaExceeded(f"A message to '{queue.name}'", most, "bytes", "Send less in one message.") from None
        batch = [call.reader.from_headers(headers.items(), body, queue)]
    await pay_for_sends(call.broker, call.entity, len(batch))
    # The entity may have been changed meanwhile.
    call.entity.check_send()
    errors = await answer_of(partial(_send, call.entity, batch))
    for error in errors or ():
        if error is not None:
            raise error
    return Response(None, 201)
