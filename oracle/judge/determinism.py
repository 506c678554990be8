"""Gate `determinism`: does the subject compute the same bits under conditions that must not matter?

The first positions of the golden's most telling prompt are decoded again, in a process and a subject of their own, once for
each variant that the subject's factory declares: hostile schedules, slot pools and memo budgets of other sizes, another
checkpoint at the same addresses before. Compared, bit for bit, with the run's own answer to the same positions: logits (argmax,
top-64, logits at the golden's ids, logsumexp) and what the layers show (experts, weights, sketches). A variant must also have
taken effect: the counters it moves are above 0. So must the run's arm, over its own prompts: a lever that is ignored makes it
another arm than the one named. A repeat under no other condition is among them, so that a subject that differs from run to run
is told apart from one that a condition disturbs.

Exact: there is nothing to calibrate. It cannot see a race that none of the variants provokes, nor what comes after the first
positions; the subject's own tests over many seeds look there.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from oracle.judge.gate import Case, Finding, Judgement, not_held
from oracle.subjects.repeats import Repeat, RepeatEvidence
from oracle.subjects.run import PromptRun, Run

REPEAT_STEPS = 24
"""Positions of a repeat. On the mini, with two slots above top-k, they fill and evict in every layer (2026-11-30)."""

LOGITS = ("argmax", "logits_at_golden", "top_ids", "top_logits", "logsumexp", "non_finite")
LAYERS = ("sketch", "expert_ids", "expert_weights", "non_finite_routing")
DIGESTED = ("logits", "what its layers show")
"""What the two digests of a position are of."""


class DeterminismGate:
    name = "determinism"
    definition = {
        "version": 2,
        "metric": "bits of logits and layers at the first positions of a prompt, repeated under every variant",
        "statistic": "equality; counters that a variant or the run's arm must move above 0",
        "positions": REPEAT_STEPS,
    }
    blind_to = "races that no variant provokes, and positions after the first ones"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.repeats is not None

    def judge(self, case: Case) -> Judgement:
        evidence = case.run.repeats
        if evidence is None:
            return not_held("repeats")
        idle = _without_effect(case.run.identity.arm, evidence)
        own = case.run.prompts.get(evidence.prompt)
        if own is None:
            finding = Finding("the prompt that was repeated was not answered", evidence.prompt, verdict="incomplete")
            return Judgement(0, (finding, *idle))
        expected = position_digests(own)
        findings = idle + [finding for repeat in evidence.repeats for finding in _of_one(repeat, expected, evidence.prompt)]
        named = tuple(repeat.variant for repeat in evidence.repeats)
        if named != evidence.planned:
            findings.append(
                Finding(
                    "the variants that ran are not those declared", worst=", ".join(named), allowed=", ".join(evidence.planned)
                )
            )
        compared = sum(min(len(repeat.digests), len(expected)) for repeat in evidence.repeats)
        return Judgement(compared, tuple(findings), {"variants": len(named), "positions each": len(expected)})

    def honest(self, case: Case) -> Case:
        """The perfect subject's answer, repeated: it has no conditions of its own to vary."""
        name, run = next(iter(case.run.prompts.items()))
        repeats = tuple(Repeat(variant, position_digests(run), (("planted", 1),)) for variant in ("once", "twice"))
        return case.with_run(repeats=RepeatEvidence(name, ("once", "twice"), repeats, (("planted", 1),)))

    def plants(self, case: Case) -> dict[str, Case]:
        """One repeat spoiled: a bit of one position's logits or layers, a position missing, no effect, a fault, not run; or the
        run's arm without effect."""
        evidence = case.run.repeats
        assert evidence is not None
        first, last = evidence.repeats[0], evidence.repeats[-1]
        digests = last.digests
        spoiled = {
            "other logits at one position": (first, replace(last, digests=(*digests[:-1], ("planted", digests[-1][1])))),
            "other layers at one position": (first, replace(last, digests=((digests[0][0], "planted"), *digests[1:]))),
            "a position missing": (first, replace(last, digests=digests[:-1])),
            "a condition without effect": (first, replace(last, counters=(("planted", 0),))),
            "a fault": (first, replace(last, fault="planted: a fault")),
            "a variant not run": (first,),
        }
        return {
            **{name: case.with_run(repeats=replace(evidence, repeats=repeats)) for name, repeats in spoiled.items()},
            "an arm without effect": case.with_run(repeats=replace(evidence, effects=(("planted", 0),))),
        }


def position_digests(run: PromptRun) -> tuple[tuple[str, str], ...]:
    """For each of the first `REPEAT_STEPS` positions: the digest of its logits, and of what its layers show."""
    count = min(REPEAT_STEPS, len(run.consumed))
    return tuple((_digest(run, LOGITS, position), _digest(run, LAYERS, position)) for position in range(count))


def _digest(run: PromptRun, names: tuple[str, ...], position: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        array = getattr(run, name)
        digest.update(name.encode())
        if array is not None:
            row = np.ascontiguousarray(array[position])
            digest.update(row.astype(row.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def _without_effect(arm: str, evidence: RepeatEvidence) -> list[Finding]:
    """Counters that the run's own arm had to move."""
    return [
        Finding(f"arm {arm} took no effect: counter {name} never moved", "all its prompts", f"{value}", "above 0")
        for name, value in evidence.effects
        if value <= 0
    ]


def _of_one(repeat: Repeat, expected: tuple[tuple[str, str], ...], prompt: str) -> list[Finding]:
    """What is wrong with one repeat."""
    if repeat.fault:
        return [Finding(f"variant {repeat.variant} ended in a fault: {repeat.fault}", prompt)]
    found = []
    if len(repeat.digests) != len(expected):
        headline = f"variant {repeat.variant} has not as many positions"
        found.append(Finding(headline, prompt, f"{len(repeat.digests)}", f"{len(expected)}"))
    for column, what in enumerate(DIGESTED):
        pairs = zip(repeat.digests, expected, strict=False)
        wrong = [position for position, (got, own) in enumerate(pairs) if got[column] != own[column]]
        if wrong:
            headline = f"variant {repeat.variant}: {what} differ from the run's own"
            found.append(Finding(headline, f"first at {prompt}[{wrong[0]}]", count=len(wrong), of=len(expected)))
    found += [
        Finding(f"variant {repeat.variant} took no effect: counter {name} never moved", prompt, f"{value}", "above 0")
        for name, value in repeat.counters
        if value <= 0
    ]
    return found
