"""Shares of the work add up, however the work is nested."""

import pytest

from rankscope.process.progress import parts, silent, tracked


def test_shares_rise_to_one_through_nested_loops():
    seen = []
    for count, on_part in tracked([1, 3, 2], seen.append):
        for _ in tracked(range(count), on_part):
            pass
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert seen[0] == pytest.approx(1 / 3)  # the first item is a third of the work


def test_an_item_is_done_only_after_its_work():
    seen = []
    for _ in tracked("ab", seen.append):
        seen.append("work")
    assert seen == ["work", 0.5, "work", 1.0]


def test_parts_follow_each_other_and_weigh_as_said():
    seen = []
    for on_part in parts(seen.append, 1, 3):
        on_part(0.0)
        on_part(1.0)
    assert seen == [0.0, 0.25, 0.25, 1.0]


def test_nothing_to_do_and_nobody_who_asks():
    assert list(tracked([], silent)) == []
    assert parts(silent) == ()
