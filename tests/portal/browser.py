"""A browser for tests: it follows redirections, keeps a cookie, and fills in forms as they were served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT_S = 60
_VOID = {"meta", "link", "input", "br", "hr", "img"}


class Form:
    """A form with what stands in it."""

    def __init__(self, method: str, action: str) -> None:
        self.method = method
        self.action = action
        self.values: dict[str, str] = {}
        """Return the fields that a browser would send: only ticked boxes, no disabled field."""
        self.boxes: dict[str, Mapping[str, str | None]] = {}
        """Attributes of check boxes by name."""
        self.choices: dict[str, list[str]] = {}
        """Values of selects by name."""


class Document(HTMLParser):
    """An HTML page, parsed; `AssertionError` for one whose elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.by_id: dict[str, str] = {}
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        """Texts of the cells of tables."""
        self._open: list[tuple[str, str | None]] = []
        self._select = ""
        self._lines = ""
        self._in_cell = False
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append((tag, given.get("id")))
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif tag == "form":
            self.forms.append(Form(given.get("method") or "get", given.get("action") or ""))
        elif tag == "input":
            self._input(given)
        elif tag == "textarea":
            self._lines = given.get("name") or ""
            self.forms[-1].values[self._lines] = ""
        elif tag == "select":
            self._select = given.get("name") or ""
            self.forms[-1].choices[self._select] = []
        elif tag == "option":
            value = given.get("value") or ""
            chosen = self.forms[-1].choices[self._select]
            if not chosen or "selected" in given:
                self.forms[-1].values[self._select] = value
            chosen.append(value)
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def _input(self, given: Mapping[str, str | None]) -> None:
        form, name = self.forms[-1], given.get("name") or ""
        if given.get("type") == "checkbox":
            form.boxes[name] = given
            if "checked" not in given or "disabled" in given:
                return
        form.values[name] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1][0] == tag, f"</{tag}> closes {self._open[-1]}"
        self._open.pop()
        if tag == "textarea":  # a browser leaves out the first end of a line, and sends the others so
            lines = self.forms[-1].values[self._lines].replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.forms[-1].values[self._lines] = lines.replace("\n", "\r\n")
            self._lines = ""
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._lines:
            self.forms[-1].values[self._lines] += data
        if self._in_cell:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())
        for _, name in self._open:
            if name is not None:
                self.by_id[name] = " ".join(f"{self.by_id.get(name, '')} {data}".split())

    def form(self, action: str) -> Form:
        """The one that goes to a page."""
        found = [form for form in self.forms if urlsplit(form.action).path.endswith(f"/{action}")]
        assert len(found) == 1, f"{len(found)} forms go to {action}"
        return found[0]

    def row(self, first: str) -> list[str]:
        """The row of a table whose first cell says that."""
        return next(row for row in self.rows if row and row[0] == first)


class Answer:
    """The answer to a request."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body.decode()

    @property
    def page(self) -> Document:
        assert self.headers["content-type"] == "text/html; charset=utf-8"
        return Document(self.body)

    @property
    def json(self) -> Any:
        assert self.headers["content-type"].startswith("application/json")
        return json.loads(self.body)


class Browser:
    """A user at a portal, who calls the server by one name."""

    def __init__(self, http_url: str, host: str = "localhost") -> None:
        parts = urlsplit(http_url)
        self._address = parts.hostname or "", parts.port or 80
        self.host = f"{host}:{parts.port}"
        self.cookies: dict[str, str] = {}
        self.set_cookie = ""
        """The header that changed the cookies last."""

    def request(self, method: str, path: str, form: Mapping[str, str] | None = None, /, **headers: str) -> Answer:
        """One request, with the headers that browsers send; ``headers`` replace them, empty ones take them away."""
        sent = {"Host": self.host, "Accept": "text/html"}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            sent |= {"Origin": f"http://{self.host}", "Sec-Fetch-Site": "same-origin"}
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection(*self._address, timeout=TIMEOUT_S)
        try:
            body = None if form is None else urlencode(form).encode()
            connection.request(method, path, body, {name: value for name, value in sent.items() if value})
            response = connection.getresponse()
            self._keep(response.getheader("Set-Cookie"))
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Follows redirections."""
        return self._followed(self.request("GET", path, **headers))

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Follows redirections."""
        return self._followed(self.request("POST", path, form, **headers))

    def submit(self, form: Form, **typed: str) -> Answer:
        """Press the button, with something typed or not. Follows redirections."""
        return self.post(form.action, form.values | typed)

    def sign_in(self, connection_string: str) -> Answer:
        """Sign in by the form, from the first page."""
        form = self.get("/portal").page.form("sign-in")
        return self.submit(form, connection_string=connection_string)

    def data(self, path: str) -> Any:
        """Return the data of a page, from its JSON."""
        answer = self.get(path, Accept="application/json")
        assert answer.status == 200, answer.body
        return answer.json

    def _followed(self, answer: Answer) -> Answer:
        for _ in range(5):
            if answer.status != 303:
                return answer
            answer = self.request("GET", answer.headers["location"])
        raise AssertionError("redirected without end")

    def _keep(self, header: str | None) -> None:
        if header is None:
            return
        self.set_cookie = header
        name, _, value = header.partition(";")[0].partition("=")
        if value.strip('"'):
            self.cookies[name] = value
        else:
            self.cookies.pop(name, None)
