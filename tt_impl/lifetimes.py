"""When the decoder's intermediate tensors die: at the end of the block that made them, also when it fails."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from tt_impl.device.protocol import Device, Tensor

_T = TypeVar("_T", bound=Tensor)


class Scratch:
    """Deallocates every tensor given to `own` when its `with` block ends. Work already enqueued is not disturbed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tensors: list[Tensor] = []

    def own(self, tensor: _T) -> _T:
        """Take responsibility for `tensor`, and hand it back."""
        self._tensors.append(tensor)
        return tensor

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Deallocate them now; more may be owned afterwards."""
        deallocate, tensors = self._device.deallocate, self._tensors
        while tensors:
            deallocate(tensors.pop())
