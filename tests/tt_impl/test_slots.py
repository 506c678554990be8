"""A slot's life can't skip a state, and the policy evicts what the step does not need, least recently touched first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import DeviceFault
from tt_impl.slots import Fetch, SlotTable


def table_of(capacity: int) -> tuple[SlotTable, list[tuple[int, int, int]]]:
    evicted: list[tuple[int, int, int]] = []
    return SlotTable(4, capacity, lambda *args: evicted.append(args)), evicted


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


def in_use(table: SlotTable) -> None:
    verified(table)
    table.use(7)


@pytest.mark.parametrize(
    ("before", "move", "message"),
    [
        (lambda table: None, lambda table: table.verify(0), "is empty and cannot become verified"),
        (lambda table: None, lambda table: table.use(7), "expert 7 was used but is in no slot"),
        (staged, lambda table: table.use(7), "is staged and cannot become in use"),
        (staged, lambda table: table.stage(0, 8), "is staged and cannot become staged"),
        (staged, lambda table: table.touch([8]), "is staged and cannot become empty"),
        (verified, lambda table: table.verify(0), "is verified and cannot become verified"),
        (verified, lambda table: table.stage(0, 8), "is verified and cannot become staged"),
        (in_use, lambda table: table.touch([8]), "is in use and cannot become empty"),
        (in_use, lambda table: table.verify(0), "is in use and cannot become verified"),
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


@given(
    capacity=st.integers(3, 6),
    steps=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), max_size=40),
)
def test_against_a_list_kept_in_order_of_use(capacity: int, steps: list[list[int]]) -> None:
    table, evicted = table_of(capacity)
    recent: list[int] = []  # least recently touched first
    for experts in steps:
        misses = [expert for expert in experts if expert not in recent]
        room = capacity - len(recent)
        gone = [expert for expert in recent if expert not in experts][: max(0, len(misses) - room)]
        recent = [expert for expert in recent if expert not in gone and expert not in experts] + experts
        evicted.clear()
        assert [fetch.expert for fetch in run_step(table, experts)] == misses
        assert [expert for _, expert, _ in evicted] == gone
        slots = {expert: table.use(expert).index for expert in recent}
        table.release()
        assert len(set(slots.values())) == len(recent) <= capacity
