"""What a device notes of its captures: what it was asked for within each, and what the host wrote before their replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from tt_impl.device.protocol import CaptureRecord, Tensor


@dataclass(eq=False)
class _Capture:
    calls: Counter[str] = field(default_factory=Counter)
    operands: dict[int, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    replays: int = 0

    def record(self) -> CaptureRecord:
        return CaptureRecord(
            tuple(sorted(self.calls.items())),
            self.replays,
            tuple(sorted({*self.operands.values()})),
            tuple(sorted(self.changed)),
        )


class CaptureBook:
    """The captures of one device, by the identity of their trace."""

    def __init__(self) -> None:
        self._captures: dict[int, _Capture] = {}
        self._released: dict[Hashable, CaptureRecord] = {}
        self._present: _Capture | None = None
        self._readers: dict[int, list[_Capture]] = {}

    def begin(self, trace: int) -> None:
        self._present = self._captures[trace] = _Capture()

    def call(self, name: str, operands: Sequence[Tensor] = ()) -> None:
        """The device is asked for `name` while a capture is going on."""
        assert self._present is not None
        self._present.calls[name] += 1
        for operand in operands:
            self._present.operands[operand.identity] = operand.label

    def end(self) -> None:
        """The capture that is going on is over."""
        assert self._present is not None
        for identity in self._present.operands:
            self._readers.setdefault(identity, []).append(self._present)
        self._present = None

    def written(self, tensor: Tensor) -> None:
        """The host enqueues a write to `tensor`."""
        for capture in self._readers.get(tensor.identity, ()):
            capture.written.add(tensor.label)

    def replayed(self, trace: int) -> None:
        capture = self._captures[trace]
        capture.replays += 1
        capture.changed |= capture.written

    def released(self, trace: int) -> None:
        capture = self._captures.pop(trace)
        for identity in capture.operands:
            readers = self._readers[identity]
            readers.remove(capture)
            if not readers:
                del self._readers[identity]
        self._keep(self._released, capture.record())

    def records(self) -> list[CaptureRecord]:
        """Of every capture that is over, since the last `forget`; those alike are one."""
        kept = dict(self._released)
        for capture in self._captures.values():
            if capture is not self._present:
                self._keep(kept, capture.record())
        return list(kept.values())

    def forget(self) -> None:
        """Begin anew; traces that are still there are watched on, as if just captured."""
        self._released.clear()
        for capture in self._captures.values():
            capture.replays = 0
            capture.written.clear()
            capture.changed.clear()

    @staticmethod
    def _keep(kept: dict[Hashable, CaptureRecord], record: CaptureRecord) -> None:
        key = (record.calls, record.operands, record.changed)
        before = kept.get(key)
        if before is not None:
            record = replace(record, replays=before.replays + record.replays, alike=before.alike + record.alike)
        kept[key] = record
