import pytest

from partibus.errors import ArgumentError
from partibus.namespace.names import check_entity_name, check_short_name, fold_name


@pytest.mark.parametrize("name", ["q", "Orders", "queue.1", "eu/west/orders-2", "a_b~c", "x" * 260, "subscriptions2"])
def test_accepts_names_of_the_service(name: str) -> None:
    assert check_entity_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 260 characters"),
        ("x" * 261, "It has 261"),
        ("/q", "slash"),
        ("q/", "slash"),
        ("a//b", "slash"),
        ("a b", "' '"),
        ("größe", "'ö'"),
        ("q?x", "'\\?'"),
        ("a/subscriptions/b", "'subscriptions' is reserved"),
        ("RULES", "'RULES' is reserved"),
        ("$management", "reserved"),
        ("q/$DeadLetterQueue", "reserved"),
        ("a/../b", "URL"),
    ],
)
def test_refuses_other_names_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        check_entity_name(name)


@pytest.mark.parametrize("name", ["", "x" * 51, "a/b", "$Default?", "rules"])
def test_short_names_are_one_segment_of_fifty(name: str) -> None:
    with pytest.raises(ArgumentError):
        check_short_name(name)


def test_names_fold_without_case() -> None:
    assert fold_name("Orders/EU") == fold_name("orders/eu")
