"""One request of a signed-in user, and the answers of pages."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct, field
from starlette.requests import Request

from partibus.errors import ArgumentError, Unauthorized, shown
from partibus.frontends.rest.metrics import Ask
from partibus.frontends.rest.portal import PATH
from partibus.frontends.rest.requests import answer_of, read_body
from partibus.namespace.access import Grant, Right
from partibus.namespace.broker import Broker

FORM_BYTES_MAX = 64 * 1024
FORM_FIELDS_MAX = 100


class Page(Struct):
    """The data of a page, as JSON values, and the name of the template that formats them."""

    template: str
    title: str
    data: dict[str, Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


PAGE_MAX = 999_999


class MovedOn(Struct):
    """Done: the browser is to get another page (303)."""

    path: str


Answer = Page | MovedOn


class Visit(Struct):
    """The user of a request, and its namespace."""

    broker: Broker
    metrics: Ask
    request: Request
    grant: Grant
    form: Mapping[str, str]
    """The typed values of a POST."""

    @property
    def can_manage(self) -> bool:
        """Whether the user may change entities."""
        return self.grant.allows((), Right.MANAGE, self.broker.wall_clock.now_ms() / 1000)

    @property
    def is_operator(self) -> bool:
        """Whether the user may see facts of the server beside those of the namespace, as with `/metrics`."""
        return self.broker.is_default and self.can_manage and self.grant.operates

    @property
    def is_post(self) -> bool:
        """Whether the request is a POST."""
        return self.request.method == "POST"

    def check_manage(self) -> None:
        """Unauthorized, with the policy that lacks it."""
        if not self.can_manage:
            raise Unauthorized(
                f"The access policy {shown(self.grant.policy_name)} does not have Manage, which changes need. "
                "Sign in with one that has it."
            )

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        return self.request.query_params.get(name, default)

    def page_number(self) -> int:
        """Return the number of the page, from 1 to `PAGE_MAX`. Raises `ArgumentError`."""
        text = self.asked("page", "1")
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 6 and int(text) >= 1):
            raise ArgumentError("page", text, f"a whole number from 1 to {PAGE_MAX:,}")
        return int(text)

    async def followed(self) -> None:
        """Wait until every broker follows the latest change; await it right after the change."""

        def ask(answer: Callable[[None], None]) -> None:
            self.broker.when_followed(lambda: answer(None))

        await answer_of(ask)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last of repeated ones. Raises `ArgumentError`, `BodyTooLarge`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ArgumentError("Content-Type", kind, "application/x-www-form-urlencoded, as forms are sent")
    body = await read_body(request, FORM_BYTES_MAX)
    try:
        return dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX))
    except ValueError:
        raise ArgumentError("The form", f"of more than {FORM_FIELDS_MAX} fields", "a form of the portal") from None


def address(page: str, /, **parameters: str | int) -> str:
    """Return the address of a page, such as ``"entity"``, with its parameters."""
    path = f"{PATH}/{page}" if page else PATH
    given = {name: value for name, value in parameters.items() if value != ""}
    return f"{path}?{urlencode(given)}" if given else path
