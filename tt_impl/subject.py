"""The subject `tt`: this decoder, as the judge opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import DeviceFault, SubjectError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import (
    FillObserver,
    Float32,
    NumericClass,
    ResidentImage,
    StepEvidence,
    SubjectIdentity,
    SubjectRequest,
)
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import Schedule, schedule_named
from tt_impl.device.sim.schedule import LazySchedule
from tt_impl.expert_layout import CheckpointExperts
from tt_impl.plants import PLANTS, Parts
from tt_impl.settings import default_settings

REQUIRED_GATES = ("golden", "alignment", "chain", "flips", "logits", "residual", "routing", "staging", "slots", "ledger")

_ACTIVATIONS = {"bf16": DType.BFLOAT16, "exact": DType.FLOAT32}


class TtSubject:
    """An opened decoder; see `oracle.subjects.protocol.Subject`."""

    def __init__(self, identity: SubjectIdentity, decoder: Decoder, replay: str) -> None:
        self._identity = identity
        self._decoder = decoder
        self._replay = replay

    @property
    def identity(self) -> SubjectIdentity:
        return self._identity

    def reset(self) -> None:
        self._decoder.reset()

    def start(self) -> None:
        self._decoder.start()

    def step(self, token: int) -> StepEvidence:
        try:
            return self._decoder.step(token)
        except DeviceFault as fault:
            raise DeviceFault(fault.kind, f"{fault.message}; {self._replay}") from fault

    def layer(self, layer: int, inputs: Float32) -> Float32:
        return self._decoder.layer(layer, inputs)

    def stats(self) -> Mapping[str, int]:
        return self._decoder.stats()

    def residents(self) -> Iterator[ResidentImage]:
        return self._decoder.residents()

    def close(self) -> None:
        self._decoder.close()


class TtFactory:
    """Opens the decoder on the simulated device; see `oracle.subjects.protocol.SubjectFactory`."""

    arms: Mapping[str, NumericClass] = {"bf16": "bf16", "exact": "fp32"}
    devices: tuple[str, ...] = ("sim",)
    plants: Mapping[str, str] = {name: plant.caught_by for name, plant in PLANTS.items()}

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> TtSubject:
        """Open the checkpoint and a device, and stage the residents.

        Raises:
            SubjectError: an arm, device or plant that this subject has not.
            UsageError: a schedule that the simulated device has not.
            CheckpointError: the checkpoint is bad.
            DeviceFault: `out-of-memory`.
        """
        arm = self._arm(request.arm)
        schedule = self._schedule(request.device)
        checkpoint = Checkpoint.open(request.checkpoint)
        parts = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
        if request.plant is not None:
            if request.plant not in PLANTS:
                raise SubjectError(f"subject tt has no plant {request.plant!r}; its plants are {', '.join(PLANTS)}")
            parts = PLANTS[request.plant].apply(parts)
        settings = default_settings(parts.config, _ACTIVATIONS[arm])
        device = parts.open_device(schedule=schedule)
        decoder = Decoder(device, parts.config, parts.weights, parts.experts, settings, observer)
        identity = SubjectIdentity(
            name="tt",
            numeric_class=self.arms[arm],
            arm=arm,
            required_gates=REQUIRED_GATES,
            device={
                "kind": request.device or self.devices[0],
                "dram_bytes": str(device.get_memory_view().total_bytes),
                "schedule": schedule.name,
            },
        )
        return TtSubject(identity, decoder, f"`gate --device sim:{schedule.name}` replays it")

    def _arm(self, name: str | None) -> str:
        if name is None:
            return next(iter(self.arms))
        if name not in self.arms:
            raise SubjectError(f"subject tt has no arm {name!r}; its arms are {', '.join(self.arms)}")
        return name

    def _schedule(self, device: str | None) -> Schedule:
        """Of the device asked for: `sim` is lazy, `sim:SCHEDULE` any."""
        name, _, schedule = (device or self.devices[0]).partition(":")
        if name == "ttnn":
            raise SubjectError("device 'ttnn' is not available in this version; use --device sim")
        if name not in self.devices:
            raise SubjectError(f"subject tt has no device {device!r}; its devices are {', '.join(self.devices)}")
        return schedule_named(schedule or LazySchedule.name)


FACTORY = TtFactory()
"""The entry point's value."""
