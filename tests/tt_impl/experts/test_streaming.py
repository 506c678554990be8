"""The drain verifies what the device gives back, byte for byte, against memory of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.device.protocol import Bytes, DType, Layout, Tensor
from tt_impl.device.sim import Fault, FaultPlan, Flip, OnWrite, SimDevice
from tt_impl.device.sim.read_handle import SimReadHandle
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.experts.policy import Hotness
from tt_impl.experts.shadow import ShadowStore
from tt_impl.experts.slots import SlotTable
from tt_impl.experts.streaming import ExpertStream
from tt_impl.settings import default_settings
from tt_impl.stats import StepStats


class Rig:
    """One layer with two slots, and experts 3 and 5 being fetched into them."""

    def __init__(self, checkpoint: Checkpoint, device: SimDevice, **levers: Any) -> None:
        self.layout = ExpertLayout.of(checkpoint.config)
        self.device = device
        self.stats = StepStats()
        self.shadows = ShadowStore(self.layout)
        self.table = SlotTable(0, 2, Hotness(), lambda *_: None)
        self.tensors = {
            (0, slot): device.allocate_tensor_on_device((self.layout.nbytes,), DType.UINT8, Layout.ROW_MAJOR, f"slot{slot}")
            for slot in range(2)
        }
        source = CheckpointExperts(checkpoint)
        settings = replace(default_settings(checkpoint.config, DType.BFLOAT16), **levers)
        self.stream = ExpertStream(device, source, self.layout, self.tensors, self.shadows, settings, self.stats, None)

    def fetch_and_drain(self) -> None:
        self.stream.fill(0, self.table, self.table.touch([3, 5]))
        self.stream.drain()


def test_a_drain_verifies_all_fills_with_one_wait(tiny: Checkpoint) -> None:
    rig = Rig(tiny, SimDevice())
    rig.fetch_and_drain()
    assert rig.device.event_counts()["round_trips"] == rig.stats.drains == 1
    assert rig.stats.verified_bytes == rig.stats.staged_bytes == 2 * rig.layout.nbytes
    assert rig.table.use(5).index == 1
    rig.stream.drain()
    assert rig.stats.drains == 1  # nothing outstanding, nothing to wait for


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize(
    ("offset", "where"),
    [
        (0, "gate_proj: 1 of 4112 bytes differ, the first at offset 0:"),
        (4111, "gate_proj: 1 of 4112 bytes differ, the first at offset 4111:"),
        (4112, "up_proj: 1 of 4112 bytes differ, the first at offset 0:"),
        (3 * 4112 - 1, "down_proj: 1 of 4112 bytes differ, the first at offset 4111:"),
    ],
)
def test_one_flipped_bit_anywhere_is_found_and_named(tiny: Checkpoint, offset: int, where: str, bit: int) -> None:
    fault = Fault("slot1", OnWrite(), Flip(offset, 1 << bit))
    rig = Rig(tiny, SimDevice(faults=FaultPlan((fault,))))
    with pytest.raises(DeviceFault, match=f"layer 0 expert 5 slot 1 {where}") as caught:
        rig.fetch_and_drain()
    assert caught.value.kind == "slot-verification"
    with pytest.raises(DeviceFault, match="slot-state"):
        rig.table.use(5)


def test_compute_before_the_drain_is_refused(tiny: Checkpoint) -> None:
    rig = Rig(tiny, SimDevice())
    rig.stream.fill(0, rig.table, rig.table.touch([3, 5]))
    with pytest.raises(DeviceFault, match="is staged and cannot become in use"):
        rig.table.use(3)


def test_a_drain_whose_device_does_not_settle_is_refused(tiny: Checkpoint) -> None:
    class Deaf(SimDevice):
        def synchronize_device(self, *, cq_id: int | None = None) -> None:
            pass

    with pytest.raises(DeviceFault) as caught:
        Rig(tiny, Deaf()).fetch_and_drain()
    assert caught.value.kind == "unsettled-read"


def test_a_comparison_of_the_shadow_with_itself_is_refused(tiny: Checkpoint) -> None:
    """The field's tautology: the read-back lands in the very buffer that the shadow then is."""

    class IntoTheShadow(SimDevice):
        rig: Rig

        def copy_device_to_host_tensor(
            self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, cq_id: int = 0
        ) -> SimReadHandle:
            slot = int(tensor.label.removeprefix("slot"))
            return super().copy_device_to_host_tensor(tensor, self.rig.shadows.image(0, slot), blocking=blocking)

    device = IntoTheShadow(faults=FaultPlan((Fault("slot0", OnWrite(), Flip()),)))
    device.rig = Rig(tiny, device)
    with pytest.raises(DeviceFault, match="nothing was compared") as caught:
        device.rig.fetch_and_drain()
    assert caught.value.kind == "shared-operands"


def test_the_shadow_is_recorded_before_the_read_back_and_owns_its_bytes(tiny: Checkpoint) -> None:
    recorded: list[Any] = []

    class Watching(SimDevice):
        rig: Rig

        def copy_device_to_host_tensor(
            self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, cq_id: int = 0
        ) -> SimReadHandle:
            slot = int(tensor.label.removeprefix("slot"))
            recorded.append(self.rig.shadows.image(0, slot).copy())
            return super().copy_device_to_host_tensor(tensor, destination, blocking=blocking)

    device = Watching()
    device.rig = Rig(tiny, device)
    device.rig.fetch_and_drain()
    source = CheckpointExperts(tiny)
    assert [image.tobytes() for image in recorded] == [source.payload(0, expert).tobytes() for expert in (3, 5)]
    payload = np.zeros(device.rig.layout.nbytes, np.uint8)
    device.rig.shadows.record(0, 0, payload)
    assert not np.shares_memory(payload, device.rig.shadows.image(0, 0))
