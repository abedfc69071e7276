"""The Query protocol: parameters of a form or URL in, XML out.

Parameters are flat: ``SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.DataType``. They are sorted into a tree
by their dots, and the shapes' table reads members from it.
"""

import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from partibus.frontends.sqs.errors import SqsError, invalid_value
from partibus.frontends.sqs.messages import CONTROLS, FORBIDDEN
from partibus.frontends.sqs.shapes import LIST_ELEMENTS, MAP_ELEMENTS, Kind, Member, Shape

NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
CONTENT_TYPE: Final = "text/xml"
PARAMETERS_MAX: Final = 5_000
"""Parameters of a request. The largest request that is allowed has some 500."""
NAME_MAX: Final = 128
"""Characters of a parameter's name; a longer one is unknown and ignored."""
_ESCAPES: Final = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")
"""A run of escapes. The standard library takes 400 ns for a percent sign alone, which a form may have a million of."""
_NO_CHARACTERS: Final = ("\ufffe".encode(), "\uffff".encode())
_Tree = dict[str, Any]


def parse_parameters(form: bytes) -> dict[str, str]:
    """Return the parameters of a form or of a URL's query. Raises `SqsError`."""
    parts = form.split(b"&", PARAMETERS_MAX)
    if len(parts) > PARAMETERS_MAX:
        raise SqsError("InvalidParameterValue", f"A request has at most {PARAMETERS_MAX} parameters.")
    found: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition(b"=")
        if name and len(name) <= NAME_MAX:
            found[_decoded(name)] = _decoded(value)
    return found


def _unescaped(run: re.Match[bytes]) -> bytes:
    return binascii.unhexlify(run[0].replace(b"%", b""))


def _decoded(raw: bytes) -> str:
    if b"+" in raw:
        raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        raw = _ESCAPES.sub(_unescaped, raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SqsError("InvalidParameterValue", "A parameter is not UTF-8.") from None


def read_query(shape: Shape, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a request by name. Raises `SqsError`."""
    tree: _Tree = {}
    for name, value in parameters.items():
        *path, last = name.split(".")
        node = tree
        for step in path:
            below = node.get(step)
            if not isinstance(below, dict):
                below = node[step] = {}
            node = below
        if not isinstance(node.get(last), dict):
            node[last] = value
    return _read(shape.members, tree)


def _read(members: tuple[Member, ...], tree: _Tree) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member in members:
        if member.kind in (Kind.TEXT, Kind.INTEGER):
            value = tree.get(member.name)
            if isinstance(value, str):
                found[member.name] = value if member.kind is Kind.TEXT else _integer(member, value)
            continue
        items = [item for prefix in member.prefixes for item in _items(tree.get(prefix), member)]
        if not items:
            continue
        if member.kind is Kind.TEXTS:
            found[member.name] = [item for item in items if isinstance(item, str)]
        elif member.kind is Kind.TEXT_MAP:
            found[member.name] = dict(_pair(item, member) for item in items if isinstance(item, dict))
        elif member.kind is Kind.ATTRIBUTES:
            found[member.name] = dict(_attribute(item, member) for item in items if isinstance(item, dict))
        else:
            found[member.name] = [_read(member.members, item) for item in items if isinstance(item, dict)]
    return found


def _items(branch: object, member: Member) -> list[Any]:
    """Return the parts of a list in the order of their numbers.

    A map's only pair may be without a number, as the service documents it: ``Attribute.Name=...&Attribute.Value=...``.
    """
    if not isinstance(branch, dict):
        return [] if branch is None else [branch]
    branch = branch.get("member", branch) if isinstance(branch.get("member"), dict) else branch
    numbers = sorted((int(key), key) for key in branch if len(key) <= 9 and key.isascii() and key.isdigit())
    is_pair = member.kind in (Kind.TEXT_MAP, Kind.ATTRIBUTES) and member.pair[0] in branch
    return [branch] if is_pair and not numbers else [branch[key] for _, key in numbers]


def _integer(member: Member, text: str) -> int:
    try:
        if len(text) > 20:
            raise ValueError
        return int(text)
    except ValueError:
        raise invalid_value(text[:100], member.name, "Must be an integer.") from None


def _pair(item: _Tree, member: Member) -> tuple[str, str]:
    key, value = (item.get(part, "") for part in member.pair)
    return (key if isinstance(key, str) else "", value if isinstance(value, str) else "")


def _attribute(item: _Tree, member: Member) -> tuple[str, dict[str, Any]]:
    name, value = item.get("Name", ""), item.get("Value")
    one: dict[str, Any] = {}
    for part, raw in (value if isinstance(value, dict) else {}).items():
        if part in ("DataType", "StringValue") and isinstance(raw, str):
            one[part] = raw
        elif part == "BinaryValue" and isinstance(raw, str):
            try:
                one[part] = binascii.a2b_base64(raw, strict_mode=True) if raw else b""
            except ValueError:
                raise invalid_value(raw[:100], member.name, "BinaryValue must be base64.") from None
        elif part in ("StringListValue", "BinaryListValue"):
            one[f"{part}s"] = True
    return (name if isinstance(name, str) else ""), one


# -- answers ----------------------------------------------------------------------------------------------------------


def write_query(action: str, shape: Shape, output: Mapping[str, Any] | None, request_id: str) -> bytes:
    """Return the XML of an answer."""
    out = [f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">']
    if shape.has_output:
        result: list[str] = []
        _write_members(result, output or {}, f"{action}ResultEntry")
        # Callers without a parser look for the short form of an empty result, as the service writes it.
        out += (f"<{action}Result>", *result, f"</{action}Result>") if result else (f"<{action}Result/>",)
    out.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>")
    return _encoded("".join(out))


def write_query_error(error: SqsError, request_id: str) -> bytes:
    """Return the XML of a refusal."""
    if error.code == "UnknownOperationException":
        return b"<UnknownOperationException/>"
    fault = "Sender" if error.is_sender_fault else "Receiver"
    return _encoded(
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type><Code>{error.code}</Code>'
        f"<Message>{escaped(error.query_message)}</Message><Detail/></Error><RequestId>{request_id}</RequestId>"
        "</ErrorResponse>"
    )


def _encoded(text: str) -> bytes:
    """Encode an answer, with U+FFFD in place of characters that XML 1.0 forbids, for a parser to read the others."""
    raw = text.encode("utf-8", "replace")
    if len(raw.translate(None, CONTROLS)) == len(raw) and _NO_CHARACTERS[0] not in raw and _NO_CHARACTERS[1] not in raw:
        return raw
    return FORBIDDEN.sub("\ufffd", text).encode()


def _write_members(out: list[str], members: Mapping[str, Any], entry: str) -> None:
    for name, value in members.items():
        if isinstance(value, list):
            element = entry if name == "Successful" else LIST_ELEMENTS[name]
            for item in value:
                _write(out, element, item, entry)
        elif isinstance(value, dict) and name in MAP_ELEMENTS:
            element, key_element, value_element = MAP_ELEMENTS[name]
            for key, item in value.items():
                out.append(f"<{element}><{key_element}>{escaped(key)}</{key_element}>")
                _write(out, value_element, item, entry)
                out.append(f"</{element}>")
        else:
            _write(out, name, value, entry)


def _write(out: list[str], element: str, value: Any, entry: str) -> None:
    out.append(f"<{element}>")
    if isinstance(value, str):
        out.append(escaped(value))
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, bytes):
        out.append(binascii.b2a_base64(value, newline=False).decode())
    elif isinstance(value, dict):
        _write_members(out, value, entry)
    else:
        out.append(str(value))
    out.append(f"</{element}>")


def escaped(text: str) -> str:
    """Escape the text of an element. Parsers of XML turn a bare carriage return into a line feed."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("\r", "&#xD;")
