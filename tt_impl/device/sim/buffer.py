"""A buffer in simulated DRAM, and the sentinels that stand before and behind it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Bytes, DType, HostArray, Layout

POISON = 0x7FFF
"""What free memory holds, as 16-bit words: NaN in bfloat16, float32 and e4m3, so that arithmetic on it shows."""

SENTINEL = np.array([0xFFFF, 0x7FFF, 0x7FFF, 0xFFFF] * 2, np.uint16).tobytes()
"""NaN in every format too: memory that held one is as good as poisoned when it is handed out again."""

SENTINEL_BYTES = len(SENTINEL)

FaultMaker = Callable[[str, str], DeviceFault]
"""From kind and text to a fault that also says when, and under which schedule."""


class Place:
    """One stretch of host memory that buffers lie in, one after the other, and the views that all of them use.

    Attributes:
        few_rows: those of `layout.few_rows`, by shape, dtype and layout, for whoever makes them.
    """

    __slots__ = ("content", "few_rows", "nbytes", "start", "words")

    def __init__(self, memory: Bytes, start: int, nbytes: int) -> None:
        self.start = start
        self.nbytes = nbytes
        self.content = memory[start : start + nbytes]
        self.words = self.content[: nbytes & -2].view(np.uint16)
        self.few_rows: dict[tuple[tuple[int, ...], DType, Layout], HostArray | None] = {}

    def poison(self) -> None:
        """Overwrite all of it."""
        self.words.fill(POISON)
        if self.nbytes & 1:
            self.content[-1] = POISON & 0xFF


class Buffer:
    """One allocation.

    Attributes:
        identity: counts allocations of this device, from 1.
        address, share: where it lies in each bank, and how many bytes of each bank it takes.
        place, start: where it lies in host memory.
        nbytes, bytes: its content, as the device holds it now.
        is_allocated: the host's view; commands enqueued before the free may still touch the bytes.
        generation: how often the bytes have changed on the device.
        host_writes, host_reads: transfers of it that have run, faulty ones included.
        used: for each command queue, the position of the last command that uses it.
        touched, armed: it was written since its sentinels were last looked at; it has sentinels.
        owner: the trace it was allocated in, which frees its memory; None otherwise.
        decoded: the float32 values of the present bytes, or None; dropped with every change.
    """

    is_allocated = True
    freed_at = 0
    generation = 0
    host_writes = 0
    host_reads = 0
    owner: object | None = None
    armed = False
    touched = False
    decoded: npt.NDArray[np.float32] | None = None

    def __init__(self, identity: int, address: int, share: int, place: Place, label: str, sentinels: Sentinels) -> None:
        self.identity = identity
        self.address = address
        self.share = share
        self.place = place
        self.start = place.start
        self.bytes = place.content
        self.nbytes = place.nbytes
        self.label = label
        self.used = [0, 0]
        self._sentinels = sentinels

    def __str__(self) -> str:
        return f"{self.label} (buffer {self.identity})"

    def changed(self) -> None:
        """Note that the bytes are no longer what they were."""
        self.generation += 1
        self.decoded = None
        if not self.touched:
            self._sentinels.touch(self)

    def poison(self) -> None:
        """Overwrite all bytes: what a free does once the device gets there.

        Raises:
            DeviceFault: `sentinel`.
        """
        if self.touched and self.armed:
            self._sentinels.check(self, "deallocate")
        self.armed = False  # from here on the place is another's
        self.place.poison()
        self.generation += 1
        self.decoded = None


class Sentinels:
    """Sixteen known bytes before and behind every buffer that was written, in host memory that no budget counts.

    They are set as a buffer's first write lands, which is when its predecessors' work at that place should be done, and
    looked at when it is freed and whenever something settles; only buffers written since the last look are looked at.

    Args:
        memory: the host memory behind all banks.
        live: every buffer that the host holds, by identity.
    """

    def __init__(self, memory: mmap.mmap, live: dict[int, Buffer], fault: FaultMaker) -> None:
        self._memory = memory
        self._live = live
        self._fault = fault
        self._touched: list[Buffer] = []

    def touch(self, buffer: Buffer) -> None:
        """`buffer` was written: set its sentinels if this is the first time, and look at them at the next settling."""
        buffer.touched = True
        self._touched.append(buffer)
        if not buffer.armed:
            self._arm(buffer)

    def _arm(self, buffer: Buffer) -> None:
        start, end = buffer.start, buffer.start + buffer.nbytes
        self._memory[start - SENTINEL_BYTES : start] = SENTINEL
        self._memory[end : end + SENTINEL_BYTES] = SENTINEL
        buffer.armed = True

    def check_touched(self, when: str) -> None:
        """Look at every buffer written since the last time.

        Raises:
            DeviceFault: `sentinel`.
        """
        touched, self._touched = self._touched, []
        for buffer in touched:
            buffer.touched = False
        memory, size = self._memory, SENTINEL_BYTES
        for buffer in touched:
            start = buffer.start
            end = start + buffer.nbytes
            if buffer.armed and (memory[start - size : start] != SENTINEL or memory[end : end + size] != SENTINEL):
                self.check(buffer, when)

    def check(self, buffer: Buffer, when: str) -> None:
        """Look at the sentinels of one buffer that has them, and set them again when they are reported.

        Raises:
            DeviceFault: `sentinel`, naming the buffer and its neighbour on that side.
        """
        memory, start, size = self._memory, buffer.start, SENTINEL_BYTES
        end = start + buffer.nbytes
        before, behind = memory[start - size : start], memory[end : end + size]
        if before == SENTINEL and behind == SENTINEL:
            return
        self._arm(buffer)
        side, found = ("before", before) if before != SENTINEL else ("behind", behind)
        count = sum(a != b for a, b in zip(found, SENTINEL, strict=True))
        neighbour = self._neighbour(buffer, side)
        raise self._fault(
            "sentinel",
            f"{count} of {size} bytes {side} {buffer} at address {buffer.address:#x} were overwritten, seen at {when}; on that "
            f"side lies {neighbour or 'no other buffer'}; something wrote past its buffer, or did not wait for the other queue",
        )

    def _neighbour(self, buffer: Buffer, side: str) -> Buffer | None:
        others: Iterable[Buffer] = self._live.values()
        if side == "behind":
            return min((b for b in others if b.address > buffer.address), key=lambda b: b.address, default=None)
        return max((b for b in others if b.address < buffer.address), key=lambda b: b.address, default=None)
