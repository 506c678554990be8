"""DRAM: bytes at addresses, and the allocator that hands out buffers.

The allocator is the host's and acts at once; the bytes are the device's and change only as queued commands run.
"""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import Bytes, MemoryView
from tt_impl.device.sim.buffer import POISON, SENTINEL_BYTES, Buffer, FaultMaker, Place, Sentinels
from tt_impl.device.sim.free_list import FreeList
from tt_impl.device.sim.geometry import ALIGNMENT, DramGeometry
from tt_impl.device.sim.host_memory import FreshRanges, reserve

_MOST_PLACES = 1 << 14  # remembered; a decode takes a few hundred
_ROOM = 64  # host bytes beside each ALIGNMENT addresses of all banks: for sentinels, outside every budget


class Dram:
    """All banks, and their free `addresses`.

    A buffer's content is one run of host memory, page after page; how pages lie in banks only budgets know.

    Free memory is poison: a freed buffer is poisoned when the device is done with it, which is before anything enqueued by
    its successor on the same queue, and memory that was never handed out is poisoned when it first is.

    Args:
        latest: hand out first what was freed last.
    """

    def __init__(self, geometry: DramGeometry, fault: FaultMaker, *, latest: bool = False) -> None:
        self.geometry = geometry
        self._stride = ALIGNMENT * geometry.banks + _ROOM
        memory = reserve(geometry.usable_bank_bytes // ALIGNMENT * self._stride)
        self._memory: Bytes = np.frombuffer(memory, np.uint8)
        self.addresses = FreeList(geometry.usable_bank_bytes, latest=latest)
        self._fault = fault
        self._places: dict[tuple[int, int], Place] = {}  # since the same ones are taken again and again
        self._shares: dict[tuple[int, int], int] = {}
        self._count = 0
        self._fresh = FreshRanges(len(memory))
        self.live: dict[int, Buffer] = {}
        self.sentinels = Sentinels(memory, self.live, fault)

    def allocate(self, nbytes: int, page_bytes: int, label: str) -> Buffer:
        """Reserve `nbytes` in pages of `page_bytes`.

        Raises:
            DeviceFault: `out-of-memory`, with the bytes asked for, free, and free in one piece.
        """
        share = self._shares.get((nbytes, page_bytes))
        if share is None:
            share = self._shares[nbytes, page_bytes] = self.geometry.bank_share(nbytes, page_bytes)
        address = self.addresses.take(share)
        if address is None:
            view, banks = self.view(), self.geometry.banks
            each = f" ({share} in each of {banks} banks)" if banks > 1 else ""
            raise self._fault(
                "out-of-memory",
                f"{label} asked for {nbytes} bytes{each}; {view.free_bytes} of {view.total_bytes} are free, the largest piece "
                f"{view.largest_free_bytes}; lower the slot or memo capacity, or give the device more DRAM",
            )
        start = address // ALIGNMENT * self._stride + _ROOM // 2
        place = self._places.get((start, nbytes)) or self._new_place(start, nbytes)
        self._count += 1
        buffer = self.live[self._count] = Buffer(self._count, address, share, place, label, self.sentinels)
        return buffer

    def _new_place(self, start: int, nbytes: int) -> Place:
        """A place that was not taken before, or long ago; what of it nobody has had yet is poisoned."""
        for low, high in self._fresh.claim(start - SENTINEL_BYTES, start + nbytes + SENTINEL_BYTES + nbytes % 2):
            self._memory[low:high].view(np.uint16).fill(POISON)
        if len(self._places) >= _MOST_PLACES:
            self._places.clear()
        place = self._places[start, nbytes] = Place(self._memory, start, nbytes)
        return place

    def free(self, buffer: Buffer, op: str, event: int) -> None:
        """The host gives `buffer` up at event number `event`; its addresses are not free yet.

        Raises:
            DeviceFault: `double-free`, naming the buffer and `op`.
        """
        if not buffer.is_allocated:
            raise self._fault("double-free", f"{op} of {buffer}, which was deallocated at event {buffer.freed_at}")
        buffer.is_allocated = False
        buffer.freed_at = event
        del self.live[buffer.identity]

    def write_past(self, buffer: Buffer, offset: int, data: bytes) -> None:
        """Write at `offset` from the buffer's start, wherever that leads: what a kernel with a wrong address does."""
        buffer.changed()  # before, so that its sentinels stand when they are overwritten
        at = buffer.start + offset
        room = self._memory[at : at + len(data)]
        room[:] = np.frombuffer(data, np.uint8)[: room.size]
        for other in self.live.values():
            other.decoded = None

    def view(self) -> MemoryView:
        banks, sizes = self.geometry.banks, self.addresses.sizes()
        total, free = self.geometry.usable_bytes, sum(sizes) * banks
        return MemoryView(total, total - free, free, max(sizes, default=0) * banks)
