"""Gate `capture`: a prompt replayed against the same prompt enqueued, bit for bit, and regions that hold nothing but ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from judge_cases import mini_golden, with_run

import oracle.judge.capture_controls as capture_controls_module
import oracle.judge.jobs as jobs
from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.judge.auditing import AUDITED
from oracle.judge.capture import HONEST, SPOILED, CaptureGate, region_findings
from oracle.judge.capture_controls import capture_controls
from oracle.judge.determinism import REPEAT_STEPS
from oracle.judge.gate import Case
from oracle.judge.unfinished_session import unfinished_session
from oracle.subjects.captures import CapturedRegion, CaptureEvidence, merged
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import load_run, save_run

GATE = CaptureGate()


@pytest.fixture(scope="module")
def captured(case: Case) -> Case:
    return GATE.honest(case)


def seen(case: Case) -> CaptureEvidence:
    assert case.run.captures is not None
    return case.run.captures


def test_equal_repeats_and_regions_of_ops_pass_and_every_position_is_counted(captured: Case) -> None:
    judgement = GATE.judge(captured)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), REPEAT_STEPS)
    assert judgement.measured == {"regions": 1, "distinct": 1, "replays": 24, "replays compared": 24}


def test_each_planted_fault_is_found_with_its_place(captured: Case) -> None:
    found = {name: [str(f) for f in GATE.judge(planted).findings] for name, planted in GATE.plants(captured).items()}
    prompt, last = seen(captured).prompt, REPEAT_STEPS - 1
    second = "at first in region 2 of 2, 5 ops, 1 replays"
    unrun = [f"variant {name} gave no answer: it was not run (1 of 1, at {prompt})" for name in ("replayed", "enqueued")]
    assert found == {
        "other logits at one position": [
            f"logits differ between variants replayed and enqueued (1 of 24, at first at {prompt}[{last}])"
        ],
        "other layers at one position": [
            f"what its layers show differ between variants replayed and enqueued (1 of 24, at first at {prompt}[0])"
        ],
        "a position missing in both": [
            f"variant {name} has not as many positions (1 of 1, worst 23, allowed 24, at {prompt})"
            for name in ("replayed", "enqueued")
        ],
        "a position missing in one": [
            f"variant replayed has not as many positions (1 of 1, worst 23, allowed 24, at {prompt})"
        ],
        "a fault": [f"variant replayed gave no answer: planted: a fault (1 of 1, at {prompt})"],
        "not replayed at all": unrun[:1],
        "not enqueued at all": unrun[1:],
        "no repeats": unrun,
        "another prompt's repeats": unrun,
        "nothing captured": [f"nothing was captured (1 of 1, at {prompt})"],
        "nothing replayed": [f"variant replayed replayed nothing (1 of 1, worst 0, allowed above 0, at {prompt})"],
        "replayed in both": [
            "variant enqueued replayed captured regions: what was compared is both times a replay "
            f"(1 of 1, worst 1, allowed 0, at {prompt})"
        ],
        **{
            f"{what} inside": [f"{call}, which is no op, inside a captured region (1 of 2, worst 1 times, {second})"]
            for what, call in (
                ("an allocation", "allocate_tensor_on_device"),
                ("a free", "deallocate"),
                ("a transfer to the device", "copy_host_to_device_tensor"),
                ("a transfer to the host", "copy_device_to_host_tensor"),
                ("a sync", "synchronize_device"),
            )
        },
        "no op inside": ["a captured region without an op (1 of 2, at first in region 2 of 2, 0 ops, 1 replays)"],
        "an expert inside": [f"a captured region takes routed experts' weights (1 of 2, worst 1 tensors, {second})"],
        "a weight changed": [
            "a region was replayed after weights that it reads were written, and not captured anew "
            f"(1 of 2, worst model.norm.weight, {second})"
        ],
    }


def test_one_position_more_than_the_prompt_has_is_found(captured: Case) -> None:
    repeats = captured.run.repeats
    assert repeats is not None
    longer = tuple(replace(repeat, digests=(*repeat.digests, ("a", "b"))) for repeat in repeats.repeats)
    assert len(GATE.judge(with_run(captured, repeats=replace(repeats, repeats=longer))).findings) == 2


def test_a_finding_counts_all_regions_that_have_the_fault_and_names_the_first() -> None:
    wrote = CapturedRegion((("deallocate", 2), ("op.mul", 1)), 8, ("a", "b", "c", "d", "e"), alike=3)
    regions = (replace(HONEST, alike=4), wrote, replace(wrote, calls=(("deallocate", 9), ("op.add", 1)), changed=(), alike=5))
    assert [str(finding) for finding in region_findings(regions)] == [
        "deallocate, which is no op, inside a captured region "
        "(8 of 12, worst 2 times, at first in region 2 of 3, 1 ops, 8 replays)",
        "a region was replayed after weights that it reads were written, and not captured anew "
        "(3 of 12, worst a, b, c and 2 more, at first in region 2 of 3, 1 ops, 8 replays)",
    ]


def test_no_more_positions_are_counted_than_were_replayed(captured: Case) -> None:
    few = replace(seen(captured), executions=(3, 0))
    assert GATE.judge(with_run(captured, captures=few)).compared == 3
    assert GATE.judge(with_run(captured, captures=replace(few, executions=(0, 0)))).compared == 0


def test_the_prompt_that_was_repeated_must_be_answered(captured: Case) -> None:
    judgement = GATE.judge(with_run(captured, captures=replace(seen(captured), prompt="another")))
    assert (judgement.verdict, [f.headline for f in judgement.findings]) == (
        "incomplete",
        ["the prompt that was repeated was not answered"],
    )
    spoiled = replace(seen(captured), prompt="another", regions=(SPOILED["a sync inside"],))
    assert GATE.judge(with_run(captured, captures=spoiled)).verdict == "fail", "what regions hold needs no prompt"


def test_a_run_without_a_record_of_captures_is_incomplete(case: Case) -> None:
    assert GATE.judge(case).verdict == "incomplete"
    assert not GATE.holds(case.run)


def test_captures_come_back_from_a_stored_run(captured: Case, tmp_path: Path) -> None:
    regions = (HONEST, *SPOILED.values())
    save_run(replace(captured.run, captures=replace(seen(captured), regions=regions)), tmp_path / "run")
    assert load_run(tmp_path / "run").captures == replace(seen(captured), regions=regions)


@pytest.mark.parametrize("name", SPOILED)
def test_regions_alone_make_an_outcome_red(case: Case, name: str) -> None:
    job = jobs.PromptJob("perfect", SubjectRequest(mini_checkpoint()), mini_golden(), "one-id")
    outcome = jobs.PromptOutcome(job, case.run.identity, None, None, None, {}, captures=(HONEST,))
    red = AUDITED["capture"].red
    assert not red(outcome)
    assert red(replace(outcome, captures=(HONEST, SPOILED[name])))


def test_merging_that_loses_a_fault_or_a_count_is_seen_by_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(control.behaved for control in capture_controls())

    def losing(*lost: str) -> list[str]:
        def merging(regions: Iterable[CapturedRegion]) -> tuple[CapturedRegion, ...]:
            whole = {name: getattr(HONEST, name) for name in lost}
            return merged(replace(region, **whole) for region in regions)

        monkeypatch.setattr(capture_controls_module, "merged", merging)
        return [control.name for control in capture_controls() if not control.behaved]

    assert losing("replays") == ["capture honest"]
    assert losing("experts") == ["capture an expert inside"]
    assert losing("changed") == ["capture a weight changed"]
    assert len(losing("calls")) == 6


def test_an_unfinished_session_keeps_what_was_captured(case: Case, tmp_path: Path) -> None:
    job = jobs.PromptJob("perfect", SubjectRequest(mini_checkpoint()), mini_golden(), "one-id")
    outcome = jobs.PromptOutcome(job, case.run.identity, None, DeviceFault("hang", "1"), None, {}, captures=(HONEST,))
    with unfinished_session(tmp_path / "state", case.golden, job, resume=False) as kept:
        for listed in (outcome, replace(outcome, job=replace(job, prompt="copying"), captures=())):
            kept.put(listed)
            assert replace(kept.get(listed.job), fault=None) == replace(listed, fault=None)  # type: ignore[type-var]
