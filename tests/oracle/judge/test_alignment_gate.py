"""Gate `alignment`: nothing is compared with the golden unless the subject was fed what the golden was."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations

import numpy as np
import pytest
from judge_cases import answer, changed, headlines, with_prompt, with_run

from oracle.judge.alignment import AlignmentGate
from oracle.judge.gate import Case
from oracle.subjects.harness import digest_embedding
from oracle.subjects.run import PromptRun

GATE = AlignmentGate()
COMPARED_PER_POSITION = 4
"""Id consumed, position, embedding row, id consumed in the free run."""


def test_the_perfect_run_is_aligned_at_every_position(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.compared == COMPARED_PER_POSITION * case.golden.positions


def test_its_planted_fault_is_found(case: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(case).items()}
    sets = ["the run contradicts itself: an expert id is out of range or twice in a set"]
    weights = ["the run contradicts itself: an expert's weight is no sigmoid"]
    assert found == {
        "positions counted from 1": ["position computed is not the golden's"],
        "another id consumed": ["id consumed is not the golden's"],
        "another embedding row": ["embedding row is not the golden's"],
        "a free run fed otherwise": ["id consumed in the free run is not the golden's"],
        "an expert twice": sets,
        "an expert that does not exist": sets,
        "a negative expert": sets,
        "a weight above one": weights,
        "a weight below zero": weights,
        "a device fault": ["a device fault ended the prompt: planted: a fault"],
        "an argmax that is not the largest": ["the run contradicts itself: argmax is not the first of its own largest logits"],
        "a position short": ["array logsumexp has the wrong shape"],
        "one NaN": ["the run contradicts itself: array logsumexp holds NaN or infinity"],
        "experts of all prompts but one": [
            f"array {name} is missing, other prompts have it" for name in ("expert_ids", "expert_weights", "free_expert_ids")
        ],
        "experts in one pass only": ["array expert_ids is there without free_expert_ids"],
    }


@pytest.mark.parametrize("shift", [1, -1])
def test_positions_off_by_one_are_found_from_the_first(case: Case, shift: int) -> None:
    prompt = case.golden.prompts[2]
    [finding] = GATE.judge(with_prompt(case, prompt, positions=answer(case, prompt).positions + np.int32(shift))).findings
    assert (finding.headline, finding.where) == ("position computed is not the golden's", f"{prompt.name}[0]")
    assert finding.worst == f"{shift} for 0"
    assert (finding.count, finding.of, finding.allowed) == (len(prompt.fed), len(prompt.fed), "equal")


def test_forwarding_only_the_last_prompt_id_is_found(case: Case) -> None:
    prompt = max(case.golden.prompts, key=lambda p: len(p.prompt_ids))
    run, last = answer(case, prompt), len(prompt.prompt_ids) - 1
    # The other rows are what a zeroed cache shows: id 0 at position 0, though `last` positions are claimed.
    unfed = with_prompt(
        case,
        prompt,
        consumed=changed(run.consumed, slice(0, last), 0),
        positions=changed(run.positions, slice(0, last), 0),
    )
    found = {f.headline: f.count for f in GATE.judge(unfed).findings}
    assert found["position computed is not the golden's"] == last - 1
    assert found["id consumed is not the golden's"] == sum(i != 0 for i in prompt.prompt_ids[:-1])


def test_rows_only_from_the_last_prompt_id_on_have_the_wrong_shape(case: Case) -> None:
    prompt = max(case.golden.prompts, key=lambda p: len(p.prompt_ids))
    start = len(prompt.prompt_ids) - 1
    short = {f.name: getattr(answer(case, prompt), f.name)[start:] for f in fields(PromptRun)}
    [finding] = GATE.judge(with_prompt(case, prompt, **short)).findings
    assert (finding.headline, finding.where, finding.verdict) == ("array consumed has the wrong shape", prompt.name, "fail")


def test_one_id_that_was_not_the_golden_s_is_found_at_its_position(case: Case) -> None:
    prompt = case.golden.prompts[0]
    consumed = answer(case, prompt).consumed
    other = (int(consumed[7]) + 1) % case.checkpoint.config.vocab_size
    [finding] = GATE.judge(with_prompt(case, prompt, consumed=changed(consumed, 7, other))).findings
    assert (finding.headline, finding.where) == ("id consumed is not the golden's", f"{prompt.name}[7]")
    assert finding.worst == f"{other} for {consumed[7]}"
    assert (finding.count, finding.of) == (1, len(prompt.fed))


def test_the_embedding_row_of_another_id_is_found(case: Case) -> None:
    prompt = case.golden.prompts[1]
    embedding = case.checkpoint.raw("model.embed_tokens.weight").reshape(case.checkpoint.config.vocab_size, -1)
    neighbour = digest_embedding(embedding[prompt.fed[3] + 1])
    rows = changed(answer(case, prompt).embedding_digest, 3, neighbour)
    [finding] = GATE.judge(with_prompt(case, prompt, embedding_digest=rows)).findings
    assert (finding.headline, finding.where, finding.count) == ("embedding row is not the golden's", f"{prompt.name}[3]", 1)


def test_one_bit_of_an_embedding_row_is_found(case: Case) -> None:
    prompt = case.golden.prompts[1]
    embedding = case.checkpoint.raw("model.embed_tokens.weight").reshape(case.checkpoint.config.vocab_size, -1)
    row = embedding[prompt.fed[0]].copy()
    row[-1] ^= 1
    rows = changed(answer(case, prompt).embedding_digest, 0, digest_embedding(row))
    assert headlines(GATE.judge(with_prompt(case, prompt, embedding_digest=rows))) == ["embedding row is not the golden's"]


def test_one_byte_of_a_digest_is_enough(case: Case) -> None:
    prompt = case.golden.prompts[1]
    rows = answer(case, prompt).embedding_digest
    other = with_prompt(case, prompt, embedding_digest=changed(rows, (2, -1), rows[2, -1] ^ 1))
    assert [(f.where, f.count) for f in GATE.judge(other).findings] == [(f"{prompt.name}[2]", 1)]


def test_a_free_run_fed_something_else_than_it_generated_is_found(case: Case) -> None:
    prompt = case.golden.prompts[0]
    run, start = answer(case, prompt), len(prompt.prompt_ids)
    other = (int(run.free_consumed[start]) + 1) % case.checkpoint.config.vocab_size
    [finding] = GATE.judge(with_prompt(case, prompt, free_consumed=changed(run.free_consumed, start, other))).findings
    assert (finding.headline, finding.where) == ("id consumed in the free run is not the golden's", f"{prompt.name}[{start}]")


def test_a_free_run_fed_the_golden_s_ids_while_it_generates_others_is_found(case: Case) -> None:
    prompt = case.golden.prompts[0]
    chain = changed(answer(case, prompt).free_generated, 4, prompt.generated[4] ^ 1)
    [finding] = GATE.judge(with_prompt(case, prompt, free_generated=chain)).findings
    assert finding.where == f"{prompt.name}[{len(prompt.prompt_ids) + 4}]"


def test_a_free_run_may_leave_the_golden_s_chain_if_it_feeds_itself(case: Case) -> None:
    prompt = case.golden.prompts[0]
    run, at = answer(case, prompt), 4
    other = prompt.generated[at] ^ 1
    own = with_prompt(
        case,
        prompt,
        free_generated=changed(run.free_generated, at, other),
        free_consumed=changed(run.free_consumed, len(prompt.prompt_ids) + at, other),
    )
    assert GATE.judge(own).verdict == "pass"


@pytest.mark.parametrize("name", [f.name for f in fields(PromptRun)])
def test_an_array_one_row_short_is_found_and_not_broadcast(case: Case, name: str) -> None:
    prompt = case.golden.prompts[0]
    [finding] = GATE.judge(with_prompt(case, prompt, **{name: getattr(answer(case, prompt), name)[:-1]})).findings
    assert (finding.headline, finding.where) == (f"array {name} has the wrong shape", prompt.name)
    assert finding.worst != finding.allowed


@pytest.mark.parametrize(
    "name", ["logits_at_golden", "top_ids", "top_logits", "expert_ids", "expert_weights", "sketch", "embedding_digest"]
)
@pytest.mark.parametrize("width", [1, 3])
def test_an_array_with_narrow_rows_is_found_and_not_broadcast(case: Case, name: str, width: int) -> None:
    prompt = case.golden.prompts[0]
    [finding] = GATE.judge(with_prompt(case, prompt, **{name: getattr(answer(case, prompt), name)[..., :width]})).findings
    assert (finding.headline, finding.where) == (f"array {name} has the wrong shape", prompt.name)


def test_a_prompt_that_was_not_run_is_incomplete(case: Case) -> None:
    left_out = case.golden.prompts[3].name
    rest = {name: run for name, run in case.run.prompts.items() if name != left_out}
    judgement = GATE.judge(with_run(case, prompts=rest))
    assert judgement.verdict == "incomplete"
    assert [(f.headline, f.where) for f in judgement.findings] == [("the prompt was not run", left_out)]


def test_a_device_fault_is_a_failure_and_never_an_absence(case: Case) -> None:
    first, second = (p.name for p in case.golden.prompts[:2])
    rest = {name: run for name, run in case.run.prompts.items() if name not in (first, second)}
    judgement = GATE.judge(with_run(case, prompts=rest, faults={first: "slot-verification: byte 3 of slot 1"}))
    assert judgement.verdict == "fail"
    assert [f.where for f in judgement.findings] == [first, second]
    assert "slot-verification: byte 3 of slot 1" in judgement.findings[0].headline


@pytest.mark.parametrize("name", ["expert_ids", "free_expert_ids"])
@pytest.mark.parametrize(("one", "other"), list(combinations(range(6), 2)))
def test_an_expert_twice_in_a_set_is_found_in_whichever_two_places(case: Case, name: str, one: int, other: int) -> None:
    prompt, run = case.answered()[0]
    ids = getattr(run, name).copy()
    ids[3, 2, other] = ids[3, 2, one]
    findings = AlignmentGate().judge(with_prompt(case, prompt, **{name: ids})).findings
    assert [(finding.where, finding.count) for finding in findings] == [(f"{prompt.name}[3]", 1)]
    assert "out of range or twice in a set" in findings[0].headline
