"""XML from clients, as a tree of elements with their positions, and XML for clients, as text.

Names are compared by namespace, never by prefix (dialect section 9.3). A document type declaration is refused where it
begins, so no entity is ever expanded, and no external resource is read. Size and depth are bounded. `defusedxml` does
the same to the same parser, but its trees have no positions.

Some clients look for prefixes, for a single attribute, for a missing element (traps 29, 30). So the result is text with
the prefixes that the caller chose.
"""

import re
from collections.abc import Iterator, Mapping
from xml.parsers import expat

from msgspec import Struct, field

from partibus.errors import ArgumentError

BODY_BYTES_MAX = 256 * 1024
"""The limit of a description. The largest has twelve authorization rules, or a filter with parameters of some KB."""
DEPTH_MAX = 32
"""A value of a filter of a default rule is 9 deep."""

ELEMENTS_MAX = 5_000
"""A description with twelve authorization rules has some two hundred."""

INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_SEPARATOR = " "
_EXCERPT = 40


class Element(Struct):
    """One element. ``attributes`` are by (namespace, name); ``text`` is what stands between its children, joined."""

    namespace: str
    name: str
    attributes: dict[tuple[str, str], str]
    line: int
    column: int
    children: "list[Element]" = field(default_factory=list)
    text: str = ""

    @property
    def place(self) -> str:
        """The position as an error text names it."""
        return f"line {self.line}, column {self.column}"

    @property
    def type(self) -> str:
        """The local name of its ``type`` in the namespace of instances; empty when it has none."""
        return self.attributes.get((INSTANCE, "type"), "").rpartition(":")[2]

    @property
    def is_nil(self) -> bool:
        """Whether the element stands for no value."""
        return self.attributes.get((INSTANCE, "nil"), "") in ("true", "1")

    def find(self, name: str) -> "Element | None":
        """Return the first child of that name in this element's own namespace; None if it stands for no value."""
        found = next(self.find_all(name), None)
        return None if found is None or found.is_nil else found

    def find_all(self, name: str) -> "Iterator[Element]":
        """Yield the children of that name in this element's own namespace."""
        return (child for child in self.children if child.name == name and child.namespace == self.namespace)


def parse_xml(body: bytes) -> Element:
    """Return the root of a document of at most `BODY_BYTES_MAX`.

    Raises `ArgumentError`, with line and column, when it is not well-formed, has a document type declaration, or is
    nested too deeply.
    """
    return _Reader(body).root


class _Reader:
    """Builds the tree while expat reads."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._count = 0
        """Elements that have begun."""
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        self._root: Element | None = None
        parser = self._parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._take_text
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            # Besides its own error expat raises those of Python's codecs, for encodings that the document declares.
            raise self._malformed(_reason(error)) from None

    @property
    def root(self) -> Element:
        assert self._root is not None, "expat refuses a document without a root"
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) == DEPTH_MAX:
            raise self._malformed(f"elements are nested more than {DEPTH_MAX} deep")
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise self._malformed(f"there are more than {ELEMENTS_MAX} elements")
        namespace, _, local = name.rpartition(_SEPARATOR)
        named = {_split(key): value for key, value in attributes.items()}
        parser = self._parser
        element = Element(namespace, local, named, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)
        self._texts.append([])

    def _end(self, name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def _take_text(self, text: str) -> None:
        self._texts[-1].append(text)

    def _refuse_doctype(self, *declaration: object) -> None:
        raise self._malformed("a document type declaration is not taken")

    def _malformed(self, reason: str) -> ArgumentError:
        parser = self._parser
        at = max(parser.CurrentByteIndex, 0)
        excerpt = self._body[max(at - _EXCERPT, 0) : at + _EXCERPT].decode("utf-8", "replace")
        return ArgumentError(
            "The body",
            excerpt,
            "a well-formed XML document",
            f"Line {parser.CurrentLineNumber}, column {parser.CurrentColumnNumber + 1}: {reason}.",
        )


def _split(name: str) -> tuple[str, str]:
    namespace, _, local = name.rpartition(_SEPARATOR)
    return namespace, local


def _reason(error: Exception) -> str:
    return expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else str(error)


_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}
_TO_ESCAPE = re.compile('[&<>"\r]')
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that no XML 1.0 document can hold, however they are written."""


def escape(text: str) -> str:
    """Return ``text`` as content or value of an attribute. Characters that XML does not allow become U+FFFD."""
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], _NOT_XML.sub("\ufffd", text))


def element(name: str, content: str = "", attributes: Mapping[str, str] | None = None) -> str:
    """Return an element around ``content``, which is markup."""
    written = "".join(f' {key}="{escape(value)}"' for key, value in (attributes or {}).items())
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text_element(name: str, text: str, attributes: Mapping[str, str] | None = None) -> str:
    """Return an element with ``text``."""
    return element(name, escape(text), attributes)


ATOM = "http://www.w3.org/2005/Atom"
SERVICE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

QUEUE = "QueueDescription"
TOPIC = "TopicDescription"
SUBSCRIPTION = "SubscriptionDescription"
RULE = "RuleDescription"
NAMESPACE_INFO = "NamespaceInfo"
