"""Gate `counters`: each rule of its own, and what is incomplete."""

from __future__ import annotations

import pytest
from judge_cases import headlines, with_run

from oracle.judge.counters import RULES, CountersGate, known_of
from oracle.judge.gate import Case

GATE = CountersGate()


@pytest.fixture(scope="module")
def counted(case: Case) -> Case:
    return GATE.honest(case)


def broken(case: Case) -> set[str]:
    return {finding.allowed for finding in GATE.judge(case).findings}


def test_counters_that_obey_every_rule_pass(counted: Case) -> None:
    judgement = GATE.judge(counted)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), len(RULES))


def test_what_the_judge_counts_itself_is_the_shipped_golden_s(case: Case) -> None:
    known = known_of(case)
    positions = sum(len(prompt.fed) for prompt in case.golden.prompts)
    assert known.steps == 2 * positions
    assert known.uses == 2 * positions * 5 * 6
    assert known.expert_bytes == 3 * (65_536 + 4 * 4)
    assert len(case.golden.prompts) * 5 * 6 <= known.distinct <= len(case.golden.prompts) * 5 * 16
    one = case.narrowed({"one-id"})
    ids = one.run.prompts["one-id"].expert_ids
    free = one.run.prompts["one-id"].free_expert_ids
    assert ids is not None
    assert free is not None
    pairs = {(layer, int(e)) for shown in (ids, free) for layer in range(5) for e in shown[:, layer].reshape(-1)}
    assert known_of(one).distinct == len(pairs)


def test_every_rule_is_broken_by_a_plant_and_every_plant_breaks_one(counted: Case) -> None:
    found = {name: broken(planted) for name, planted in GATE.plants(counted).items()}
    assert all(found.values())
    assert {rule.says for rule in RULES} == set().union(*found.values())


def test_a_finding_shows_the_counters_and_the_rule(counted: Case) -> None:
    [finding] = GATE.judge(GATE.plants(counted)["a drain not counted"]).findings
    assert str(finding) == (
        "counters contradict the device or each other (1 of 1, worst drains 3, device.synchronizes 4, "
        "allowed drains = device.synchronizes)"
    )


@pytest.mark.parametrize("name", ["memory_after", "slot_swaps", "device.blocking_reads"])
def test_a_counter_that_is_not_stated_is_incomplete_and_never_green(counted: Case, name: str) -> None:
    judgement = GATE.judge(with_run(counted, stats={k: v for k, v in counted.run.stats.items() if k != name}))
    assert judgement.verdict == "incomplete"
    assert f"the subject does not count {name}" in headlines(judgement)


def test_counters_of_prompts_that_ended_early_are_not_compared(counted: Case) -> None:
    judgement = GATE.judge(with_run(counted, faults={"one-id": "kind: message"}))
    assert (judgement.verdict, judgement.compared) == ("incomplete", 0)


def test_a_subject_without_a_device_has_nothing_to_compare(case: Case) -> None:
    assert not GATE.holds(case.run)
    assert GATE.judge(case).verdict == "incomplete"
