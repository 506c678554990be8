"""What a device notes of its captures: what it was asked for within each, and what the host wrote before their replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

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
        self._released: list[CaptureRecord] = []
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
        self._released.append(capture.record())

    def take(self) -> list[CaptureRecord]:
        """Every capture that is over, those of released traces first: these are forgotten, the others begin with no replay."""
        taken, self._released = self._released, []
        for capture in self._captures.values():
            if capture is not self._present:
                taken.append(capture.record())
                capture.replays = 0
                capture.changed.clear()
        return taken
