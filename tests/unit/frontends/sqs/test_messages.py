"""Messages of SQS: checks, checksums, and the stored form."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol, UInt
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.frontends.sqs import stored
from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.messages import (
    Attribute,
    Selection,
    body_bytes,
    check_id,
    content_id,
    hex_md5,
    md5_of_attributes,
    read_attributes,
    read_trace,
    sequence_text,
    size_of,
)
from partibus.frontends.sqs.stored import Incoming, as_new, grouped_forms, plain_forms, read_stored, stored_form
from partibus.message import StoredMessage, pack, with_hop, with_receives

ID = "11111111-2222-4333-8444-555555555555"


def text(value: str) -> Attribute:
    return Attribute("String", value.encode())


@pytest.mark.row("S13")
@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"timestamp": Attribute("Number", b"1493147359900")}, "235c5c510d26fb653d073faed50ae77c"),
        (
            {"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1")},
            "5ae4d5d7636402d80f4eb6d213245a88",
        ),
        (
            {"attr1": Attribute("Binary", b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")},
            "8cbe4db156db8a94db8b801b7addb984",
        ),
        (
            {"General": text("Kenobi"), "Hello": text("There"), "Help.Me": text("Me")},
            "4c360f3fdafd970e05fae2f149d997f5",
        ),
        ({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd"),
    ],
)
def test_checksums_of_attributes_are_those_of_the_service(attributes: dict[str, Attribute], expected: str) -> None:
    assert md5_of_attributes(attributes) == expected
    assert md5_of_attributes(dict(reversed(attributes.items()))) == expected


def test_the_label_of_a_type_counts() -> None:
    assert md5_of_attributes({"a": Attribute("String.x", b"1")}) != md5_of_attributes({"a": Attribute("String", b"1")})
    assert hex_md5(b"hello") == "5d41402abc4b2a76b9719d911017c592"


@pytest.mark.parametrize("body", ["a", "\t\n\r ~", "é\ud7ff\ue000\ufffd\U0001f600", "x" * 100_000, "\x7f"])
def test_bodies_that_xml_allows(body: str) -> None:
    assert body_bytes(body) == body.encode()


@pytest.mark.parametrize("body", ["\0", "a\x0b", "é\ufffe", "\uffff", "a\x1f" * 1000, "\ud800x", "é\udfff"])
def test_bodies_that_xml_forbids(body: str) -> None:
    with pytest.raises(SqsError) as refused:
        body_bytes(body)
    assert refused.value.code == "InvalidMessageContents"


def test_an_empty_body_is_missing() -> None:
    for body in ("", None):
        with pytest.raises(SqsError, match=r"The request must contain the parameter MessageBody\."):
            body_bytes(body)


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a.", "AWS.x", "aws.x", "Amazon.y", "a b", "a:b", "x" * 257, "a/b"])
def test_a_wrong_name_of_an_attribute_is_refused(name: str) -> None:
    with pytest.raises(SqsError, match="message attribute name"):
        read_attributes({name: {"DataType": "String", "StringValue": "v"}})


@pytest.mark.parametrize("name", ["a", "é", "a.b-c_d", "AWSx", "x" * 256, "9"])
def test_a_good_name_of_an_attribute(name: str) -> None:
    assert read_attributes({name: {"DataType": "String", "StringValue": "v"}}) == {name: text("v")}


@pytest.mark.parametrize("number", ["0", "-1", "+1.5", ".5", "1e3", "1.5E-3", "9" * 38, "1e126", "1e-128", "000"])
def test_numbers(number: str) -> None:
    found = read_attributes({"n": {"DataType": "Number.int", "StringValue": number}})
    assert found == {"n": Attribute("Number.int", number.encode())}


@pytest.mark.parametrize("number", ["", "a", "1,5", "0x1", "9" * 39, "1e127", "1e-129", "1" * 300, "--1", "1e99999"])
def test_texts_that_are_no_numbers(number: str) -> None:
    with pytest.raises(SqsError):
        read_attributes({"n": {"DataType": "Number", "StringValue": number}})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"DataType": "Text", "StringValue": "v"},
        {"DataType": "String.", "StringValue": "v"},
        {"DataType": "String", "BinaryValue": b"v"},
        {"DataType": "String", "StringValue": ""},
        {"DataType": "String", "StringValue": "\x01"},
        {"DataType": "Binary", "StringValue": "v"},
        {"DataType": "String." + "x" * 250, "StringValue": "v"},
        {"DataType": "String", "StringValue": "v", "StringListValues": True},
    ],
)
def test_a_wrong_value_of_an_attribute_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(SqsError) as refused:
        read_attributes({"a": value})
    assert refused.value.code == "InvalidParameterValue"


def test_at_most_ten_attributes() -> None:
    some = {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(11)}
    with pytest.raises(SqsError, match=r"\[11\] exceeds the allowed maximum \[10\]"):
        read_attributes(some)
    del some["a0"]
    assert len(read_attributes(some)) == 10


def test_only_the_trace_header_is_a_system_attribute() -> None:
    assert read_trace({}, "from-http") == ("from-http", None)
    trace, digest = read_trace({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}, "from-http")
    assert (trace, digest) == ("Root=1", md5_of_attributes({"AWSTraceHeader": text("Root=1")}))
    refused: list[dict[str, dict[str, Any]]] = [
        {"Other": {}},
        {"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": b"x"}},
    ]
    for wrong in refused:
        with pytest.raises(SqsError):
            read_trace(wrong, None)


def test_the_size_is_that_of_body_and_attributes() -> None:
    assert size_of(b"12345", {}) == 5
    assert size_of(b"1", {"ab": Attribute("Binary", b"xyz")}) == 1 + 2 + 6 + 3


@pytest.mark.parametrize("wrong", ["", "a b", "é", "x" * 129, "a\n"])
def test_ids_are_printable_ascii(wrong: str) -> None:
    with pytest.raises(SqsError, match="can only include alphanumeric and punctuation characters"):
        check_id("MessageGroupId", wrong)
    assert check_id("MessageGroupId", "!~" + "x" * 126)


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=32, exclude_characters="\ufffe\uffff"), min_size=1
)
ATTRIBUTES = st.dictionaries(
    NAMES,
    st.one_of(
        TEXTS.map(text),
        st.integers().map(lambda n: Attribute("Number", str(n).encode())),
        st.binary(min_size=1).map(lambda raw: Attribute("Binary.label", raw)),
    ),
    max_size=10,
)


@given(
    TEXTS, ATTRIBUTES, st.none() | st.from_regex(r"[!-~]{1,128}", fullmatch=True), st.none() | NAMES, st.none() | TEXTS
)
def test_what_is_stored_is_read_back(
    body: str, attributes: dict[str, Attribute], group: str | None, deduplication: str | None, trace: str | None
) -> None:
    data = stored_form(ID, "someone", body.encode(), attributes, group, deduplication, trace)
    assert read_stored(data) == Incoming(
        ID, "someone", group, body, body.encode(), attributes, deduplication, trace, None
    )


def test_messages_of_other_protocols() -> None:
    data = pack(
        properties=encode_properties(message_id=7, subject="s"),
        application_properties=encode_application_properties({"n": 5, "ok": True, "t": "x", "b": b"\1", "none": None}),
        rest=encode_value({"a": UInt(1)}),
    )
    found = read_stored(data)
    assert (found.message_id, found.sender, found.group) == ("7", "", None)
    assert json.loads(found.body) == {"a": 1}
    assert found.attributes == {
        "n": Attribute("Number", b"5"),
        "ok": text("true"),
        "t": text("x"),
        "b": Attribute("Binary", b"\1"),
    }


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\0b"])
def test_a_foreign_body_that_is_no_text_becomes_base64(raw: bytes) -> None:
    found = read_stored(pack(rest=b"\x00\x53\x75\xa0" + bytes((len(raw),)) + raw))
    assert (found.body, found.raw) == (b64encode(raw).decode(), b64encode(raw))


def test_a_dead_letter_becomes_a_new_message() -> None:
    other = "99999999-2222-4333-8444-555555555555"
    data = stored_form(ID, "someone", b"body", {"a": text("1")}, "g", "dedup", "trace")
    dead = with_hop(with_receives(with_receives(data, 2), 3), 17, "orders")
    assert (read_stored(dead).dead_letter_source, read_stored(dead).receives) == ("orders", 5)
    new = read_stored(as_new(dead, other))
    assert new == Incoming(other, "someone", "g", "body", b"body", {"a": text("1")}, other, "trace", None)


def test_attributes_are_chosen_by_name_or_prefix() -> None:
    some = {name: text("v") for name in ("foo", "foo.bar", "foobar", "other")}
    assert list(Selection(["other", "missing", "a b"]).of(some)) == ["other"]
    assert list(Selection(["foo.*"]).of(some)) == ["foo", "foo.bar", "foobar"]
    for every in ("All", ".*", "*"):
        assert Selection([every]).of(some) == some


def test_sequence_numbers_have_twenty_digits_and_rise_with_the_counter() -> None:
    assert sequence_text(1, 0) == "00000000000000065536"
    assert sequence_text(2, 0) > sequence_text(1, 65_535)
    assert len(sequence_text(2**47, 65_535)) == 20


def test_the_id_of_a_content_is_its_hash() -> None:
    assert content_id(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("group", [None, "g", "g" * 128])
def test_properties_of_our_own_are_read_as_any_others(group: str | None) -> None:
    """Also with one byte changed, and cut: then the form is another one, or the values are."""
    section = StoredMessage(stored_form(ID, "someone", b"body", {}, group, None, None)).properties
    assert stored._own_properties(section) == (ID, "someone", group)
    for at in range(len(section)):
        for changed in {section[:at], section + b"\x40"} | {
            section[:at] + bytes((code,)) + section[at + 1 :] for code in (0, 0x24, 0x40, 0x7F, 0x80, 0xA1, 0xFF)
        }:
            own = stored._own_properties(changed)
            assert own is None or own == stored._foreign_properties(changed)


@pytest.mark.parametrize("size", [1, 255, 256, 70_000])
@pytest.mark.parametrize("sender", ["k", "é" * 100, "k" * 300])
def test_a_plain_message_is_stored_as_any_other(size: int, sender: str) -> None:
    message_id, body = "01234567-89ab-4cde-8f01-23456789abcd", b"x" * size
    whole = stored_form(message_id, sender, body, {}, None, None, None)
    assert plain_forms([message_id] * 2, sender, [body] * 2) == [whole] * 2


@pytest.mark.parametrize("size", [1, 255, 256, 70_000])
@pytest.mark.parametrize("sender", ["k", "é" * 100, "k" * 300])
@pytest.mark.parametrize(("group", "key"), [("g", "k"), ("k" * 128, "g" * 128), (ID, ID)])
def test_a_message_with_a_group_is_stored_and_read_as_any_other(size: int, sender: str, group: str, key: str) -> None:
    body = b"x" * size
    whole = stored_form(ID, sender, body, {}, group, key, None)
    assert grouped_forms([ID] * 2, sender, [body] * 2, [group] * 2, [key] * 2) == [whole] * 2
    read = Incoming(ID, sender.encode()[:255].decode(), group, body.decode(), body, {}, key, None, None)
    assert read_stored(whole) == read


@pytest.mark.parametrize("key", ["é", "\0", "k" * 300])
def test_a_deduplication_id_of_a_foreign_sender_is_read_member_by_member(key: str) -> None:
    symbol = encode(Symbol("x-opt-partibus-sqs-deduplication-id"))
    properties = StoredMessage(stored_form(ID, "s", b"b", {}, "g", None, None)).properties
    body = b"\x00\x53\x75\xa0\x01b"
    data = pack(annotation_count=1, annotations=symbol + encode(key), properties=properties, rest=body)
    assert read_stored(data).deduplication_id == key


@pytest.mark.parametrize("sender", ["k", "é" * 100, "k" * 255])
def test_a_plain_message_is_read_the_same_the_first_time_and_later(sender: str) -> None:
    message_id = "01234567-89ab-4cde-8f01-23456789abcd"
    body = "ä" * 200
    (data,) = plain_forms([message_id], sender, [body.encode()])
    for _ in range(2):
        assert read_stored(data) == Incoming(
            message_id, sender, None, "ä" * 200, "ä".encode() * 200, {}, None, None, None
        )
    former = {
        name: read_stored(stored_form(message_id, sender, b"b", {}, name, None, None)) for name in ("g", "h" * 128)
    }
    assert {name: one.group for name, one in former.items()} == {"g": "g", "h" * 128: "h" * 128}


def test_a_message_that_begins_as_a_plain_one_and_goes_on_otherwise_is_read_member_by_member() -> None:
    message_id = "01234567-89ab-4cde-8f01-23456789abcd"
    (data,) = plain_forms([message_id], "sender", [b"body"])
    assert read_stored(data).sender == "sender"
    wrong_user = data.replace(b"\xa0\x06sender", b"\xa1\x06sender")
    assert read_stored(wrong_user) == read_stored(data)
    no_text = data.replace(b"sender", b"\xff\xfeuser").replace(message_id[:2].encode(), b"\xc3\xa9")
    assert read_stored(no_text).body == "body"


@pytest.mark.parametrize("value", ["\x00", "a\x1fb", "\uffff"])
def test_text_that_xml_does_not_allow_is_bytes_in_a_property_and_refused_in_a_trace(value: str) -> None:
    section = encode_application_properties({"bad": value, "good": "a\tb"})
    data = pack(application_properties=section, rest=b"\x00\x53\x75\xa0\x01b")
    attributes = {"bad": Attribute("Binary", value.encode()), "good": text("a\tb")}
    assert read_stored(data).attributes == attributes
    with pytest.raises(SqsError, match="Invalid binary character"):
        read_trace({"AWSTraceHeader": {"DataType": "String", "StringValue": value}}, None)


@pytest.mark.parametrize(
    "types", ["[" * 20_000 + "]" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000, '{"a": 5}', "[]", "null", '{"a":']
)
def test_types_that_are_no_map_of_texts_leave_attributes_the_types_of_their_values(types: str) -> None:
    annotation = encode(Symbol("x-opt-partibus-sqs-types")) + encode(types)
    data = pack(
        annotation_count=1,
        annotations=annotation,
        application_properties=encode_application_properties({"a": "b"}),
        rest=b"\x00\x53\x75\xa0\x01b",
    )
    assert read_stored(data).attributes == {"a": text("b")}


class CountedName(str):
    """A name that counts how often it is compared."""

    comparisons = 0

    def startswith(self, *arguments: Any) -> bool:
        CountedName.comparisons += 1
        return super().startswith(*arguments)

    def __lt__(self, other: str) -> bool:
        CountedName.comparisons += 1
        return super().__lt__(other)


def test_a_name_is_compared_with_few_of_many_wanted_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedName, "comparisons", 0)
    names = [CountedName(name) for name in ("b", "m", "m00005", "m00005.x", "m0005", "n", "z")]
    selection = Selection([*(f"m{number:05}.*" for number in range(15_000)), "z.*", "zz.*", "a.b.*"])
    assert list(selection.of({name: text("v") for name in names})) == ["m00005", "m00005.x", "z"]
    assert CountedName.comparisons < 20 * len(names)
