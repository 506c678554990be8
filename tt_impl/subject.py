"""The subject `tt`: this decoder, as the judge opens it, on the simulated device or on ttnn's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import DeviceFault
from oracle.subjects.captures import CapturedRegion
from oracle.subjects.census import DeclaredOps, OpUse
from oracle.subjects.modelled_time import PartTimes, TimeModel
from oracle.subjects.operands import OperandImage
from oracle.subjects.protocol import (
    FillObserver,
    Float32,
    NumericClass,
    ResidentImage,
    StepEvidence,
    SubjectIdentity,
    SubjectRequest,
)
from oracle.subjects.repeats import Variant
from tt_impl.arms import ARMS, parse_arm
from tt_impl.companions import Companions
from tt_impl.decode import Decoder
from tt_impl.opening import DEVICES, EXCLUSIVE_DEVICES, open_parts
from tt_impl.plants.catalogue import PLANTS
from tt_impl.run_ops import OpRunner
from tt_impl.stats import LEVELS
from tt_impl.step_model import StepModel
from tt_impl.variants import VARIANTS, occupy, variant_named


class TtSubject:
    """An opened decoder; see `oracle.subjects.protocol.Subject`.

    Args:
        replay: what a fault's message ends with.
        sequence: what is started and stepped, if it is one of several in the decoder's steps.
    """

    def __init__(
        self,
        identity: SubjectIdentity,
        decoder: Decoder,
        replay: str,
        model: StepModel,
        sequence: Companions | None = None,
    ) -> None:
        self._identity = identity
        self._decoder = decoder
        self._model = model
        self._replay = replay
        self._sequence = sequence or decoder

    @property
    def identity(self) -> SubjectIdentity:
        return self._identity

    def reset(self) -> None:
        self._decoder.reset()

    def start(self) -> None:
        self._sequence.start()

    def step(self, token: int) -> StepEvidence:
        try:
            with self._model.step():
                return self._sequence.step(token)
        except DeviceFault as fault:
            raise DeviceFault(fault.kind, f"{fault.message}{self._replay}") from fault

    def layer(self, layer: int, inputs: Float32) -> Float32:
        return self._decoder.layer(layer, inputs)

    def stats(self) -> Mapping[str, int]:
        return self._decoder.stats()

    def time_model(self) -> TimeModel | None:
        return self._model.told()

    def model_time(self, on: bool) -> None:
        self._model.turn(on)

    def modelled_ns(self) -> PartTimes:
        return self._model.modelled_ns()

    def residents(self) -> Iterator[ResidentImage]:
        return self._decoder.residents()

    def declared_ops(self) -> DeclaredOps:
        return self._decoder.declared_ops()

    def record_ops(self, on: bool) -> None:
        self._decoder.record_ops(on)

    def recorded_ops(self) -> list[OpUse]:
        return self._decoder.recorded_ops()

    def captured_regions(self) -> list[CapturedRegion]:
        return self._decoder.captured_regions()

    def operands(self) -> Iterator[OperandImage]:
        return self._decoder.operands()

    def close(self) -> None:
        self._decoder.close()


class TtFactory:
    """Opens the decoder on a device; see `oracle.subjects.protocol.SubjectFactory` and `ParsesArms`."""

    arms: Mapping[str, NumericClass] = {name: arm.numeric_class for name, arm in ARMS.items()}
    devices: tuple[str, ...] = DEVICES
    exclusive_devices: tuple[str, ...] = EXCLUSIVE_DEVICES
    plants: Mapping[str, str] = {name: plant.caught_by for name, plant in PLANTS.items()}
    levels: frozenset[str] = LEVELS
    variants: Mapping[str, Variant] = {name: variant.told for name, variant in VARIANTS.items()}
    dispatch_variants: tuple[str, str] = ("captured", "enqueued")

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> TtSubject:
        """Open the checkpoint and a device, and stage the residents.

        Raises:
            SubjectError: an arm, device or plant that this subject has not; no card for device ttnn, or not ttnn itself.
            UsageError: a schedule that the simulated device has not.
            CheckpointError: the checkpoint is bad.
            DeviceFault: `out-of-memory`.
        """
        opened = open_parts(request)
        parts, device = opened.parts, opened.device
        try:
            variant = variant_named(request.variant)
            if variant.reload:
                occupy(device, parts, opened.settings)
            decoder = Decoder(device, parts.config, parts.weights, parts.experts, opened.settings, observer, parts.pool_type)
        except BaseException:
            device.close()  # a card stays taken until it is closed
            raise
        sequence = Companions(decoder, parts.config.vocab_size) if variant.companions else None
        return TtSubject(opened.identity, decoder, opened.replay, StepModel(device), sequence)

    def open_ops(self, request: SubjectRequest) -> OpRunner:
        """Open the device alone; nothing is staged.

        Raises:
            SubjectError, UsageError, CheckpointError: as `open`.
        """
        opened = open_parts(request)
        return OpRunner(opened.device, opened.identity)

    def canonical_arm(self, name: str) -> str:
        """The name in `arms` of what `name` means. Raises SubjectError."""
        return parse_arm(name).name

    def effects(self, arm: str) -> tuple[str, ...]:
        """The counters that the arm's levers move; see `oracle.subjects.repeats.StatesEffects`."""
        return parse_arm(arm).effects

    def arithmetic(self, arm: str) -> str:
        """The arm's base: no lever moves arithmetic."""
        return parse_arm(arm).base


FACTORY = TtFactory()
"""The entry point's value."""
