"""A two-layer decode under many seeds of the simulated device's random schedule: one result, in how many seconds.

Every seed must give the bytes that `lazy` gives: chain, logits, router and residual stream of each step. The mark is a
minute for 200 seeds on one core. No torch.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from scratch import scratch_folder
from tables import Mark, print_marks

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.subjects.protocol import StepEvidence
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.settings import DecoderSettings

SEEDS = 200
MOST_SECONDS = 60.0
PROMPT = (5, 17, 80, 3)
STEPS = 14  # past the tiny window of 9


def two_layers(folder: Path) -> Checkpoint:
    """A random checkpoint of one sliding and one full layer, written to `folder`."""
    config = TINY | {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
    return Checkpoint.open(write_synthetic(folder, config))


def decode(checkpoint: Checkpoint, schedule: str) -> tuple[list[int], str]:
    """The free-running chain of ids under a schedule, and a digest of everything that its steps show.

    With as few slots and memos as a step allows, so that every step evicts, fills and frees.
    """
    config = checkpoint.config
    settings = DecoderSettings(
        DType.BFLOAT16, config.num_experts_per_tok, 2 * ExpertLayout.of(config).memo_bytes(DType.BFLOAT16), 32
    )
    device = SimDevice(schedule=schedule_named(schedule))
    decoder = Decoder(device, config, checkpoint, CheckpointExperts(checkpoint), settings)
    decoder.start()
    digest = hashlib.sha256()
    ids: list[int] = list(PROMPT)
    for position in range(STEPS):
        step = decoder.step(ids[position])
        for shown in (getattr(step, field.name) for field in fields(StepEvidence)):
            digest.update(b"" if shown is None else np.asarray(shown).tobytes())
        if position + 1 == len(ids):
            ids.append(int(step.logits.argmax()))
    decoder.close()
    return ids, digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code: 1 for a seed that differs, or too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0 (default: %(default)s)")
    given = parser.parse_args(arguments)
    with scratch_folder() as folder:
        checkpoint = two_layers(folder / "two-layers")
        expected = decode(checkpoint, "lazy")
        begun = time.process_time()
        differing = [seed for seed in range(given.seeds) if decode(checkpoint, f"random:{seed}") != expected]
        seconds = time.process_time() - begun
    for seed in differing:
        print(f"random:{seed} differs from lazy")
    mark = Mark(f"CPU seconds, {SEEDS} seeds of {STEPS} steps", seconds * SEEDS / given.seeds, MOST_SECONDS, at_most=True)
    print_marks([mark], small=given.seeds < SEEDS)
    return 0 if not differing and (mark.met or given.seeds < SEEDS) else 1


if __name__ == "__main__":
    sys.exit(main())
