"""Host memory behind simulated DRAM: address space now, memory only where it is touched."""

from __future__ import annotations

import bisect
import mmap
import sys

from oracle.errors import UsageError

_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""Linux's MAP_NORESERVE (asm-generic/mman-common.h), which Python names from 3.13 on: a card's 34 GB must not be promised."""


def reserve(nbytes: int) -> mmap.mmap:
    """`nbytes` of zeroed, private, untouched memory.

    Raises:
        UsageError: the system grants no such address space.
    """
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(
            f"cannot reserve {nbytes} bytes of address space for simulated DRAM ({error}); "
            "use a smaller one, or lift `ulimit -v`"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # as numpy does for large arrays: a decode touches far more than 4 KiB pages cover
    return memory


class FreshRanges:
    """Which of `size` bytes nobody has had yet."""

    def __init__(self, size: int) -> None:
        self._ranges = [(0, size)]  # (start, end), by start, never overlapping

    def claim(self, start: int, end: int) -> list[tuple[int, int]]:
        """Those parts of `start` to `end` that are fresh; from now on they are not."""
        ranges = self._ranges
        first = bisect.bisect(ranges, (start + 1,)) - 1
        if first < 0 or ranges[first][1] <= start:
            first += 1
        last = first
        while last < len(ranges) and ranges[last][0] < end:
            last += 1
        if first == last:
            return []
        touched = ranges[first:last]
        rest = [(touched[0][0], start), (end, touched[-1][1])]
        ranges[first:last] = [(low, high) for low, high in rest if low < high]
        return [(max(low, start), min(high, end)) for low, high in touched]
