"""What a request opens: an arm, a checkpoint, a device, and the fault planted in them if there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oracle.errors import SubjectError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import SubjectIdentity, SubjectRequest
from tt_impl.arms import ARMS, BASES, Arm, parse_arm
from tt_impl.device.protocol import Device, DType
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.plans.fitting import fitted
from tt_impl.plants.catalogue import PLANTS, Parts
from tt_impl.plants.of_device import planted
from tt_impl.settings import BLOCKS, DecoderSettings
from tt_impl.simulated import open_simulated
from tt_impl.variants import variant_named

DEVICES = ("sim", "ttnn")
EXCLUSIVE_DEVICES = ("ttnn",)

REQUIRED_GATES = (
    "golden",
    "alignment",
    "chain",
    "flips",
    "logits",
    "residual",
    "routing",
    "staging",
    "slots",
    "operands",
    "ops",
    "census",
    "capture",
    "counters",
    "determinism",
    "ledger",
)


@dataclass(frozen=True)
class Opened:
    """Everything but the decoder.

    Attributes:
        settings: of the decoder: the arm's, or what the variant makes of them.
        replay: what a fault's message ends with: the command that replays it.
    """

    identity: SubjectIdentity
    device: Device
    parts: Parts
    settings: DecoderSettings
    replay: str = ""


def open_parts(request: SubjectRequest) -> Opened:
    """Open the checkpoint and the device.

    Raises:
        SubjectError: an arm, device, plant or variant that the subject has not; no card for device ttnn, or not ttnn itself.
        UsageError: a schedule that the simulated device has not, or a file that holds no fault plan.
        CheckpointError: the checkpoint is bad.
        PlanError: the device's DRAM has no room for what one step needs.
    """
    arm = next(iter(ARMS.values())) if request.arm is None else parse_arm(request.arm)
    asked = request.device or DEVICES[0]
    kind, _, named = asked.partition(":")
    if kind not in DEVICES or (named and kind != "sim"):
        raise SubjectError(
            f"subject tt has no device {asked!r}; its devices are {', '.join(DEVICES)}, sim:SCHEDULE and sim:SCHEDULE@FILE"
        )
    checkpoint = Checkpoint.open(request.checkpoint)
    parts = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
    if request.plant is not None:
        if request.plant not in PLANTS:
            raise SubjectError(f"subject tt has no plant {request.plant!r}; its plants are {', '.join(PLANTS)}")
        parts = PLANTS[request.plant].apply(parts)
    variant = variant_named(request.variant)
    device: Device
    if kind == "sim":
        device, described, replay = open_simulated(parts, named, variant.schedule)
    else:
        device, described, replay = *_real(arm, parts, request.plant), ""
    total_bytes = device.get_memory_view().total_bytes
    identity = SubjectIdentity(
        name="tt",
        numeric_class=arm.numeric_class,
        arm=arm.name,
        required_gates=REQUIRED_GATES,
        device={"kind": asked, "dram_bytes": str(total_bytes), **described},
    )
    settings = variant.settings(arm.settings(parts.config), parts.config)
    if request.plant is not None and PLANTS[request.plant].captured:
        settings = replace(settings, dispatch="captured")
    return Opened(identity, device, parts, fitted(settings, parts.config, total_bytes), replay)


def _real(arm: Arm, parts: Parts, plant: str | None) -> tuple[Device, dict[str, str]]:
    if BASES[arm.base][0] is DType.FLOAT32:
        raise SubjectError("device ttnn has no float32 attention; judge the arm `exact` with --device sim")
    if (block := dict(arm.levers).get("block", BLOCKS[0])) != BLOCKS[0]:
        raise SubjectError(f"no card has shown KV blocks of {block} positions; judge `block={block}` with --device sim")
    from tt_impl.device.ttnn.device import TtnnDevice

    device = TtnnDevice.open()
    return planted(device, plant, parts.planted_layer, parts.config), {"level": device.level}
