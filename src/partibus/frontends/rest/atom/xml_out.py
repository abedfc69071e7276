"""XML in the form that the clients read.

Some look for prefixes, for a single attribute, for a missing element (traps 29, 30). So the result is text with the
prefixes that the caller chose.
"""

import re
from collections.abc import Mapping

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
