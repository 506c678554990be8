"""What the machine can do: read bandwidth, idle time, threads. Linux (`/proc`)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

GB = 1e9


def thread_environment(threads: int) -> dict[str, str]:
    """The environment in which every library of a peer starts with that many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return os.environ | dict.fromkeys(names, str(threads))


def read_bandwidth(gigabytes: float, rounds: int) -> float:
    """GB/s at which numba's threads together read a buffer once, start to end: the best of `rounds` passes.

    Every thread adds up its own contiguous part of 64-bit words, a loop that LLVM vectorizes and memory alone bounds.
    """
    words = np.arange(int(gigabytes * GB) // 8, dtype=np.uint64)
    _sums(words[:4096])  # compiles
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        _sums(words)
        best = min(best, time.perf_counter() - begun)
    return words.nbytes / best / GB


@numba.njit(parallel=True)
def _sums(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    threads = numba.get_num_threads()
    sums = np.zeros(threads, np.uint64)
    part = len(words) // threads
    for thread in numba.prange(threads):
        total = np.uint64(0)
        for word in words[thread * part : (thread + 1) * part]:
            total += word
        sums[thread] = total
    return sums


def busy_share(seconds: float = 1.0) -> float:
    """The part of all cores' time that is not idle, over `seconds` in which this process sleeps."""

    def times() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all, idle and waiting for a disk

    total, idle = times()
    time.sleep(seconds)
    later_total, later_idle = times()
    return 1 - (later_idle - idle) / max(1, later_total - total)
