"""A memo serves the expert, slot and generation it was made from, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, DType, HostArray, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.experts.memo import FeedForwardWeights, Memo, MemoKey
from tt_impl.stats import StepStats


class Rig:
    def __init__(self, checkpoint: Checkpoint, capacity: int) -> None:
        self.device = SimDevice()
        self.stats = StepStats()
        self.layout = ExpertLayout.of(checkpoint.config)
        self.source = CheckpointExperts(checkpoint)
        self.one = self.layout.memo_bytes(DType.FLOAT32)
        self.memo = Memo(self.device, self.layout, DType.FLOAT32, capacity * self.one, self.stats)

    def obtain(self, expert: int, slot: int = 0, generation: int = 1, *, image_of: int | None = None) -> FeedForwardWeights:
        image = self.source.payload(1, expert if image_of is None else image_of)
        return self.memo.obtain(MemoKey(1, expert, slot, generation), lambda: image)

    def values(self, weights: FeedForwardWeights) -> list[np.ndarray]:
        return [self.device.copy_device_to_host_tensor(tensor, blocking=True).array() for tensor in weights]


def test_a_memo_holds_the_images_up_rows_then_gate_rows_and_down(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 4)
    image = rig.source.payload(1, 2)
    gate, up, down = (rig.layout.segment(f"{name}_proj").dequantize(image, DType.FLOAT32) for name in ("gate", "up", "down"))
    up_gate, found_down = rig.values(rig.obtain(2))
    assert up_gate.tolist() == [*up.tolist(), *gate.tolist()]
    assert found_down.tolist() == down.tolist()


def test_the_same_key_is_served_without_looking_at_the_image_again(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 4)
    assert rig.obtain(2) is rig.obtain(2, image_of=3)
    assert (rig.stats.memo_hits, rig.stats.memo_misses) == (1, 1)


@pytest.mark.parametrize("other", [{"generation": 2}, {"slot": 1}])
def test_another_generation_or_slot_is_made_anew(tiny: Checkpoint, other: dict[str, int]) -> None:
    rig = Rig(tiny, 4)
    held = rig.values(rig.obtain(2))[0]
    new = rig.obtain(2, image_of=3, **other)
    assert rig.stats.memo_misses == 2
    assert not np.array_equal(held, rig.values(new)[0])


def test_another_generation_replaces_the_old_one(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 4)
    old = rig.obtain(2)
    rig.obtain(2, generation=2)
    assert not old.down.is_allocated
    assert (rig.stats.memo_releases, rig.stats.memo_evictions, rig.stats.memo_bytes) == (1, 0, rig.one)


def test_a_retired_memo_is_freed_by_the_next_sweep_and_no_other_is(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 4)
    kept, gone = rig.obtain(2, slot=0), rig.obtain(3, slot=1)
    rig.memo.retire(1, 3)
    rig.memo.retire(1, 3)
    rig.memo.retire(1, 7)  # has none
    assert gone.down.is_allocated
    assert rig.stats.memo_releases == 1
    rig.memo.sweep()
    assert [tensor.is_allocated for tensor in (*kept, *gone)] == [True, True, False, False]
    assert rig.stats.memo_bytes == rig.one
    assert rig.stats.memo_bytes_peak == 2 * rig.one
    with pytest.raises(DeviceFault, match="use-after-free"):
        rig.device.add(gone.down, gone.down)


def test_a_retired_memo_goes_before_an_older_one_and_is_not_counted_as_evicted(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 2)
    older, retired = rig.obtain(1, slot=0), rig.obtain(2, slot=1)
    rig.memo.retire(1, 2)
    rig.obtain(3, slot=1, generation=2)
    assert (older.down.is_allocated, retired.down.is_allocated) == (True, False)
    assert rig.stats.memo_evictions == 0


def test_the_budget_is_bytes_of_the_device(tiny: Checkpoint) -> None:
    for budget, memos in ((0, 2), (-1, 1), (1, 2)):
        rig = Rig(tiny, 2)
        rig.memo = Memo(rig.device, rig.layout, DType.FLOAT32, 2 * rig.one + budget, rig.stats)
        for expert in range(4):
            rig.obtain(expert, slot=expert)
            assert rig.device.get_memory_view().allocated_bytes == rig.stats.memo_bytes
        assert rig.stats.memo_bytes == rig.stats.memo_bytes_peak == memos * rig.one
        assert rig.stats.memo_evictions == 4 - memos


def test_a_full_memo_drops_the_least_recently_used(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 2)
    first, second = rig.obtain(1), rig.obtain(2, slot=1)
    rig.obtain(1)
    rig.obtain(3, slot=2)
    assert first.down.is_allocated
    assert not second.down.is_allocated
    assert rig.stats.memo_evictions == 1


def test_close_frees_everything(tiny: Checkpoint) -> None:
    rig = Rig(tiny, 2)
    rig.obtain(1)
    rig.obtain(2, slot=1)
    rig.memo.close()
    assert rig.stats.memo_bytes == 0
    assert rig.device.get_memory_view().allocated_bytes == 0


class _FaultsAtDown(Passing):
    """Refuses one call for a tensor of down projections."""

    def __init__(self, device: SimDevice, call: str) -> None:
        super().__init__(device)
        self._call = call

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        if self._call == "allocate" and label.endswith(".down"):
            raise DeviceFault("planted", label)
        return self._device.allocate_tensor_on_device(shape, dtype, layout, label)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if self._call == "copy" and tensor.label.endswith(".down"):
            raise DeviceFault("planted", tensor.label)
        self._device.copy_host_to_device_tensor(array, tensor, **queue)


@pytest.mark.parametrize("call", ["allocate", "copy"])
def test_nothing_is_left_of_a_memo_that_could_not_be_made(tiny: Checkpoint, call: str) -> None:
    rig = Rig(tiny, 4)
    before = rig.device.get_memory_view()
    rig.memo = Memo(cast(Device, _FaultsAtDown(rig.device, call)), rig.layout, DType.FLOAT32, 4 * rig.one, rig.stats)
    with pytest.raises(DeviceFault, match="down"):
        rig.obtain(2)
    rig.memo.close()
    assert rig.device.get_memory_view() == before
    assert rig.stats.memo_bytes == 0
