"""Gate `ledger`: what ran, on what, and whether it may be believed.

Looks at the other gates' entries and at the session's facts. Fires on a required gate that did not run or compared nothing
(incomplete, never green), on a gate without both controls, on a control that misbehaved, on every device fault, and on a
native library older than its sources. A suite that skipped its device leg once printed "passed"; stale libraries once left
one op green while two others hung the board; here neither can happen unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oracle.judge.control_result import ControlResult
from oracle.judge.facts import SessionFacts
from oracle.judge.gate import Finding, Judgement, Verdict
from oracle.subjects.protocol import LibraryRecord

DEFINITION: Mapping[str, object] = {
    "version": 2,
    "metric": "gates run, things compared, controls behaved, device faults, age of libraries",
    "statistic": "all",
}
BLIND_TO = "a subject that lies about its own identity"
_ON_A_DEVICE = {"slots", "staging", "operands", "ops", "census", "capture"}
"""Gates of subjects that compute or hold tensors on a device, and so must say on which."""


@dataclass(frozen=True)
class LedgerEntry:
    """One gate's line in the ledger.

    Attributes:
        gate: its name.
        required: whether the subject must answer it for a green verdict.
        ran: whether it judged anything.
        compared: how many things it compared.
        verdict: its own.
        controls: every control that ran with it.
        reason: why it did not run, compared nothing or saw only part of the prompts, or empty.
    """

    gate: str
    required: bool
    ran: bool
    compared: int
    verdict: Verdict
    controls: tuple[ControlResult, ...] = ()
    reason: str = ""


def judge_ledger(entries: Sequence[LedgerEntry], required: Sequence[str], facts: SessionFacts) -> Judgement:
    """Judge the entries.

    Args:
        entries: one per gate that was considered.
        required: names that must be among them, run and compare something.
        facts: what the session ran on; a subject that holds tensors on a device must say on which.
    """
    findings: list[Finding] = []
    by_name = {entry.gate: entry for entry in entries}
    for name in required:
        entry = by_name.get(name)
        if entry is None or not entry.ran:
            findings.append(
                Finding(f"required gate {name} did not run", worst=entry.reason if entry else "", verdict="incomplete")
            )
        elif entry.compared <= 0:
            findings.append(Finding(f"required gate {name} compared nothing", worst=entry.reason, verdict="incomplete"))
    for entry in entries:
        if not entry.ran:
            continue
        kinds = {control.expected == "pass" for control in entry.controls}
        if kinds != {True, False}:
            findings.append(Finding(f"gate {entry.gate} ran without both controls", verdict="incomplete"))
        findings += [
            Finding(f"control {control.name!r} of gate {entry.gate} misbehaved", worst=control.seen, allowed=control.expected)
            for control in entry.controls
            if not control.behaved
        ]
    findings += facts.findings()
    if not facts.device and _ON_A_DEVICE & set(required):
        findings.append(Finding("the subject does not say which device it ran on", verdict="incomplete"))
    return Judgement(len(entries), tuple(findings))


def ledger_controls(entries: Sequence[LedgerEntry], required: Sequence[str], facts: SessionFacts) -> tuple[ControlResult, ...]:
    """The ledger's own controls: these entries, every control behaving and every fact sound, pass; spoiled copies do not."""
    good = [
        replace(
            e,
            ran=True,
            compared=max(1, e.compared),
            controls=(ControlResult("a", "pass", "pass"), ControlResult("b", "fire", "fire")),
        )
        for e in entries
    ]
    watched = [name for name in required if any(e.gate == name for e in good)]
    stated = {"kind": "stated"}
    sound = replace(facts, prompts=(1, 1), positions=(1, 1), faults={}, libraries=(), device=stated, no_prompt_asked=False)
    dead = (*good[0].controls, ControlResult("c", "fire", "pass"))
    spoiled: dict[str, tuple[list[LedgerEntry], SessionFacts, str]] = {
        "gate left out": (good[1:], sound, "incomplete"),
        "compared nothing": ([replace(good[0], compared=0), *good[1:]], sound, "incomplete"),
        "dead control": ([replace(good[0], controls=dead), *good[1:]], sound, "fail"),
        "no control": ([replace(good[0], controls=()), *good[1:]], sound, "incomplete"),
        "device fault": (good, replace(sound, faults={"prompt": "planted: a fault"}), "fail"),
        "stale library": (good, replace(sound, libraries=(LibraryRecord("planted.so", built=1, newest_source=2),)), "fail"),
        "nothing answered": (good, replace(sound, prompts=(0, 1)), "incomplete"),
    }
    if _ON_A_DEVICE & set(watched):
        spoiled["no device"] = (good, replace(sound, device={}), "incomplete")
    results = [ControlResult("whole ledger", "pass", judge_ledger(good, watched, sound).verdict)]
    needed = [good[0].gate, *(n for n in watched if n != good[0].gate)]
    results += [
        ControlResult(name, want, judge_ledger(changed, needed, stated).verdict)
        for name, (changed, stated, want) in spoiled.items()
    ]
    return tuple(results)
