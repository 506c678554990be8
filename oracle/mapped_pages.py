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
    """Give back the pages of those among `values` that are arrays of a file mapped read-only; all else stays as it is.

    Whole pages go, so neighbours lose some of theirs too. An array that is not one stretch of its file keeps its pages.
    """
    if _DROP is None:
        return
    for array in values:
        if isinstance(array, np.ndarray) and array.nbytes and array.flags.forc and (mapping := _mapping(array)) is not None:
            start = _address(array) - _address(np.frombuffer(mapping, dtype=np.uint8))
            page = start - start % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # only advice: pages that the kernel wants to keep stay
                mapping.madvise(_DROP, page, start + array.nbytes - page)


def parts(content: memoryview) -> Iterator[memoryview]:
    """`content` part by part; the pages of each are given back when the next is asked for."""
    for start in range(0, len(content), _PART_BYTES):
        part = content[start : start + _PART_BYTES]
        yield part
        give_back([np.frombuffer(part, dtype=np.uint8)])


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The map that the array is a view of, or None. Only a read-only one: of any other, changes would be lost."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) and memoryview(owner).readonly else None


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
