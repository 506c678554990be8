"""A slot's life can't skip a state, and only what the step does not need is evicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oracle.errors import DeviceFault
from tt_impl.experts.policy import LeastRecentlyUsed
from tt_impl.experts.slots import Fetch, SlotTable


def table_of(capacity: int) -> tuple[SlotTable, list[tuple[int, int, int]]]:
    evicted: list[tuple[int, int, int]] = []
    return SlotTable(4, capacity, LeastRecentlyUsed(), lambda *args: evicted.append(args)), evicted


def run_step(table: SlotTable, experts: list[int]) -> list[Fetch]:
    fetches = table.touch(experts)
    for fetch in fetches:
        table.stage(fetch.slot, fetch.expert)
    for fetch in fetches:
        table.verify(fetch.slot)
    for expert in experts:
        table.use(expert)
    table.release()
    return fetches


def staged(table: SlotTable) -> None:
    table.touch([7])
    table.stage(0, 7)


def verified(table: SlotTable) -> None:
    staged(table)
    table.verify(0)


def trusted(table: SlotTable) -> None:
    staged(table)
    table.trust(0)


def in_use(table: SlotTable) -> None:
    verified(table)
    table.use(7)


def in_use_unasked(table: SlotTable) -> None:
    """Nobody asked for it in this step, so nothing pins it but its use."""
    verified(table)
    table.release()
    table.use(7)


def unpinned(before: Callable[[SlotTable], None]) -> Callable[[SlotTable], None]:
    def run(table: SlotTable) -> None:
        before(table)
        table.release()

    return run


@pytest.mark.parametrize(
    ("before", "move", "message"),
    [
        (lambda table: None, lambda table: table.verify(0), "is empty and cannot become verified"),
        (lambda table: None, lambda table: table.use(7), "expert 7 was used but is in no slot"),
        (staged, lambda table: table.use(7), "is staged and cannot become in use"),
        (staged, lambda table: table.stage(0, 8), "is staged and cannot become staged"),
        (unpinned(staged), lambda table: table.touch([8]), "is staged and cannot become empty"),
        (verified, lambda table: table.verify(0), "is verified and cannot become verified"),
        (verified, lambda table: table.stage(0, 8), "is verified and cannot become staged"),
        (lambda table: None, lambda table: table.trust(0), "is empty and cannot become trusted"),
        (verified, lambda table: table.trust(0), "is verified and cannot become trusted"),
        (trusted, lambda table: table.verify(0), "is trusted and cannot become verified"),
        (in_use, lambda table: table.trust(0), "is in use and cannot become trusted"),
        (in_use, lambda table: table.verify(0), "is in use and cannot become verified"),
        (in_use, lambda table: table.stage(0, 8), "is in use and cannot become staged"),
        (in_use_unasked, lambda table: table.touch([8]), "is in use and cannot become empty"),
    ],
)
def test_a_state_cannot_be_skipped(
    before: Callable[[SlotTable], None], move: Callable[[SlotTable], None], message: str
) -> None:
    table, _ = table_of(1)
    before(table)
    with pytest.raises(DeviceFault, match=message) as caught:
        move(table)
    assert caught.value.kind == "slot-state"


def test_the_least_recently_touched_expert_goes_and_the_hook_hears_of_it() -> None:
    table, evicted = table_of(3)
    assert run_step(table, [1, 2, 3]) == [Fetch(1, 0), Fetch(2, 1), Fetch(3, 2)]
    assert run_step(table, [1]) == []
    assert run_step(table, [4]) == [Fetch(4, 1)]
    assert evicted == [(4, 2, 1)]


def test_an_expert_the_step_needs_is_pinned_however_old_it_is() -> None:
    table, evicted = table_of(3)
    run_step(table, [1, 2, 3])
    assert run_step(table, [9, 1]) == [Fetch(9, 1)]
    assert evicted == [(4, 2, 1)]


def test_the_generation_counts_a_slots_fills() -> None:
    table, _ = table_of(1)
    for fill, expert in enumerate([5, 6, 5], start=1):
        run_step(table, [expert])
        assert table.use(expert).generation == fill
        table.release()


def test_more_experts_than_slots_is_a_fault() -> None:
    table, _ = table_of(2)
    with pytest.raises(DeviceFault, match="layer 4 needs 3 experts in 2 slots") as caught:
        table.touch([1, 2, 3])
    assert caught.value.kind == "slot-capacity"


@pytest.mark.parametrize("life", [verified, trusted])
def test_a_used_slot_is_afterwards_what_it_was_before_and_may_be_evicted(life: Callable[[SlotTable], None]) -> None:
    table, evicted = table_of(1)
    life(table)
    for _ in range(2):
        table.use(7)
        table.release()
    assert table.touch([8]) == [Fetch(8, 0)]
    assert evicted == [(4, 7, 0)]


def test_what_the_step_asked_for_is_pinned_until_it_is_released() -> None:
    """Asked for in one call and not in the next: an on-demand fill must not take the place of an expert of its own step."""
    table, _ = table_of(2)
    run_step(table, [1, 2])
    table.touch([1, 2])
    with pytest.raises(DeviceFault, match="layer 4 needs 3 experts in 2 slots"):
        table.touch([3])
    table.release()
    assert table.touch([3]) == [Fetch(3, 0)]
