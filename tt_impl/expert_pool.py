"""The routed experts as compute sees them: ask for a step's experts, then use each; slots, fills and memos are behind it."""

from __future__ import annotations

from collections.abc import Sequence

from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.protocol import FillObserver
from tt_impl.device.protocol import Device, DType, Layout
from tt_impl.expert_layout import ExpertLayout, ExpertSource
from tt_impl.memo import FeedForwardWeights, Memo, MemoKey
from tt_impl.settings import DecoderSettings
from tt_impl.shadow import ShadowStore
from tt_impl.slots import SlotTable
from tt_impl.stats import StepStats
from tt_impl.streaming import ExpertStream


class ExpertPool:
    """Slots of all layers, cold at first."""

    memo_type: type[Memo] = Memo

    def __init__(
        self,
        device: Device,
        config: Kolibri1Config,
        source: ExpertSource,
        settings: DecoderSettings,
        stats: StepStats,
        observer: FillObserver | None,
    ) -> None:
        layout = ExpertLayout.of(config)
        layers, slots = range(config.num_hidden_layers), range(settings.slots_per_layer)
        self._device = device
        self._stats = stats
        self._observer = observer
        self._slot_tensors = {
            (layer, slot): device.allocate_tensor_on_device(
                (layout.nbytes,), DType.UINT8, Layout.ROW_MAJOR, f"layer{layer}.slot{slot}"
            )
            for layer in layers
            for slot in slots
        }
        self._tables = [SlotTable(layer, len(slots), self._evicted) for layer in layers]
        self._shadows = ShadowStore(layout)
        self._stream = ExpertStream(device, source, layout, self._slot_tensors, self._shadows, stats, observer)
        self._memo = self.memo_type(device, layout, settings.activation, settings.memo_experts, stats)

    def make_resident(self, layer: int, experts: Sequence[int]) -> None:
        """Bring a step's experts into verified slots: touch, fills, and the layer's one drain.

        Raises:
            DeviceFault: as `ExpertStream.drain` and `SlotTable.touch` say.
        """
        table = self._tables[layer]
        fetches = table.touch(experts)
        self._stats.slot_misses += len(fetches)
        self._stats.slot_hits += len(experts) - len(fetches)
        self._stream.fill(layer, table, fetches)
        self._stream.drain(layer, table)

    def use(self, layer: int, expert: int) -> FeedForwardWeights:
        """The weights of a resident expert, for compute to be enqueued before the next call.

        Raises:
            DeviceFault: `slot-state` when its slot is not verified.
        """
        slot = self._tables[layer].use(expert)
        self._stats.expert_uses += 1
        if self._observer is not None:
            self._observer.used(layer, expert, slot.index, slot.generation, self._device.event_number)
        key = MemoKey(layer, expert, slot.index, slot.generation)
        return self._memo.obtain(key, self._shadows.image(layer, slot.index))

    def release(self, layer: int) -> None:
        """The layer's compute is enqueued."""
        self._tables[layer].release()

    def close(self) -> None:
        """Give back all device memory."""
        self._memo.close()
        for tensor in self._slot_tensors.values():
            self._device.deallocate(tensor)

    def _evicted(self, layer: int, expert: int, slot: int) -> None:
        self._stats.slot_swaps += 1
        self._memo.release(layer, expert, slot)
