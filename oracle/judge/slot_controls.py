"""Negative controls of the slot auditor: one honest fill, and dishonest ones that it must refuse."""

from __future__ import annotations

import numpy as np

from oracle.judge.control_result import ControlResult
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from oracle.subjects.protocol import Bytes, VerifiedFill
from oracle.subjects.run import SlotEvidence


def slot_controls(checkpoint: Checkpoint) -> tuple[ControlResult, ...]:
    """The auditor shown one honest fill, and five dishonest ones."""

    def show(fault: str) -> str:
        auditor = SlotAuditor(checkpoint)
        for projection in EXPERT_PROJECTIONS:
            image = _image(checkpoint, 1 if fault == "wrong expert" else 0, projection)
            read_back = image if fault == "shared memory" else image.copy()
            if fault == "flipped byte" and projection == "down_proj":
                read_back[-1] ^= 1
            if fault == "copied shadow":  # both images corrupted alike: only the checkpoint's bytes show it
                image = image.copy()
                image[7] ^= 0x10
                read_back = image.copy()
            if fault != "unverified use" or projection != "up_proj":
                auditor.verified(VerifiedFill(0, 0, projection, 3, 1, image, read_back, event=10))
        auditor.used(0, 0, 3, 1, event=11)
        return "fire" if auditor.evidence().violations else "pass"

    honest = ControlResult("auditor honest", "pass", show("none"))
    faults = ("flipped byte", "copied shadow", "wrong expert", "shared memory", "unverified use")
    return (honest, *(ControlResult(f"auditor {fault}", "fire", show(fault)) for fault in faults))


def one_honest_fill(checkpoint: Checkpoint) -> SlotEvidence:
    """What the auditor says of one fill of expert 0 in layer 0, all of it as it must be, and not used."""
    auditor = SlotAuditor(checkpoint)
    for projection in EXPERT_PROJECTIONS:
        image = _image(checkpoint, 0, projection)
        auditor.verified(VerifiedFill(0, 0, projection, 0, 1, image, image.copy(), event=1))
    return auditor.evidence()


def _image(checkpoint: Checkpoint, expert: int, projection: str) -> Bytes:
    name = expert_weight(0, expert, projection)
    return np.concatenate([checkpoint.raw(name), checkpoint.raw(name + SCALE_SUFFIX)])
