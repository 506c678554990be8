"""Streaming routed experts into slots: fills, and the drain that verifies them.

A fill writes the expert's bytes, records its shadow, and enqueues a read-back behind the write. One drain per layer settles
all outstanding read-backs and compares each, byte for byte, with its shadow, before any compute over the layer's slots.
Levers (`DecoderSettings.drain`, `.verify`, `.read_back_limit`) move the drain or leave the read-back out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.errors import DeviceFault
from oracle.subjects.protocol import FillObserver, VerifiedFill
from tt_impl.device.protocol import Bytes, Device, ReadHandle, Tensor
from tt_impl.experts.layout import ExpertLayout, ExpertSource
from tt_impl.experts.shadow import ShadowStore
from tt_impl.experts.slots import Fetch, Slot, SlotTable
from tt_impl.phases import phase
from tt_impl.settings import DecoderSettings
from tt_impl.stats import StepStats


@dataclass(frozen=True)
class _Outstanding:
    layer: int
    expert: int
    slot: Slot
    table: SlotTable
    read_back: ReadHandle


class ExpertStream:
    """Fills and drains over all layers.

    Args:
        slot_tensors: by (layer, slot), UINT8 ROW_MAJOR [ExpertLayout.nbytes].
        observer: told of every verified projection; None when nobody listens.
    """

    def __init__(
        self,
        device: Device,
        source: ExpertSource,
        layout: ExpertLayout,
        slot_tensors: Mapping[tuple[int, int], Tensor],
        shadows: ShadowStore,
        settings: DecoderSettings,
        stats: StepStats,
        observer: FillObserver | None,
    ) -> None:
        self._device = device
        self._source = source
        self._layout = layout
        self._slot_tensors = slot_tensors
        self._shadows = shadows
        self._settings = settings
        self._stats = stats
        self._observer = observer
        self._outstanding: list[_Outstanding] = []
        self._once_verified: set[tuple[int, int]] = set()

    @phase("fills")
    def fill(self, layer: int, table: SlotTable, fetches: Sequence[Fetch]) -> None:
        """Enqueue one layer's fills, each with its read-back behind it; waits only where a lever or the limit says so.

        Raises:
            DeviceFault: as `drain` says, where it waits.
        """
        for fetch in fetches:
            payload = self._source.payload(layer, fetch.expert)
            tensor = self._slot_tensors[layer, fetch.slot]
            slot = table.stage(fetch.slot, fetch.expert)
            self._device.copy_host_to_device_tensor(payload, tensor)
            self._shadows.record(layer, fetch.slot, payload)
            self._stats.fills += 1
            self._stats.staged_bytes += payload.size
            if self._settings.verify == "first" and (layer, fetch.expert) in self._once_verified:
                table.trust(fetch.slot)
                self._stats.trusted_fills += 1
                continue
            if len(self._outstanding) >= self._settings.read_back_limit:
                self.drain()
                self._stats.early_drains += 1
            landing = np.empty(self._layout.nbytes, np.uint8)
            with phase("verification"):
                read_back = self._device.copy_device_to_host_tensor(tensor, landing, blocking=False)
            self._outstanding.append(_Outstanding(layer, fetch.expert, slot, table, read_back))
            if self._settings.drain == "fill":
                self.drain()
                self._stats.single_drains += 1

    @phase("verification")
    def drain(self) -> None:
        """Settle and verify everything outstanding; does nothing when nothing is.

        Raises:
            DeviceFault: `slot-verification` at the first byte that differs, `shared-operands` when a comparison would be
                with itself, `unsettled-read` when the device did not settle a read-back.
        """
        if not self._outstanding:
            return
        self._device.synchronize_device()
        self._stats.drains += 1
        self._stats.round_trips += 1
        outstanding, self._outstanding = self._outstanding, []
        for fill in outstanding:
            self._verify(fill)
            fill.table.verify(fill.slot.index)
            self._once_verified.add((fill.layer, fill.expert))

    def _verify(self, fill: _Outstanding) -> None:
        shadow = self._shadows.image(fill.layer, fill.slot.index)
        read_back = fill.read_back.bytes()
        where = f"layer {fill.layer} expert {fill.expert} slot {fill.slot.index}"
        if np.shares_memory(shadow, read_back):
            raise DeviceFault("shared-operands", f"{where}: shadow and read-back are the same memory; nothing was compared")
        for segment in self._layout.segments:
            part = slice(segment.start, segment.stop)
            expected, found = shadow[part], read_back[part]
            if not np.array_equal(expected, found):
                raise DeviceFault("slot-verification", f"{where} {segment.projection}: {_difference(expected, found)}")
            self._stats.verified_bytes += found.size
            if self._observer is not None:
                self._observer.verified(
                    VerifiedFill(
                        layer=fill.layer,
                        expert=fill.expert,
                        projection=segment.projection,
                        slot=fill.slot.index,
                        generation=fill.slot.generation,
                        shadow=expected,
                        read_back=found,
                        event=fill.read_back.event,
                    )
                )


def _difference(expected: Bytes, found: Bytes) -> str:
    at = np.flatnonzero(expected != found)
    first = int(at[0])
    return (
        f"{at.size} of {expected.size} bytes differ, the first at offset {first}: "
        f"{found[first]:#04x} on the device, {expected[first]:#04x} in the shadow"
    )
