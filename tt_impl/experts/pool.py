"""The routed experts as compute sees them: ask for a step's experts, then use each; slots, fills and memos are behind it."""

from __future__ import annotations

from collections.abc import Sequence

from oracle.errors import DeviceFault
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.protocol import FillObserver
from tt_impl.device.protocol import Bytes, Device, DType, Layout
from tt_impl.experts.epoch import ContentEpoch
from tt_impl.experts.layout import ExpertLayout, ExpertSource
from tt_impl.experts.memo import FeedForwardWeights, Memo, MemoKey
from tt_impl.experts.policy import POLICIES, LeastRecentlyUsed
from tt_impl.experts.shadow import ShadowStore
from tt_impl.experts.slots import Fetch, SlotTable
from tt_impl.experts.streaming import ExpertStream
from tt_impl.settings import DecoderSettings
from tt_impl.stats import StepStats


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
        self._settings = settings
        self._stats = stats
        self._observer = observer
        self._slot_tensors = {
            (layer, slot): device.allocate_tensor_on_device(
                (layout.nbytes,), DType.UINT8, Layout.ROW_MAJOR, f"layer{layer}.slot{slot}"
            )
            for layer in layers
            for slot in slots
        }
        new_policy = POLICIES[settings.policy]
        self._tables = [SlotTable(layer, len(slots), new_policy(), self._evicted) for layer in layers]
        self._epoch = ContentEpoch(self._tables)
        self._shadows = ShadowStore(layout)
        self._stream = ExpertStream(device, source, layout, self._slot_tensors, self._shadows, settings, stats, observer)
        self._memo = self.memo_type(device, layout, settings.activation, settings.memo_bytes, stats)
        self._fill_bound = len(layers) * config.num_experts_per_tok
        self._step_fills = 0

    def begin_step(self, tokens: int = 1) -> None:
        """A step of `tokens` tokens begins: what was derived from other content than the slots' present one is reset.

        The step may make `tokens` x layers x experts per token fills, no more.
        """
        self._step_fills = tokens * self._fill_bound
        if self._epoch.begin_step():
            self._stats.epoch_resets += 1
            self._memo.sweep()

    def groups(self, layer: int, experts: Sequence[int]) -> list[Sequence[int]]:
        """A step's experts in groups that the layer's slots hold at once, each to be used and released before the next.

        One group, as asked, where all fit; else those in slots come first, so that no fill evicts what is still to be used.
        """
        slots = self._settings.slots_per_layer
        if len(experts) <= slots:
            return [experts]
        ordered = sorted(experts, key=lambda expert: expert not in self._tables[layer])
        return [ordered[start : start + slots] for start in range(0, len(ordered), slots)]

    def make_resident(self, layer: int, experts: Sequence[int]) -> None:
        """Bring a group of a step's experts into verified slots: touch, fills, and the group's one drain.

        Raises:
            DeviceFault: as `ExpertStream.drain` and `SlotTable.touch` say; `fill-bound`.
        """
        fetches = self._tables[layer].touch(experts)
        self._stats.slot_hits += len(experts) - len(fetches)
        self._fill(layer, fetches)

    def use(self, layer: int, expert: int) -> FeedForwardWeights:
        """The weights of a resident expert, for compute to be enqueued before the next call.

        An expert that no slot holds, since it was never asked for or has been evicted, is filled on demand, and drained at
        once.

        Raises:
            DeviceFault: `slot-state` when its slot is not verified; as `make_resident` for one filled on demand.
        """
        table = self._tables[layer]
        if expert not in table:
            drains = self._stats.drains
            self._fill(layer, table.touch([expert]))
            self._stats.on_demand_drains += self._stats.drains - drains
        slot = table.use(expert)
        self._stats.expert_uses += 1
        if self._observer is not None:
            self._observer.used(layer, expert, slot.index, slot.generation, self._device.event_number)
        key = MemoKey(layer, expert, slot.index, slot.generation)
        return self._memo.obtain(key, lambda: self._image(layer, slot.index))

    def release(self, layer: int) -> None:
        """The layer's compute is enqueued."""
        self._tables[layer].release()

    def close(self) -> None:
        """Give back all device memory."""
        self._memo.close()
        for tensor in self._slot_tensors.values():
            self._device.deallocate(tensor)

    def _fill(self, layer: int, fetches: Sequence[Fetch]) -> None:
        if len(fetches) > self._step_fills:
            raise DeviceFault(
                "fill-bound",
                f"layer {layer} needs {len(fetches)} fills where {self._step_fills} are left of the step's; "
                "walk the prompt token by token",
            )
        self._step_fills -= len(fetches)
        self._stats.slot_misses += len(fetches)
        self._stream.fill(layer, self._tables[layer], fetches)
        self._stream.drain()

    def _image(self, layer: int, slot: int) -> Bytes:
        """What to dequantize: the slot's shadow, or the slot itself, for which the host waits."""
        if self._settings.dequant == "shadow":
            return self._shadows.image(layer, slot)
        self._stats.rereads += 1
        self._stats.round_trips += 1
        return self._device.copy_device_to_host_tensor(self._slot_tensors[layer, slot], blocking=True).bytes()

    def _evicted(self, layer: int, expert: int, slot: int) -> None:
        self._stats.slot_swaps += 1
        self._stats.lru_swaps += self._tables[layer].policy == LeastRecentlyUsed.name
        self._memo.retire(layer, expert)
