"""The device's own record of what it was asked to do: counted here, never by the decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tt_impl.device.captures import CaptureBook
from tt_impl.device.protocol import Tensor
from tt_impl.device.sim.trace import CapturedOp

if TYPE_CHECKING:
    from tt_impl.device.sim.injector import FaultInjector


class TakesOps(Protocol):
    """A trace being captured."""

    def note_op(self, op: CapturedOp) -> None: ...


class EventLog:
    """Counters over all events, and the number of the latest one.

    Counters: `allocations`, `deallocations`, `writes`, `bytes_written`, `blocking_reads`, `non_blocking_reads`, `bytes_read`,
    `synchronizes`, `event_synchronizes`, `events_recorded`, `events_awaited` (by a queue), `round_trips` (calls that waited
    for the device), `ops` and `op.NAME` per op, those of replayed traces included, `replayed_ops` of these, `captured_ops`
    (recorded, not run), `traces_captured`, `traces_executed`, `traces_released`; and what the ops move and compute, as
    `workload` reckons it: `dram_bytes` and `flops`. Bytes are packed bytes, padding included. All are counted as the host
    calls, so they do not depend on the schedule.

    Attributes:
        injector: told of each op and event while a plan wants to know.
        capture: the trace being captured; its ops are noted in it instead.
        captures: what is asked for within captures.
    """

    def __init__(self) -> None:
        self.number = 0
        self.injector: FaultInjector | None = None
        self.capture: TakesOps | None = None
        self.captures = CaptureBook()
        self._record: list[tuple[str, tuple[str, ...]]] | None = None
        self._counts: Counter[str] = Counter()
        self._ops: Counter[str] = Counter()
        self._dram_bytes = 0
        self._flops = 0

    def note(self, kind: str) -> None:
        """One more event."""
        self.number += 1
        self._counts[kind] += 1
        if self.injector is not None:
            self.injector.event(self.number)

    def note_write(self, nbytes: int, tensor: Tensor) -> None:
        self.note("writes")
        self.captures.written(tensor)
        self._counts["bytes_written"] += nbytes

    def note_read(self, nbytes: int, *, blocking: bool) -> None:
        self.note("blocking_reads" if blocking else "non_blocking_reads")
        self._counts["bytes_read"] += nbytes
        if blocking:
            self._counts["round_trips"] += 1

    def note_wait(self, kind: str) -> None:
        """An event for which the host waited."""
        self.note(kind)
        self._counts["round_trips"] += 1

    def record_ops(self, on: bool) -> None:
        """Begin to keep each op's name and its operands' labels, replayed ones too, or stop."""
        self._record = [] if on else None

    def recorded_ops(self) -> list[tuple[str, tuple[str, ...]]]:
        """Take what was kept so far, in the order of the host's calls."""
        taken, self._record = self._record or [], None if self._record is None else []
        return taken

    def note_op(self, name: str, dram_bytes: int = 0, flops: int = 0, operands: Sequence[Tensor] = ()) -> None:
        if self.capture is not None:
            self.capture.note_op(CapturedOp(name, dram_bytes, flops, operands))
            self.captures.call(f"op.{name}", operands)
            self.note("captured_ops")
            return
        if self._record is not None:
            self._record.append((name, tuple([operand.label for operand in operands])))
        self.number += 1
        self._ops[name] += 1
        self._dram_bytes += dram_bytes
        self._flops += flops
        if self.injector is not None:
            self.injector.event(self.number)
            self.injector.op(name)

    def note_replayed_op(self, op: CapturedOp) -> None:
        self._counts["replayed_ops"] += 1
        self.note_op(*op)

    def counts(self) -> Mapping[str, int]:
        totals = {"ops": self._ops.total(), "dram_bytes": self._dram_bytes, "flops": self._flops}
        return {**self._counts, **totals, **{f"op.{name}": count for name, count in self._ops.items()}}
