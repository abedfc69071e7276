"""Numbers as people read and write them."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partibus.filters.model import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from partibus.frontends.rest.portal.entity import filter_text
from partibus.frontends.rest.portal.fields import LABELS, new_fields, property_text, typed_properties
from partibus.frontends.rest.portal.signing_in import safe_next
from partibus.frontends.rest.portal.site import percent
from partibus.frontends.rest.portal.words import duration_json, number_text
from partibus.namespace.durations import UNLIMITED_FROM_MS, UNLIMITED_MS, UNLIMITED_TEXT, duration_text, parse_duration
from partibus.namespace.entities import DEFAULT_OPTIONS, EntityKind
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.properties import PROPERTIES, options_of
from partibus.namespace.sizes import size_text
from tests.kit.eventually import EVENTUALLY_S


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KB"),
        (1 << 34, "16 GB"),
        (80 << 30, "80 GB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("30 s", "PT30S"),
        ("30s", "PT30S"),
        (" 1 H 30 Min ", "PT1H30M"),
        ("14 days", "P14D"),
        ("90 m", "PT1H30M"),
        ("500 ms", "PT0.5S"),
        ("", UNLIMITED_TEXT),
        ("No limit", UNLIMITED_TEXT),
        ("PT5M", "PT5M"),
        ("soon", "soon"),
        ("5", "5"),
        ("-1 d", "-1 d"),
        ("1 fortnight", "1 fortnight"),
    ],
)
def test_durations_that_are_typed(typed: str, means: str) -> None:
    assert duration_json(typed) == means


@given(st.integers(0, UNLIMITED_FROM_MS - 1) | st.just(UNLIMITED_MS))
def test_a_duration_that_is_shown_is_read_back(ms: int) -> None:
    assert parse_duration(duration_json(duration_text(ms))) == ms


@given(st.text(max_size=40))
def test_whatever_is_typed_is_text_for_the_property_to_check(typed: str) -> None:
    assert isinstance(duration_json(typed), str)


def test_numbers() -> None:
    assert [number_text(n) for n in (0, 1234567, 0.5, 2.0)] == ["0", "1,234,567", "0.50", "2.00"]


def test_bars_can_be_seen() -> None:
    assert [percent(*pair) for pair in ((0, 5), (1, 10_000), (5, 10), (7, 5), (1, 0))] == [0, 1, 50, 100, 0]


def test_filters() -> None:
    assert filter_text(TrueFilter()) == "every message"
    assert filter_text(FalseFilter()) == "no message"
    assert filter_text(SqlFilter("a = 1")) == "a = 1"
    assert filter_text(CorrelationFilter()) == "every message"
    shown = filter_text(CorrelationFilter(label="x", session_id="s", properties={"size": 3}))
    assert shown == "Label = 'x' and SessionId = 's' and size = 3"


def test_every_property_has_a_label_and_a_place_in_forms() -> None:
    for kind in EntityKind:
        names = {prop.name for prop in PROPERTIES[kind]}
        assert names <= {*LABELS}
        offered = {field.name for field in new_fields(NamespaceOptions(), kind)}
        assert names - offered <= {"MaxMessageSizeInKilobytes", "PartibusSqs"}, "what no form offers a choice of"


def test_a_form_that_says_nothing_else_says_the_defaults() -> None:
    for kind in EntityKind:
        fields = new_fields(NamespaceOptions(), kind)
        options = options_of(kind, typed_properties(kind, fields))
        assert options == replace(DEFAULT_OPTIONS, partitioned=kind is not EntityKind.SUBSCRIPTION)


@pytest.mark.parametrize(
    "wanted",
    ["/portal", "/portal/", "/portal?refresh=5", "/portal/entity?path=a%2Fb.c&page=2"],
)
def test_pages_of_the_portal_may_be_gone_on_to(wanted: str) -> None:
    assert safe_next(wanted) == wanted


@given(st.text(max_size=60) | st.builds("/portal{}".format, st.text(alphabet="/\\.?%a:@#\r\n", max_size=12)))
def test_nothing_else_may(wanted: str) -> None:
    parts = urlsplit(urljoin("http://here/portal/sign-in", safe_next(wanted)))
    assert (parts.scheme, parts.netloc) == ("http", "here")
    assert parts.path == "/portal" or parts.path.startswith("/portal/")


def test_a_broker_starts_without_templates() -> None:
    code = "import sys, partibus.frontends.rest.app; print('jinja2' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=EVENTUALLY_S
    )
    assert said.stdout.split() == ["False"]


def test_settings_of_every_queue_are_in_sight_and_those_of_fifo_queues_folded() -> None:
    folded = {one.name: one.seldom for one in new_fields(NamespaceOptions(), EntityKind.QUEUE)}
    assert not folded["EnableBatchedOperations"]
    assert not folded["DeadLetteringOnMessageExpiration"]
    assert {name for name in folded if name.startswith(("PartibusPartition", "PartibusElastic"))} <= {
        name for name, seldom in folded.items() if seldom
    }
    assert folded["PartibusPartitionCalm"]


def test_zero_of_an_optional_setting_is_said_in_words() -> None:
    assert property_text("PartibusPartitionCalm", "PT0S", 1) == "as the broker's option says"
    assert property_text("PartibusPartitionRequests", 0, 1) == "as the broker's option says"
    assert property_text("PartibusPartitionRequests", 5, 1) == "5"
    assert property_text("PartibusRedeliveryDelay", "PT0S", 1) == "0 s"
