"""The epoch moves with the first step after one that changed a slot, whatever its own fills do."""

from __future__ import annotations

from tt_impl.experts.epoch import ContentEpoch
from tt_impl.experts.policy import LeastRecentlyUsed
from tt_impl.experts.slots import SlotTable


def fill(table: SlotTable, expert: int) -> None:
    for fetch in table.touch([expert]):
        table.stage(fetch.slot, fetch.expert)
        table.verify(fetch.slot)
    table.release()


def test_it_moves_once_for_what_the_step_before_filled_and_not_without_a_fill() -> None:
    tables = [SlotTable(layer, 1, LeastRecentlyUsed(), lambda *_: None) for layer in range(2)]
    epoch = ContentEpoch(tables)
    assert not epoch.begin_step()
    fill(tables[1], 5)
    assert epoch.begin_step()
    fill(tables[1], 5)  # a hit
    assert not epoch.begin_step()
    fill(tables[0], 5)
    fill(tables[1], 6)
    assert epoch.begin_step()
    assert not epoch.begin_step()


def test_an_expert_that_left_and_came_back_is_a_change() -> None:
    table = SlotTable(0, 1, LeastRecentlyUsed(), lambda *_: None)
    fill(table, 5)
    epoch = ContentEpoch([table])
    fill(table, 6)
    fill(table, 5)
    assert epoch.begin_step()
