"""Runs 8,192 tokens in a process of its own: `python long_context.py CHECKPOINT OUT CHUNK` prints what it took, as JSON.

The prompt goes through `stream` in passes of CHUNK, the last 192 tokens one by one. Every position's logits are saved to OUT.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

TOKENS, DECODED = 8192, 192


def long_ids(vocabulary: int) -> list[int]:
    import numpy as np

    return np.random.default_rng(23).integers(0, vocabulary, TOKENS).tolist()


def anonymous_bytes() -> int:
    """Resident anonymous memory of this process: what is allocated, not what is mapped from files."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class Peak:
    """The largest anonymous memory seen, asked for every 2 ms on a thread: the kernels hold no lock."""

    def __init__(self) -> None:
        self.bytes, self._done = anonymous_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.bytes = max(self.bytes, anonymous_bytes())

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self.bytes, anonymous_bytes())


def measure(folder: Path, chunk: int) -> tuple[dict[str, Any], Any]:
    """What it took and the logits [TOKENS, V]."""
    import numba
    import torch

    from oracle.kolibri1.checkpoint import Checkpoint
    from oracle.kolibri1.reference import NO_TAPS, Reference

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    reference = Reference(Checkpoint.open(folder))
    ids = long_ids(reference.config.vocab_size)
    logits = torch.full((TOKENS, reference.config.vocab_size), float("nan"))
    reference.forward(ids[:600], reference.new_cache(), taps=NO_TAPS)  # compiled, mapped, and torch's pools filled
    reference.forward(ids[:1], reference.new_cache(), taps=NO_TAPS)
    before, peak = anonymous_bytes(), Peak()
    cache, position = reference.new_cache(), 0
    for part in reference.stream(ids[:-DECODED], cache, chunk=chunk, taps=NO_TAPS):
        logits[position : position + len(part)] = part.logits
        position += len(part)
    while position < TOKENS:
        logits[position] = reference.forward(ids[position : position + 1], cache, taps=NO_TAPS).logits[0]
        position += 1
    taken = {
        "grown": peak.stop() - before,
        "cache": cache.nbytes(),
        "held": [layer.keys.shape[1] for layer in cache.layers],
        "first": [layer.first for layer in cache.layers],
    }
    return taken, logits


if __name__ == "__main__":
    from safetensors.torch import save_file

    taken, logits = measure(Path(sys.argv[1]), int(sys.argv[3]))
    save_file({"logits": logits}, sys.argv[2])
    print(json.dumps(taken))
