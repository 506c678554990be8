"""Gate `capture`: does replaying captured ops compute what enqueuing each anew computes, and is all inside that may be?

Compared, bit for bit and position by position, are two of the repeats that `determinism` takes of the run's most telling
prompt: the variant that replays captured regions and the one that enqueues each op. And looked at, by the device's own record,
is every region captured in any prompt or repeat: it holds ops and nothing else (an allocation or a free would move under the
replay, a transfer or a wait would happen once and never again); no op takes a routed expert's weights, whose place is chosen
anew in each step; and no weight that it reads was written by the host between its capture and a replay. The first of the two
repeats must have replayed something, the second nothing: otherwise the same thing was compared with itself.

`compared` counts positions, each at least one replay's worth. Exact: there is nothing to calibrate. Consistency is not parity:
a port's captured decode once equalled its eager one, and both were wrong. This gate cannot see that; the gates of values judge
each arm against the golden. Nor can it see whether every position was replayed in full, which is printed as replays, nor what
a device does in a replay and does not record, nor, unless the arm under judgement replays, what it does in a second sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oracle.judge.determinism import DIGESTED, REPEAT_STEPS, position_digests
from oracle.judge.gate import Case, Finding, Judgement, not_held
from oracle.subjects.captures import OP, CapturedRegion, CaptureEvidence
from oracle.subjects.repeats import Repeat, RepeatEvidence
from oracle.subjects.run import Run

_NAMES_SHOWN = 3
_NOT_RUN = "it was not run"

HONEST = CapturedRegion((("op.add", 2), ("op.linear", 3)), 1)
"""What a region may hold."""

SPOILED: dict[str, CapturedRegion] = {
    **{
        f"{what} inside": replace(HONEST, calls=tuple(sorted((*HONEST.calls, (call, 1)))))
        for what, call in (
            ("an allocation", "allocate_tensor_on_device"),
            ("a free", "deallocate"),
            ("a transfer to the device", "copy_host_to_device_tensor"),
            ("a transfer to the host", "copy_device_to_host_tensor"),
            ("a sync", "synchronize_device"),
        )
    },
    "no op inside": replace(HONEST, calls=()),
    "an expert inside": replace(HONEST, experts=1),
    "a weight changed": replace(HONEST, changed=("model.norm.weight",)),
}
"""A region with one fault, for each that a region may have."""


class CaptureGate:
    name = "capture"
    definition = {
        "version": 1,
        "metric": "bits of logits and layers of a prompt's first positions, replayed against enqueued; calls, experts' weights "
        "and weights written since, of every captured region",
        "statistic": "equality; ops alone; no expert; no weight; replays above 0 in one repeat and 0 in the other",
        "positions": REPEAT_STEPS,
    }
    blind_to = "both being wrong alike, ops left out of every capture, later sequences, and what a device does unrecorded"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.captures is not None

    def judge(self, case: Case) -> Judgement:
        seen, repeats = case.run.captures, case.run.repeats
        if seen is None:
            return not_held("record of captures")
        findings = [*region_findings(seen.regions), *_execution_findings(seen)]
        own = case.run.prompts.get(seen.prompt)
        if own is None:
            finding = Finding("the prompt that was repeated was not answered", seen.prompt, verdict="incomplete")
            return Judgement(0, (*findings, finding))
        known: dict[str, Repeat] = {}
        if repeats is not None and repeats.prompt == seen.prompt:
            known = {repeat.variant: repeat for repeat in repeats.repeats}
        replayed, enqueued = (known.get(name, Repeat(name, fault=_NOT_RUN)) for name in (seen.replayed, seen.enqueued))
        for repeat in (replayed, enqueued):
            findings += _of_one(repeat, min(REPEAT_STEPS, len(own.consumed)), seen.prompt)
        findings += _differences(replayed, enqueued, seen.prompt)
        positions = min(len(replayed.digests), len(enqueued.digests))
        measured = {
            "regions": sum(region.alike for region in seen.regions),
            "distinct": len(seen.regions),
            "replays": sum(region.replays for region in seen.regions),
            "replays compared": seen.executions[0],
        }
        return Judgement(min(positions, seen.executions[0]), tuple(findings), measured)

    def honest(self, case: Case) -> Case:
        """The perfect subject's answer as both repeats, and one region replayed at each position."""
        name, run = next(iter(case.run.prompts.items()))
        digests = position_digests(run)
        variants = ("enqueued", "replayed")
        repeats = tuple(Repeat(variant, digests, (("planted", 1),)) for variant in variants)
        count = len(digests)
        seen = CaptureEvidence(name, "replayed", "enqueued", (count, 0), (replace(HONEST, replays=count),))
        return case.with_run(repeats=RepeatEvidence(name, variants, repeats), captures=seen)

    def plants(self, case: Case) -> dict[str, Case]:
        """Repeats that differ or are not there, nothing replayed or nothing enqueued, and each fault of a region."""
        seen, repeats = case.run.captures, case.run.repeats
        assert seen is not None
        assert repeats is not None
        enqueued, replayed = repeats.repeats
        digests = replayed.digests
        short = [replace(repeat, digests=digests[:-1]) for repeat in (enqueued, replayed)]
        pairs: dict[str, tuple[Repeat, ...]] = {
            "other logits at one position": (
                enqueued,
                replace(replayed, digests=(*digests[:-1], ("planted", digests[-1][1]))),
            ),
            "other layers at one position": (enqueued, replace(replayed, digests=((digests[0][0], "planted"), *digests[1:]))),
            "a position missing in both": tuple(short),
            "a position missing in one": (enqueued, short[1]),
            "a fault": (enqueued, replace(replayed, fault="planted: a fault")),
            "not replayed at all": (enqueued,),
            "not enqueued at all": (replayed,),
        }
        evidence = {
            "nothing captured": replace(seen, regions=()),
            "nothing replayed": replace(seen, executions=(0, 0)),
            "replayed in both": replace(seen, executions=(seen.executions[0], 1)),
            **{name: replace(seen, regions=(*seen.regions, region)) for name, region in SPOILED.items()},
        }
        return {
            **{name: case.with_run(repeats=replace(repeats, repeats=pair)) for name, pair in pairs.items()},
            "no repeats": case.with_run(repeats=None),
            "another prompt's repeats": case.with_run(repeats=replace(repeats, prompt="planted")),
            **{name: case.with_run(captures=changed) for name, changed in evidence.items()},
        }


def region_findings(regions: Sequence[CapturedRegion]) -> list[Finding]:
    """What is wrong with captured regions, each kind once, with the first region that has it."""
    found: dict[str, list[tuple[CapturedRegion, str, str]]] = {}
    for number, region in enumerate(regions, 1):
        place = f"region {number} of {len(regions)}, {_ops(region)} ops, {region.replays} replays"
        for headline, worst in _faults(region):
            found.setdefault(headline, []).append((region, place, worst))
    total = sum(region.alike for region in regions)
    return [
        Finding(headline, f"first in {at[0][1]}", at[0][2], count=sum(region.alike for region, *_ in at), of=total)
        for headline, at in found.items()
    ]


def _faults(region: CapturedRegion) -> Iterator[tuple[str, str]]:
    """Headline of each fault, and how bad it is."""
    for name, count in region.calls:
        if not name.startswith(OP):
            yield f"{name}, which is no op, inside a captured region", f"{count} times"
    if _ops(region) <= 0:
        yield "a captured region without an op", ""
    if region.experts > 0:
        yield "a captured region takes routed experts' weights", f"{region.experts} tensors"
    if region.changed:
        first, more = ", ".join(region.changed[:_NAMES_SHOWN]), len(region.changed) - _NAMES_SHOWN
        names = f"{first} and {more} more" if more > 0 else first
        yield "a region was replayed after weights that it reads were written, and not captured anew", names


def _ops(region: CapturedRegion) -> int:
    return sum(name.startswith(OP) * count for name, count in region.calls)


def _execution_findings(seen: CaptureEvidence) -> list[Finding]:
    """Whether a replay was compared with what is none."""
    found = []
    replayed, enqueued = seen.executions
    if not seen.regions:
        found.append(Finding("nothing was captured", seen.prompt))
    if replayed <= 0:
        found.append(Finding(f"variant {seen.replayed} replayed nothing", seen.prompt, f"{replayed}", "above 0"))
    if enqueued != 0:
        headline = f"variant {seen.enqueued} replayed captured regions: what was compared is both times a replay"
        found.append(Finding(headline, seen.prompt, f"{enqueued}", "0"))
    return found


def _of_one(repeat: Repeat, expected: int, prompt: str) -> list[Finding]:
    """What keeps a repeat from being compared whole."""
    if repeat.fault:
        return [Finding(f"variant {repeat.variant} gave no answer: {repeat.fault}", prompt)]
    if len(repeat.digests) != expected:
        headline = f"variant {repeat.variant} has not as many positions"
        return [Finding(headline, prompt, f"{len(repeat.digests)}", f"{expected}")]
    return []


def _differences(replayed: Repeat, enqueued: Repeat, prompt: str) -> list[Finding]:
    """Positions at which the two are not the same bits."""
    found = []
    pairs = list(zip(replayed.digests, enqueued.digests, strict=False))
    for column, what in enumerate(DIGESTED):
        wrong = [position for position, (one, other) in enumerate(pairs) if one[column] != other[column]]
        if wrong:
            headline = f"{what} differ between variants {replayed.variant} and {enqueued.variant}"
            found.append(Finding(headline, f"first at {prompt}[{wrong[0]}]", count=len(wrong), of=len(pairs)))
    return found
