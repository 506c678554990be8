"""Whole sessions of a subject that captures: its two variants compared, the regions of all its jobs merged and looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judge_cases import mini_golden

import oracle.judge.jobs as jobs
import oracle.judge.session as session
import oracle.subjects.registry as registry
from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.judge.capture import HONEST, SPOILED
from oracle.judge.determinism import REPEAT_STEPS
from oracle.judge.session import SessionOptions, judge_recorded, record_session
from oracle.subjects.captures import CapturedRegion, CaptureEvidence
from oracle.subjects.perfect import FACTORY, PerfectSubject
from oracle.subjects.protocol import NumericClass, StepEvidence, SubjectIdentity, SubjectRequest
from oracle.subjects.repeats import Variant

Captured = Callable[[str | None], Sequence[CapturedRegion]]
Step = Callable[[str | None, StepEvidence], StepEvidence]


def honestly(variant: str | None) -> tuple[CapturedRegion, ...]:
    """The default arm captures nothing; the variant captures two alike, and replays one."""
    return (replace(HONEST, replays=23), replace(HONEST, replays=0)) if variant == "replaying" else ()


def untouched(_variant: str | None, evidence: StepEvidence) -> StepEvidence:
    return evidence


@dataclass
class Capturing:
    """The perfect subject on a device that captures; what it shows of that, and of a step, is the test's."""

    regions: Captured
    spoil: Step = untouched
    plants: Mapping[str, str] = field(default_factory=dict)
    arms: Mapping[str, NumericClass] = field(default_factory=lambda: {"bf16": "bf16"})
    devices: tuple[str, ...] = ("card",)
    variants: Mapping[str, Variant] = field(
        default_factory=lambda: {name: Variant("dispatch") for name in ("again", "enqueuing", "replaying")}
    )
    dispatch_variants: tuple[str, str] = ("replaying", "enqueuing")

    def open(self, request: SubjectRequest, observer: object = None) -> PerfectSubject:
        inner = FACTORY.open(replace(request, golden=mini_golden(), plant=None, variant=None))
        told = SubjectIdentity("capturing", "bf16", "bf16", (*inner.identity.required_gates, "capture"), {"kind": "card"})
        spoil, regions, variant = self.spoil, self.regions, request.plant or request.variant

        def step(self: PerfectSubject, token: int) -> StepEvidence:
            return spoil(variant, PerfectSubject.step(self, token))

        members = {
            "identity": property(lambda _self: told),
            "step": step,
            "captured_regions": lambda _self: regions(variant),
        }
        inner.__class__ = type("Capturing", (PerfectSubject,), members)
        return inner


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """A whole session of a factory over two prompts of the shipped golden, in this process."""

    def run(factory: Any) -> Any:
        installed = registry.subject_factory

        def named(name: str) -> Any:
            return factory if name == "capturing" else installed(name)

        for module in (jobs, session, registry):
            monkeypatch.setattr(module, "subject_factory", named)
        monkeypatch.setattr(session, "run_jobs", lambda listed, *_: [jobs.run_job(job) for job in listed])
        options = SessionOptions(mini_checkpoint(), mini_golden(), "capturing", only="capture", prompts=("copying", "one-id"))
        return judge_recorded(record_session(options), ("capture",), partial=True)

    return run


def gate_of(report: Any) -> Any:
    [gate] = [gate for gate in report.gates if gate.name == "capture"]
    return gate


def test_a_session_compares_the_two_variants_and_merges_the_regions_of_all_jobs(judged: Callable[[Any], Any]) -> None:
    report = judged(Capturing(honestly))
    assert report.verdict == "pass", [str(f) for gate in report.gates for f in gate.findings]
    assert report.run.captures == CaptureEvidence(
        "copying", "replaying", "enqueuing", (23, 0), (replace(HONEST, replays=23, alike=2),)
    )
    assert gate_of(report).compared == 23


def test_regions_of_an_ordinary_prompt_are_looked_at_too(judged: Callable[[Any], Any]) -> None:
    report = judged(Capturing(lambda variant: honestly(variant) if variant else (SPOILED["a sync inside"],)))
    assert report.run.faults == {}
    assert [str(finding) for finding in gate_of(report).findings] == [
        "synchronize_device, which is no op, inside a captured region "
        "(2 of 4, worst 1 times, at first in region 2 of 2, 5 ops, 2 replays)"
    ]


def test_a_replay_that_differs_in_one_bit_is_red(judged: Callable[[Any], Any]) -> None:
    def spoil(variant: str | None, evidence: StepEvidence) -> StepEvidence:
        if variant != "replaying" or evidence.position != 7:
            return evidence
        logits = evidence.logits.copy()
        logits[evidence.logits.argmax()] = np.nextafter(logits.max(), np.float32(np.inf))
        return replace(evidence, logits=logits)

    [finding] = gate_of(judged(Capturing(honestly, spoil))).findings
    assert finding.headline == "logits differ between variants replaying and enqueuing"
    assert (finding.where[-3:], finding.count, finding.of) == ("[7]", 1, REPEAT_STEPS)


def test_a_fault_of_a_repeat_is_red_and_what_it_captured_before_is_still_looked_at(judged: Callable[[Any], Any]) -> None:
    def spoil(variant: str | None, evidence: StepEvidence) -> StepEvidence:
        if variant == "replaying":
            raise DeviceFault("trace-capture", "a read")
        return evidence

    report = judged(Capturing(lambda variant: (SPOILED["a free inside"],) if variant == "replaying" else (), spoil))
    assert [finding.headline for finding in gate_of(report).findings] == [
        "deallocate, which is no op, inside a captured region",
        "variant replaying gave no answer: trace-capture: a read",
    ]


@pytest.mark.parametrize(
    ("regions", "headlines"),
    [
        (lambda _: (), ["nothing was captured", "variant replaying replayed nothing"]),
        (lambda _: (replace(HONEST, replays=0),), ["variant replaying replayed nothing"]),
        (
            lambda _: (HONEST,),
            ["variant enqueuing replayed captured regions: what was compared is both times a replay"],
        ),
        (
            lambda variant: (HONEST,) if variant == "again" else (),
            ["variant replaying replayed nothing"],
        ),
    ],
    ids=["nothing captured", "nothing replayed", "replayed in both", "only in another repeat"],
)
def test_a_lever_that_does_nothing_is_never_green(
    judged: Callable[[Any], Any], regions: Captured, headlines: list[str]
) -> None:
    report = judged(Capturing(regions))
    assert (report.verdict, [finding.headline for finding in gate_of(report).findings]) == ("fail", headlines)


def test_a_variant_that_the_subject_has_not_was_not_run(judged: Callable[[Any], Any]) -> None:
    report = judged(Capturing(honestly, dispatch_variants=("replaying", "eager")))
    assert [finding.headline for finding in gate_of(report).findings] == ["variant eager gave no answer: it was not run"]


def test_faults_that_a_subject_plants_in_its_captures_are_controls_and_no_evidence(judged: Callable[[Any], Any]) -> None:
    def regions(variant: str | None) -> tuple[CapturedRegion, ...]:
        spoiled = {"stale": (SPOILED["a weight changed"],), "harmless": (HONEST,)}
        return spoiled[variant] if variant in spoiled else honestly(variant)

    report = judged(Capturing(regions, plants={"stale": "gate:capture", "harmless": "gate:capture"}))
    controls = {c.name: c.seen for c in gate_of(report).controls if c.name.startswith("device ")}
    assert controls == {"device stale": "gate:capture", "device harmless": "not caught"}
    assert gate_of(report).verdict == "pass"
    assert len(report.run.captures.regions) == 1


def test_regions_that_are_none_are_a_fault_of_the_prompt(judged: Callable[[Any], Any]) -> None:
    report = judged(Capturing(lambda variant: honestly(variant) if variant else (replace(HONEST, replays=0.5),)))  # type: ignore[arg-type]
    assert {fault.split(":")[0] for fault in report.run.faults.values()} == {"subject-crashed"}


def test_of_a_subject_that_cannot_capture_nothing_is_asked(judged: Callable[[Any], Any]) -> None:
    factory = Capturing(honestly)
    plain = SimpleNamespace(**{name: getattr(factory, name) for name in ("arms", "devices", "plants", "variants", "open")})
    assert judged(plain).run.captures is None
