"""One decode step of `tt` on the simulated card at the release's widths: seconds per layer and token, memory, fills.

Four layers of the real geometry with random weights, three sliding and one full, 384 experts each, streamed through as many
slots a layer and memos as are given. Ids are greedy from a random one on. Random routers choose evenly, so that most experts of
a step are fills and nearly all memos are made anew; a real router's favourites would make steps cheaper.

The step is one thread's. Its mark is on CPU seconds, which are its wall time where nothing else runs, and holds for a machine
that counts to 20 million in a second (`.ci/run`): CPU seconds are shown as they are, and scaled to that. Shards are read once
before, so that they are in the page cache. Memory is what the process takes for itself; the checkpoint is mapped. No torch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from memory import process_memory
from scratch import make_checkpoint, progress, scratch_folder
from tables import Mark, print_marks, print_table

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import geometry
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.geometry import P150
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.settings import DecoderSettings

LAYERS = ["sliding_attention"] * 3 + ["full_attention"]
FOUR_LAYERS = geometry(layer_types=LAYERS)
FEW_WIDE = geometry(layer_types=LAYERS, num_experts=16, vocab_size=1024, hidden_size=512)
SLOTS, MEMOS = 45, 45
MOST_SECONDS, MOST_GB = 0.5, 8.0
POSITIONS = 1024
_COUNTED = ("fills", "memo_hits", "memo_misses", "device.ops", "device.bytes_written", "device.bytes_read")
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Step:
    """What one step took, and what it asked of the card."""

    wall: float
    cpu: float
    counts: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code: 1 where a mark is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="fewer and narrower experts, to try the script")
    parser.add_argument("--steps", type=int, default=12, help="steps that are measured (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=12, help="steps before them (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=SLOTS, help="a layer's (default: %(default)s)")
    parser.add_argument("--memos", type=int, default=MEMOS, help="of all layers together (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="a folder to write the checkpoint to and keep, or to take it from")
    given = parser.parse_args(arguments)
    config = FEW_WIDE if given.small else FOUR_LAYERS
    with scratch_folder() as folder:
        place = given.checkpoint or folder / "checkpoint"
        if not (place / "model.safetensors.index.json").exists():
            make_checkpoint(place, config, shards=4)
        read_shards(place)
        slower = slowness()
        with peak_memory() as peak:
            opened, steps = decode(Checkpoint.open(place), given)
    slots = f"{given.slots} slots a layer, {given.memos} memos in all, {given.warm_up} steps to warm up"
    marks = report(steps, peak, slower, f"{slots}, open after {opened:.1f} s")
    print_marks(marks, small=given.small)
    return 0 if given.small or all(mark.met for mark in marks) else 1


def decode(checkpoint: Checkpoint, given: argparse.Namespace) -> tuple[float, list[Step]]:
    """Seconds until the decoder is open, and the measured steps."""
    config = checkpoint.config
    slots = min(given.slots, config.num_experts)
    settings = DecoderSettings(
        DType.BFLOAT16, slots, given.memos * ExpertLayout.of(config).memo_bytes(DType.BFLOAT16), POSITIONS
    )
    begun = time.perf_counter()
    decoder = Decoder(SimDevice(dram=P150), config, checkpoint, CheckpointExperts(checkpoint), settings)
    opened = time.perf_counter() - begun
    progress(f"open after {opened:.1f} s")
    decoder.start()
    token, steps = int(np.random.default_rng(0).integers(config.vocab_size)), []
    before = dict(decoder.stats())
    for number in range(given.warm_up + given.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        token = int(decoder.step(token).logits.argmax())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = dict(decoder.stats())
        progress(f"step {number}: {wall:.2f} s")
        if number >= given.warm_up:
            steps.append(Step(wall, cpu, {name: count - before.get(name, 0) for name, count in after.items()}))
        before = after
    decoder.close()
    return opened, steps


def report(steps: list[Step], peak: dict[str, int], slower: float, setting: str) -> list[Mark]:
    """Print the figures, and return the marks.

    Args:
        slower: how many times as long as the machine of the marks this one takes.
    """
    layers = len(LAYERS)
    print(f"\n{setting}; this machine takes {slower:.2f} times as long as the one that the marks hold for.\n")
    rows = []
    cpu, wall = ([getattr(step, name) / layers for step in steps] for name in ("cpu", "wall"))
    for name, seconds in (("CPU", cpu), ("CPU, scaled", [second / slower for second in cpu]), ("wall", wall)):
        rows.append([name, f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"])
    print_table(["seconds per layer and token", "median", "worst"], rows)
    medians = {name: statistics.median(step.counts.get(name, 0) for step in steps) for name in _COUNTED}
    print_table(["in one step", "median"], [[name, f"{count:,.0f}"] for name, count in medians.items()])
    print_table(["peak", "GB"], [[name, f"{peak[name] / 1e9:.2f}"] for name in sorted(peak)])
    return [
        Mark("CPU seconds per layer and token, the worst step, scaled", max(cpu) / slower, MOST_SECONDS, at_most=True),
        Mark("GB of anonymous memory, the peak", peak["RssAnon"] / 1e9, MOST_GB, at_most=True),
    ]


def read_shards(checkpoint: Path) -> None:
    """Read all of them once."""
    for shard in checkpoint.glob("*.safetensors"):
        with shard.open("rb") as file:
            while file.read(1 << 24):
                pass


def slowness() -> float:
    """CPU seconds to count to 20 million, as `.ci/run` does by the clock of a quiet machine."""
    begun, total = time.process_time(), 0
    for number in range(20_000_000):
        total += number
    return time.process_time() - begun


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """The largest `RssAnon` and `RssFile` of this process within the block, sampled every 20 ms, and its `VmHWM`."""
    peak: dict[str, int] = {}
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            for name, size in process_memory().items():
                peak[name] = max(peak.get(name, 0), size)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        ended.set()
        sampler.join()


if __name__ == "__main__":
    sys.exit(main())
