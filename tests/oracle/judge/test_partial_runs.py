"""A run that left prompts out is judged on the others alone, and says so wherever its verdict is read."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from oracle.errors import RunError
from oracle.judge.alignment import AlignmentGate
from oracle.judge.gate import Case
from oracle.judge.gates import GATE_NAMES
from oracle.judge.verdict import Report, judge_session
from oracle.report.terminal import print_report
from oracle.subjects.run import Run, load_run, save_run

KEPT = ("copying", "digits")


def partial(run: Run) -> Run:
    """The run as if all prompts but two had been left out."""
    prompts = {name: run.prompts[name] for name in KEPT}
    return replace(run, prompts=prompts, left_out=tuple(name for name in run.prompts if name not in KEPT))


@pytest.fixture(scope="module")
def report(case: Case) -> Report:
    run = partial(case.run)
    return judge_session(case.golden, case.checkpoint, run, run, selected=GATE_NAMES)


def test_a_partial_run_passes_as_partial_and_names_what_it_left_out(report: Report, case: Case) -> None:
    left_out = [p.name for p in case.golden.prompts if p.name not in KEPT]
    assert (report.verdict, report.partial, report.exit_code) == ("pass", True, 0)
    assert report.to_json()["left_out"] == left_out
    reasons = {entry.gate: entry.reason for entry in report.ledger if entry.ran}
    assert reasons.pop("golden") == reasons.pop("ledger") == ""
    assert set(reasons.values()) == {"15 of 17 prompts were left out"}
    out = io.StringIO()
    print_report(Console(file=out, width=120), report)
    assert out.getvalue().splitlines()[-2:] == [f"left out, 15 prompts: {', '.join(left_out)}", "PARTIAL PASS"]


def test_gates_compare_what_was_answered_and_nothing_else(report: Report, case: Case) -> None:
    positions = sum(len(p.fed) for p in case.golden.prompts if p.name in KEPT)
    compared = {gate.name: gate.compared for gate in report.gates}
    assert (compared["flips"], compared["logits"]) == (positions, positions)
    assert all(control.behaved for gate in report.gates for control in gate.controls)


def test_a_whole_run_leaves_nothing_out(case: Case) -> None:
    whole = judge_session(case.golden, case.checkpoint, case.run, case.run, selected=("alignment",))
    assert (whole.partial, whole.to_json()["left_out"]) == (False, [])
    assert {entry.reason for entry in whole.ledger if entry.ran} == {""}


def test_a_prompt_that_is_missing_without_a_word_is_incomplete(case: Case) -> None:
    run = partial(case.run)
    silent = AlignmentGate().judge(case.with_run(prompts=run.prompts, left_out=run.left_out[1:]))
    assert silent.verdict == "incomplete"
    assert [(f.headline, f.where) for f in silent.findings] == [("the prompt was not run", run.left_out[0])]


def test_a_run_that_left_everything_out_is_never_green(case: Case) -> None:
    nothing = replace(case.run, prompts={}, left_out=tuple(case.run.prompts))
    report = judge_session(case.golden, case.checkpoint, nothing, case.run, selected=GATE_NAMES)
    assert report.verdict == "incomplete"


def test_a_fault_of_a_prompt_that_is_said_to_be_left_out_is_a_fault(case: Case) -> None:
    run = replace(partial(case.run), faults={"chat": "card: lost"})
    assert AlignmentGate().judge(replace(case, run=run)).verdict == "fail"


def test_what_was_left_out_is_stored_with_the_run(case: Case, tmp_path: Path) -> None:
    run = partial(case.run)
    save_run(run, tmp_path / "run")
    assert load_run(tmp_path / "run").left_out == run.left_out


@pytest.mark.parametrize("spoiled", [{"left_out": ("digits",)}, {"faults": {"chat": "card: lost"}}], ids=["answered", "fault"])
def test_a_run_that_leaves_out_what_it_has_is_refused(case: Case, tmp_path: Path, spoiled: dict) -> None:
    save_run(replace(partial(case.run), **spoiled), tmp_path / "run")
    with pytest.raises(RunError, match="is said to be left out, and has an answer or a fault"):
        load_run(tmp_path / "run")
