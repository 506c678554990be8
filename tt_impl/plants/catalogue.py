"""Faults that the subject can plant in itself, each at one of the decoder's seams; the decoder's code does not know them.

To add one: write a function from `Parts` to `Parts` that replaces one part, and enter it in `PLANTS` with how it must be
caught: `device-fault:KIND` if the decoder's own check must raise it, `gate:NAME` if only the judge can see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Bytes
from tt_impl.device.sim import (
    QUIRK_PROFILES,
    Fault,
    Flip,
    OnDrain,
    OnWrite,
    Quirks,
    SimDevice,
)
from tt_impl.experts.layout import ExpertSource
from tt_impl.experts.pool import ExpertPool
from tt_impl.plants.of_census import RepeatsAnExpert
from tt_impl.plants.of_device import ASKED_OTHERWISE
from tt_impl.plants.of_operands import MisplacesDown
from tt_impl.plants.of_pool import CountsSwapsLate, RecordsLate, ServesStaleMemos
from tt_impl.plants.places import MEMO_BYTE, NORM_BYTE, RESIDENT_BYTE, SLOT_BYTE, PlantedBits, drain_of
from tt_impl.staging import WeightSource


@dataclass(frozen=True)
class Parts:
    """What a simulated decoder is assembled from. `open_device` takes `schedule=` and `faults=`, a plan with `faults` in it."""

    config: Kolibri1Config
    weights: WeightSource
    experts: ExpertSource
    open_device: Callable[..., SimDevice] = SimDevice
    faults: tuple[Fault, ...] = ()
    pool_type: type[ExpertPool] = ExpertPool

    @property
    def planted_layer(self) -> int:
        """The layer that plants go for: the second, so that the first passes before they strike."""
        return min(1, self.config.num_hidden_layers - 1)


@dataclass(frozen=True)
class Plant:
    """How a planted fault must be caught, and what it changes.

    Attributes:
        captured: it can only strike where stretches are captured, so the arm's steps are, whatever it says.
    """

    caught_by: str
    apply: Callable[[Parts], Parts]
    captured: bool = False


def _with_flip(parts: Parts, bits: PlantedBits, when: OnWrite | OnDrain) -> Parts:
    fault = Fault(bits.label(parts.planted_layer), when, Flip(bits.offset, bits.mask))
    return replace(parts, faults=(*parts.faults, fault))


def flip_slot_byte(parts: Parts) -> Parts:
    """One bit of an expert's bytes flips on the device as its first fill lands."""
    return _with_flip(parts, SLOT_BYTE, OnWrite())


class _WrongExpert:
    """Hands over another expert's bytes for the first expert that a layer asks for, always for that one."""

    def __init__(self, source: ExpertSource, layer: int, experts: int) -> None:
        self._source = source
        self._layer = layer
        self._experts = experts
        self._victim: int | None = None

    def payload(self, layer: int, expert: int) -> Bytes:
        if layer == self._layer:
            if self._victim is None:
                self._victim = expert
            if expert == self._victim:
                expert = (expert + 1) % self._experts
        return self._source.payload(layer, expert)


def stage_wrong_expert(parts: Parts) -> Parts:
    """One expert's fills carry another's bytes: shadow and device agree, and both are wrong."""
    return replace(parts, experts=_WrongExpert(parts.experts, parts.planted_layer, parts.config.num_experts))


class _SkipsOneSynchronize(SimDevice):
    """Leaves out its `which`-th synchronization, counted from 1."""

    def __init__(self, which: int, **options: Any) -> None:
        super().__init__(**options)
        self._left = which

    def synchronize_device(self, *, cq_id: int | None = None) -> None:
        self._left -= 1
        if self._left != 0:
            super().synchronize_device(cq_id=cq_id)


def skip_drain(parts: Parts) -> Parts:
    """The settling of one layer's first fills is left out."""
    return replace(parts, open_device=partial(_SkipsOneSynchronize, drain_of(parts.planted_layer)))


class _SwapsNames:
    """Answers for `first` with `second` and the other way round."""

    def __init__(self, source: WeightSource, first: str, second: str) -> None:
        self._source = source
        self._renamed = {first: second, second: first}

    def raw(self, name: str) -> Bytes:
        return self._source.raw(self._renamed.get(name, name))


def swap_norms(parts: Parts) -> Parts:
    """A layer's two post norms change places."""
    prefix = f"model.layers.{parts.planted_layer}"
    swapped = _SwapsNames(parts.weights, f"{prefix}.post_attn_norm.weight", f"{prefix}.post_ffn_norm.weight")
    return replace(parts, weights=swapped)


def shorten_window(parts: Parts) -> Parts:
    """Sliding layers see one position less."""
    return replace(parts, config=parts.config.model_copy(update={"sliding_window": parts.config.sliding_window - 1}))


def flip_fp8_byte(parts: Parts) -> Parts:
    """One bit of a resident fp8 projection flips as it is staged. No op reads it: computing has a copy of its own."""
    return _with_flip(parts, RESIDENT_BYTE, OnWrite())


def corrupt_norm_late(parts: Parts) -> Parts:
    """The last bit of one element of a resident norm flips once decoding is under way: few tokens, if any, show it."""
    return _with_flip(parts, NORM_BYTE, OnDrain(drain_of(parts.planted_layer)))


def _asked_otherwise(parts: Parts, name: str) -> Parts:
    plant = ASKED_OTHERWISE[name]
    return replace(parts, open_device=lambda **options: plant(SimDevice(**options), parts.config))


def misplace_down(parts: Parts) -> Parts:
    """Down projections are dequantized from where bf16 bytes would begin: slots are exact, verified, and not computed with."""
    return replace(parts, pool_type=MisplacesDown)


def flip_memo_byte(parts: Parts) -> Parts:
    """The last bit of one element of each of a layer's dequantized down projections flips as it lands on the device."""
    return _with_flip(parts, MEMO_BYTE, OnWrite())


def repeat_expert(parts: Parts) -> Parts:
    """A layer computes its first expert of a step twice, and its second never."""
    return replace(parts, pool_type=RepeatsAnExpert)


def swap_norms_in_use(parts: Parts) -> Parts:
    """Two layers' norms are staged as they should, and each layer's op is given the other's."""
    return _asked_otherwise(parts, "norms-crossed")


def double_an_add(parts: Parts) -> Parts:
    """What attention gives is added to a layer's residual stream twice."""
    return _asked_otherwise(parts, "add-doubled")


def turn_full_layer(parts: Parts) -> Parts:
    """A full layer's queries and keys are turned as a sliding one's."""
    return _asked_otherwise(parts, "full-layer-turned")


def read_in_a_capture(parts: Parts) -> Parts:
    """The host waits for a router within a capture."""
    return _asked_otherwise(parts, "capture-reads")


def restage_in_use(parts: Parts) -> Parts:
    """A weight is written again after it was captured over."""
    return _asked_otherwise(parts, "capture-restaged")


def compute_with(quirks: Quirks) -> Callable[[Parts], Parts]:
    """The card has a quirk."""
    return lambda parts: replace(parts, open_device=partial(SimDevice, quirks=quirks))


def serve_stale_memos(parts: Parts) -> Parts:
    """A slot's memo is looked up by what the slot was first filled with, whatever it holds now."""
    return replace(parts, pool_type=ServesStaleMemos)


def record_fingerprint_late(parts: Parts) -> Parts:
    """The content fingerprint is re-recorded after each layer's own fills: the epoch never moves."""
    return replace(parts, pool_type=RecordsLate)


def count_swaps_late(parts: Parts) -> Parts:
    """The swap counter asks whether the slot held an expert after the eviction hook has said that it does not."""
    return replace(parts, pool_type=CountsSwapsLate)


PLANTS: Mapping[str, Plant] = {
    "slot-byte": Plant("device-fault:slot-verification", flip_slot_byte),
    "wrong-expert": Plant("gate:slots", stage_wrong_expert),
    "missing-drain": Plant("device-fault:unsettled-read", skip_drain),
    "resident-byte": Plant("gate:staging", flip_fp8_byte),
    "norm-byte-late": Plant("gate:staging", corrupt_norm_late),
    "down-offset": Plant("gate:operands", misplace_down),
    "memo-byte": Plant("gate:operands", flip_memo_byte),
    "norms-crossed": Plant("gate:census", swap_norms_in_use),
    "expert-repeated": Plant("gate:census", repeat_expert),
    "add-doubled": Plant("gate:census", double_an_add),
    "full-layer-turned": Plant("gate:census", turn_full_layer),
    "capture-reads": Plant("device-fault:trace-capture", read_in_a_capture, captured=True),
    "capture-restaged": Plant("gate:capture", restage_in_use, captured=True),
    "norm-swap": Plant("gate:residual", swap_norms),
    "window-short": Plant("gate:logits", shorten_window),
    "memo-stale": Plant("gate:residual", serve_stale_memos),
    "fingerprint-late": Plant("gate:counters", record_fingerprint_late),
    "swap-count-late": Plant("gate:counters", count_swaps_late),
    **{f"quirk-{name}": Plant("gate:ops", compute_with(q)) for name, q in QUIRK_PROFILES.items()},
}
