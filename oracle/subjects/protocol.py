"""What an implementation under test must answer to be judged. Types only: no arithmetic, no torch.

A subject is found by an entry point of the group `kolibri_oracle.subjects`, whose value is a `SubjectFactory`. It walks a
sequence one id at a time: `reset`, then for each sequence `start` and one `step` per id. The harness decides which ids
are fed (the golden's when teacher-forced, the subject's own argmax in a free run), so a subject never sees an expected
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

NumericClass = Literal["fp32", "bf16", "w8a8", "fp8-kv"]

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StepEvidence:
    """What one decode step shows of itself. L layers, k experts per token, H hidden size, V vocabulary.

    Attributes:
        token: the id this step consumed, as the subject read it.
        position: the position it computed, counted by the subject, from 0.
        logits: float32 [V], for the id at `position + 1`.
        embedding: the embedding row it consumed, raw bytes of H little-endian bf16 values.
        expert_ids: int32 [L, k], by falling selection score, equal scores by rising id.
        expert_weights: float32 [L, k], the sigmoid weights in the same order.
        residual: float32 [L, H], the residual stream after each layer's second addition; not needed if `sketch` is given.
        sketch: float32 [L, 32], the projection of `residual` (`oracle.golden.sketch`), for subjects that hold only that.
        router_logits: float32 [L, E], of all E experts, without the bias, as the router computed them.

    Those after `embedding` are optional abilities. Each is given at every step of every prompt or at none (None); router
    logits at least at the golden's probe positions, or nowhere. Gates that need a missing one are not applicable, or
    incomplete where the subject declares them.
    """

    token: int
    position: int
    logits: Float32
    embedding: Bytes
    expert_ids: Int32 | None = None
    expert_weights: Float32 | None = None
    residual: Float32 | None = None
    sketch: Float32 | None = None
    router_logits: Float32 | None = None


@dataclass(frozen=True)
class LibraryRecord:
    """A native library that a subject computes with; `oracle.subjects.libraries.record_library` makes one.

    Attributes:
        name: its file name.
        built, newest_source: when the library, and the newest file it is built from, were last modified; nanoseconds since
            1970, UTC.
    """

    name: str
    built: int
    newest_source: int

    @property
    def stale(self) -> bool:
        """A source changed after the library was built: what was judged is not what the sources say."""
        return self.built < self.newest_source


@dataclass(frozen=True)
class SubjectIdentity:
    """Who was judged: goes into runs, verdicts and the ledger.

    Attributes:
        name: as after `--subject`.
        numeric_class: the numeric contract it declares; it is judged against that class's floor alone.
        arm: the setting of its levers.
        device: kind and identity of what it ran on, for example `{"kind": "sim", "seed": "0"}`; empty for a host-only one.
        required_gates: names of the gates that must run and compare something for a green verdict.
        libraries: native libraries it computes with; a stale one makes the ledger red.
    """

    name: str
    numeric_class: NumericClass
    arm: str
    required_gates: tuple[str, ...]
    device: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[LibraryRecord, ...] = ()


@dataclass(frozen=True)
class VerifiedFill:
    """One projection of one expert, staged into a device slot, as its drain saw it.

    Attributes:
        projection: `gate_proj`, `up_proj` or `down_proj`.
        generation: how many times this slot has been filled, from 1. (layer, slot, generation) names a fill.
        shadow: the host's image of what the slot must hold: the fp8 bytes [out * in], then the fp32 scale grid's bytes.
        read_back: the same bytes as the device gave them back. Must not share memory with `shadow`.
        event: the device's event number at which the read-back had settled. Numbers rise over the device's life.
    """

    layer: int
    expert: int
    projection: str
    slot: int
    generation: int
    shadow: Bytes
    read_back: Bytes
    event: int


class FillObserver(Protocol):
    """The judge's ear inside a subject that streams experts; arrays are read-only and valid during the call only."""

    def verified(self, fill: VerifiedFill) -> None:
        """Called by the drain for every projection of every fill, before any compute over the slot."""
        ...

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        """Called each time an expert in a slot takes part in compute.

        `event` is the device's event number then: the drain's or a later one, since nothing need happen between.
        """
        ...


class Subject(Protocol):
    """An opened implementation under test."""

    @property
    def identity(self) -> SubjectIdentity: ...

    def reset(self) -> None:
        """Return to the state just after opening: empty slots, memos and KV cache, counters at zero."""
        ...

    def start(self) -> None:
        """Begin a new sequence at position 0 with an empty KV cache; slots and memos may stay warm."""
        ...

    def step(self, token: int) -> StepEvidence:
        """Consume one id and return the evidence for its position.

        Raises:
            oracle.errors.DeviceFault: the implementation or its device caught a fault (a slot whose bytes are wrong, ...).
            oracle.errors.UsageError: the id is outside the vocabulary, or the sequence outgrows the KV cache.
        """
        ...

    def stats(self) -> Mapping[str, int]:
        """Counters since `reset`. A subject that streams experts must count `fills`, `staged_bytes`, `verified_bytes`."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


@runtime_checkable
class IsolatesLayers(Protocol):
    """An optional ability: to run one decoder layer alone, so that a red verdict can say which layer is wrong."""

    def layer(self, layer: int, inputs: Float32) -> Float32:
        """The residual stream after layer `layer` at positions 0 to T - 1 of a sequence, from the one before it.

        Args:
            inputs: float32 [T, H], the hidden state that enters the layer at each position; position p attends to the
                layer's own keys and values of positions up to p, as in a decode.

        Returns float32 [T, H], after the layer's second addition. Leaves the subject as after `start`.

        Raises:
            oracle.errors.DeviceFault: the implementation or its device caught a fault.
        """
        ...


@dataclass(frozen=True)
class ResidentImage:
    """One resident tensor of the checkpoint, as the device holds it now.

    Attributes:
        name: the tensor's name in the checkpoint.
        dtype: what the device holds it in, as safetensors spells it: the checkpoint's own (`BF16`, `F8_E4M3`, `F32`), or
            `F32` where the checkpoint has `BF16`: bf16 widens to fp32 exactly.
        data: uint8 [bytes], row-major and little-endian, without tile padding. Read from the device just now, into host
            memory of its own: never the host's copy from which it was staged, and no map of a file.
    """

    name: str
    dtype: str
    data: Bytes


@runtime_checkable
class ShowsResidents(Protocol):
    """Ability of a subject whose device holds the checkpoint's tensors; gate `staging` compares them."""

    def residents(self) -> Iterable[ResidentImage]:
        """Read back every tensor of the checkpoint except the routed experts', each once, in any order.

        Called after the last step of each prompt, so that a byte that changed while the subject ran shows too.
        """
        ...


@runtime_checkable
class ForcesRouting(Protocol):
    """An optional ability of a subject: to use given experts in place of its router's own, so that router noise is out of a
    comparison and what still differs is arithmetic. Its evidence then shows the experts it used."""

    def force_routing(self, expert_ids: Int32, expert_weights: Float32) -> None:
        """From the next `start` on, use `[position]` of these at each step: int32 and float32 [T, L, k]. `reset` ends it."""
        ...


@dataclass(frozen=True)
class SubjectRequest:
    """How a subject is to be opened. Serializable: a worker process opens its own from the same request.

    Attributes:
        checkpoint: the checkpoint folder.
        golden: the golden's folder; only the perfect subject may look into it.
        device: as after `--device`; None for the subject's default.
        arm: as after `--arm`; None for the subject's default.
        plant: a fault to plant, one of the factory's `plants`; None in every run that is judged.
        variant: a condition that must change nothing, one of the factory's `variants` (`oracle.subjects.repeats.Repeats`);
            None but in a repeat.
    """

    checkpoint: Path
    golden: Path | None = None
    device: str | None = None
    arm: str | None = None
    plant: str | None = None
    variant: str | None = None


@runtime_checkable
class HasExclusiveDevices(Protocol):
    """Of a factory some of whose devices only one process can open at a time, as a card: its prompts run one by one.

    Attributes:
        exclusive_devices: names out of `SubjectFactory.devices`.
    """

    exclusive_devices: tuple[str, ...]


class SubjectFactory(Protocol):
    """What the entry point names.

    Attributes:
        arms: names after `--arm`, the default first; each arm's numeric class.
        devices: names after `--device`, the default first; empty if it has no device.
        plants: faults it can plant in itself, mapped to how they must be caught: `device-fault:KIND` when its own check
            must raise that `DeviceFault`, or `gate:NAME` when only the judge can see it.
    """

    arms: Mapping[str, NumericClass]
    devices: tuple[str, ...]
    plants: Mapping[str, str]

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> Subject:
        """Open the subject.

        Raises:
            oracle.errors.SubjectError: unknown arm, device or plant, or something it needs is not installed.
            oracle.errors.CheckpointError: the checkpoint is bad.
            oracle.errors.DeviceFault: staging failed, as for want of device memory.
        """
        ...


@runtime_checkable
class ParsesArms(Protocol):
    """Ability of a factory whose arms are combinations: one arm may be spelled in several ways."""

    def canonical_arm(self, name: str) -> str:
        """The name in `arms` that `name` means.

        Raises:
            oracle.errors.SubjectError: it means none; says what is wrong with it and what there is.
        """
        ...
