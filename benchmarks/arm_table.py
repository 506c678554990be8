"""What each lever of `tt` costs or saves: the table of `docs/arms.md`.

Three prompts of the shipped golden, teacher-forced from cold slots, by each arm with at most one lever off its default, and
by the pair that a port began with: a wait behind each fill, and the slot read again for each dequantization.
Counts, and modelled device time by the cost model: the same on every machine but where a near tie of the router falls
otherwise. `logits` is a digest of all logits, cut to twelve digits. Exit code 1 if an arm's are not its base's, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from dataclasses import dataclass

from tables import print_table

from goldens import mini_checkpoint
from oracle.golden.format import load_golden
from oracle.subjects.modelled_time import total_ns
from oracle.subjects.protocol import SubjectRequest
from tt_impl.arms import ARMS, Arm
from tt_impl.subject import FACTORY

PROMPTS = ("copying", "digits", "one-id")
BEGINNING = (("drain", "fill"), ("dequant", "reread"))


@dataclass(frozen=True)
class Walked:
    """Counters and modelled milliseconds summed over the prompts, and a digest of all logits."""

    counts: Counter[str]
    modelled_ms: float
    digest: str


def walked(arm: Arm) -> Walked:
    golden = load_golden(mini_checkpoint() / "golden")
    subject = FACTORY.open(SubjectRequest(mini_checkpoint(), arm=arm.name))
    counts: Counter[str] = Counter()
    shown = hashlib.sha256()
    subject.model_time(True)
    for prompt in golden.prompts:
        if prompt.name in PROMPTS:
            subject.reset()
            subject.start()
            for token in prompt.fed:
                shown.update(subject.step(token).logits.tobytes())
            counts.update(subject.stats())
    modelled_ms = total_ns(subject.modelled_ns()) / 1e6
    subject.close()
    return Walked(counts, modelled_ms, shown.hexdigest())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", choices=("bf16", "exact"), default="bf16")
    base = parser.parse_args().base
    arms = [arm for arm in ARMS.values() if arm.base == base and (len(arm.levers) < 2 or arm.levers == BEGINNING)]
    results = {arm.name: walked(arm) for arm in arms}
    rows = []
    for name, arm in results.items():
        counts = arm.counts
        steps = counts["steps"]
        per_step = [f"{counts[count] / steps:.2f}" for count in ("round_trips", "drains", "fills", "memo_misses")]
        megabytes = [f"{counts[count] / steps / 1e6:.3f}" for count in ("bytes_written", "bytes_read")]
        enqueued = f"{(counts['device.ops'] - counts['device.replayed_ops']) / steps:.0f}"
        verified = f"{counts['verified_bytes'] / counts['staged_bytes']:.0%}"
        cells = [*per_step, *megabytes, enqueued, f"{arm.modelled_ms / steps:.3f}", verified, arm.digest[:12]]
        rows.append([f"`{name}`", *cells])
    print(f"{steps} steps of the prompts {', '.join(PROMPTS)}\n")
    costs = ["round trips", "drains", "fills", "memo misses", "MB written", "MB read", "ops enqueued", "modelled ms"]
    print_table(["per step", *costs, "verified", "logits"], rows)
    if different := [name for name, arm in results.items() if arm.digest != results[base].digest]:
        print(f"\nWRONG logits are not those of {base}: {', '.join(different)}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
