"""What streams: the release's published figures, the split of DRAM, and refusals that name what is short."""

from __future__ import annotations

import pytest
from geometry import RELEASE
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import UsageError
from tt_impl.device.protocol import DType
from tt_impl.plans.budget import P150_DRAM_BYTES, PlanError
from tt_impl.plans.kv_plan import KvPlan, longest_context, plan_kv, sliding_blocks
from tt_impl.plans.mesh_plan import plan_mesh, require_fit
from tt_impl.plans.staging_plan import plan_staging
from tt_impl.plans.streaming_plan import SCRATCH_BYTES, expert_bytes, plan_streaming, touched_fraction

BF16 = DType.BFLOAT16
EXPERT, SLOT, MEMO = 3_933_120, 3_942_912, 7_864_320
"""Bytes of one expert: what a fill moves; what a slot takes, 1,205 pages of 3,264 bytes of which a bank sets aside room for
151; what a memo takes."""
STAGING = plan_staging(RELEASE, BF16, 4096)


def kv(sequences: int = 1, context: int = 4096) -> KvPlan:
    return plan_kv(RELEASE, BF16, sequences=sequences, context=context, block_size=32)


def test_one_expert_and_all_of_them_have_the_published_sizes() -> None:
    plan = plan_streaming(RELEASE, STAGING, kv(), BF16, P150_DRAM_BYTES)
    assert plan.expert_bytes == 3_932_160 + 960 == EXPERT
    assert plan.copy_bytes == plan.memo_bytes == MEMO
    assert plan.slot_bytes == SLOT
    assert expert_bytes(RELEASE) == 75_515_904_000
    assert round(expert_bytes(RELEASE) / 2**30, 2) == 70.33


def test_a_token_fills_at_most_the_published_bytes_and_the_time_follows() -> None:
    plan = plan_streaming(RELEASE, STAGING, kv(), BF16, P150_DRAM_BYTES)
    assert (plan.step_experts, plan.step_bytes) == (300, 1_179_936_000)
    assert plan.fill_milliseconds(25e9) == pytest.approx(47.197, abs=1e-3)
    assert plan.fill_milliseconds(60e9) == pytest.approx(19.666, abs=1e-3)


@given(st.integers(1, 40), st.integers(1, 4096), st.integers(9_000_000_000, 200_000_000_000))
def test_the_split_uses_what_is_left_and_no_more(sequences: int, context: int, dram: int) -> None:
    cache = kv(sequences, context)
    try:
        plan = plan_streaming(RELEASE, STAGING, cache, BF16, dram)
    except PlanError:
        pinned = 6 * sequences
        needed = STAGING.device_bytes + cache.device_bytes + SCRATCH_BYTES + pinned * (50 * SLOT + MEMO)
        assert needed > dram
        return
    slots, memos = 50 * plan.slots_per_layer, plan.memos
    held = STAGING.device_bytes + cache.device_bytes + SCRATCH_BYTES
    assert held + slots * plan.slot_bytes + memos * plan.memo_bytes + plan.spare_bytes == dram
    assert 6 * sequences <= plan.slots_per_layer <= 384
    assert 6 * sequences <= memos <= slots
    assert plan.spare_bytes >= 0
    if memos < slots and plan.slots_per_layer == 6 * sequences:
        assert plan.spare_bytes < plan.memo_bytes
    elif plan.slots_per_layer < 384:
        assert plan.spare_bytes < 50 * plan.slot_bytes
        assert slots - memos < 50 * 3, "one more pair in every layer would have fitted"


def test_a_card_too_small_for_one_step_is_refused_with_the_deficit() -> None:
    with pytest.raises(PlanError, match=r"one step of 1 sequences .*: needs [\d,]+ of 8,000,000,000 bytes, [\d,]+ too many"):
        plan_streaming(RELEASE, STAGING, kv(), BF16, 8_000_000_000)


def test_the_touched_fraction_is_what_independent_even_choices_give() -> None:
    assert touched_fraction(RELEASE, 1) == pytest.approx(6 / 384)
    assert touched_fraction(RELEASE, 8) == pytest.approx(1 - (378 / 384) ** 8)


def test_concurrency_that_touches_most_experts_is_refused_by_name() -> None:
    roomy = 3 * P150_DRAM_BYTES
    plan_streaming(RELEASE, STAGING, kv(44, 64), BF16, roomy)
    for dram in (roomy, P150_DRAM_BYTES):
        with pytest.raises(PlanError, match=r"streaming for 45 sequences: .* 51% of a layer's experts, above 50%"):
            plan_streaming(RELEASE, STAGING, kv(45, 64), BF16, dram)
    assert plan_streaming(RELEASE, STAGING, kv(45, 64), BF16, 10 * P150_DRAM_BYTES).slots_per_layer == 384


@pytest.mark.parametrize(
    ("sequences", "said"),
    [
        (44, "one step of 44 sequences beside residents and KV cache: needs "),
        (64, "streaming for 64 sequences: a step is expected to touch 64%"),  # who pins every expert streams none that fits
        (2_000, "one step of 2000 sequences beside residents and KV cache: needs "),  # whose cache alone is too much
    ],
)
def test_on_one_card_it_is_named_before_the_room_that_its_experts_would_need(sequences: int, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_streaming(RELEASE, STAGING, kv(sequences), BF16, P150_DRAM_BYTES)
    assert str(caught.value).startswith(said)


@given(st.integers(1, 600), st.sampled_from([16, 32, 64]), st.integers(0, 4096))
def test_a_window_s_blocks_hold_it_wherever_it_begins_and_one_fewer_would_not(window: int, block: int, start: int) -> None:
    touched = (start + window - 1) // block - start // block + 1
    assert touched <= sliding_blocks(window, block)
    assert any((s + window - 1) // block - s // block + 1 == sliding_blocks(window, block) for s in range(block))


def test_the_cache_of_the_longest_context_is_bounded_by_the_window_on_sliding_layers() -> None:
    plan = kv()
    assert (plan.full_blocks, plan.sliding_blocks) == (128, 17)
    assert plan.device_bytes == (10 * 128 + 40 * 17) * 32 * 2 * 4 * 128 * 2
    assert kv(1, 100).sliding_blocks == kv(1, 100).full_blocks == 4


@pytest.mark.parametrize(("sequences", "context"), [(0, 10), (1, 0), (1, 4097)])
def test_a_cache_for_nothing_or_for_too_much_is_refused(sequences: int, context: int) -> None:
    with pytest.raises(UsageError):
        kv(sequences, context)


def test_the_whole_model_on_one_card_is_refused_with_its_deficit() -> None:
    held = STAGING.device_bytes + kv().device_bytes
    one = plan_mesh(RELEASE, held, SLOT, MEMO, P150_DRAM_BYTES, 1)
    assert one.deficit_bytes == held + SCRATCH_BYTES + 50 * 384 * SLOT - P150_DRAM_BYTES
    with pytest.raises(PlanError, match=f"the whole model on 1 card, .* {one.deficit_bytes:,} too many"):
        require_fit(one, P150_DRAM_BYTES)


def test_the_smallest_mesh_that_holds_the_model_holds_it_and_one_card_fewer_does_not() -> None:
    held = STAGING.device_bytes + kv().device_bytes
    meshes = [plan_mesh(RELEASE, held, SLOT, MEMO, P150_DRAM_BYTES, chips) for chips in range(1, 33)]
    fitting = [mesh.chips for mesh in meshes if mesh.fits]
    assert fitting == list(range(3, 33))
    for mesh in meshes:
        assert mesh.chips * mesh.experts_per_layer >= 384
        assert mesh.needed_bytes == held + SCRATCH_BYTES + 50 * mesh.experts_per_layer * SLOT
        if mesh.fits:
            require_fit(mesh, P150_DRAM_BYTES)
            copies = mesh.needed_bytes + 50 * mesh.copied_experts * MEMO
            assert copies <= P150_DRAM_BYTES
            assert mesh.copied_experts == mesh.experts_per_layer or copies + 50 * MEMO > P150_DRAM_BYTES


def test_no_more_positions_are_planned_than_the_checkpoint_has() -> None:
    short = RELEASE.model_copy(update={"max_position_embeddings": 500})
    assert plan_kv(short, BF16, sequences=1, context=longest_context(short), block_size=32).context == 480
    with pytest.raises(UsageError, match="a context of 481 positions; the decoder takes 1 to 480 of this checkpoint's"):
        plan_kv(short, BF16, sequences=1, context=481, block_size=32)
    assert (longest_context(RELEASE), longest_context(short.model_copy(update={"max_position_embeddings": 9}))) == (4096, 32)
