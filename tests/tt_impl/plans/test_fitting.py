"""A decoder asks for no more slots and memos than its card has room for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from geometry import RELEASE

import tt_impl.opening
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import SubjectRequest
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import ExpertLayout
from tt_impl.plans.budget import P150_DRAM_BYTES, PlanError
from tt_impl.plans.fitting import fitted
from tt_impl.plans.kv_plan import plan_kv
from tt_impl.plans.streaming_plan import SCRATCH_BYTES
from tt_impl.plants.catalogue import Parts
from tt_impl.settings import default_settings

BF16 = DType.BFLOAT16


def test_the_release_on_a_p150_has_the_slots_and_memos_of_its_plan() -> None:
    asked = default_settings(RELEASE, BF16)
    assert asked.slots_per_layer == 336
    given = fitted(asked, RELEASE, P150_DRAM_BYTES)
    memo = ExpertLayout.of(RELEASE).memo_bytes(BF16)
    assert (given.slots_per_layer, given.memo_bytes) == (45, 45 * 50 * memo)
    assert given == replace(asked, slots_per_layer=45, memo_bytes=45 * 50 * memo), "nothing else"


def test_what_fits_stays_as_it_was_asked_for_to_the_last_byte(tiny: Checkpoint) -> None:
    asked = default_settings(tiny.config, BF16)
    assert fitted(asked, tiny.config, 1 << 30) is asked
    few = replace(asked, slots_per_layer=3)
    least = next(n for n in range(SCRATCH_BYTES, 1 << 30, 4096) if fits(few, tiny, n))
    assert fitted(few, tiny.config, least) is few
    less = fitted(few, tiny.config, least - 4096)
    assert less.memo_bytes < few.memo_bytes


def test_what_several_users_hold_is_counted_too(tiny: Checkpoint) -> None:
    """With the choice on the device each layer's bias lies there once more, a row for each user: [2, 8] in tiles."""
    one = replace(default_settings(tiny.config, BF16), topk="device")
    two = replace(one, users=2)

    def least(settings) -> int:
        return next(n for n in range(SCRATCH_BYTES, 1 << 30, 4096) if fits(settings, tiny, n))

    caches = [
        plan_kv(tiny.config, BF16, sequences=users, context=one.max_positions, block_size=32).device_bytes for users in (1, 2)
    ]
    assert least(two) - least(one) - (caches[1] - caches[0]) >= 3 * 4096


def fits(settings, tiny: Checkpoint, dram_bytes: int) -> bool:
    try:
        return fitted(settings, tiny.config, dram_bytes) is settings
    except PlanError:
        return False


def test_a_subject_s_decoder_is_fitted_to_its_device(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(dram_bytes: int):
        monkeypatch.setattr(tt_impl.opening, "Parts", partial(Parts, open_device=partial(SimDevice, dram_bytes=dram_bytes)))
        return tt_impl.opening.open_parts(SubjectRequest(tiny_folder)).settings

    roomy, tight = on(1 << 30), on(SCRATCH_BYTES + 2_000_000)
    assert (tight.slots_per_layer, tight.memo_bytes) < (roomy.slots_per_layer, roomy.memo_bytes)
    with pytest.raises(PlanError, match="one step of 1 sequences beside residents and KV cache: needs"):
        on(SCRATCH_BYTES)
