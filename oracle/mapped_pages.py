"""Pages of mapped files, given back to the kernel once they were looked at.

A page of a mapped file counts as the process's memory from the first look on, although the kernel could take it back: a golden
and two runs of 65,536 positions once came to 2.1 GB of it. Giving a page back loses nothing. Its values are read from the file
again, mostly from the kernel's cache, as soon as somebody looks. Where the system has no `madvise`, pages stay.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Iterator

import numpy as np

_PART_BYTES = 1 << 24
_DROP: int | None = getattr(mmap, "MADV_DONTNEED", None)


def give_back(values: Iterable[object]) -> None:
    """Give back all pages of each read-only map that an array among `values` is a view of; all else stays as it is.

    All, since to find out which pages an array has costs more than to read those again that a neighbour looks at next.
    """
    if _DROP is None:
        return
    maps = {id(found): found for value in values if (found := _map_of(value)) is not None}
    for found in maps.values():
        with contextlib.suppress(OSError):  # only advice: pages that the kernel wants to keep stay
            found.madvise(_DROP)


def parts(content: memoryview) -> Iterator[memoryview]:
    """`content` part by part; its pages are given back when the next is asked for."""
    for start in range(0, len(content), _PART_BYTES):
        yield content[start : start + _PART_BYTES]
        give_back([content])


def _map_of(value: object) -> mmap.mmap | None:
    """The map that an array or a memoryview looks at, or None. Only a read-only one: of any other, changes would be lost."""
    while isinstance(value, np.ndarray):
        value = value.base
    if isinstance(value, memoryview):
        value = value.obj
    return value if isinstance(value, mmap.mmap) and memoryview(value).readonly else None
