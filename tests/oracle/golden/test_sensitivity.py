"""Chains on which an index fault cannot show are found; chains on which every one shows are told apart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.sensitivity import LEAST_SHARE, exposures, measure, weakest

GOOD = random.Random(5).sample(range(500), 32)
OTHER = random.Random(6).sample(range(500), 32)
OTHER_IDS = range(600, 632)
TWELVE = random.Random(7).sample(range(500), 12)


def test_good_chains_expose_every_fault() -> None:
    measured = measure({"a": ([501, 502], GOOD), "b": ([503, 504, 505], OTHER)})
    assert measured.hidden == ()
    # Eight shifts each way (the prompts' lengths are among them), two dropped ids, one swap; for both prompts.
    assert measured.faults == measured.exposed == 2 * (16 + 2 + 1)


def test_a_prompt_longer_than_the_shifts_adds_its_own_length() -> None:
    assert measure({"a": (list(range(600, 620)), GOOD)}).faults == 18 + 2


def test_a_constant_chain_hides_every_shift() -> None:
    measured = measure({"a": ([9, 9], [9] * 32), "b": ([503], OTHER)})
    assert {f"a: {n} late" for n in range(1, 9)} <= set(measured.hidden)
    assert {"a: 1 early", "a: 2 early", "a: first id dropped", "a: last id dropped"} <= set(measured.hidden)
    assert "a: answered as b" not in measured.hidden
    assert measured.exposed == measured.faults - len(measured.hidden)


def test_a_chain_of_two_ids_hides_even_shifts() -> None:
    hidden = measure({"a": ([1, 2], [1, 2] * 16)}).hidden
    assert {"a: 2 late", "a: 4 late", "a: 6 late", "a: 8 late"} <= set(hidden)
    assert "a: 1 late" not in hidden


def test_a_chain_of_period_twelve_hides_a_shift_by_twelve() -> None:
    chain = (TWELVE * 3)[:32]
    assert measure({"a": (TWELVE, chain)}).hidden == ("a: 12 late", "a: 12 early")


def test_two_prompts_with_one_answer_hide_a_swap_neighbours_or_not() -> None:
    hidden = measure({"a": ([501], GOOD), "b": ([502], OTHER), "c": ([503], GOOD)}).hidden
    assert hidden == ("a: answered as c", "c: answered as a")


def test_it_reads_as_a_count_and_a_share() -> None:
    assert str(measure({"a": ([501], GOOD)})) == "18 of 18 (100.0%)"
    assert str(measure({"a": ([1, 2], [1, 2] * 16)})) == "7 of 18 (38.9%)"


def test_a_fault_that_shows_in_one_place_only_is_weak() -> None:
    """It is exposed, and would be lost as soon as that place is left out."""
    nearly = [*GOOD[:-1], 777]
    found = exposures({"a": ([501], GOOD), "b": ([502], nearly)})
    worst = weakest(found)
    assert (worst.fault, worst.changed, worst.compared, worst.weak) == ("a: answered as b", 1, 32, True)
    assert str(worst) == "a: answered as b (1 of 32 ids)"
    assert [e.fault for e in found if e.weak] == ["a: answered as b", "b: answered as a"]
    assert measure({"a": ([501], GOOD), "b": ([502], nearly)}).hidden == ()


@pytest.mark.parametrize(("changed", "weak"), [(3, True), (4, False)])
def test_an_eighth_of_the_ids_is_enough(changed: int, weak: bool) -> None:
    assert LEAST_SHARE == 1 / 8
    other = [*GOOD[: 32 - changed], *OTHER_IDS[:changed]]
    swap = next(e for e in exposures({"a": ([501], GOOD), "b": ([502], other)}) if e.fault == "a: answered as b")
    assert (swap.share, swap.weak) == (changed / 32, weak)


CHAINS = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=24)),
    min_size=1,
)


@given(CHAINS)
def test_every_fault_is_counted_once_and_compares_something(chains: dict[str, tuple[list[int], list[int]]]) -> None:
    found, measured = exposures(chains), measure(chains)
    assert len({e.fault for e in found}) == len(found) == measured.faults
    assert measured.exposed + len(measured.hidden) == measured.faults
    assert all(0 <= e.changed <= e.compared and e.compared > 0 for e in found)
    assert (weakest(found).changed == 0) == bool(measured.hidden)
    swaps = {e.fault for e in found if "answered as" in e.fault}
    assert swaps == {f"{a}: answered as {b}" for a in chains for b in chains if a != b}


@given(st.permutations(range(40)), st.integers(1, 8))
def test_a_chain_without_a_repeated_id_is_changed_everywhere(ids: list[int], prompt: int) -> None:
    assert weakest(exposures({"a": (ids[:prompt], ids[prompt:])})).share == 1.0


@given(CHAINS)
def test_names_of_ids_do_not_matter(chains: dict[str, tuple[list[int], list[int]]]) -> None:
    renamed = {name: ([i * 7 + 1 for i in prompt], [i * 7 + 1 for i in chain]) for name, (prompt, chain) in chains.items()}
    assert exposures(renamed) == exposures(chains)
