"""The state of the machine at a bench's start."""

from __future__ import annotations

import pytest

from oracle.bench.machine import busy_reasons, busy_share, machine_state

BEFORE = """cpu 9 9 9 9 9 9 9 9 0 0
cpu0 100 0 100 800 0 0 0 0 0 0
cpu1 5 5 5 5 5 5 5 5 0 0
cpu2 0 0 0 0 0 0 0 0 0 0
intr 1 2
"""
AFTER = """cpu 9 9 9 9 9 9 9 9 0 0
cpu0 110 0 110 860 20 0 0 0 0 0
cpu1 5 5 5 5 5 5 5 105 0 0
cpu2 0 0 0 100 0 0 0 0 0 0
intr 1 2
"""


@pytest.mark.parametrize(("affinity", "share"), [((0,), 0.2), ((1,), 1.0), ((2,), 0.0), ((0, 2), 0.1), ((7,), None)])
def test_the_busy_share_is_of_the_allowed_cpus_and_counts_what_others_took(
    affinity: tuple[int, ...], share: float | None
) -> None:
    assert busy_share(BEFORE, AFTER, affinity) == share


def test_a_system_that_tells_nothing_has_no_busy_share() -> None:
    assert busy_share("", "", (0,)) is None
    assert busy_share(BEFORE, BEFORE, (0,)) is None


def test_a_start_is_busy_by_load_or_by_share_and_says_which() -> None:
    assert busy_reasons((0.5, 0, 0), 0.1, 2) == ()
    assert busy_reasons(None, None, 2) == ()
    assert busy_reasons((0.51, 0, 0), 0.0, 2) == ("load 0.51 on 2 CPUs, above 0.25 each",)
    assert busy_reasons((0.5, 9, 9), 0.11, 2) == ("CPUs 11% busy, above 10%",)
    assert len(busy_reasons((3, 0, 0), 1.0, 2)) == 2


def test_this_machine_can_be_looked_at() -> None:
    state = machine_state()
    assert 0 < len(state.affinity) <= state.cpus
    assert state.governor
    assert state.busy == busy_reasons(state.load, state.busy_share, len(state.affinity))
