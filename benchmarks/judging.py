"""How long a large stored run takes to judge: `python benchmarks/judging.py`.

Makes a golden of 256 prompts with 256 positions each, 50 layers and a vocabulary of 128,000, and an honest run on it with its
control, from a seeded stream: the formats are the real ones, no model computed the numbers, and the checkpoint beside them is
narrow, since a judgement reads only its embedding rows and its digest. `kolibri-oracle gate --replay` then judges the run in a
process of its own. Needs no torch; Linux, for the memory.

Ends with 0 when the run passes and both marks are met, 1 when not. `--small` tries the script.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from invented import Size, invent
from memory import process_memory
from scratch import progress, scratch_folder
from tables import Mark, print_marks, print_table

FULL = Size(prompts=256, prompt_ids=128, generated=129, layers=50, vocabulary=128_000)
SMALL = Size(prompts=6, prompt_ids=20, generated=21, layers=5, vocabulary=512)
SECONDS, GIGABYTES = 20.0, 2.0
_SAMPLE_SECONDS = 0.02


def judge(folder: Path) -> tuple[str, float, dict[str, int]]:
    """Verdict, seconds and the largest memory fields of a judgement in a process of its own."""
    verdict = folder / "verdict.json"
    names = {"--replay": "run", "--golden": "golden", "--checkpoint": "checkpoint", "--json": "verdict.json"}
    options = [part for option, name in names.items() for part in (option, str(folder / name))]
    command = [sys.executable, "-c", "from oracle.cli import main; main()", "gate", *options]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    largest: dict[str, int] = {}
    while process.poll() is None:
        for name, size in process_memory(process.pid).items():
            largest[name] = max(largest.get(name, 0), size)
        time.sleep(_SAMPLE_SECONDS)
    seconds = time.monotonic() - begun
    return json.loads(verdict.read_bytes())["verdict"], seconds, largest


def _gigabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the judgement of a large stored run.")
    parser.add_argument("--small", action="store_true", help="try the script in a minute; its figures mean nothing")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    with scratch_folder() as folder:
        progress(f"making a golden and a run of {size.positions:,} positions in {folder}")
        invent(folder, size)
        gigabytes = {
            name: sum(f.stat().st_size for f in (folder / name).rglob("*") if f.is_file()) / 1e9 for name in ("golden", "run")
        }
        progress("judging")
        verdict, seconds, largest = judge(folder)
    rows = [
        ["positions", f"{size.positions:,}"],
        ["golden, run with its control", f"{gigabytes['golden']:.2f} GB, {gigabytes['run']:.2f} GB"],
        ["verdict", verdict],
        ["seconds", f"{seconds:.1f}"],
        *([name, f"{amount / 1e9:.2f} GB"] for name, amount in sorted(largest.items())),
    ]
    print_table(["judging a stored run", ""], rows)
    peak = largest.get("VmHWM", 0) / 1e9
    marks = [
        Mark("seconds", seconds, SECONDS, at_most=True),
        Mark("peak resident memory, GB", peak, GIGABYTES, at_most=True),
    ]
    print_marks(marks, small=options.small)
    raise SystemExit(0 if verdict == "pass" and (options.small or all(mark.met for mark in marks)) else 1)


if __name__ == "__main__":
    main()
