"""Which addresses are free, and which of them the next allocation gets."""

from __future__ import annotations

import bisect


class FreeList:
    """Free ranges of `size` addresses. First fit, lowest address; or `latest`: what was freed last, if it fits.

    Either way freed addresses are handed out again soon, so that anything keyed by address, or used past its lifetime,
    meets other bytes; `latest` does so at once.
    """

    def __init__(self, size: int, *, latest: bool = False) -> None:
        self._free: list[tuple[int, int]] = [(0, size)]  # (address, size), by address, never adjacent
        self._latest = latest
        self._returned: list[tuple[int, int]] = []  # in order of time; some may be taken again by now

    def take(self, size: int) -> int | None:
        """The address of `size` that were free, or None."""
        if self._latest:
            address = self._take_latest(size)
            if address is not None:
                return address
        free = self._free
        for index, (address, available) in enumerate(free):
            if available >= size:
                if available == size:
                    del free[index]
                else:
                    free[index] = (address + size, available - size)
                return address
        return None

    def give(self, address: int, size: int) -> None:
        """Take a range back, merging it with free neighbours."""
        if self._latest:
            self._returned.append((address, size))
        free = self._free
        start, end = address, address + size
        index = bisect.bisect(free, (start, 0))
        if index < len(free) and free[index][0] == end:
            end += free.pop(index)[1]
        if index:
            before, length = free[index - 1]
            if before + length == start:
                index -= 1
                start = before
                del free[index]
        free.insert(index, (start, end - start))

    def sizes(self) -> list[int]:
        return [size for _, size in self._free]

    def _take_latest(self, size: int) -> int | None:
        for at in range(len(self._returned) - 1, -1, -1):
            address, length = self._returned[at]
            if length >= size:
                del self._returned[at]
                if self._carve(address, size):
                    return address
        return None

    def _carve(self, address: int, size: int) -> bool:
        """Take exactly this range, if all of it is free."""
        free = self._free
        index = bisect.bisect(free, (address + 1, 0)) - 1
        if index < 0:
            return False
        start, length = free[index]
        end = start + length
        if end < address + size:
            return False
        free[index : index + 1] = [
            piece for piece in ((start, address - start), (address + size, end - address - size)) if piece[1]
        ]
        return True
