"""The judge's own eyes on expert streaming: every fill's bytes, compared by the judge and with operands of its own.

A port's verification once compared a buffer with itself and reported twice the staged bytes as verified. So here the
subject hands over both images, the auditor refuses images that share memory, compares them itself, and compares the
device's bytes with the checkpoint's too, which it reads by its own path.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from oracle.subjects.protocol import Bytes, VerifiedFill
from oracle.subjects.run import SlotEvidence, use_table

_MAX_STORED_VIOLATIONS = 100


@dataclass
class _Slot:
    expert: int
    generation: int
    verified: dict[str, int]
    """Projection to the device event at which it had been read back."""


class SlotAuditor:
    """A `FillObserver` that judges. One per prompt; `evidence` at the end."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._expected: dict[tuple[int, int, str], Bytes] = {}
        self._slots: dict[tuple[int, int], _Slot] = {}
        self._fills = self._verified_bytes = self._checkpoint_bytes = self._violation_count = 0
        self._used: Counter[tuple[int, int]] = Counter()
        self._violations: list[str] = []

    def verified(self, fill: VerifiedFill) -> None:
        """Compare one projection's images with each other and with the checkpoint."""
        where = f"layer {fill.layer} expert {fill.expert} {fill.projection} slot {fill.slot} generation {fill.generation}"
        if not self._exists(fill):
            self._report(f"{where}: the checkpoint has no such layer, expert or projection")
            return
        if np.shares_memory(fill.shadow, fill.read_back):
            self._report(f"{where}: shadow and read-back share memory, so comparing them proves nothing")
        self._compare(where, "the shadow", fill.shadow, fill.read_back)
        expected = self._checkpoint_image(fill)
        if np.shares_memory(expected, fill.read_back):
            self._report(f"{where}: the read-back is the checkpoint's own memory, not the device's bytes")
        self._compare(where, "the checkpoint", expected, fill.read_back)
        self._verified_bytes += fill.read_back.nbytes
        self._checkpoint_bytes += expected.nbytes
        self._note_verified(where, fill)

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        """Check that what is used was verified before, whole, and is still the same expert."""
        self._used[layer, expert] += 1
        where = f"layer {layer} expert {expert} slot {slot} generation {generation}"
        held = self._slots.get((layer, slot))
        if held is None or held.generation != generation:
            self._report(f"{where}: used without any verified fill of that generation")
        elif held.expert != expert:
            self._report(f"{where}: used as expert {expert}, but the slot was verified as expert {held.expert}")
        elif missing := [p for p in EXPERT_PROJECTIONS if p not in held.verified]:
            self._report(f"{where}: used before {missing[0]} was verified")
        elif (late := max(held.verified.values())) > event:
            self._report(f"{where}: used at event {event}, verified only at event {late}")

    def evidence(self) -> SlotEvidence:
        """What was seen so far; at most 100 violations are spelled out, the rest are counted."""
        violations = list(self._violations)
        if (more := self._violation_count - len(violations)) > 0:
            violations.append(f"and {more} more")
        return SlotEvidence(
            self._fills,
            self._verified_bytes,
            self._checkpoint_bytes,
            sum(self._used.values()),
            tuple(violations),
            use_table(self._used),
        )

    def _exists(self, fill: VerifiedFill) -> bool:
        config = self._checkpoint.config
        known = 0 <= fill.layer < config.num_hidden_layers and 0 <= fill.expert < config.num_experts
        return known and fill.projection in EXPERT_PROJECTIONS

    def _note_verified(self, where: str, fill: VerifiedFill) -> None:
        key = (fill.layer, fill.slot)
        held = self._slots.get(key)
        if held is None or fill.generation > held.generation:
            held = self._slots[key] = _Slot(fill.expert, fill.generation, {})
        elif held.generation != fill.generation or held.expert != fill.expert:
            self._report(f"{where}: the slot holds expert {held.expert} of generation {held.generation}")
            return
        if fill.projection in held.verified:
            self._report(f"{where}: verified twice")
        held.verified[fill.projection] = fill.event
        self._fills += len(held.verified) == len(EXPERT_PROJECTIONS)

    def _checkpoint_image(self, fill: VerifiedFill) -> Bytes:
        key = (fill.layer, fill.expert, fill.projection)
        if key not in self._expected:
            name = expert_weight(*key)
            self._expected[key] = np.concatenate([self._checkpoint.raw(name), self._checkpoint.raw(name + SCALE_SUFFIX)])
        return self._expected[key]

    def _compare(self, where: str, what: str, expected: Bytes, got: Bytes) -> None:
        if expected.dtype != np.uint8 or got.dtype != np.uint8 or expected.shape != got.shape:
            self._report(f"{where}: {got.nbytes} bytes of {got.dtype} against {expected.nbytes} of {what}")
        elif not np.array_equal(expected, got):
            wrong = expected != got
            first = int(wrong.argmax())
            self._report(
                f"{where}: {int(wrong.sum())} of {wrong.size} device bytes differ from {what}, first at byte {first} "
                f"({got[first]:#04x} for {expected[first]:#04x})"
            )

    def _report(self, violation: str) -> None:
        self._violation_count += 1
        if len(self._violations) < _MAX_STORED_VIOLATIONS:
            self._violations.append(violation)
