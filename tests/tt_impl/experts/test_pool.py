"""Every counter of streaming, on schedules on which its value is known by hand, and each lever's mark on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import VerifiedFill
from tt_impl.device.protocol import DType
from tt_impl.device.sim import Fault, FaultPlan, Flip, OnWrite, SimDevice
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.experts.memo import FeedForwardWeights
from tt_impl.experts.policy import POLICIES
from tt_impl.experts.pool import ExpertPool
from tt_impl.metering import Meter
from tt_impl.plants.catalogue import PLANTS, Parts
from tt_impl.settings import default_settings

EXPERT = 3 * (64 * 64 + 2 * 2 * 4)
"""Bytes of one of the tiny checkpoint's experts: three fp8 matrices 64 by 64, each with four fp32 scales."""

WRITTEN = 3 * 64 * 64 * 4
"""The same in fp32."""

MEMO = (8 + 8) * 32 * 32 * 4
"""What it takes of eight DRAM banks: up and gate are 8 tiles, down is 4, and each bank takes as much as the fullest."""


def landing_wrong(label: str, write: int = 1, offset: int = 0, mask: int = 1) -> SimDevice:
    """A device on which a write into `label` lands with a bit flipped."""
    return SimDevice(faults=FaultPlan((Fault(label, OnWrite(write), Flip(offset, mask)),)))


class Listener:
    """Hears of fills and uses."""

    def __init__(self) -> None:
        self.verifications: list[tuple[int, int]] = []
        self.uses: list[tuple[int, int, int]] = []

    def verified(self, fill: VerifiedFill) -> None:
        if fill.projection == "down_proj":
            self.verifications.append((fill.expert, fill.generation))

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        self.uses.append((expert, slot, generation))


class Rig:
    """The tiny checkpoint's experts in 3 slots a layer and room for 2 memos, fp32; layer 0 is used."""

    def __init__(
        self, checkpoint: Checkpoint, device: SimDevice | None = None, plant: str | None = None, **changes: Any
    ) -> None:
        self.raw = device or SimDevice()
        meter = Meter(self.raw)
        self.stats = meter.stats
        budget = MEMO * changes.pop("memos", 2)
        settings = default_settings(checkpoint.config, DType.FLOAT32)
        settings = replace(settings, memo_bytes=budget, **{"slots_per_layer": 3, **changes})
        parts = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
        pool_type = parts.pool_type if plant is None else PLANTS[plant].apply(parts).pool_type
        self.heard = Listener()
        self.pool: ExpertPool = pool_type(meter.device, checkpoint.config, parts.experts, settings, self.stats, self.heard)
        self.layout = ExpertLayout.of(checkpoint.config)
        self.experts = parts.experts

    def step(self, asked: Sequence[int], on_demand: Sequence[int] = ()) -> list[FeedForwardWeights]:
        self.pool.begin_step()
        self.pool.make_resident(0, asked)
        weights = [self.pool.use(0, expert) for expert in (*asked, *on_demand)]
        self.pool.release(0)
        return weights

    def walk(self, schedule: Sequence[Sequence[int]]) -> Rig:
        for asked in schedule:
            self.step(asked)
        return self

    def resident(self) -> set[int]:
        return {expert for expert in range(8) if expert in self.pool._tables[0]}

    def counts(self, *names: str) -> tuple[int, ...]:
        return tuple(getattr(self.stats, name) for name in names)

    def down(self, weights: FeedForwardWeights) -> np.ndarray:
        return self.raw.copy_device_to_host_tensor(weights.down, blocking=True).array()

    def true_down(self, expert: int) -> np.ndarray:
        return self.layout.segment("down_proj").dequantize(self.experts.payload(0, expert), DType.FLOAT32)


SCHEDULE = ([0, 1, 2], [0, 1, 2], [2, 3], [3, 4, 5])
"""Three slots, two memos. Step 1 fills 0, 1, 2; the third memo drops the first. Step 2 finds all slots, and misses all memos:
each drops the one that is needed next. Step 3 fills 3 in the place of 0 (as cold as 1, lower slot), hits the memo of 2.
Step 4 fills 4 in the place of 1, then 5 in that of 2, whose memo is retired and makes room; it hits 3."""

ON_SCHEDULE = {
    "slot_hits": 5,
    "slot_misses": 6,
    "slot_swaps": 3,
    "lru_swaps": 0,
    "fills": 6,
    "staged_bytes": 6 * EXPERT,
    "verified_bytes": 6 * EXPERT,
    "trusted_fills": 0,
    "drains": 3,
    "early_drains": 0,
    "single_drains": 0,
    "on_demand_drains": 0,
    "round_trips": 3,
    "rereads": 0,
    "expert_uses": 11,
    "memo_hits": 2,
    "memo_misses": 9,
    "memo_evictions": 6,
    "memo_releases": 1,
    "memo_bytes": 2 * MEMO,
    "memo_bytes_peak": 2 * MEMO,
    "epoch_resets": 2,
    "bytes_written": 6 * EXPERT + 9 * WRITTEN,
    "bytes_read": 6 * EXPERT,
}


@pytest.mark.parametrize(
    ("levers", "differs"),
    [
        pytest.param({}, {}, id="default"),
        pytest.param({"drain": "fill"}, {"drains": 6, "single_drains": 6, "round_trips": 6}, id="drain=fill"),
        pytest.param(
            {"dequant": "reread"}, {"rereads": 9, "round_trips": 3 + 9, "bytes_read": 15 * EXPERT}, id="dequant=reread"
        ),
        pytest.param({"verify": "first"}, {}, id="verify=first"),  # no expert returns here
        pytest.param({"policy": "lru"}, {"lru_swaps": 3}, id="policy=lru"),  # nor is the coldest ever another than the oldest
        pytest.param({"read_back_limit": 2}, {"drains": 4, "early_drains": 1, "round_trips": 4}, id="2 read-backs"),
        pytest.param({"read_back_limit": 1}, {"drains": 6, "early_drains": 3, "round_trips": 6}, id="1 read-back"),
        pytest.param(
            {"memos": 9},
            {"memo_hits": 5, "memo_misses": 6, "memo_evictions": 0, "memo_releases": 3, "memo_bytes": 5 * MEMO}
            | {"memo_bytes_peak": 5 * MEMO, "bytes_written": 6 * EXPERT + 6 * WRITTEN},
            id="9 memos",
        ),
    ],
)
def test_counters_on_a_schedule_known_by_hand(tiny: Checkpoint, levers: dict[str, Any], differs: dict[str, int]) -> None:
    rig = Rig(tiny, **levers).walk(SCHEDULE)
    expected = ON_SCHEDULE | differs
    assert {name: getattr(rig.stats, name) for name in expected} == expected
    log = rig.raw.event_counts()
    pairs = {"drains": "synchronizes", "round_trips": "round_trips", "rereads": "blocking_reads", "bytes_read": "bytes_read"}
    for own, device in {**pairs, "bytes_written": "bytes_written"}.items():
        assert log.get(device, 0) == expected[own], own


def test_a_retired_memo_lives_until_the_next_step_begins(tiny: Checkpoint) -> None:
    rig = Rig(tiny, memos=9).walk(([0, 1, 2], [3]))
    assert rig.counts("memo_bytes", "memo_releases") == (4 * MEMO, 1)
    rig.step([3])
    assert rig.counts("memo_bytes", "memo_releases", "epoch_resets") == (3 * MEMO, 1, 2)
    rig.step([3])
    assert rig.counts("epoch_resets") == (2,)  # nothing was filled in the step before


def test_an_expert_nobody_asked_for_is_filled_on_demand_and_drained_at_once(tiny: Checkpoint) -> None:
    rig = Rig(tiny)
    weights = rig.step([0, 1], on_demand=[5])
    assert rig.counts("fills", "drains", "on_demand_drains", "round_trips") == (3, 2, 1, 2)
    assert rig.heard.uses[-1] == (5, 2, 1)
    assert rig.heard.verifications == [(0, 1), (1, 1), (5, 1)]
    assert np.array_equal(rig.down(weights[-1]), rig.true_down(5))


def test_an_on_demand_fill_spares_what_its_own_step_asked_for(tiny: Checkpoint) -> None:
    rig = Rig(tiny).walk(([0, 1, 2],))
    rig.step([0, 1], on_demand=[5])
    assert rig.resident() == {0, 1, 5}
    with pytest.raises(DeviceFault, match="layer 0 needs 4 experts in 3 slots"):
        rig.step([0, 1, 5], on_demand=[2])


def test_an_on_demand_fill_that_lands_wrong_is_found(tiny: Checkpoint) -> None:
    rig = Rig(tiny, landing_wrong("layer0.slot2", offset=9))
    with pytest.raises(DeviceFault, match="slot-verification") as caught:
        rig.step([0, 1], on_demand=[5])
    assert caught.value.kind == "slot-verification"


def test_a_step_makes_no_more_fills_than_its_tokens_can_need(tiny: Checkpoint) -> None:
    """3 layers x 3 experts a token: nine fills, and not one more."""
    rig = Rig(tiny)
    rig.pool.begin_step()
    for layer in range(3):
        rig.pool.make_resident(layer, [0, 1, 2])
        rig.pool.release(layer)
    with pytest.raises(DeviceFault, match="layer 0 needs 1 fills where 0 are left of the step's") as caught:
        rig.pool.make_resident(0, [3])
    assert caught.value.kind == "fill-bound"
    rig.pool.begin_step(tokens=2)
    for expert in range(3, 8):
        rig.pool.make_resident(0, [expert])
        rig.pool.release(0)


RETURNING = ([0, 1, 2], [3, 4, 5], [0, 1, 2])
"""Each step fills all three slots; the last brings back what was verified in the first."""


def test_verify_first_compares_an_expert_once_and_tells_nobody_otherwise(tiny: Checkpoint) -> None:
    rig = Rig(tiny, verify="first").walk(RETURNING)
    assert rig.counts("fills", "staged_bytes", "verified_bytes", "drains") == (9, 9 * EXPERT, 6 * EXPERT, 2)
    assert rig.counts("trusted_fills") == (3,)
    assert rig.heard.verifications == [(expert, 1) for expert in (0, 1, 2)] + [(expert, 2) for expert in (3, 4, 5)]
    assert rig.heard.uses[-3:] == [(expert, expert, 3) for expert in (0, 1, 2)]


@pytest.mark.parametrize("layers", [(0, 1), (1, 0)])
def test_an_expert_verified_in_one_layer_is_not_trusted_in_another(tiny: Checkpoint, layers: tuple[int, int]) -> None:
    rig = Rig(tiny, verify="first")
    rig.pool.begin_step()
    for layer in layers:
        rig.pool.make_resident(layer, [0, 1, 2])
    assert rig.stats.verified_bytes == rig.stats.staged_bytes == 6 * EXPERT


def test_an_on_demand_fill_that_is_trusted_is_no_drain(tiny: Checkpoint) -> None:
    """Nothing is read back, so nobody waits: a counter that counted the fill would say otherwise."""
    rig = Rig(tiny, verify="first").walk(RETURNING[:2])
    rig.step([], on_demand=[0])
    assert rig.counts("fills", "drains", "on_demand_drains") == (7, 2, 0)


@pytest.mark.parametrize("dequant", ["shadow", "reread"])
def test_what_verify_first_no_longer_sees(tiny: Checkpoint, dequant: str) -> None:
    """The third fill of slot 0 lands wrong. Verifying always finds it; on first touch it is used, and hurts who rereads."""
    wrong = {"write": 3, "offset": 2 * EXPERT // 3, "mask": 0x08}
    with pytest.raises(DeviceFault) as caught:
        Rig(tiny, landing_wrong("layer0.slot0", **wrong), dequant=dequant).walk(RETURNING)
    assert caught.value.kind == "slot-verification"
    rig = Rig(tiny, landing_wrong("layer0.slot0", **wrong), dequant=dequant, verify="first").walk(RETURNING[:2])
    used = rig.step(RETURNING[2][:1])[0]
    assert (rig.down(used) != rig.true_down(0)).sum() == (dequant == "reread")


@pytest.mark.parametrize(("policy", "left"), [("hotness", {0, 2, 3}), ("lru", {1, 2, 3})])
def test_the_policies_part_where_an_old_expert_is_hot(tiny: Checkpoint, policy: str, left: set[int]) -> None:
    assert Rig(tiny, policy=policy).walk(([0], [0], [0], [1], [2], [3])).resident() == left


def test_a_memo_looked_up_by_what_its_slot_held_before_serves_the_wrong_expert(tiny: Checkpoint) -> None:
    """Slot 0 is filled with 0, then with 3; by the slot's first key, the memo of 0 is still found."""
    for plant, served in ((None, 3), ("memo-stale", 0)):
        rig = Rig(tiny, plant=plant, memos=9).walk(([0, 1, 2],))
        weights = rig.step([3, 1, 2])[0]
        assert rig.heard.uses[-3] == (3, 0, 2)
        assert np.array_equal(rig.down(weights), rig.true_down(served))


def test_a_fingerprint_recorded_after_the_steps_own_fills_never_moves_the_epoch(tiny: Checkpoint) -> None:
    late = Rig(tiny, plant="fingerprint-late").walk(SCHEDULE)
    assert late.stats.epoch_resets == 0 != ON_SCHEDULE["epoch_resets"]
    held = [Rig(tiny, plant=plant, memos=9).walk((*SCHEDULE, [3])).stats.memo_bytes for plant in (None, "fingerprint-late")]
    assert held == [3 * MEMO, 6 * MEMO]  # what should have been freed is still there


def test_a_swap_counter_that_asks_after_the_hook_stays_at_zero(tiny: Checkpoint) -> None:
    late = Rig(tiny, plant="swap-count-late").walk(SCHEDULE)
    assert late.stats.slot_swaps == 0 != ON_SCHEDULE["slot_swaps"]
    assert {name: getattr(late.stats, name) for name in ON_SCHEDULE} == {**ON_SCHEDULE, "slot_swaps": 0}


def test_swaps_are_the_policy_s_that_ran_and_not_the_one_that_was_asked_for(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "lru", POLICIES["hotness"])
    assert Rig(tiny, policy="lru").walk(SCHEDULE).counts("slot_swaps", "lru_swaps") == (3, 0)
