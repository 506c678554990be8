"""Gate `ledger`: what ran, on what, and whether it may be believed.

Looks at the other gates' entries. Fires on a required gate that did not run or compared nothing (incomplete, never
green), on a gate without both controls, and on a control that misbehaved. A suite that skipped its device leg once
printed "passed"; here it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oracle.judge.controls import ControlResult
from oracle.judge.gate import Finding, Judgement, Verdict

DEFINITION: Mapping[str, object] = {"version": 1, "metric": "gates run, things compared, controls behaved", "statistic": "all"}
BLIND_TO = "a subject that lies about its own identity"


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
        reason: why it did not run or saw only part of the prompts, or empty.
    """

    gate: str
    required: bool
    ran: bool
    compared: int
    verdict: Verdict
    controls: tuple[ControlResult, ...] = ()
    reason: str = ""


def judge_ledger(entries: Sequence[LedgerEntry], required: Sequence[str], device: Mapping[str, str]) -> Judgement:
    """Judge the entries.

    Args:
        entries: one per gate that was considered.
        required: names that must be among them, run and compare something.
        device: the subject's device identity; a subject with slots must have one.
    """
    findings: list[Finding] = []
    by_name = {entry.gate: entry for entry in entries}
    for name in required:
        entry = by_name.get(name)
        if entry is None or not entry.ran:
            findings.append(
                Finding(f"required gate {name} did not run", worst=entry.reason if entry else "", verdict="incomplete")
            )
        elif entry.compared == 0:
            findings.append(Finding(f"required gate {name} compared nothing", verdict="incomplete"))
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
    if "slots" in required and not device:
        findings.append(Finding("the subject does not say which device it ran on", verdict="incomplete"))
    return Judgement(len(entries), tuple(findings))


def ledger_controls(
    entries: Sequence[LedgerEntry], required: Sequence[str], device: Mapping[str, str]
) -> tuple[ControlResult, ...]:
    """The ledger's own controls: these entries with every control behaving pass; four spoiled copies do not."""
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
    identified = device or {"kind": "stated"}
    spoiled: dict[str, tuple[list[LedgerEntry], str]] = {
        "gate left out": (good[1:], "incomplete"),
        "compared nothing": ([replace(good[0], compared=0), *good[1:]], "incomplete"),
        "dead control": (
            [replace(good[0], controls=(*good[0].controls, ControlResult("c", "fire", "pass"))), *good[1:]],
            "fail",
        ),
        "no control": ([replace(good[0], controls=()), *good[1:]], "incomplete"),
    }
    results = [ControlResult("whole ledger", "pass", judge_ledger(good, watched, identified).verdict)]
    needed = [good[0].gate, *(n for n in watched if n != good[0].gate)]
    results += [
        ControlResult(name, want, judge_ledger(changed, needed, identified).verdict)
        for name, (changed, want) in spoiled.items()
    ]
    return tuple(results)
