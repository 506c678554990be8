"""A device that stands before another and hands every call on; what is derived from it changes or notes some of them."""

from __future__ import annotations

from typing import Any

from tt_impl.device.protocol import Device


class Passing:
    """See the header."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._device, name)
        if callable(found):  # a call leads to the same place for good; what it says of itself may change
            self.__dict__[name] = found
        return found
