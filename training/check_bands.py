"""Check the bands on prompts that no multiple was set on: `python training/check_bands.py CHECKPOINT` (4 minutes on one core).

Fresh beginnings of texts are continued by the reference and compared with every floor arm of a class. Then many goldens are
drawn: 17 of these prompts each, without choosing. Every golden is calibrated, so that each of its arms is held out and judged
by what the others allow: an honest arm that fails makes the golden one that `golden make` would refuse. What is printed shows
how much room the multiples leave; the exit code is 1 where a golden is refused.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from choose_prompts import beginnings, continued
from tokenizers import Tokenizer

from oracle.errors import GoldenError
from oracle.golden.calibration import LIMIT_MULTIPLE, PART_MULTIPLE, ClassCalibration
from oracle.golden.compare import Comparison
from oracle.golden.floor import calibrate
from oracle.golden.passes import TruthPass, compare_arm
from oracle.kolibri1.arms import floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.subjects.protocol import NumericClass

SEED = 20261130
NEW_TOKENS = 48

Measured = dict[str, dict[str, Comparison]]


def measure(checkpoint: Checkpoint, truths: list[TruthPass], numeric_class: NumericClass) -> Measured:
    """Every floor arm of the class against the truth, by arm and prompt."""
    measured: Measured = {}
    for arm in floor_arms(numeric_class):
        print(f"arm {arm.name}", file=sys.stderr, flush=True)
        reference = Reference(checkpoint, arm)
        measured[arm.name] = {t.evidence.name: compare_arm(reference, t.evidence, t.probes) for t in truths}
    return measured


def drawn(measured: Measured, prompts: int, rng: random.Random) -> Measured:
    """Some of the prompts, in their order."""
    names = list(next(iter(measured.values())))
    chosen = set(rng.sample(names, prompts))
    return {arm: {name: part for name, part in parts.items() if name in chosen} for arm, parts in measured.items()}


def summary(made: list[ClassCalibration]) -> str:
    """The largest of what held-out arms reached."""
    held_out = [entry for calibration in made for entry in calibration.held_out]
    whole = LIMIT_MULTIPLE * max(entry.worst_ratio for entry in held_out)
    part = PART_MULTIPLE * max(entry.worst_prompt_ratio for entry in held_out)
    near = max(entry.near_flips / entry.near_budget for entry in held_out)
    router = max(entry.router_flips / entry.router_budget for entry in held_out)
    return (
        f"{len(held_out)} held-out arms: statistics at most {whole:.2f} times the others' (allowed {LIMIT_MULTIPLE:g}), "
        f"on one prompt alone {part:.2f} (allowed {PART_MULTIPLE:g}); near ties {near:.2f} of the count that fires, "
        f"router near ties {router:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the bands on fresh prompts.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--class", dest="numeric_class", choices=["fp32", "bf16", "w8a8", "fp8-kv"], default="bf16")
    parser.add_argument("--candidates", type=int, default=120, help="fresh prompts to draw from")
    parser.add_argument("--prompts", type=int, default=17, help="prompts of each golden")
    parser.add_argument("--goldens", type=int, default=100, help="goldens to draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(options.checkpoint)
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    texts = list(beginnings(tokenizer, SEED, options.candidates))
    truths = continued(checkpoint, texts, NEW_TOKENS)
    measured = measure(checkpoint, truths, options.numeric_class)
    rng = random.Random(SEED)
    made: list[ClassCalibration] = []
    refused: list[str] = []
    for _ in range(options.goldens):
        try:
            made.append(calibrate(options.numeric_class, drawn(measured, options.prompts, rng)))
        except GoldenError as error:
            refused.append(str(error))
    goldens = f"{options.goldens} goldens, each {options.prompts} of {len(truths)} fresh prompts"
    print(f"class {options.numeric_class}: {goldens}")
    if made:
        print(summary(made))
    print(f"refused: {len(refused)}")
    for reason in refused[:10]:
        print(f"  {reason}")
    raise SystemExit(1 if refused else 0)


if __name__ == "__main__":
    main()
