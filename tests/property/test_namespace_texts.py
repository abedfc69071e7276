"""Durations, names and addresses: what is written is read back, and any other text is refused in one way only."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import ArgumentError
from partibus.namespace.durations import UNLIMITED_FROM_MS, UNLIMITED_MS, format_duration, parse_duration
from partibus.namespace.names import CBS, Address, Subqueue, check_entity_name, check_short_name, parse_address

ALPHABET = "abXY09._~-"


def _segments(length_max: int) -> st.SearchStrategy[str]:
    return st.text(ALPHABET, min_size=1, max_size=length_max).filter(lambda text: text.strip("."))


entity_names = st.lists(_segments(50), min_size=1, max_size=5).map("/".join)
addresses = st.one_of(
    st.just(Address(CBS)),
    st.builds(Address, entity_names, st.just("") | _segments(50), st.sampled_from(Subqueue), st.booleans()),
)
near_addresses = st.lists(
    st.sampled_from(
        ["q", "Subscriptions", "$management", "$DeadLetterQueue", "$Transfer", "$cbs", "", ".", "sb:", "h:1"]
    )
    | st.text(max_size=3),
    max_size=7,
).map("/".join)


@given(st.integers(0, UNLIMITED_FROM_MS - 1))
def test_durations_survive_the_round_trip(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@given(st.text(max_size=80) | st.text("PTYMDHS0123456789.", max_size=80))
def test_any_text_is_a_bounded_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(text) <= UNLIMITED_MS


@given(entity_names)
def test_well_formed_names_are_accepted(name: str) -> None:
    assert check_entity_name(name) == name


@given(addresses, st.sampled_from(["", "/", "amqps://localhost:5671/", "SB://a.b/", "amqp://[::1]/"]))
def test_addresses_survive_the_round_trip(address: Address, origin: str) -> None:
    assert parse_address(origin + address.path) == address


@given(addresses)
def test_keywords_of_an_address_have_no_case(address: Address) -> None:
    assert parse_address(address.path.lower()).path.lower() == address.path.lower()


@given(st.text() | near_addresses)
def test_any_text_is_a_sound_address_or_an_argument_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ArgumentError:
        return
    assert parse_address(address.path) == address
    if not address.is_cbs:
        check_entity_name(address.entity)
        if address.subscription:
            check_short_name(address.subscription)
