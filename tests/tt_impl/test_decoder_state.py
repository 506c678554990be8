"""What the decoder keeps between steps, what it forgets, and that neither time nor room changes what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault, UsageError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import StepEvidence, VerifiedFill
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import Fault, FaultPlan, Flip, OnWrite, SimDevice, schedule_named
from tt_impl.stats import StepStats

Open = Callable[..., Decoder]


def evidence_bytes(steps: list[StepEvidence]) -> bytes:
    """Everything that the steps show, as one string of bytes."""
    arrays = [getattr(step, field.name) for step in steps for field in fields(step) if field.name != "sketch"]
    return b"".join(np.asarray(array).tobytes() for array in arrays)


def run(decoder: Decoder, tokens: list[int]) -> bytes:
    decoder.start()
    return evidence_bytes([decoder.step(token) for token in tokens])


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_reset_gives_a_new_decoders_results_counters_and_memory(
    open_decoder: Open, tokens: list[int], activation: DType
) -> None:
    used, new = open_decoder(activation), open_decoder(activation)
    memory = used._device.get_memory_view()
    run(used, tokens[::-1])
    used.reset()
    assert used.stats() == open_decoder(activation).stats()
    assert used._device.get_memory_view() == memory
    assert run(used, tokens) == run(new, tokens)
    assert used.stats() == new.stats()


def test_reset_recovers_from_a_fault_in_the_middle_of_a_step(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder(device=SimDevice(faults=FaultPlan((Fault("layer1.slot4", OnWrite(2), Flip()),))))
    memory = decoder._device.get_memory_view()
    with pytest.raises(DeviceFault, match="slot-verification"):
        run(decoder, tokens)
    decoder.reset()
    assert decoder._device.get_memory_view() == memory
    assert run(decoder, tokens[:1]) == run(open_decoder(), tokens[:1])


def test_start_forgets_the_sequence_and_keeps_the_slots_warm(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder()
    first = run(decoder, tokens)
    fills = decoder.stats()["fills"]
    assert run(decoder, tokens) == first
    assert decoder.stats()["fills"] < 2 * fills


def test_start_takes_blocks_that_hold_nothing_of_the_old_sequence(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder()
    run(decoder, tokens)
    decoder.start()
    for cache in decoder._cache.layers:
        for tensor in (cache.keys, cache.values):
            assert np.isnan(decoder._device.copy_device_to_host_tensor(tensor, blocking=True).array()).all()


def test_start_gives_back_the_cache_of_the_old_sequence_and_counts_one_cache(open_decoder: Open) -> None:
    decoder = open_decoder()
    stats = decoder.stats()
    held, allocated = stats["kv_bytes"], decoder._device.get_memory_view().allocated_bytes
    assert 0 < held < allocated
    for _ in range(2):
        decoder.start()
        assert decoder.stats()["kv_bytes"] == held
        assert decoder._device.get_memory_view().allocated_bytes == allocated


@pytest.mark.parametrize("schedule", ["eager", "reuse", "random:1", "random:2"])
def test_the_devices_schedule_changes_nothing(open_decoder: Open, tokens: list[int], schedule: str) -> None:
    lazy, other = open_decoder(), open_decoder(device=SimDevice(schedule=schedule_named(schedule)))
    assert run(other, tokens) == run(lazy, tokens)
    assert other.stats() == lazy.stats()


@pytest.mark.parametrize("changes", [{"slots_per_layer": 3}, {"slots_per_layer": 8}, {"memos": 1}, {"page_seed": 1}])
def test_room_and_pages_change_nothing_but_the_counters(open_decoder: Open, tokens: list[int], changes: dict[str, int]) -> None:
    assert run(open_decoder(**changes), tokens) == run(open_decoder(), tokens)


def test_evictions_memo_hits_and_memo_evictions_really_happen(open_decoder: Open, tokens: list[int]) -> None:
    tight, no_memo = open_decoder(slots_per_layer=3), open_decoder(memos=1)
    roomy = open_decoder(slots_per_layer=8, memos=24)
    for decoder in (tight, roomy, no_memo):
        run(decoder, tokens)
    assert tight.stats()["slot_swaps"] > 0
    assert tight.stats()["memo_releases"] == tight.stats()["slot_swaps"]
    assert roomy.stats()["slot_swaps"] == 0
    assert roomy.stats()["memo_misses"] == roomy.stats()["fills"] == 3 * 8  # each expert once
    assert roomy.stats()["memo_hits"] > 100
    assert no_memo.stats()["memo_evictions"] > 0


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_counters_agree_with_each_other_and_with_the_devices_log(
    tiny: Checkpoint, open_decoder: Open, tokens: list[int], activation: DType
) -> None:
    decoder = open_decoder(activation)
    run(decoder, tokens)
    stats, layers, chosen = decoder.stats(), tiny.config.num_hidden_layers, tiny.config.num_experts_per_tok
    expert_bytes = 3 * (64 * 64 + 2 * 2 * 4)
    assert stats["steps"] == len(tokens)
    assert stats["staged_bytes"] == stats["verified_bytes"] == stats["fills"] * expert_bytes
    assert stats["slot_hits"] + stats["slot_misses"] == stats["expert_uses"] == len(tokens) * layers * chosen
    assert stats["memo_hits"] + stats["memo_misses"] == stats["expert_uses"]
    assert stats["fills"] == stats["slot_misses"] == stats["device.non_blocking_reads"] - len(tokens) * (layers + 1)
    assert stats["drains"] == stats["device.synchronizes"] <= len(tokens) * layers
    assert stats["round_trips"] == stats["device.round_trips"] == stats["drains"] + len(tokens) * (layers + 1)
    idle = {"memo_evictions", "early_drains", "on_demand_drains", "rereads", "bias_reads", "companion_steps", "device_topks"}
    idle |= {"memory_leaked", "captures", "replays", "trace_bytes"}
    idle |= {"lru_swaps", "trusted_fills", "single_drains", "small_blocks"}
    assert {field.name for field in fields(StepStats) if stats[field.name] == 0} == idle


def test_device_memory_does_not_grow_from_step_to_step(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder(memos=4)
    run(decoder, tokens[:8])
    before = decoder._device.get_memory_view().allocated_bytes
    for token in tokens[8:]:
        decoder.step(token)
        assert decoder._device.get_memory_view().allocated_bytes == before


@pytest.mark.slow
def test_device_memory_does_not_grow_over_a_thousand_steps(open_decoder: Open) -> None:
    """Tight enough that slots and memos churn all the way; memos are bounded, and all else is as it was."""
    decoder = open_decoder(slots_per_layer=4, memos=6)
    ids = np.random.default_rng(1).integers(0, 96, size=1000)
    held = set()
    for at, token in enumerate(ids):
        if at % 32 == 0:
            decoder.start()
        decoder.step(int(token))
        stats = decoder.stats()
        held.add(stats["memory_after"] - stats["memo_bytes"])
        assert decoder._device.get_memory_view().allocated_bytes == stats["memory_after"]
    assert held == {decoder.stats()["memory_before"]}
    assert decoder.stats()["memo_bytes_peak"] == 6 * (8 + 8) * 32 * 32 * 4
    assert decoder.stats()["slot_swaps"] > 1000


class Listener:
    """Checks, as the calls come, that nothing is used before all its projections were verified."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.verified_at: dict[tuple[int, int, int, int], list[tuple[str, int]]] = {}
        self.uses = 0

    def verified(self, fill: VerifiedFill) -> None:
        name = f"model.layers.{fill.layer}.mlp.experts.{fill.expert}.{fill.projection}.weight"
        expected = self.checkpoint.raw(name).tobytes() + self.checkpoint.raw(name + "_scale_inv").tobytes()
        assert fill.shadow.tobytes() == fill.read_back.tobytes() == expected
        assert not np.shares_memory(fill.shadow, fill.read_back)
        key = (fill.layer, fill.expert, fill.slot, fill.generation)
        self.verified_at.setdefault(key, []).append((fill.projection, fill.event))

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        seen = self.verified_at[layer, expert, slot, generation]
        assert [projection for projection, _ in seen] == ["gate_proj", "up_proj", "down_proj"]
        assert all(at <= event for _, at in seen)
        self.uses += 1


def test_the_observer_hears_every_fill_before_every_use(tiny: Checkpoint, open_decoder: Open, tokens: list[int]) -> None:
    listener = Listener(tiny)
    decoder = open_decoder(observer=listener)
    run(decoder, tokens)
    stats = decoder.stats()
    assert listener.uses == stats["expert_uses"]
    assert len(listener.verified_at) == stats["fills"]


def test_the_embedding_row_is_the_checkpoints_bytes_in_both_arms(tiny: Checkpoint, open_decoder: Open) -> None:
    table = tiny.raw("model.embed_tokens.weight").reshape(96, -1)
    for activation in (DType.BFLOAT16, DType.FLOAT32):
        assert open_decoder(activation).step(41).embedding.tobytes() == table[41].tobytes()


def test_logits_and_router_are_not_on_the_bf16_grid(open_decoder: Open) -> None:
    step = open_decoder(DType.BFLOAT16).step(41)
    assert step.expert_weights is not None
    for values in (step.logits, step.expert_weights):
        assert values.dtype == np.float32
        assert (values.view(np.uint32) & 0xFFFF).astype(bool).mean() > 0.9
    assert step.residual is not None
    assert not (step.residual.view(np.uint32) & 0xFFFF).any()


def test_what_cannot_be_decoded_is_refused_with_the_reason(open_decoder: Open) -> None:
    decoder = open_decoder(max_positions=32)
    for token in (-1, 96):
        with pytest.raises(UsageError, match="outside the vocabulary of 96"):
            decoder.step(token)
    for _ in range(32):
        decoder.step(1)
    with pytest.raises(UsageError, match="position 32 does not fit in a KV cache of 32"):
        decoder.step(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots_per_layer": 2},
        {"slots_per_layer": 9},
        {"memo_bytes": 0},
        {"read_back_limit": 0},
        {"block": "8"},
        {"block": "64"},
        {"max_positions": 40},
        {"block": "16", "max_positions": 40},
        {"max_positions": 0},
        {"users": 0},
        {"users": 9},
        {"max_positions": 4128},
    ],
)
def test_settings_that_cannot_work_are_refused(open_decoder: Open, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{list(changes)[-1]} is "):
        open_decoder(**changes)


def test_too_little_device_memory_is_named(open_decoder: Open) -> None:
    with pytest.raises(DeviceFault, match=r"asked for \d+ bytes; \d+ of 1048576 are free") as caught:
        open_decoder(device=SimDevice(dram_bytes=1 << 20))
    assert caught.value.kind == "out-of-memory"


def test_the_window_counts_the_querys_own_position(tiny: Checkpoint, open_decoder: Open, tokens: list[int]) -> None:
    """A token changes a sliding-only model's logits as long as it is in sight, and from then on no more."""
    sliding = tiny.config.model_copy(update={"layer_types": ("sliding_attention",), "num_hidden_layers": 1})
    changed = [(tokens[0] + 1) % 96, *tokens[1:]]
    runs = []
    for ids in (tokens, changed):
        decoder = open_decoder(config=sliding)
        runs.append([decoder.step(token).logits for token in ids])
    differs = [not np.array_equal(a, b) for a, b in zip(*runs, strict=True)]
    assert differs == [position < tiny.config.sliding_window for position in range(len(tokens))]
