"""The device's own record of what it was asked to do: counted here, never by the decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class EventLog:
    """Counters over all events, and the number of the latest one.

    Counters: `allocations`, `deallocations`, `writes`, `bytes_written`, `blocking_reads`, `non_blocking_reads`, `bytes_read`,
    `synchronizes`, `events_recorded`, `round_trips` (calls that waited for the device), `ops`, and `op.NAME` per op.
    Bytes are packed bytes, padding included.
    """

    def __init__(self) -> None:
        self.number = 0
        self._counts: Counter[str] = Counter()
        self._ops: Counter[str] = Counter()

    def note(self, kind: str) -> None:
        """One more event."""
        self.number += 1
        self._counts[kind] += 1

    def note_write(self, nbytes: int) -> None:
        self.note("writes")
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

    def note_op(self, name: str) -> None:
        self.number += 1
        self._ops[name] += 1

    def counts(self) -> Mapping[str, int]:
        return {**self._counts, "ops": self._ops.total(), **{f"op.{name}": count for name, count in self._ops.items()}}
