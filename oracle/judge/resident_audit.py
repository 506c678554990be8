"""The judge's own eyes on resident operands: each read back from the device, against the checkpoint's bytes.

What must be there is derived from the checkpoint's inventory, never from the subject: every tensor but the routed
experts'. Expected bytes are read by the judge's own path, so the comparison shares nothing with what staged them.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.shard import ITEM_BYTES
from oracle.kolibri1.tensor_kind import KINDS, tensor_kind
from oracle.subjects.protocol import Bytes, ResidentImage
from oracle.subjects.run import ResidentEvidence

_MAX_STORED_VIOLATIONS = 100


def resident_plan(config: Kolibri1Config) -> dict[str, TensorSpec]:
    """What a device must hold, by name: every tensor of the checkpoint but the routed experts'."""
    return {spec.name: spec for spec in inventory(config) if ".mlp.experts." not in spec.name}


def plan_table(plan: Mapping[str, TensorSpec]) -> tuple[tuple[str, int, int], ...]:
    """`ResidentEvidence.kinds` of one read-back of exactly that."""
    return _table({name: _size(spec) for name, spec in plan.items()})


def audit_residents(
    checkpoint: Checkpoint, images: Iterable[ResidentImage], plan: Mapping[str, TensorSpec] | None = None
) -> ResidentEvidence:
    """Compare one read-back of all resident operands.

    Args:
        images: what the subject yields; each is dropped before the next is asked for.
        plan: what must be there; the whole `resident_plan` when None.
    """
    auditor = _ResidentAuditor(checkpoint, resident_plan(checkpoint.config) if plan is None else plan)
    for image in images:
        auditor.look(image)
    return auditor.evidence()


class _ResidentAuditor:
    def __init__(self, checkpoint: Checkpoint, plan: Mapping[str, TensorSpec]) -> None:
        self._checkpoint = checkpoint
        self._plan = plan
        self._compared: dict[str, int] = {}
        self._alive: list[weakref.ref[Bytes]] = []
        self._violations: list[str] = []
        self._violation_count = 0

    def look(self, image: ResidentImage) -> None:
        """Compare one tensor."""
        spec = self._plan.get(image.name)
        if spec is None:
            self._report(f"{image.name}: no resident tensor of the checkpoint has this name")
            return
        if image.name in self._compared:
            self._report(f"{image.name}: read back twice")
            return
        self._compared[image.name] = _size(spec)
        expected = _as_held(self._checkpoint.raw(image.name), spec.dtype, image.dtype)
        if expected is None:
            self._report(f"{image.name}: held as {image.dtype}, which {spec.dtype} does not give exactly; nothing was compared")
            return
        self._check_memory(image)
        self._compare(image.name, expected, image.data)

    def evidence(self) -> ResidentEvidence:
        """What was seen; at most 100 violations are spelled out, the rest are counted."""
        for name in self._plan:
            if name not in self._compared:
                self._report(f"{name}: not read back")
        violations = list(self._violations)
        if (more := self._violation_count - len(violations)) > 0:
            violations.append(f"and {more} more")
        return ResidentEvidence(1, _table(self._compared), tuple(violations))

    def _check_memory(self, image: ResidentImage) -> None:
        """Bytes that are the checkpoint's own file, or another image's, are not the device's."""
        if is_file_map(image.data):
            self._report(f"{image.name}: the read-back is a map of a file, not the device's bytes")
        others = [other for ref in self._alive if (other := ref()) is not None]
        if any(np.shares_memory(other, image.data) for other in others):
            self._report(f"{image.name}: the read-back shares memory with another tensor's")
        self._alive = [weakref.ref(other) for other in (*others, image.data)]

    def _compare(self, name: str, expected: Bytes, got: Bytes) -> None:
        if got.dtype != np.uint8 or expected.shape != got.shape:
            self._report(f"{name}: {got.nbytes} bytes of {got.dtype} {list(got.shape)} against {expected.nbytes}")
        elif not np.array_equal(expected, got):
            wrong = expected != got
            first = int(wrong.argmax())
            self._report(
                f"{name}: {int(wrong.sum())} of {wrong.size} device bytes differ from the checkpoint, first at byte {first} "
                f"({got[first]:#04x} for {expected[first]:#04x})"
            )

    def _report(self, violation: str) -> None:
        self._violation_count += 1
        if len(self._violations) < _MAX_STORED_VIOLATIONS:
            self._violations.append(violation)


def _as_held(raw: Bytes, stored: str, held: str) -> Bytes | None:
    """The checkpoint's bytes in the dtype the device holds; None where that is no exact change of `stored`."""
    if held == stored:
        return raw
    if (stored, held) == ("BF16", "F32"):  # the upper half of an fp32 value is its bf16, the lower half is zero
        return (raw.view("<u2").astype("<u4") << np.uint32(16)).view(np.uint8)
    return None


def is_file_map(array: Bytes) -> bool:
    """Whether an array's memory is a mapped file."""
    base: object = array
    while base is not None:
        if isinstance(base, np.memmap | mmap.mmap):
            return True
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return False


def _size(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def _table(sizes: Mapping[str, int]) -> tuple[tuple[str, int, int], ...]:
    tensors: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for name, nbytes in sizes.items():
        kind = tensor_kind(name)
        tensors[kind] += 1
        size[kind] += nbytes
    return tuple((kind, tensors[kind], size[kind]) for kind in KINDS if kind in tensors)
