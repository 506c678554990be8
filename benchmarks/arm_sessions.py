"""The whole gate session of every arm of `tt`: both bases alone, with every lever, and with every pair of levers.

Each arm is driven over two prompts of the shipped golden, the most telling for their length (`oracle/judge/priority.py`),
teacher-forced and free, with all faults planted in its device and all repeats under other conditions, and judged by every
gate with its controls; the limits are those of these two prompts. All gates must pass but `slots` with `verify=first`, which
is red by design and must be. What an arm shows must be its base's bit for bit: chains, logits as runs hold them (at the
golden's ids, the top 64, the sum of all), residual streams, experts, weights and router logits. And each lever must have
moved its own counters (`Choice.moves`), which are 0 without it, and its counters must not all be those of the arm without it;
or it is said to idle beside the other, and moves none. Exit code 1 if anything is otherwise.

With `--keep FILE` each arm's outcome is kept there as soon as it is there, one JSON object a line, and an arm that is there
is not run again: a killed run goes on where it stopped. Only outcomes of this very code and golden count. Bases come first,
then single levers, then pairs.

`chain` is the SHA-256 of the canonical JSON of each prompt's free-run ids by its name, cut to twelve digits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from unittest import mock

import numpy as np
from tables import print_table

import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.judge.gates import GATE_NAMES
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.session import SessionOptions, run_session
from oracle.judge.workers import work
from oracle.serialization import canonical_json, digest
from oracle.subjects.run import Run
from tt_impl.arms import ARMS, Arm, choice_of

PROMPTS = ("copying", "one-id")
WORKERS = 2
HANGS = 1800.0
"""Seconds that an arm may stand still."""


@dataclass(frozen=True)
class ArmSession:
    """What came of one arm.

    Attributes:
        verdicts: by gate.
        findings: of each gate that did not pass, its first finding.
        chain: digest of its free-run ids.
        shown: digest of every array that its run holds.
        flips: how many of each class.
        counters: the subject's own and its device's.
    """

    arm: str
    verdicts: Mapping[str, str]
    findings: Mapping[str, str]
    chain: str
    shown: str
    flips: Mapping[str, int]
    counters: Mapping[str, int]
    seconds: float = 0.0


def judge_arm(name: str) -> ArmSession:
    """One session, all of it in this process."""
    begun = time.monotonic()
    folder = mini_checkpoint()
    with mock.patch.object(session, "run_jobs", _in_this_process):
        report = run_session(SessionOptions(folder, folder / "golden", arm=name, prompts=PROMPTS))
    verdicts = {gate.name: gate.verdict for gate in report.gates}
    findings = {gate.name: str(gate.findings[0]) for gate in report.gates if gate.findings}
    run = report.run
    chain = digest(canonical_json({prompt: answer.free_generated.tolist() for prompt, answer in sorted(run.prompts.items())}))
    flips = Counter(str(flip.label) for flip in report.flips)
    return ArmSession(
        name, verdicts, findings, chain.rpartition(":")[2], shown(run), dict(flips), run.stats, time.monotonic() - begun
    )


def shown(run: Run) -> str:
    """A digest of all arrays of a run."""
    found = hashlib.sha256()
    for prompt, answer in sorted(run.prompts.items()):
        for name in sorted(answer.held):
            array = np.ascontiguousarray(getattr(answer, name))
            found.update(f"{prompt} {name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def wrong(sessions: Mapping[str, ArmSession], arms: Sequence[Arm]) -> list[str]:
    """Whatever is not as it must be, one sentence each."""
    found = []
    for arm in arms:
        if (seen := sessions.get(arm.name)) is None:
            found.append(f"{arm.name}: no session")
            continue
        red_by_design = {"slots"} if ("verify", "first") in arm.levers else set()
        for gate in GATE_NAMES:
            verdict, wanted = seen.verdicts.get(gate, "not judged"), "fail" if gate in red_by_design else "pass"
            if verdict != wanted:
                found.append(f"{arm.name}: {gate} {verdict}, not {wanted}: {seen.findings.get(gate, '')}")
        base = sessions.get(arm.base)
        for what in ("chain", "shown"):
            if base is None or getattr(seen, what) != getattr(base, what):
                found.append(f"{arm.name}: {what} is not that of {arm.base}")
        found += _effects(sessions, arm)
    return found


def _effects(sessions: Mapping[str, ArmSession], arm: Arm) -> list[str]:
    """Levers that moved no counter, or that moved one where they are said to idle."""
    found = []
    for lever in arm.levers:
        without = replace(arm, levers=tuple(other for other in arm.levers if other != lever)).name
        if without not in sessions:
            found.append(f"{arm.name}: nothing to compare its counters with: no {without}")
        elif (sessions[arm.name].counters == sessions[without].counters) != (lever[0] in arm.idle):
            effect = "an effect, and should idle" if lever[0] in arm.idle else "no effect"
            found.append(f"{arm.name}: {lever[0]}={lever[1]} had {effect}: its counters beside those of {without}")
        for name in choice_of(*lever).moves if without in sessions else ():
            before, after = (sessions[of].counters.get(name, 0) for of in (without, arm.name))
            if (before, after > 0) != (0, lever[0] not in arm.idle):
                found.append(f"{arm.name}: {name} is {after}, and {before} without {lever[0]}={lever[1]}")
    return found


class Kept:
    """Outcomes in a file, one a line, each with the digest of what it is an outcome of."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._of = file, _code_and_golden()

    def read(self) -> dict[str, ArmSession]:
        """By arm; none of another code or golden, nor one that was cut short."""
        found: dict[str, ArmSession] = {}
        for line in self._file.read_text("utf-8").splitlines() if self._file is not None and self._file.exists() else ():
            try:
                kept = json.loads(line)
            except ValueError:
                continue
            if kept.pop("of", None) == self._of:
                found[kept["arm"]] = ArmSession(**kept)
        return found

    def add(self, seen: ArmSession) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": self._of, **asdict(seen)}) + "\n")


def _code_and_golden() -> str:
    root = Path(__file__).parents[1]
    sources = sorted(path for package in ("oracle", "tt_impl") for path in (root / package).rglob("*.py"))
    files = [Path(__file__), *sources, mini_checkpoint() / "golden" / "golden.json"]
    return digest("".join(digest(file.read_bytes()) for file in files).encode())


def _in_this_process(
    jobs: Sequence[PromptJob], _workers: int | None = None, done: Callable[[int], None] | None = None
) -> list[PromptOutcome]:
    return [run_job(job) for job in jobs]


def _chosen(glob: str) -> list[Arm]:
    """The arms that match, and those they are compared with."""
    named = [arm for arm in ARMS.values() if fnmatchcase(arm.name, glob)]
    needed = {part for arm in named for part in (arm.base, *(Arm(arm.base, (lever,)).name for lever in arm.levers))}
    return [arm for arm in ARMS.values() if arm in named or arm.name in needed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="*", metavar="GLOB", help="these arms, and those they are compared with")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep outcomes there, and go on with those that are there")
    given = parser.parse_args()
    arms, kept = _chosen(given.only), Kept(given.keep)
    sessions = kept.read()
    left = [arm.name for arm in sorted(arms, key=lambda arm: len(arm.levers)) if arm.name not in sessions]
    for _, name, answer in work(judge_arm, left, WORKERS, lambda _: HANGS):
        if isinstance(answer, DeviceFault):
            print(f"{name}: {answer}", file=sys.stderr)
            continue
        sessions[name] = answer
        kept.add(answer)
        red = [gate for gate, verdict in answer.verdicts.items() if verdict != "pass"]
        said = f"red: {', '.join(red)}" if red else "all gates pass"
        print(f"{len(sessions)} of {len(arms)}: {name}, {said}, {answer.seconds:.0f} s", file=sys.stderr, flush=True)
    rows = []
    for arm in arms:
        if arm.name in sessions:
            seen = sessions[arm.name]
            verdicts = ["ok" if seen.verdicts.get(gate) == "pass" else seen.verdicts.get(gate, "-") for gate in GATE_NAMES]
            flips = ", ".join(f"{n} {label}" for label, n in sorted(seen.flips.items())) or "none"
            rows.append([f"`{arm.name}`", *verdicts, seen.chain[:12], seen.shown[:12], flips])
    print_table(["arm", *GATE_NAMES, "chain", "all it shows", "flips"], rows)
    found = wrong(sessions, arms)
    print(f"{len(rows)} of {len(ARMS)} arms, prompts {', '.join(PROMPTS)}{'' if len(arms) == len(ARMS) else ': PARTIAL'}")
    for sentence in found:
        print(f"WRONG {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
