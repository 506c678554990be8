"""The subject `tt`: this decoder, as the judge opens it, on the simulated device or on ttnn's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import SubjectError
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
from tt_impl.device.protocol import Device, DType
from tt_impl.expert_layout import CheckpointExperts
from tt_impl.planted_device import planted
from tt_impl.plants import PLANTS, Parts
from tt_impl.settings import default_settings

REQUIRED_GATES = ("golden", "alignment", "chain", "flips", "logits", "residual", "routing", "staging", "slots", "ledger")

_ACTIVATIONS = {"bf16": DType.BFLOAT16, "exact": DType.FLOAT32}


class TtSubject:
    """An opened decoder; see `oracle.subjects.protocol.Subject`."""

    def __init__(self, identity: SubjectIdentity, decoder: Decoder) -> None:
        self._identity = identity
        self._decoder = decoder

    @property
    def identity(self) -> SubjectIdentity:
        return self._identity

    def reset(self) -> None:
        self._decoder.reset()

    def start(self) -> None:
        self._decoder.start()

    def step(self, token: int) -> StepEvidence:
        return self._decoder.step(token)

    def layer(self, layer: int, inputs: Float32) -> Float32:
        return self._decoder.layer(layer, inputs)

    def stats(self) -> Mapping[str, int]:
        return self._decoder.stats()

    def residents(self) -> Iterator[ResidentImage]:
        return self._decoder.residents()

    def close(self) -> None:
        self._decoder.close()


class TtFactory:
    """Opens the decoder on a device; see `oracle.subjects.protocol.SubjectFactory`. The simulated one is the default."""

    arms: Mapping[str, NumericClass] = {"bf16": "bf16", "exact": "fp32"}
    devices: tuple[str, ...] = ("sim", "ttnn")
    exclusive_devices: tuple[str, ...] = ("ttnn",)
    plants: Mapping[str, str] = {name: plant.caught_by for name, plant in PLANTS.items()}

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> TtSubject:
        """Open the checkpoint and a device, and stage the residents.

        Raises:
            SubjectError: an arm, device or plant that this subject has not; no card for device ttnn, or not ttnn itself.
            CheckpointError: the checkpoint is bad.
            DeviceFault: `out-of-memory`.
        """
        arm = self._arm(request.arm)
        device_name = self._device(request.device)
        checkpoint = Checkpoint.open(request.checkpoint)
        parts = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
        if request.plant is not None:
            if request.plant not in PLANTS:
                raise SubjectError(f"subject tt has no plant {request.plant!r}; its plants are {', '.join(PLANTS)}")
            parts = PLANTS[request.plant].apply(parts)
        settings = default_settings(parts.config, _ACTIVATIONS[arm])
        device, described = self._opened(device_name, arm, parts, request.plant)
        try:
            decoder = Decoder(device, parts.config, parts.weights, parts.experts, settings, observer)
        except BaseException:
            device.close()  # a card stays taken until it is closed
            raise
        identity = SubjectIdentity(
            name="tt",
            numeric_class=self.arms[arm],
            arm=arm,
            required_gates=REQUIRED_GATES,
            device={"kind": device_name, "dram_bytes": str(device.get_memory_view().total_bytes), **described},
        )
        return TtSubject(identity, decoder)

    def _opened(self, name: str, arm: str, parts: Parts, plant: str | None) -> tuple[Device, dict[str, str]]:
        """The device, and what else its identity says."""
        if name == "sim":
            return parts.open_device(), {"schedule": "lazy"}
        if _ACTIVATIONS[arm] is DType.FLOAT32:
            raise SubjectError("device ttnn has no float32 attention; judge the arm `exact` with --device sim")
        from tt_impl.device.ttnn.device import TtnnDevice

        device = TtnnDevice.open()
        return planted(device, plant, parts.planted_layer), {"level": device.level}

    def _arm(self, name: str | None) -> str:
        if name is None:
            return next(iter(self.arms))
        if name not in self.arms:
            raise SubjectError(f"subject tt has no arm {name!r}; its arms are {', '.join(self.arms)}")
        return name

    def _device(self, name: str | None) -> str:
        if name is None:
            return self.devices[0]
        if name not in self.devices:
            raise SubjectError(f"subject tt has no device {name!r}; its devices are {', '.join(self.devices)}")
        return name


FACTORY = TtFactory()
"""The entry point's value."""
