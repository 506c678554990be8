"""What each lever of `tt` costs or saves in transfers: the table of `docs/arms.md`.

Three prompts of the shipped golden, teacher-forced from cold slots, by each arm with at most one lever off its default, and
by the pair that a port began with: a wait behind each fill, and the slot read again for each dequantization.
Counts, no times: the same on every machine but where a near tie of the router falls otherwise. Exit code 1 if an arm's
logits are not its base's, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter

from tables import print_table

from goldens import mini_checkpoint
from oracle.golden.format import load_golden
from oracle.subjects.protocol import SubjectRequest
from tt_impl.arms import ARMS, Arm
from tt_impl.subject import FACTORY

PROMPTS = ("copying", "digits", "one-id")
BEGINNING = (("drain", "fill"), ("dequant", "reread"))


def walked(arm: Arm) -> tuple[Counter[str], str]:
    """Counters summed over the prompts, and a digest of all logits."""
    golden = load_golden(mini_checkpoint() / "golden")
    subject = FACTORY.open(SubjectRequest(mini_checkpoint(), arm=arm.name))
    counts: Counter[str] = Counter()
    shown = hashlib.sha256()
    for prompt in golden.prompts:
        if prompt.name in PROMPTS:
            subject.reset()
            subject.start()
            for token in prompt.fed:
                shown.update(subject.step(token).logits.tobytes())
            counts.update(subject.stats())
    subject.close()
    return counts, shown.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", choices=("bf16", "exact"), default="bf16")
    base = parser.parse_args().base
    arms = [arm for arm in ARMS.values() if arm.base == base and (len(arm.levers) < 2 or arm.levers == BEGINNING)]
    results = {arm.name: walked(arm) for arm in arms}
    rows = []
    for name, (counts, digest) in results.items():
        steps = counts["steps"]
        per_step = [f"{counts[count] / steps:.2f}" for count in ("round_trips", "drains", "fills", "memo_misses")]
        megabytes = [f"{counts[count] / steps / 1e6:.3f}" for count in ("bytes_written", "bytes_read")]
        equal = "yes" if digest == results[base][1] else "NO"
        rows.append([f"`{name}`", *per_step, *megabytes, f"{counts['verified_bytes'] / counts['staged_bytes']:.0%}", equal])
    print(f"{steps} steps of the prompts {', '.join(PROMPTS)}\n")
    head = ["per step", "round trips", "drains", "fills", "memo misses", "MB written", "MB read", "verified", "logits equal"]
    print_table(head, rows)
    return int(any(digest != results[base][1] for _, digest in results.values()))


if __name__ == "__main__":
    sys.exit(main())
