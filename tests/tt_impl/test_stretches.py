"""Captured steps: the bits of enqueued ones, the counters by hand, and what makes a replay differ or fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.subjects.protocol import StepEvidence
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import DType, HostArray, Tensor
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.stretches import Captured

Open = Callable[..., Decoder]
ACTIVATIONS = [DType.BFLOAT16, DType.FLOAT32]
NAMES = [field.name for field in fields(StepEvidence) if field.name != "sketch"]


def walked(decoder: Decoder, *sequences: Sequence[int]) -> list[StepEvidence]:
    """All steps of the sequences, one after the other."""
    shown = []
    for tokens in sequences:
        decoder.start()
        shown += [decoder.step(token) for token in tokens]
    return shown


def differing(some: Sequence[StepEvidence], others: Sequence[StepEvidence]) -> list[int]:
    """Steps whose evidence differs in any bit."""
    return [
        step
        for step, (one, other) in enumerate(zip(some, others, strict=True))
        if any(np.asarray(getattr(one, name)).tobytes() != np.asarray(getattr(other, name)).tobytes() for name in NAMES)
    ]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("schedule", ["lazy", "eager", "reuse", "random:7"])
def test_replays_compute_what_enqueuing_computes_in_every_sequence(
    open_decoder: Open, tokens: list[int], activation: DType, schedule: str
) -> None:
    hostile = {"slots_per_layer": 4, "memos": 5, "dispatch": "captured"}
    captured = open_decoder(activation, device=SimDevice(schedule=schedule_named(schedule)), **hostile)
    sequences = (tokens[:14], tokens[5:9], tokens)
    assert differing(walked(captured, *sequences), walked(open_decoder(activation), *sequences)) == []


def test_users_are_captured_together_and_one_that_begins_anew_is_not_captured_anew(
    open_decoder: Open, tokens: list[int]
) -> None:
    shown: dict[str, list[Any]] = {}
    for dispatch in ("eager", "captured"):
        decoder = open_decoder(users=3, dispatch=dispatch)
        shown[dispatch] = []
        for at, token in enumerate(tokens[:12]):
            if at == 7:
                decoder.start(1)
            shown[dispatch].append(decoder.step_users([token, None if at % 3 == 2 else token + 1, tokens[-at]]))
    for eager, captured in zip(shown["eager"], shown["captured"], strict=True):
        assert [step is None for step in eager] == [step is None for step in captured]
        pairs = [(one, other) for one, other in zip(eager, captured, strict=True) if one is not None]
        assert differing(*map(list, zip(*pairs, strict=True))) == []
    assert decoder.stats()["captures"] == 4


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_captures_and_replays_on_a_schedule_known_by_hand(open_decoder: Open, tokens: list[int], activation: DType) -> None:
    """Three layers, so four stretches a step; the first step of all is enqueued; two sequences, of which each is captured."""
    eager, captured = open_decoder(activation), open_decoder(activation, dispatch="captured")
    for decoder in (eager, captured):
        walked(decoder, tokens[:6], tokens[6:10])
    plain, stats = eager.stats(), captured.stats()
    assert stats["captures"] == stats["device.traces_captured"] == 2 * 4
    assert stats["replays"] == stats["device.traces_executed"] == 4 * (10 - 1)
    assert stats["device.traces_released"] == 4
    assert (plain["captures"], plain["replays"], plain["trace_bytes"]) == (0, 0, 0)
    assert 0 < stats["device.replayed_ops"] < stats["device.ops"] == plain["device.ops"]
    for name in ("round_trips", "drains", "fills", "bytes_read", "bytes_written", "memo_hits", "device.flops"):
        assert stats[name] == plain[name] > 0, name
    assert stats["memory_leaked"] == 0


def test_what_traces_hold_is_known_and_given_back_with_the_sequence(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder(dispatch="captured")
    held = []
    for _ in range(4):
        decoder.start()
        assert decoder.stats()["trace_bytes"] == 0
        for token in tokens[:4]:
            decoder.step(token)
        stats = decoder.stats()
        held.append((stats["trace_bytes"], stats["memory_after"] - stats["memory_before"] - stats["memo_bytes"]))
    assert len(set(held)) == 1
    assert held[0][0] == held[0][1] > 0
    allocated = decoder._device.get_memory_view().allocated_bytes
    decoder.reset()
    assert decoder._device.get_memory_view().allocated_bytes < allocated - held[0][0]
    assert decoder.stats()["memory_before"] == stats["memory_before"]


def test_a_capture_holds_ops_alone_takes_no_expert_and_only_its_inputs_change(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder(dispatch="captured", topk="device")
    walked(decoder, tokens[:6])
    records = decoder._device.captures()
    assert [(record.replays, record.alike) for record in records] == [(5, 1)] * 4
    for record in records:
        assert all(name.startswith("op.") for name, _ in record.calls)
    inputs = {"ids", "rope_positions", "position", "ring_position", "page_table", "ring_page_table", "routed"}
    assert {label for record in records for label in record.changed} <= inputs
    assert {"ids", "rope_positions", "ring_position"} <= {label for record in records for label in record.changed}
    for region in decoder.captured_regions():
        assert (region.changed, region.experts) == ((), 0)


def test_regions_are_those_since_the_reset_and_replays_add_up(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder(dispatch="captured")
    walked(decoder, tokens[:5])
    decoder.reset()
    assert list(decoder.captured_regions()) == []
    walked(decoder, tokens[:3])
    assert sum(region.replays for region in decoder.captured_regions()) == 4 * 2
    walked(decoder, tokens[:3])
    regions = decoder.captured_regions()
    assert sum(region.replays for region in regions) == decoder.stats()["replays"] == 4 * 5
    assert sum(region.alike for region in regions) == decoder.stats()["captures"] == 4 * 2
    assert decoder.captured_regions() == regions


class Drops(Passing):
    """Drops the host's writes to tensors of one label, from the `which`-th on: an input that is not refreshed."""

    def __init__(self, label: str, which: int) -> None:
        super().__init__(SimDevice())
        self._label, self._left = label, which

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if tensor.label == self._label:
            self._left -= 1
            if self._left <= 0:
                return
        self._device.copy_host_to_device_tensor(array, tensor, **queue)


@pytest.mark.parametrize("label", ["ids", "rope_positions", "ring_position", "position"])
def test_an_input_that_is_not_refreshed_before_a_replay_shows(open_decoder: Open, tokens: list[int], label: str) -> None:
    stale = walked(open_decoder(dispatch="captured", device=Drops(label, 6)), tokens[:8])
    found = differing(stale, walked(open_decoder(), tokens[:8]))
    assert found
    assert found[0] >= 3


class LosesReplays(Passing):
    """Does not execute the `which`-th trace that it is asked for."""

    def __init__(self, which: int) -> None:
        super().__init__(SimDevice())
        self._left = which

    def execute_trace(self, trace: Any, **how: Any) -> None:
        self._left -= 1
        if self._left:
            self._device.execute_trace(trace, **how)


def test_a_replay_that_is_left_out_shows(open_decoder: Open, tokens: list[int]) -> None:
    """The last of the fourth replayed step; and one before it, whose keys and values then are missing in the fifth."""
    honest = walked(open_decoder(), tokens[:8])
    assert differing(walked(open_decoder(dispatch="captured", device=LosesReplays(16)), tokens[:8]), honest) == [4]
    decoder = open_decoder(dispatch="captured", device=LosesReplays(14))
    assert differing(walked(decoder, tokens[:5]), honest[:5]) == [4]
    with pytest.raises(DeviceFault, match="router logits") as caught:
        decoder.step(tokens[5])
    assert caught.value.kind == "non-finite"


def test_traces_that_outlive_their_caches_are_refused(
    open_decoder: Open, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Captured, "release", lambda self: None)
    decoder = open_decoder(dispatch="captured")
    walked(decoder, tokens[:3])
    decoder.start()
    with pytest.raises(
        DeviceFault, match=r"execute_trace of trace 1: it needs rope_positions .*, which was deallocated"
    ) as caught:
        decoder.step(5)
    assert caught.value.kind == "use-after-free"


class FaultsInACapture(Passing):
    """The first attention that it is asked for within a capture ends in a fault."""

    def __init__(self) -> None:
        super().__init__(SimDevice())
        self._capturing, self._due = False, True

    def begin_trace_capture(self, **queue: int) -> Any:
        self._capturing = True
        return self._device.begin_trace_capture(**queue)

    def paged_scaled_dot_product_attention_decode(self, *operands: Any, **how: Any) -> Tensor:
        if self._capturing and self._due:
            self._due = False
            raise DeviceFault("planted", "within a capture")
        return self._device.paged_scaled_dot_product_attention_decode(*operands, **how)


def test_a_fault_within_a_capture_leaves_nothing_behind(open_decoder: Open, tokens: list[int]) -> None:
    device = FaultsInACapture()
    decoder = open_decoder(dispatch="captured", device=device)
    decoder.step(tokens[0])
    with pytest.raises(DeviceFault, match="within a capture"):
        decoder.step(tokens[1])
    decoder.reset()
    counts = device.event_counts()
    assert counts["traces_released"] == counts["traces_captured"]
    assert differing(walked(decoder, tokens[:8]), walked(open_decoder(), tokens[:8])) == []
    assert decoder.stats()["memory_before"] == open_decoder(dispatch="captured").stats()["memory_before"]


class LooksAtEachAttention(Passing):
    """Notes which tensors are there when attention is asked for."""

    def __init__(self) -> None:
        self.sim = SimDevice()
        super().__init__(self.sim)
        self.seen: list[set[str]] = []

    def nlp_create_qkv_heads_decode(self, *operands: Any, **how: Any) -> Any:
        self.seen.append({buffer.label for buffer in self.sim._dram.live.values()})
        return self._device.nlp_create_qkv_heads_decode(*operands, **how)


@pytest.mark.parametrize("dispatch", ["eager", "captured"])
def test_experts_outputs_are_given_back_before_the_next_layer(open_decoder: Open, tokens: list[int], dispatch: str) -> None:
    device = LooksAtEachAttention()
    walked(open_decoder(device=device, dispatch=dispatch), tokens[:2])
    assert len(device.seen) == 2 * 3
    for there in device.seen:
        assert not there & {"concat", "expert_weights"}
