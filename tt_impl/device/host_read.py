"""The host's end of a device-to-host transfer: a destination that must not be looked at before it has settled."""

from __future__ import annotations

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Bytes

HOST_POISON = 0xDB
"""In a destination until its read has settled."""


class HostRead:
    """See `protocol.ReadHandle`. `destination` is poisoned at once; without one, whoever settles the read gives it its own."""

    def __init__(self, label: str, destination: Bytes | None) -> None:
        self.label = label
        self.destination = destination
        self._event: int | None = None
        if destination is not None:
            destination.fill(HOST_POISON)

    @property
    def settled(self) -> bool:
        return self._event is not None

    @property
    def event(self) -> int:
        if self._event is None:
            raise self._unsettled()
        return self._event

    def bytes(self) -> Bytes:
        _ = self.event
        assert self.destination is not None, "settled, and nothing arrived"
        return self.destination

    def _unsettled(self) -> DeviceFault:
        return DeviceFault("unsettled-read", f"the read of {self.label} was used before anything settled it")
