"""Conditions that must not change a bit of what the decoder computes: hostile schedules, other pools and budgets, a reload.

To add one: name it in `VARIANTS`, with the counters that show that it took effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from oracle.errors import SubjectError
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.repeats import Variant
from tt_impl.companions import USERS
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Bytes, Device, DType, Layout, Tensor, Trace
from tt_impl.experts.layout import ExpertLayout, ExpertSource
from tt_impl.plants.catalogue import Parts
from tt_impl.settings import DecoderSettings
from tt_impl.staging import WeightSource

Change = Callable[[DecoderSettings, Kolibri1Config], DecoderSettings]

RELOAD_STEPS = 2
"""Of the checkpoint that was there before: enough to fill slots and memos in every layer."""


def _as_it_is(settings: DecoderSettings, config: Kolibri1Config) -> DecoderSettings:
    return settings


@dataclass(frozen=True)
class TtVariant:
    """What a variant is told to be, and what it changes.

    Attributes:
        schedule: of the simulated device, in place of the one asked for; None to leave it.
        settings: what becomes of the arm's settings.
        reload: another checkpoint was on the device before.
        companions: the sequence is one of several in the decoder's steps (`companions.Companions`).
    """

    told: Variant
    schedule: str | None = None
    settings: Change = field(default=_as_it_is)
    reload: bool = False
    companions: bool = False


def _pool(slots_above: int, memos: Callable[[Kolibri1Config, int], int]) -> Change:
    """Slots above a step's experts, at most all; `memos` of config and slots over all layers."""

    def change(settings: DecoderSettings, config: Kolibri1Config) -> DecoderSettings:
        slots = min(config.num_experts_per_tok + slots_above, config.num_experts)
        one = ExpertLayout.of(config).memo_bytes(settings.activation)
        count = memos(config, slots * config.num_hidden_layers)
        return replace(settings, slots_per_layer=slots, memo_bytes=count * one)

    return change


VARIANTS: Mapping[str, TtVariant] = {
    "again": TtVariant(Variant("nothing: a repeat")),
    "eager": TtVariant(Variant("the device works at once"), schedule="eager"),
    "random": TtVariant(Variant("the device works when a seeded schedule says"), schedule="random:20261130"),
    "reuse": TtVariant(Variant("freed addresses are handed out again at once, and all work is late"), schedule="reuse"),
    "few-slots": TtVariant(
        Variant("one slot more than a step pins", ("slot_swaps", "memo_releases")), settings=_pool(1, lambda _, slots: slots)
    ),
    "few-memos": TtVariant(
        Variant("fewer memos than a layer's step uses", ("memo_evictions",)),
        settings=_pool(2, lambda config, _: config.num_experts_per_tok - 1),
    ),
    "scarce-memos": TtVariant(
        Variant("for each layer a memo fewer than its slots", ("memo_hits", "memo_evictions")),
        settings=_pool(2, lambda config, slots: slots - config.num_hidden_layers),
    ),
    "one-read-back": TtVariant(  # with a drain behind each fill no limit is ever reached
        Variant("one fill's read-back outstanding, so that a layer drains more than once", ("early_drains",)),
        settings=lambda settings, _: replace(settings, drain="layer", read_back_limit=1),
    ),
    "all-slots": TtVariant(
        Variant("a slot and a memo for every expert", ("memo_hits",)), settings=_pool(1 << 20, lambda _, slots: slots)
    ),
    "batch": TtVariant(
        Variant("other sequences, of other lengths and some idle, in the same steps", ("companion_steps",)),
        settings=lambda settings, _: replace(settings, users=USERS),
        companions=True,
    ),
    "captured": TtVariant(
        Variant("what lies between two waits is captured, and replayed", ("captures", "replays")),
        settings=lambda settings, _: replace(settings, dispatch="captured"),
    ),
    "enqueued": TtVariant(
        Variant("each op is enqueued anew"), settings=lambda settings, _: replace(settings, dispatch="eager")
    ),
    "reload": TtVariant(Variant("another checkpoint was at the same addresses before"), reload=True),
}
"""By the name that `SubjectRequest.variant` takes."""

_PLAIN = TtVariant(Variant("nothing"))


def variant_named(name: str | None) -> TtVariant:
    """The variant; one that changes nothing for None.

    Raises:
        SubjectError: there is none of that name.
    """
    if name is None:
        return _PLAIN
    if name not in VARIANTS:
        raise SubjectError(f"subject tt has no variant {name!r}; its variants are {', '.join(VARIANTS)}")
    return VARIANTS[name]


def occupy(device: Device, parts: Parts, settings: DecoderSettings) -> None:
    """Load a checkpoint of the same shapes and other bytes, decode a few steps, and free everything again."""
    recorder = _Recorder(device)
    mirrored = _Mirrored(parts.weights, parts.config.num_hidden_layers)
    experts = _MirroredExperts(parts.experts, parts.config.num_hidden_layers)
    decoder = Decoder(cast(Device, recorder), parts.config, mirrored, experts, settings)
    for token in range(RELOAD_STEPS):
        decoder.step(token)
    recorder.free()


class _Mirrored:
    """The checkpoint with its layers in reverse order: as valid, and with other bytes everywhere but at its ends."""

    def __init__(self, source: WeightSource, layers: int) -> None:
        self._source = source
        self._names = {f"model.layers.{layer}.": f"model.layers.{layers - 1 - layer}." for layer in range(layers)}

    def raw(self, name: str) -> Bytes:
        for prefix, other in self._names.items():
            if name.startswith(prefix):
                return self._source.raw(other + name[len(prefix) :])
        return self._source.raw(name)


class _MirroredExperts:
    def __init__(self, source: ExpertSource, layers: int) -> None:
        self._source, self._layers = source, layers

    def payload(self, layer: int, expert: int) -> Bytes:
        return self._source.payload(self._layers - 1 - layer, expert)


class _Recorder(Passing):
    """Knows what was allocated and captured."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._tensors: list[Tensor] = []
        self._traces: list[Trace] = []

    def begin_trace_capture(self, **queue: int) -> Trace:
        trace = self._device.begin_trace_capture(**queue)
        self._traces.append(trace)
        return trace

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        tensor = self._device.allocate_tensor_on_device(shape, dtype, layout, label)
        self._tensors.append(tensor)
        return tensor

    def free(self) -> None:
        """Everything that is still there."""
        self._device.synchronize_device()
        for trace in self._traces:
            self._device.release_trace(trace)
        for tensor in self._tensors:
            if tensor.is_allocated:
                self._device.deallocate(tensor)
