"""The judge's own eyes on computing copies: each as it is uploaded and as the device holds it, against its own dequantization.

A port once took the bf16 byte offset for fp8 source bytes: slots exact, read-back verified, and 1,177,065 of 1,310,720
elements of the down projection wrong. So the operand itself is compared, bit for bit, and nothing of how it came about is
shared with the subject.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from ml_dtypes import bfloat16

from oracle.judge.dequantize import DequantizedWeights
from oracle.judge.resident_audit import is_file_map
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, inventory
from oracle.kolibri1.tensor_kind import KINDS, tensor_kind
from oracle.subjects.operands import OperandEvidence, OperandImage
from oracle.subjects.protocol import Bytes

_MAX_STORED_VIOLATIONS = 100
_HOSTS = {"BF16": np.dtype(bfloat16), "F32": np.dtype(np.float32)}
_ROUTED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)\.weight")
_Fill = tuple[int, int, int | None, int | None]
"""Layer, expert, slot, generation."""


@lru_cache(maxsize=2)  # each control asks anew, and the release has 115,000 tensors
def fp8_elements(config: Kolibri1Config) -> Mapping[str, int]:
    """Elements, by name, of every fp8 weight."""
    return MappingProxyType({spec.name: math.prod(spec.shape) for spec in inventory(config) if spec.dtype == "F8_E4M3"})


@lru_cache(maxsize=2)
def operand_plan(config: Kolibri1Config) -> Mapping[str, int]:
    """Elements, by name, of every weight that a device must hold a computing copy of: fp8, and no routed expert's."""
    weights = fp8_elements(config).items()
    return MappingProxyType({name: elements for name, elements in weights if not _ROUTED.fullmatch(name)})


def operand_table(elements: Mapping[str, int], times: Mapping[str, int]) -> tuple[tuple[str, int, int], ...]:
    """Rows of `OperandEvidence.uploaded` or `.held`, from how often each weight was there."""
    tensors: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for name, count in times.items():
        tensors[tensor_kind(name)] += count
        size[tensor_kind(name)] += count * elements[name]
    return tuple((kind, tensors[kind], size[kind]) for kind in KINDS if kind in tensors)


class OperandAuditor:
    """An `OperandObserver` that judges. One per prompt; `evidence` at the end.

    Args:
        residents: names of which a copy must be there; all of `operand_plan` when None.
    """

    def __init__(self, weights: DequantizedWeights, residents: Iterable[str] | None = None) -> None:
        config = weights.checkpoint.config
        self._weights = weights
        self._resident = tuple(operand_plan(config) if residents is None else residents)
        self._elements = fp8_elements(config)
        self._readbacks = 0
        self._uploaded: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._made: dict[_Fill, Counter[str]] = {}
        self._used: dict[_Fill, None] = {}
        self._handed: list[weakref.ref[np.ndarray]] = []
        self._violations: list[str] = []
        self._violation_count = 0

    def uploaded(self, operand: OperandImage) -> None:
        """Compare a copy on its way to the device."""
        self._handed.append(weakref.ref(_owner(operand.data)))
        if self._look("uploaded", operand):
            self._count(operand, self._uploaded, self._made)

    def used(self, layer: int, expert: int, slot: int, generation: int) -> None:
        """Note that an expert in a slot takes part in compute; its copy may still be on its way."""
        self._used[layer, expert, slot, generation] = None

    def read_back(self, operands: Iterable[OperandImage]) -> None:
        """Compare all copies that the device holds; each is dropped before the next is asked for."""
        held: dict[_Fill, Counter[str]] = {}
        times: Counter[str] = Counter()
        alive: list[weakref.ref[Bytes]] = []
        self._handed = [ref for ref in self._handed if ref() is not None]
        for operand in operands:
            alive = self._check_own_memory(operand, alive)
            if self._look("held", operand):
                self._count(operand, times, held)
        self._readbacks += 1
        self._held.update(times)
        for name in self._resident:
            if times[name] != 1:
                self._report(f"{name}: {times[name]} copies were read back, where 1 is resident")
            if self._uploaded[name] != 1:
                self._report(f"{name}: {self._uploaded[name]} copies were uploaded, where 1 is resident")
        for fill, parts in held.items():
            self._check_whole("held", fill, parts)
            if fill not in self._made:
                self._report(f"{_shown(fill)}: held by the device, but never uploaded")
        if self._used and not held:
            self._report("experts took part in compute, and the device holds no copy of any")
        self._check_used()

    def evidence(self) -> OperandEvidence | None:
        """What was seen so far; None if nothing was, and violations alone of copies that were never read back."""
        violations = list(self._violations)
        if (more := self._violation_count - len(violations)) > 0:
            violations.append(f"and {more} more")
        if not self._readbacks:
            return OperandEvidence(violations=tuple(violations)) if self._uploaded or violations else None
        experts: Counter[tuple[int, int]] = Counter()
        for (layer, expert, _, _), parts in self._made.items():
            experts[layer, expert] += min(parts[projection] for projection in EXPERT_PROJECTIONS)
        return OperandEvidence(
            self._readbacks,
            operand_table(self._elements, self._uploaded),
            operand_table(self._elements, self._held),
            tuple((layer, expert, times) for (layer, expert), times in sorted(experts.items())),
            tuple(violations),
        )

    def _look(self, where: str, operand: OperandImage) -> bool:
        """Compare one copy with what its names say; whether it can be counted."""
        shown = f"{' + '.join(operand.names) or 'a copy of nothing'} {where}"
        if operand.slot is not None:
            shown += f" from slot {operand.slot} generation {operand.generation}"
        host = _HOSTS.get(operand.dtype)
        if host is None:
            self._report(f"{shown}: {operand.dtype} is no type to compute with; nothing was compared")
            return False
        if unknown := [name for name in operand.names if name not in self._elements]:
            self._report(f"{shown}: {unknown[0]} is no fp8 weight of the checkpoint")
            return False
        wanted = sum(self._elements[name] for name in operand.names) * host.itemsize
        if operand.data.dtype != np.uint8 or operand.data.shape != (wanted,) or not wanted:
            held = operand.data
            self._report(f"{shown}: {held.nbytes} bytes of {held.dtype} {list(held.shape)} against {wanted}")
            return False
        start = 0
        for name in operand.names:
            expected = self._weights.bytes(name, operand.dtype)
            self._compare(f"{name} {where}", host, expected, operand.data[start : start + expected.size])
            start += expected.size
        return True

    def _compare(self, where: str, host: np.dtype, expected: Bytes, got: Bytes) -> None:
        if np.shares_memory(expected, got):
            self._report(f"{where}: the copy is the judge's own memory, so comparing it proves nothing")
        if not np.array_equal(expected, got):
            bits = f"<u{host.itemsize}"
            wrong = expected.view(bits) != np.ascontiguousarray(got).view(bits)
            first = int(wrong.argmax())
            true, found = (np.ascontiguousarray(array).view(host)[first] for array in (expected, got))
            self._report(
                f"{where}: {int(wrong.sum())} of {wrong.size} elements differ from their dequantization, first at "
                f"{first} ({float(found):.6g} for {float(true):.6g})"
            )

    def _count(self, operand: OperandImage, times: Counter[str], fills: dict[_Fill, Counter[str]]) -> None:
        for name in operand.names:
            times[name] += 1
            if routed := _ROUTED.fullmatch(name):
                fill = (int(routed[1]), int(routed[2]), operand.slot, operand.generation)
                fills.setdefault(fill, Counter())[routed[3]] += 1

    def _check_own_memory(self, operand: OperandImage, alive: list[weakref.ref[Bytes]]) -> list[weakref.ref[Bytes]]:
        """Bytes that are a file's, another copy's or those that the host handed over are not the device's."""
        shown, data = " + ".join(operand.names), operand.data
        others = [other for ref in alive if (other := ref()) is not None]
        if is_file_map(data) or any(np.shares_memory(other, data) for other in others):
            self._report(f"{shown}: the read-back shares memory with a file or another copy")
        if any((handed := ref()) is not None and np.shares_memory(handed, data) for ref in self._handed):
            self._report(f"{shown}: the read-back is the host's memory that was uploaded, not the device's bytes")
        return [weakref.ref(other) for other in (*others, data)]

    def _check_used(self) -> None:
        for fill in self._used:
            layer, expert, _, _ = fill
            parts = self._made.get(fill) or self._made.get((layer, expert, None, None))
            if parts is None:
                self._report(f"{_shown(fill)}: took part in compute, but no copy of that fill was uploaded")
            else:
                self._check_whole("uploaded", fill, parts)

    def _check_whole(self, where: str, fill: _Fill, parts: Counter[str]) -> None:
        counts = [parts[projection] for projection in EXPERT_PROJECTIONS]
        if min(counts) != max(counts):
            self._report(f"{_shown(fill)}: {where} with {', '.join(map(str, counts))} of {', '.join(EXPERT_PROJECTIONS)}")

    def _report(self, violation: str) -> None:
        self._violation_count += 1
        if len(self._violations) < _MAX_STORED_VIOLATIONS:
            self._violations.append(violation)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _shown(fill: _Fill) -> str:
    layer, expert, slot, generation = fill
    return f"layer {layer} expert {expert}" + ("" if slot is None else f" slot {slot} generation {generation}")
