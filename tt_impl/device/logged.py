"""What every device tells of its own event log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tt_impl.device.protocol import CaptureRecord

if TYPE_CHECKING:
    from tt_impl.device.sim.event_log import EventLog


class Logged:
    """A device that notes its events in `_log`; see `protocol.Device` for what each of these gives."""

    _log: EventLog

    @property
    def event_number(self) -> int:
        return self._log.number

    def event_counts(self) -> Mapping[str, int]:
        return self._log.counts()

    def record_ops(self, on: bool) -> None:
        self._log.record_ops(on)

    def recorded_ops(self) -> list[tuple[str, tuple[str, ...]]]:
        return self._log.recorded_ops()

    def captures(self) -> Sequence[CaptureRecord]:
        return self._log.captures.records()

    def forget_captures(self) -> None:
        self._log.captures.forget()
