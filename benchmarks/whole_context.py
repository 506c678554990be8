"""A sequence of `tt` to the end of its KV cache, beside the reference's one pass over it.

A tiny random model decodes 4,096 ids in its exact arm, so that sliding layers' rings of blocks wrap over a hundred times. The
reference keeps no blocks: residual streams and logits must agree at every position within float32's noise, whatever the expert
sets, and one more id must be refused. Where sets differ, in a near tie of the router, that position is counted and left out.
Times are printed for the first and the last positions: a step costs what it sees. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tables import print_table

from oracle.errors import UsageError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import TINY, write_synthetic
from tt_impl.arms import ARMS
from tt_impl.decode import Decoder
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.plans.kv_plan import MAX_CONTEXT

TOLERANCE = 1e-4
"""Of the largest residual or logit of a position: float32 over 4,096 keys. A key too many or too few is 1e-2 and more."""


@dataclass
class Compared:
    """Attributes:
    worst: largest difference of residual streams or logits, relative to the position's largest value.
    near_ties: positions where expert sets differ.
    seconds: of each step.
    refused: what the step after the last said.
    """

    worst: float
    worst_at: int
    near_ties: int
    seconds: list[float]
    refused: str


def compare(folder: Path, length: int, arm: str = "exact") -> Compared:
    """Decode `length` random ids to the very end of a cache of as many positions, and set the reference beside it."""
    checkpoint = Checkpoint.open(write_synthetic(folder / "tiny", {**TINY, "max_position_embeddings": length}, seed=3))
    config = checkpoint.config
    ids = np.random.default_rng(5).integers(0, config.vocab_size, length).tolist()
    reference = Reference(checkpoint)
    truth = reference.forward(ids, reference.new_cache())
    sets = truth.expert_ids.numpy()
    decoder = Decoder(SimDevice(), config, checkpoint, CheckpointExperts(checkpoint), ARMS[arm].settings(config))
    worst, near_ties, seconds, refused = (0.0, -1), 0, [], ""
    for position, token in enumerate(ids):
        began = time.perf_counter()
        step = decoder.step(token)
        seconds.append(time.perf_counter() - began)
        assert step.residual is not None
        assert step.expert_ids is not None
        if any(set(a) != set(b) for a, b in zip(sets[position].tolist(), step.expert_ids.tolist(), strict=True)):
            near_ties += 1
            continue
        pairs = ((truth.residual[position].numpy(), step.residual), (truth.logits[position].numpy(), step.logits))
        off = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)
        worst = max(worst, (off if np.isfinite(off) else np.inf, position))
    try:
        decoder.step(ids[0])
    except UsageError as error:
        refused = str(error)
    return Compared(*worst, near_ties, seconds, refused)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("length", type=int, nargs="?", default=MAX_CONTEXT, help=f"positions; default {MAX_CONTEXT}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), arguments.length)
    first, last = (1e3 * float(np.median(part)) for part in (found.seconds[:64], found.seconds[-64:]))
    rows = [
        ["positions", f"{len(found.seconds):,}"],
        ["of them with other expert sets", str(found.near_ties)],
        ["largest difference", f"{found.worst:.1e} at position {found.worst_at}"],
        ["ms a step, first 64 and last 64", f"{first:.1f}, {last:.1f}"],
        ["one more", found.refused or "NOT REFUSED"],
    ]
    print_table(["exact arm", ""], rows)
    return int(found.worst > TOLERANCE or not found.refused or found.near_ties > len(found.seconds) // 100)


if __name__ == "__main__":
    sys.exit(main())
