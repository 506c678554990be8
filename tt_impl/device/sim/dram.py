"""DRAM: bytes at addresses, and the allocator that hands out buffers.

The allocator is the host's and acts at once; the bytes are the device's and change only as queued commands run.
Freed addresses are reused by the very next allocation that fits (first fit, lowest address), so that anything keyed by
address, or used past its lifetime, meets other bytes soon.
"""

from __future__ import annotations

import bisect

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Bytes, MemoryView

ALIGNMENT = 64  # DRAM read alignment of a Blackhole, in bytes.

POISON = 0x7FFF
"""What free memory holds, as 16-bit words: NaN in bfloat16, float32 and e4m3, so that arithmetic on it shows."""


class Buffer:
    """One allocation.

    Attributes:
        identity: counts allocations of this device, from 1.
        address, nbytes: where and how much; `bytes` is that range, `reserved` the same rounded up to `ALIGNMENT`.
        is_allocated: the host's view; commands enqueued before the free may still touch the bytes.
        generation: how often the bytes have changed on the device.
        host_writes: how many of those were writes from the host.
        decoded: the float32 values of the present bytes, or None; dropped with every change.
    """

    __slots__ = (
        "address", "bytes", "decoded", "generation", "host_writes", "identity", "is_allocated", "label", "nbytes", "reserved"
    )  # fmt: skip

    def __init__(self, identity: int, address: int, nbytes: int, label: str, reserved: Bytes) -> None:
        self.identity = identity
        self.address = address
        self.nbytes = nbytes
        self.label = label
        self.reserved = reserved
        self.bytes = reserved if reserved.size == nbytes else reserved[:nbytes]
        self.is_allocated = True
        self.generation = 0
        self.host_writes = 0
        self.decoded: npt.NDArray[np.float32] | None = None

    def changed(self) -> None:
        """Note that the bytes are no longer what they were."""
        self.generation += 1
        self.decoded = None

    def poison(self) -> None:
        """Overwrite all reserved bytes."""
        self.reserved.view(np.uint16).fill(POISON)
        self.changed()


class Dram:
    """`capacity` bytes of device memory and its free list.

    Free memory is poison: a freed buffer is poisoned by the queued command of its deallocation, which runs before anything
    enqueued by its successor, and memory that was never handed out is poisoned when it first is.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity - capacity % ALIGNMENT
        self._bytes: Bytes = np.empty(self.capacity, np.uint8)
        self._free: list[tuple[int, int]] = [(0, self.capacity)]  # (address, size), by address, never adjacent
        self._count = 0
        self._touched = 0  # every address from here on has never been handed out

    def allocate(self, nbytes: int, label: str) -> Buffer:
        """Reserve `nbytes`.

        Raises:
            DeviceFault: `out-of-memory`, with the bytes asked for, free, and free in one piece.
        """
        size = _aligned(nbytes)
        free = self._free
        for index, (address, available) in enumerate(free):
            if available >= size:
                if available == size:
                    del free[index]
                else:
                    free[index] = (address + size, available - size)
                end = address + size
                if end > self._touched:
                    self._bytes[self._touched : end].view(np.uint16).fill(POISON)
                    self._touched = end
                self._count += 1
                return Buffer(self._count, address, nbytes, label, self._bytes[address:end])
        view = self.view()
        raise DeviceFault(
            "out-of-memory",
            f"{label} asked for {nbytes} bytes; {view.free_bytes} of {view.total_bytes} are free, the largest piece "
            f"{view.largest_free_bytes}; lower the slot or memo capacity, or give the device more DRAM",
        )

    def free(self, buffer: Buffer, op: str) -> None:
        """Return a buffer's range, merging it with free neighbours.

        Raises:
            DeviceFault: `double-free`, naming the buffer and `op`.
        """
        if not buffer.is_allocated:
            raise DeviceFault("double-free", f"{op} of {buffer.label} (buffer {buffer.identity}), which is already free")
        buffer.is_allocated = False
        free = self._free
        start, end = buffer.address, buffer.address + buffer.reserved.size
        index = bisect.bisect(free, (start, 0))
        if index < len(free) and free[index][0] == end:
            end += free.pop(index)[1]
        if index:
            address, size = free[index - 1]
            if address + size == start:
                index -= 1
                start = address
                del free[index]
        free.insert(index, (start, end - start))

    def view(self) -> MemoryView:
        sizes = [size for _, size in self._free]
        return MemoryView(self.capacity, self.capacity - sum(sizes), sum(sizes), max(sizes, default=0))


def _aligned(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
