"""What a case and its spoiled copies share: found once where nothing that it follows from was changed, anew where it was."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_cases import mini_golden
from resident import resident_bytes

import oracle.judge.gate as gate_module
from goldens import mini_checkpoint
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import load_golden
from oracle.judge.alignment import AlignmentGate
from oracle.judge.chain import ChainGate
from oracle.judge.gate import Case
from oracle.judge.golden_gate import GoldenGate
from oracle.judge.session import SessionOptions, open_session
from oracle.judge.slots import expected_uses
from oracle.judge.soundness import golden_findings
from oracle.judge.verdict import judge_session
from oracle.subjects.run import load_control, load_run, save_run

Copy = Callable[[Case], Case]
Make = Callable[[], object]


@pytest.fixture
def few(case: Case) -> Case:
    """Three prompts, nothing found of them yet."""
    prompts = case.golden.prompts[:3]
    run = replace(case.run, prompts={prompt.name: case.run.prompts[prompt.name] for prompt in prompts})
    return replace(case, golden=replace(case.golden, prompts=prompts), run=run)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the prompts in the order they are measured."""
    names: list[str] = []

    def counted(prompt: PromptEvidence, *rest: Any) -> Comparison:
        names.append(prompt.name)
        return compare(prompt, *rest)

    monkeypatch.setattr(gate_module, "compare", counted)
    return names


def with_first_prompt(case: Case, **changes: Any) -> Case:
    """The case with another first prompt in its golden."""
    first, *others = case.golden.prompts
    return case.with_golden(prompts=(replace(first, **changes), *others))


def equal(one: Comparison, other: Comparison) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Comparison))


def test_copies_of_copies_are_measured_only_where_they_differ(few: Case, measured: list[str]) -> None:
    first, second, third = (prompt.name for prompt in few.golden.prompts)
    spoiled = few.narrowed([first, second]).with_prompt(first, argmax=few.run.prompts[first].argmax + np.int32(1))
    again = spoiled.with_prompt(second, logsumexp=few.run.prompts[second].logsumexp + 1.0)
    assert again.comparisons[first].flip.all()
    assert measured == [first, second]
    assert spoiled.comparisons[first] is again.comparisons[first]
    assert spoiled.comparisons[second].mass.tolist() != again.comparisons[second].mass.tolist()
    assert few.comparisons[second] is spoiled.comparisons[second]
    assert measured == [first, second, second, first, third]
    assert not few.comparisons[first].flip.any()


def test_a_golden_with_other_evidence_or_probes_is_measured_anew(few: Case, measured: list[str]) -> None:
    first, *others = (prompt.name for prompt in few.golden.prompts)
    assert len(few.comparisons) == 3
    margin = few.golden.prompts[0].top_logits.copy()
    margin[:, 0] += np.float32(1)
    changed = with_first_prompt(few, top_logits=margin)
    assert (changed.comparisons[first].margin > few.comparisons[first].margin).all()
    assert measured[3:] == [first]
    off = few.golden.probes.router_logits + np.float32(1)
    probed = few.with_golden(probes=replace(few.golden.probes, router_logits=off))
    assert (probed.comparison.router_logit_error > 0).any()  # type: ignore[operator]
    assert measured[4:] == [first, *others]


def test_another_run_of_the_same_golden_is_measured_by_itself(few: Case) -> None:
    """As the control's run is beside the run under test."""
    name = few.golden.prompts[0].name
    prompts = {
        shown: replace(run, logits_at_golden=run.logits_at_golden + np.float32(0.5)) for shown, run in few.run.prompts.items()
    }
    control, other = few, few.with_run_of(replace(few.run, prompts=prompts))
    assert other.comparisons[name].logit_error.all()
    assert not control.comparisons[name].logit_error.any()
    alone = replace(other, base=None)
    assert equal(alone.comparisons[name], other.comparisons[name])


def other_run(case: Case) -> Case:
    return case.with_prompts(lambda run: replace(run, argmax=run.argmax + np.int32(1)))


def fewer(case: Case) -> Case:
    return case.narrowed([prompt.name for prompt in case.golden.prompts[:2]])


def fewer_answers(case: Case) -> Case:
    return case.with_run(prompts=dict(list(case.run.prompts.items())[:2]))


def other_prompt(case: Case) -> Case:
    return with_first_prompt(case, logsumexp=case.golden.prompts[0].logsumexp + 1)


def other_document(case: Case) -> Case:
    return case.with_golden(document=case.golden.document.model_copy(update={"checkpoint_digest": "sha256:0"}))


def other_probes(case: Case) -> Case:
    return case.with_golden(probes=replace(case.golden.probes))


def other_calibration(case: Case) -> Case:
    return replace(case, calibration=case.golden.document.classes["fp32"], base=case)


def answer_once(case: Case, key: str, make: Make) -> object:
    prompt = case.golden.prompts[0]
    return case.once_for_answer(prompt, case.run.prompts[prompt.name], key, make)


def prompt_once(case: Case, key: str, make: Make) -> object:
    return case.once_for_prompt(case.golden.prompts[0], key, make)


@pytest.mark.parametrize(
    ("once", "same", "changed"),
    [
        (prompt_once, (other_run, fewer, other_document), (other_prompt,)),
        (answer_once, (fewer, other_document), (other_run, other_prompt, other_probes)),
        (
            Case.once_for_margins,
            (other_run, other_document),
            (fewer, fewer_answers, other_prompt, other_calibration),
        ),
        (Case.once_for_chains, (other_run, fewer_answers, other_document), (fewer, other_prompt)),
        (Case.once_for_document, (other_run, fewer, other_prompt), (other_document,)),
    ],
)
def test_what_follows_from_a_part_is_found_once_for_all_copies_with_that_very_part(
    few: Case, once: Callable[[Case, str, Make], object], same: tuple[Copy, ...], changed: tuple[Copy, ...]
) -> None:
    for copy in same:
        base = replace(few)
        assert once(copy(copy(base)), "x", object) is once(base, "x", object), copy
    for copy in changed:
        base = replace(few)
        found = once(copy(base), "x", object)
        assert found is not once(base, "x", object), copy
        assert found is not once(copy(base), "x", object), copy


def test_two_things_of_one_part_are_two(few: Case) -> None:
    first, second = few.golden.prompts[:2]
    found = [few.once_for_prompt(prompt, key, object) for prompt in (first, second) for key in ("x", "y")]
    found += [few.once_for_answer(first, few.run.prompts[first.name], "x", object)]
    found += [once("x", object) for once in (few.once_for_margins, few.once_for_chains, few.once_for_document)]
    assert len(set(map(id, found))) == len(found)


def test_the_soundness_and_alignment_of_a_changed_prompt_are_found_anew(few: Case) -> None:
    first = few.golden.prompts[0].name
    assert golden_findings(few) == ()
    assert few.judged(AlignmentGate()).verdict == "pass"
    infinite = few.golden.prompts[0].logsumexp.copy()
    infinite[0] = np.inf
    assert [finding.where for finding in golden_findings(with_first_prompt(few, logsumexp=infinite))] == [f"{first}[0]"]
    other_ids = with_first_prompt(few, prompt_ids=(5, *few.golden.prompts[0].prompt_ids[1:]))
    wheres = {finding.headline for finding in other_ids.judged(AlignmentGate()).findings}
    assert wheres == {f"{what} is not the golden's" for what in ("id consumed", "embedding row", "id consumed in the free run")}


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_a_judged_run_leaves_none_of_its_prompts_in_memory(case: Case, tmp_path: Path) -> None:
    """Each prompt takes memory while it is walked; after a session only what was looked at last stays."""
    save_run(case.run, tmp_path / "run", control=case.run)
    stored, control = load_run(tmp_path / "run"), load_control(tmp_path / "run")
    assert control is not None
    files = [tmp_path / "run" / "run.safetensors", tmp_path / "run" / "control" / "run.safetensors"]
    own = replace(case, run=stored, base=None)
    for prompt, run in own.each():
        assert resident_bytes(files[0]) == 0
        assert np.array_equal(run.argmax, prompt.argmax)
        assert resident_bytes(files[0]) > 0
    assert resident_bytes(files[0]) == 0
    assert not own.comparison.flip.any()
    assert resident_bytes(files[0]) == 0
    report = judge_session(case.golden, case.checkpoint, stored, control, selected=("alignment", "logits"), partial=True)
    assert report.verdict == "pass"
    assert all(resident_bytes(file) < file.stat().st_size / 2 for file in files)


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_whoever_walks_all_prompts_of_stored_files_gives_them_back(case: Case, tmp_path: Path) -> None:
    shutil.copytree(mini_golden(), tmp_path / "golden")
    save_run(case.run, tmp_path / "run", control=case.run)
    options = SessionOptions(mini_checkpoint(), tmp_path / "golden", replay=tmp_path / "run")
    files = [tmp_path / "golden" / "golden.safetensors", tmp_path / "run" / "run.safetensors"]
    golden = load_golden(options.golden)
    assert resident_bytes(files[0]) == 0
    opened = open_session(options)
    assert opened.stored is not None
    assert [resident_bytes(file) for file in files] == [0, 0]
    stored = replace(case, golden=golden, run=opened.stored, base=None)
    for walk in (golden_findings, AlignmentGate().judge, GoldenGate().judge, ChainGate().judge, expected_uses):
        walk(stored)
        assert [resident_bytes(file) for file in files] == [0, 0], walk
