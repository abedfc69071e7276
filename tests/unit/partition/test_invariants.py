"""Every promise of `tests.kit.invariants` holds where it is kept, and is noticed where it is broken."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from partibus.message import pack, with_application_properties
from tests.kit import invariants as i

BODY = pack(annotations=b"", rest=i.body_of(7))

CASES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "i01": (
        lambda: i.i01_everything_is_accounted_for([1, 2, 3, 4], {1: "completed", 2: "expired"}, [3], [4]),
        lambda: i.i01_everything_is_accounted_for([1, 2], {1: "completed"}, []),
    ),
    "i01, stored twice": (
        lambda: i.i01_everything_is_accounted_for([1], {}, [1]),
        lambda: i.i01_everything_is_accounted_for([1], {}, [1, 1]),
    ),
    "i01, stored though gone": (
        lambda: i.i01_everything_is_accounted_for([1], {1: "purged"}, []),
        lambda: i.i01_everything_is_accounted_for([1], {1: "purged"}, [1]),
    ),
    "i02": (lambda: i.i02_nothing_that_was_not_sent(1, {1}), lambda: i.i02_nothing_that_was_not_sent(2, {1})),
    "i03": (
        lambda: i.i03_sections_are_untouched(7, BODY, with_application_properties(BODY, {"a": 1}), {"a": 1}),
        lambda: i.i03_sections_are_untouched(7, BODY, BODY + b"\x00", {}),
    ),
    "i03, properties": (
        lambda: i.i03_sections_are_untouched(7, BODY, BODY, {}),
        lambda: i.i03_sections_are_untouched(7, BODY, with_application_properties(BODY, {"a": 1}), {"a": 2}),
    ),
    "i04": (lambda: i.i04_one_live_lock(1, 10, 10), lambda: i.i04_one_live_lock(1, 11, 10)),
    "i05": (lambda: i.i05_never_after_complete(1, {2}), lambda: i.i05_never_after_complete(1, {1})),
    "i06": (lambda: i.i06_deleted_at_most_once(1, 1), lambda: i.i06_deleted_at_most_once(1, 2)),
    "i07": (
        lambda: i.i07_delivery_count_never_falls(1, 2, 2, 3),
        lambda: i.i07_delivery_count_never_falls(1, 1, 2, None),
    ),
    "i07, limit": (
        lambda: i.i07_delivery_count_never_falls(1, 3, 0, None),
        lambda: i.i07_delivery_count_never_falls(1, 3, 3, 3),
    ),
    "i08": (lambda: i.i08_no_lock_ends_early("it", 10, 10), lambda: i.i08_no_lock_ends_early("it", 11, 10)),
    "i09": (
        lambda: i.i09_expired_lock_cannot_settle("it", 11, 10),
        lambda: i.i09_expired_lock_cannot_settle("it", 10, 10),
    ),
    "i10": (lambda: i.i10_deferred_only_by_number(1, set()), lambda: i.i10_deferred_only_by_number(1, {1})),
    "i11": (
        lambda: i.i11_scheduled_never_early(1, 10, 10, set()),
        lambda: i.i11_scheduled_never_early(1, 11, 10, set()),
    ),
    "i11, cancelled": (
        lambda: i.i11_scheduled_never_early(1, None, 10, {2}),
        lambda: i.i11_scheduled_never_early(1, None, 10, {1}),
    ),
    "i12": (lambda: i.i12_first_deliveries_in_order(1, 5, 4), lambda: i.i12_first_deliveries_in_order(1, 4, 5)),
    "i13": (lambda: i.i13_numbers_rise("it", 5, 4), lambda: i.i13_numbers_rise("it", 4, 4)),
    "i14": (
        lambda: i.i14_number_names_its_partition(1, 3 << 48 | 9, 3),
        lambda: i.i14_number_names_its_partition(1, 3 << 48 | 9, 2),
    ),
    "i15": (
        lambda: i.i15_one_holder_per_session("s", None, 10),
        lambda: i.i15_one_holder_per_session("s", 11, 10),
    ),
    "i16": (
        lambda: i.i16_state_is_the_last_written("s", b"x", {b"x", None}),
        lambda: i.i16_state_is_the_last_written("s", None, {b"x"}),
    ),
    "i17": (
        lambda: i.i17_duplicates_exactly_inside_the_window(1, 0, 20, 20, dropped=False),
        lambda: i.i17_duplicates_exactly_inside_the_window(1, 0, 20, 20, dropped=True),
    ),
    "i17, kept": (
        lambda: i.i17_duplicates_exactly_inside_the_window(1, 0, 19, 20, dropped=True),
        lambda: i.i17_duplicates_exactly_inside_the_window(1, 0, 19, 20, dropped=False),
    ),
    "i17, first": (
        lambda: i.i17_duplicates_exactly_inside_the_window(1, None, 19, 20, dropped=False),
        lambda: i.i17_duplicates_exactly_inside_the_window(1, None, 19, 20, dropped=True),
    ),
    "i18": (
        lambda: i.i18_whole_or_not_at_all(1, [False, False]),
        lambda: i.i18_whole_or_not_at_all(1, [True, False]),
    ),
    "i19, a body is missing": (
        lambda: i.i19_bodies_and_entries_belong_together([1, 2, 2], {1, 2}),
        lambda: i.i19_bodies_and_entries_belong_together([1, 2], {1}),
    ),
    "i19, a body is left": (
        lambda: i.i19_bodies_and_entries_belong_together([], {}),
        lambda: i.i19_bodies_and_entries_belong_together([1], {1, 2}),
    ),
    "i20": (
        lambda: i.i20_in_all_subscriptions_or_in_none(1, {7: True, 8: True}),
        lambda: i.i20_in_all_subscriptions_or_in_none(1, {7: True, 8: False}),
    ),
    "i21": (lambda: i.i21_once_per_subscription(7, [1, 2]), lambda: i.i21_once_per_subscription(7, [1, 2, 1])),
    "i22": (
        lambda: i.i22_express_is_lost_only_young(1, 9, 10, forced=False),
        lambda: i.i22_express_is_lost_only_young(1, 10, 10, forced=False),
    ),
    "i22, forced": (
        lambda: i.i22_express_is_lost_only_young(1, 0, 10, forced=False),
        lambda: i.i22_express_is_lost_only_young(1, 0, 10, forced=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_promise_is_noticed_and_a_kept_one_is_not(case: str) -> None:
    kept, broken = CASES[case]
    kept()
    with pytest.raises(i.BrokenPromise):
        broken()


def test_there_is_one_check_for_each_promise() -> None:
    names = [name for name, check in inspect.getmembers(i, inspect.isfunction) if re.match(r"i\d\d_", name)]
    assert [name[:3] for name in sorted(names)] == [f"i{number:02}" for number in range(1, 23)]
    assert {case[:3] for case in CASES} == {name[:3] for name in names}
    assert all(inspect.getdoc(getattr(i, name)) for name in names)


def test_the_name_of_a_message_is_in_its_body() -> None:
    assert i.name_in(pack(annotations=b"xx", rest=i.body_of(12345) + bytes(9))) == 12345
