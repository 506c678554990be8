"""All auditors of a prompt, as the one observer that a subject is given."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.judge.operand_audit import OperandAuditor
from oracle.judge.slot_audit import SlotAuditor
from oracle.subjects.operands import OperandImage
from oracle.subjects.protocol import VerifiedFill


@dataclass(frozen=True)
class Observers:
    """A `FillObserver` and an `OperandObserver`: passes what it is told to whom it concerns."""

    slots: SlotAuditor
    operands: OperandAuditor

    def verified(self, fill: VerifiedFill) -> None:
        self.slots.verified(fill)

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        self.slots.used(layer, expert, slot, generation, event)
        self.operands.used(layer, expert, slot, generation)

    def uploaded(self, operand: OperandImage) -> None:
        self.operands.uploaded(operand)
