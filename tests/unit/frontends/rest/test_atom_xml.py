"""XML both ways: what is refused, and what is written so that every client reads it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import ArgumentError
from partibus.frontends.rest.atom.xml import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    ELEMENTS_MAX,
    Element,
    element,
    parse_xml,
    text_element,
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no element found"),
        (b"<a", "Line 1, column 1: unclosed token"),
        (b"<a>\n <b></a>", "Line 2, column 7: mismatched tag"),
        (b"<a>\xff</a>", "not well-formed"),
        (b"<x:a/>", "unbound prefix"),
        (b"<a>&unknown;</a>", "undefined entity"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "unknown encoding"),
        (b'<?xml version="1.0" encoding="zlib"?><a>\xff</a>', "not a text encoding"),
        (b'<?xml version="1.0" encoding="punycode"?><a>\xff</a>', "Line 1"),
    ],
)
def test_malformed_documents_are_refused_with_their_place(body: bytes, says: str) -> None:
    with pytest.raises(ArgumentError, match="well-formed") as refused:
        parse_xml(body)
    assert says in str(refused.value)


BOMBS = [
    b'<!DOCTYPE a [<!ENTITY x "lol"><!ENTITY y "&x;&x;&x;&x;&x;&x;&x;&x;&x;&x;">]><a>&y;</a>',
    b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd"><a/>',
    b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>',
    b'<!DOCTYPE a [<!ATTLIST a b CDATA "default">]><a/>',
]


@pytest.mark.parametrize("body", BOMBS)
def test_a_document_type_is_refused_before_anything_of_it_is_read(body: bytes) -> None:
    with pytest.raises(ArgumentError, match="a document type declaration is not taken"):
        parse_xml(body)


def test_depth_is_bounded() -> None:
    assert parse_xml(b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX).name == "a"
    with pytest.raises(ArgumentError, match=f"more than {DEPTH_MAX} deep"):
        parse_xml(b"<a>" * (BODY_BYTES_MAX // 3))


def test_the_number_of_elements_is_bounded() -> None:
    assert len(parse_xml(b"<a>" + b"<b/>" * (ELEMENTS_MAX - 1) + b"</a>").children) == ELEMENTS_MAX - 1
    with pytest.raises(ArgumentError, match="there are more than 5000 elements"):
        parse_xml(b"<a>" + b"<b/>" * ELEMENTS_MAX + b"</a>")


def test_elements_are_told_by_namespace_and_know_their_place() -> None:
    root = parse_xml(
        b'<x:entry xmlns:x="atom"\n xmlns:z="http://www.w3.org/2001/XMLSchema-instance">\n'
        b'  <content xmlns="atom">a<b xmlns=""/>c</content><x:content z:type="q:Kind" z:nil="true"/></x:entry>'
    )
    assert (root.namespace, root.name) == ("atom", "entry")
    assert [child.name for child in root.find_all("content")] == ["content", "content"]
    first, second = root.children
    assert (first.text, first.place, [child.namespace for child in first.children]) == ("ac", "line 3, column 3", [""])
    assert (second.type, second.is_nil, first.is_nil) == ("Kind", True, False)
    assert first.find("b") is None


def test_other_encodings_are_read_as_declared() -> None:
    assert parse_xml("<a>ü</a>".encode("utf-16")).text == "ü"
    assert parse_xml('<?xml version="1.0" encoding="iso-8859-1"?><a>ü</a>'.encode("latin-1")).text == "ü"


@given(st.binary(max_size=200))
def test_garbage_is_an_argument_error_or_a_document(body: bytes) -> None:
    with contextlib.suppress(ArgumentError):
        assert isinstance(parse_xml(body), Element)


def shown(text: str) -> str:
    """Return the text as XML can say it."""
    return "".join(
        character if character in "\t\n\r" or (character >= " " and character not in "\ufffe\uffff") else "\ufffd"
        for character in text
    )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back(text: str) -> None:
    document = text_element("a", text, {"b": text.replace("\t", "").replace("\n", "").replace("\r", "")})
    root = parse_xml(document.encode())
    assert root.text == shown(text)
    assert root.attributes[("", "b")] == shown(text.replace("\t", "").replace("\n", "").replace("\r", ""))


def test_an_element_without_content_is_one_tag() -> None:
    assert element("a", "", {"b": "c"}) + element("a", element("b")) == '<a b="c"/><a><b/></a>'
