"""Gate `determinism`: repeats in subjects of their own, bit for bit the run's own answer, under conditions that took effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_cases import changed, headlines, mini_golden, with_run

import oracle.judge.jobs as jobs
import oracle.judge.session as session
import oracle.subjects.registry as registry
from goldens import mini_checkpoint
from oracle.errors import DeviceFault, SubjectError
from oracle.judge.determinism import REPEAT_STEPS, DeterminismGate, position_digests
from oracle.judge.gate import Case
from oracle.judge.priority import most_telling_first
from oracle.judge.repeat_evidence import repeats_of
from oracle.judge.session import SessionOptions, judge_recorded, record_session
from oracle.judge.unfinished_session import unfinished_session
from oracle.subjects.perfect import FACTORY, PerfectSubject
from oracle.subjects.protocol import NumericClass, StepEvidence, SubjectIdentity, SubjectRequest
from oracle.subjects.repeats import Repeat, RepeatEvidence, Variant
from oracle.subjects.run import load_run, save_run

GATE = DeterminismGate()


@pytest.fixture(scope="module")
def repeated(case: Case) -> Case:
    return GATE.honest(case)


def test_equal_repeats_pass_and_every_position_of_each_is_counted(repeated: Case) -> None:
    judgement = GATE.judge(repeated)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), 2 * REPEAT_STEPS)


def test_each_planted_fault_is_found_with_its_variant_and_place(repeated: Case) -> None:
    found = {name: [str(f) for f in GATE.judge(planted).findings] for name, planted in GATE.plants(repeated).items()}
    assert repeated.run.repeats is not None
    prompt = repeated.run.repeats.prompt
    assert found == {
        "other logits at one position": [
            f"variant twice: logits differ from the run's own (1 of 24, at first at {prompt}[{REPEAT_STEPS - 1}])"
        ],
        "other layers at one position": [
            f"variant twice: what its layers show differ from the run's own (1 of 24, at first at {prompt}[0])"
        ],
        "a position missing": [f"variant twice has not as many positions (1 of 1, worst 23, allowed 24, at {prompt})"],
        "a condition without effect": [
            f"variant twice took no effect: counter planted never moved (1 of 1, worst 0, allowed above 0, at {prompt})"
        ],
        "a fault": [f"variant twice ended in a fault: planted: a fault (1 of 1, at {prompt})"],
        "a variant not run": [
            "the variants that ran are not those declared (1 of 1, worst once, allowed once, twice)",
        ],
        "an arm without effect": [
            "arm bf16 took no effect: counter planted never moved (1 of 1, worst 0, allowed above 0, at all its prompts)"
        ],
    }


@pytest.mark.parametrize(
    "array", ["argmax", "logits_at_golden", "top_ids", "top_logits", "logsumexp", "non_finite", "sketch", "expert_ids"]
)
def test_one_bit_of_any_array_at_one_position_changes_that_position_s_digest_alone(case: Case, array: str) -> None:
    run = case.run.prompts[case.golden.prompts[0].name]
    rows = getattr(run, array)
    flat = np.ascontiguousarray(rows[3]).view(np.uint32).copy().reshape(-1)
    flat[-1] ^= 1
    other = replace(run, **{array: changed(rows, 3, flat.view(rows.dtype).reshape(rows[3].shape))})
    pairs = list(zip(position_digests(run), position_digests(other), strict=True))
    assert [position for position, (own, spoiled) in enumerate(pairs) if own != spoiled] == [3]


def test_the_prompt_that_was_repeated_must_be_answered(repeated: Case) -> None:
    assert repeated.run.repeats is not None
    judgement = GATE.judge(with_run(repeated, repeats=replace(repeated.run.repeats, prompt="another")))
    assert (judgement.verdict, headlines(judgement)) == ("incomplete", ["the prompt that was repeated was not answered"])


def test_evidence_of_no_repeat_at_all_is_never_green(repeated: Case) -> None:
    assert GATE.judge(with_run(repeated, repeats=RepeatEvidence("one-id", (), ()))).verdict == "incomplete"


def test_repeats_come_back_from_a_stored_run(repeated: Case, tmp_path: Path) -> None:
    save_run(repeated.run, tmp_path / "run")
    assert load_run(tmp_path / "run").repeats == repeated.run.repeats


class Varied:
    """The perfect subject, with variants of its own; `spoil` decides what a variant does to a step."""

    arms: Mapping[str, NumericClass] = {"bf16": "bf16"}
    devices: tuple[str, ...] = ()
    plants: Mapping[str, str] = {}
    variants: Mapping[str, Variant] = {"again": Variant("nothing"), "small": Variant("fewer slots", ("evictions",))}

    def __init__(self, spoil: Callable[[str, StepEvidence], StepEvidence], effects: tuple[str, ...] = ()) -> None:
        self.spoil = spoil
        self._effects = effects

    def effects(self, arm: str) -> tuple[str, ...]:
        assert arm == "bf16"
        return self._effects

    def open(self, request: SubjectRequest, observer: object = None) -> PerfectSubject:
        inner = FACTORY.open(replace(request, golden=mini_golden(), variant=None))
        told = SubjectIdentity("varied", "bf16", "bf16", (*inner.identity.required_gates, "determinism"))
        spoil, variant = self.spoil, request.variant

        def step(self: PerfectSubject, token: int) -> StepEvidence:
            evidence = PerfectSubject.step(self, token)
            return evidence if variant is None else spoil(variant, evidence)

        stats = {"evictions": 3} if variant == "small" else {"reads": 2} if variant is None else {}
        members = {"identity": property(lambda _self: told), "step": step, "stats": lambda _self: stats}
        inner.__class__ = type("Varied", (PerfectSubject,), members)
        return inner


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A whole session of a `Varied` subject over the shipped golden, in this process."""

    def run(spoil: Callable[[str, StepEvidence], StepEvidence], *effects: str, prompts: tuple[str, ...] | None = None) -> Any:
        factory = Varied(spoil, effects)

        installed = registry.subject_factory

        def named(name: str) -> Any:
            return factory if name == "varied" else installed(name)

        for module in (jobs, session, registry):
            monkeypatch.setattr(module, "subject_factory", named)
        monkeypatch.setattr(session, "run_jobs", lambda listed, *_: [jobs.run_job(job) for job in listed])
        options = SessionOptions(mini_checkpoint(), mini_golden(), subject="varied", only="determinism", prompts=prompts)
        return judge_recorded(record_session(options), ("determinism",), partial=True)

    return run


def test_a_session_repeats_the_most_telling_prompt_under_every_variant(judged: Callable[..., Any], case: Case) -> None:
    report = judged(lambda _, evidence: evidence)
    assert report.verdict == "pass"
    assert report.run.repeats.prompt == most_telling_first(case.golden.prompts)[0].name
    assert [(r.variant, len(r.digests), r.counters) for r in report.run.repeats.repeats] == [
        ("again", REPEAT_STEPS, ()),
        ("small", REPEAT_STEPS, (("evictions", 3),)),
    ]
    assert len(report.run.prompts) == len(case.golden.prompts), "a repeat is no prompt's answer"


def test_a_variant_that_disturbs_one_bit_is_red(judged: Callable[..., Any]) -> None:
    def spoil(variant: str, evidence: StepEvidence) -> StepEvidence:
        if variant == "again" or evidence.position != 7:
            return evidence
        logits = evidence.logits.copy()
        logits[evidence.logits.argmax()] = np.nextafter(logits.max(), np.float32(np.inf))
        return replace(evidence, logits=logits)

    report = judged(spoil)
    assert report.verdict == "fail"
    [gate] = [gate for gate in report.gates if gate.name == "determinism"]
    assert [f.headline for f in gate.findings] == ["variant small: logits differ from the run's own"]
    assert gate.findings[0].where.endswith("[7]")


def test_a_variant_that_faults_is_red_and_no_other_prompt_is(judged: Callable[..., Any]) -> None:
    def spoil(variant: str, evidence: StepEvidence) -> StepEvidence:
        if variant == "small":
            raise DeviceFault("slot-verification", "byte 3 differs")
        return evidence

    report = judged(spoil)
    [gate] = [gate for gate in report.gates if gate.name == "determinism"]
    assert [f.headline for f in gate.findings] == ["variant small ended in a fault: slot-verification: byte 3 differs"]
    assert report.run.faults == {}


def test_an_arm_that_moves_its_counter_passes_and_its_value_is_of_all_prompts(judged: Callable[..., Any], case: Case) -> None:
    two = tuple(prompt.name for prompt in most_telling_first(case.golden.prompts)[:2])
    report = judged(lambda _, evidence: evidence, "reads", prompts=two)
    [gate] = [gate for gate in report.gates if gate.name == "determinism"]
    assert (gate.verdict, report.run.repeats.effects) == ("pass", (("reads", 2 + 2),))


def test_an_arm_that_moves_nothing_is_red_also_where_one_prompt_alone_was_asked_for(
    judged: Callable[..., Any], case: Case
) -> None:
    first = most_telling_first(case.golden.prompts)[0].name
    report = judged(lambda _, evidence: evidence, "reads", "evictions", prompts=(first,))
    [gate] = [gate for gate in report.gates if gate.name == "determinism"]
    assert (gate.verdict, [f.headline for f in gate.findings]) == (
        "fail",
        ["arm bf16 took no effect: counter evictions never moved"],
    )
    assert report.run.repeats.effects == (("reads", 2), ("evictions", 0)), "a variant's own counters are none of the arm's"
    other = next(prompt.name for prompt in case.golden.prompts if prompt.name != first)
    [gate] = [g for g in judged(lambda _, e: e, "evictions", prompts=(other,)).gates if g.name == "determinism"]
    assert gate.verdict == "fail", "not what is repeated, and still the arm's"


def test_where_no_prompt_was_answered_nothing_is_said_of_the_arm() -> None:
    job = jobs.PromptJob("varied", SubjectRequest(mini_checkpoint(), variant="again"), mini_golden(), "one-id")
    told = SubjectIdentity("varied", "bf16", "bf16", ())
    outcomes = [
        jobs.PromptOutcome(job, told, None, None, None, {}, repeat=Repeat("again")),
        jobs.PromptOutcome(replace(job, request=replace(job.request, variant=None)), told, None, None, None, {"reads": 3}),
    ]
    evidence = repeats_of(Varied(lambda _, shown: shown, ("evictions",)), outcomes, {"reads": 3})
    assert evidence == RepeatEvidence("one-id", ("again", "small"), (Repeat("again"),), ())


def test_an_outcome_of_a_variant_is_kept_by_an_unfinished_session(case: Case, tmp_path: Path) -> None:
    repeats = GATE.honest(case).run.repeats
    assert repeats is not None
    job = jobs.PromptJob("perfect", SubjectRequest(mini_checkpoint(), variant="once"), mini_golden(), repeats.prompt)
    outcome = jobs.PromptOutcome(job, case.run.identity, None, None, None, {}, repeat=repeats.repeats[0])
    with unfinished_session(tmp_path / "state", case.golden, job, resume=False) as kept:
        kept.put(outcome)
        assert kept.get(job) == outcome
        assert kept.get(replace(job, request=replace(job.request, variant="twice"))) is None


def test_a_variant_that_a_subject_has_not_is_refused() -> None:
    with pytest.raises(SubjectError, match="has no variant 'small'; it has none"):
        registry.check_request("perfect", FACTORY, SubjectRequest(mini_checkpoint(), variant="small"))
