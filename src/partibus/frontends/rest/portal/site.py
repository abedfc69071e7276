"""The portal as one ASGI application: dispatch of pages, authorization, and refusals."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from partibus.errors import PartibusError, Unauthorized
from partibus.frontends.rest.atom.envelope import status_of
from partibus.frontends.rest.metrics import Ask
from partibus.frontends.rest.portal import PATH, changes, entity, overview
from partibus.frontends.rest.portal.signing_in import comes_from_here, forget, grant_of, remember, safe_next, sign_in
from partibus.frontends.rest.portal.visit import Answer, MovedOn, Page, Visit, address, read_form
from partibus.frontends.rest.portal.words import number_text, time_text, whole_text
from partibus.frontends.rest.requests import BodyTooLarge
from partibus.namespace.broker import Broker
from partibus.namespace.durations import duration_text
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestKind
from partibus.namespace.sizes import size_text
from partibus.throttling.throttle import RETRY_AFTER_S

_FOLDER = Path(__file__).parent / "templates"
STYLE: Final = (_FOLDER / "portal.css").read_text(encoding="utf-8")


class Templates:
    """All of them, read and compiled when this is made."""

    def __init__(self) -> None:
        environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "n": number_text,
            "size": size_text,
            "duration": duration_text,
            "time": time_text,
            "whole": whole_text,
        }
        environment.globals |= {"address": address, "percent": percent}
        self._by_name = {
            name.removesuffix(".html"): environment.get_template(name)
            for name in environment.list_templates(extensions=["html"])
        }

    def render(self, name: str, **values: Any) -> str:
        """Return the document."""
        return self._by_name[name].render(**values)


def percent(part: float, whole: float) -> int:
    """0 to 100, and 1 at least where there is any: a bar that can be seen."""
    if part <= 0 or whole <= 0:
        return 0
    return max(1, min(100, round(100 * part / whole)))


Handler = Callable[[Visit], Awaitable[Answer]]

_READ: Final = ("GET", "HEAD")
_PAGES: Final[Mapping[str, tuple[Handler, tuple[str, ...]]]] = {
    "": (overview.show_overview, _READ),
    "entities": (overview.show_entities, _READ),
    "entity": (entity.show_entity, _READ),
    "create": (changes.create, (*_READ, "POST")),
    "change": (changes.change, (*_READ, "POST")),
    "delete": (changes.delete, (*_READ, "POST")),
}
"""The handler and the methods of each page, by its path below `PATH`."""
_SIGN_IN: Final = "sign-in"
_SIGN_OUT: Final = "sign-out"
_STYLE: Final = "portal.css"

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    # With no-referrer a browser says "Origin: null" of our own forms, which is what foreign ones say.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


class Site:
    """All pages."""

    def __init__(self, namespaces: Namespaces, metrics: Ask) -> None:
        self._namespaces = namespaces
        self._metrics = metrics
        self._templates = Templates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a page."""
        request = Request(scope, receive)
        broker = self._namespaces.of_host(request.headers.get("host"))
        try:
            response = await self._answer(request, broker)
        except ClientDisconnect:
            return
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if _page_name(request) != _STYLE:
            broker.requests.answered_status(RequestKind.MANAGEMENT, response.status_code)
        await response(scope, receive, send)

    async def _answer(self, request: Request, broker: Broker) -> Response:
        name = _page_name(request)
        grant = None if name == _STYLE else grant_of(broker, request)
        try:
            if name == _STYLE:
                return _style(request)
            if request.method == "POST" and not comes_from_here(request):
                return self._refuse(request, broker, 403, _FOREIGN)
            if name == _SIGN_IN:
                return await self._sign_in(request, broker)
            if name == _SIGN_OUT:
                return _sign_out(request)
            handler, methods = _PAGES.get(name, (None, _READ))
            if request.method not in methods:
                response = self._refuse(request, broker, 405, f"{request.method} is not one of {', '.join(methods)}.")
                response.headers["allow"] = ", ".join(methods)
                return response
            if grant is None:
                return _to_sign_in(request)
            visit = Visit(broker, self._metrics, request, grant, {})
            if handler is None:
                return self._refuse(request, broker, 404, "There is no such page.", visit)
            try:
                if visit.is_post:
                    visit.form = await read_form(request)
                answer = await handler(visit)
            except Unauthorized as error:  # who it is was clear
                return self._refuse(request, broker, 403, str(error), visit)
            except PartibusError as error:
                return self._refuse(request, broker, status_of(error)[0], str(error), visit)
            return self._shown(request, answer, visit)
        except BodyTooLarge as error:
            return self._refuse(request, broker, 413, str(error))
        except PartibusError as error:
            return self._refuse(request, broker, status_of(error)[0], str(error))

    async def _sign_in(self, request: Request, broker: Broker) -> Response:
        """Show the form, or handle it. A typed key is never sent back."""
        if request.method in _READ:
            return self._page(request, broker, _sign_in_page(broker, request.query_params.get("next", "")))
        if request.method != "POST":
            response = self._refuse(request, broker, 405, f"{request.method} is not one of GET, HEAD, POST.")
            response.headers["allow"] = ", ".join((*_READ, "POST"))
            return response
        form = await read_form(request)
        policy = form.get("policy", "").strip()
        try:
            value = sign_in(
                broker, request, form.get("connection_string", "").strip(), policy, form.get("key", "").strip()
            )
        except PartibusError as error:
            page = _sign_in_page(broker, form.get("next", ""), policy, str(error))
            page.status = status_of(error)[0]
            return self._page(request, broker, page)
        response = _moved(safe_next(form.get("next", "")))
        remember(response, request, value)
        return response

    def _shown(self, request: Request, answer: Answer, visit: Visit) -> Response:
        if isinstance(answer, MovedOn):
            return _moved(answer.path)
        return self._page(request, visit.broker, answer, visit)

    def _refuse(self, request: Request, broker: Broker, status: int, text: str, visit: Visit | None = None) -> Response:
        page = Page("message", _TITLES.get(status, "This did not work"), {"error": text}, status)
        return self._page(request, broker, page, visit)

    def _page(self, request: Request, broker: Broker, page: Page, visit: Visit | None = None) -> Response:
        """Return a page in HTML, or its data in JSON."""
        if page.status == 503:
            page.headers["retry-after"] = str(RETRY_AFTER_S)
        if _wants_json(request):
            return JSONResponse(page.data, page.status, page.headers)
        who: dict[str, Any] = {"policy": None, "can_manage": False}
        if visit is not None:
            who = {"policy": visit.grant.policy_name, "can_manage": visit.can_manage}
        text = self._templates.render(
            page.template,
            title=page.title,
            page=page.data,
            who=who,
            namespace=broker.namespace.name,
            tier=broker.namespace.record.options.tier.value,
            here=_page_name(request),
        )
        return Response(text, page.status, page.headers, "text/html; charset=utf-8")


_TITLES = {403: "Not allowed", 404: "Not there", 405: "Not that way", 503: "Not now"}
_FOREIGN = (
    "This change was not sent by a page of this portal, or by a browser that does not say so. "
    "Go to the portal and do it there; programs use the admin API."
)


def _page_name(request: Request) -> str:
    """Return the path below `PATH`, from the request line and not from an address with the Host header."""
    return str(request.scope["path"]).removeprefix(PATH).strip("/")


def _sign_in_page(broker: Broker, wanted: str, policy: str = "", error: str = "") -> Page:
    data = {"next": safe_next(wanted), "policy_typed": policy, "error": error}
    return Page("sign-in", f"Sign in to {broker.namespace.name}", data)


def _to_sign_in(request: Request) -> Response:
    if _wants_json(request):
        return JSONResponse({"error": f"Sign in at {PATH}/{_SIGN_IN} first."}, 401)
    wanted = str(request.scope["path"])
    if request.method not in _READ:
        wanted = PATH  # what was typed is lost, and must not be sent twice
    elif request.url.query:
        wanted += f"?{request.url.query}"
    return _moved(address(_SIGN_IN, next=safe_next(wanted)))


def _sign_out(request: Request) -> Response:
    if request.method in _READ:
        return _moved(PATH)
    if request.method != "POST":
        return Response("", 405, {"allow": ", ".join((*_READ, "POST"))})
    response = _moved(address(_SIGN_IN))
    forget(response, request)
    return response


def _style(request: Request) -> Response:
    if request.method not in _READ:
        return Response("", 405, {"allow": ", ".join(_READ)})
    return Response(STYLE, 200, {"cache-control": "max-age=300"}, "text/css; charset=utf-8")


def _moved(path: str) -> Response:
    """Redirect the browser to another page."""
    return Response("", 303, {"location": quote(path, safe="/?&=%$-._~!'()*+,;:@")})


def _wants_json(request: Request) -> bool:
    asked = request.query_params.get("format")
    if asked is not None:
        return asked == "json"
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted
