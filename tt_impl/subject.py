"""The subject `tt`: this decoder, as the judge opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import SubjectError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.census import DeclaredOps, OpUse
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
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.expert_layout import CheckpointExperts
from tt_impl.plants import PLANTS, Parts
from tt_impl.run_ops import OpRunner
from tt_impl.settings import default_settings

REQUIRED_GATES = (
    *("golden", "alignment", "chain", "flips", "logits", "residual", "routing"),
    *("staging", "slots", "operands", "ops", "census", "ledger"),
)

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

    def declared_ops(self) -> DeclaredOps:
        return self._decoder.declared_ops()

    def record_ops(self, on: bool) -> None:
        self._decoder.record_ops(on)

    def recorded_ops(self) -> list[OpUse]:
        return self._decoder.recorded_ops()

    def operands(self) -> Iterator[OperandImage]:
        return self._decoder.operands()

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
            CheckpointError: the checkpoint is bad.
            DeviceFault: `out-of-memory`.
        """
        identity, device, parts = self._opened(request)
        settings = default_settings(parts.config, _ACTIVATIONS[identity.arm])
        decoder = Decoder(device, parts.config, parts.weights, parts.experts, settings, observer, parts.pool_type)
        return TtSubject(identity, decoder)

    def open_ops(self, request: SubjectRequest) -> OpRunner:
        """Open the device alone; nothing is staged.

        Raises:
            SubjectError, CheckpointError: as `open`.
        """
        identity, device, _ = self._opened(request)
        return OpRunner(device, identity)

    def _opened(self, request: SubjectRequest) -> tuple[SubjectIdentity, SimDevice, Parts]:
        """Who is asked for, its device, and what it is to be assembled from."""
        arm = self._arm(request.arm)
        device_name = self._device(request.device)
        checkpoint = Checkpoint.open(request.checkpoint)
        parts = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
        if request.plant is not None:
            if request.plant not in PLANTS:
                raise SubjectError(f"subject tt has no plant {request.plant!r}; its plants are {', '.join(PLANTS)}")
            parts = PLANTS[request.plant].apply(parts)
        device = parts.open_device()
        total = device.get_memory_view().total_bytes
        identity = SubjectIdentity(
            name="tt",
            numeric_class=self.arms[arm],
            arm=arm,
            required_gates=REQUIRED_GATES,
            device={"kind": device_name, "dram_bytes": str(total), "schedule": "lazy", "quirks": device.quirks.names},
        )
        return identity, device, parts

    def _arm(self, name: str | None) -> str:
        if name is None:
            return next(iter(self.arms))
        if name not in self.arms:
            raise SubjectError(f"subject tt has no arm {name!r}; its arms are {', '.join(self.arms)}")
        return name

    def _device(self, name: str | None) -> str:
        if name is None:
            return self.devices[0]
        if name == "ttnn":
            raise SubjectError("device 'ttnn' is not available in this version; use --device sim")
        if name not in self.devices:
            raise SubjectError(f"subject tt has no device {name!r}; its devices are {', '.join(self.devices)}")
        return name


FACTORY = TtFactory()
"""The entry point's value."""
