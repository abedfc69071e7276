"""Core errors -> status codes, sub-codes and documents (dialect section 9.4).

Clients choose their exception by the status; JavaScript looks for two sub-codes in the text, too: 40901 means that
something else is under way, 40301 that the operation is not allowed, where 409 and 403 alone mean *exists* and *full*.
"""

import re
import uuid
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from partibus import errors as core
from partibus.errors import PartibusError
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml import element, text_element
from partibus.throttling.throttle import RETRY_AFTER_S

STATUS: Final[dict[type[PartibusError], tuple[int, int]]] = {
    core.EntityNotFound: (404, 40400),
    core.EntityExists: (409, 40900),
    core.EntityChanged: (412, 41200),
    core.InvalidOperation: (400, 40000),
    core.ArgumentError: (400, 40000),
    core.MessageTooLarge: (413, 41300),
    core.QuotaExceeded: (403, 40300),
    core.MessageLockLost: (410, 41000),
    core.MessageNotFound: (404, 40400),
    core.SessionLockLost: (410, 41000),
    core.SessionCannotBeLocked: (409, 40901),
    core.ReadExclusively: (409, 40901),
    core.CursorHeld: (409, 40901),
    core.CursorLost: (410, 41000),
    core.TransactionUnknown: (400, 40000),
    core.TransactionRolledBack: (400, 40000),
    core.TransactionTimedOut: (400, 40000),
    core.EntityDisabled: (403, 40301),
    core.Unauthorized: (401, 40100),
    core.ServerBusy: (503, 50300),
    core.StoreUnavailable: (503, 50301),
    core.OutcomeUnknown: (504, 50400),
    core.Unsupported: (403, 40301),
    core.Timeout: (504, 50400),
    core.InternalError: (500, 50000),
}
"""Kind -> (status, sub-code)."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def status_of(error: PartibusError) -> tuple[int, int]:
    """Return status and sub-code of an error, by its class or the nearest base class."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def tracking_id(request: Request) -> str:
    """Return the id that an answer and a log line share: the client's id of the request, or a new one."""
    theirs = request.headers.get("x-ms-client-request-id", "")
    return theirs if _REQUEST_ID.fullmatch(theirs) else str(uuid.uuid4())


def refusal(request: Request, status: int, sub_code: int, text: str, now_ms: int) -> Response:
    """Return the error document."""
    tracking = tracking_id(request)
    detail = (
        f"{text} SubCode={sub_code}. TrackingId:{tracking}, SystemTracker:{request.url.path}, "
        f"Timestamp:{date_text(now_ms)}"
    )
    content = element("Error", text_element("Code", str(status)) + text_element("Detail", detail))
    headers = {"x-ms-request-id": tracking}
    if status == 401:
        headers["www-authenticate"] = "SharedAccessSignature"
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(content, status, headers, "application/xml; charset=utf-8")
