"""The perfect subject answers by the ids it was fed: a harness or a gate that counts wrongly makes even it fail."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.errors import CheckpointError, DeviceFault, GoldenError, SubjectError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.subjects.harness import drive
from oracle.subjects.perfect import FACTORY, PerfectSubject
from oracle.subjects.protocol import NumericClass, SubjectRequest

REQUEST = SubjectRequest(mini_checkpoint(), mini_checkpoint() / "golden")


@pytest.fixture
def perfect() -> PerfectSubject:
    return FACTORY.open(REQUEST)


@pytest.fixture
def prompt(golden: Golden) -> PromptEvidence:
    return max(golden.prompts, key=lambda p: len(p.prompt_ids))


def test_it_shows_exactly_what_the_golden_holds(golden: Golden, perfect: PerfectSubject) -> None:
    for prompt in golden.prompts:
        probes = golden.probes_of(prompt.name)
        run = drive(perfect, prompt, probes.positions)
        assert run.router_logits is not None
        assert np.array_equal(run.router_logits, probes.router_logits)
        assert run.consumed.tolist() == run.free_consumed.tolist() == list(prompt.fed)
        assert run.argmax.tolist() == prompt.argmax.tolist()
        assert run.free_generated.tolist() == list(prompt.generated)
        assert not run.non_finite.any()
        for position in range(len(prompt.fed)):
            # Prompts that begin alike share answers; the reference's own differ there in the last bits.
            fed = prompt.fed[: position + 1]
            told = next(p for p in golden.prompts if p.fed[: position + 1] == fed)
            for name in ("expert_ids", "expert_weights", "sketch", "top_ids", "top_logits"):
                assert np.array_equal(getattr(run, name)[position], getattr(told, name)[position])
            assert run.logsumexp[position] == pytest.approx(told.logsumexp[position], abs=1e-6)


@pytest.mark.parametrize("dropped", [0, -1])
def test_a_harness_that_feeds_shifted_ids_makes_it_fail(perfect: PerfectSubject, prompt: PromptEvidence, dropped: int) -> None:
    ids = list(prompt.prompt_ids)
    del ids[dropped]
    shifted = replace(prompt, prompt_ids=tuple(ids))
    with pytest.raises(DeviceFault, match="no prompt of the golden begins with the") as caught:
        drive(perfect, shifted)
    assert caught.value.kind == "unknown-prefix"


def test_a_harness_that_feeds_the_chain_one_late_makes_it_fail(perfect: PerfectSubject, prompt: PromptEvidence) -> None:
    late = replace(prompt, generated=(*prompt.generated[1:], prompt.generated[0]))
    with pytest.raises(DeviceFault, match="unknown-prefix"):
        drive(perfect, late)


def test_one_id_too_many_makes_it_fail(perfect: PerfectSubject, prompt: PromptEvidence) -> None:
    perfect.start()
    for token in prompt.fed:
        perfect.step(token)
    with pytest.raises(DeviceFault, match=f"the {len(prompt.fed) + 1} ids fed"):
        perfect.step(prompt.generated[-1])


def test_it_answers_each_prompt_by_its_ids_in_any_order(golden: Golden, perfect: PerfectSubject) -> None:
    for prompt in reversed(golden.prompts):
        perfect.start()
        for position, token in enumerate(prompt.fed):
            step = perfect.step(token)
            assert (step.token, step.position) == (token, position)
            assert int(step.logits.argmax()) == prompt.argmax[position]


def test_its_logits_hold_the_golden_s_whole_probability(perfect: PerfectSubject, prompt: PromptEvidence) -> None:
    perfect.start()
    for position, token in enumerate(prompt.fed[:12]):
        logits = perfect.step(token).logits.astype(np.float64)
        probability = np.exp(logits - prompt.logsumexp[position])
        assert probability.sum() == pytest.approx(1, abs=1e-6)
        others = np.delete(logits, prompt.top_ids[position])
        assert others.max() <= prompt.top_logits[position].min()


def test_its_arms_are_the_classes_it_is_judged_by() -> None:
    assert set(FACTORY.arms.values()) == set(get_args(NumericClass))  # a subject of any class has its control
    for arm, numeric_class in FACTORY.arms.items():
        identity = FACTORY.open(replace(REQUEST, arm=arm)).identity
        assert (identity.name, identity.arm, identity.numeric_class) == ("perfect", arm, numeric_class)
        assert not identity.device
    assert FACTORY.open(REQUEST).identity.arm == next(iter(FACTORY.arms))


def test_without_a_golden_or_a_checkpoint_it_is_refused_with_what_to_do(tmp_path) -> None:
    with pytest.raises(SubjectError, match="pass one with --golden DIR"):
        FACTORY.open(replace(REQUEST, golden=None))
    with pytest.raises(GoldenError):
        FACTORY.open(replace(REQUEST, golden=tmp_path))
    with pytest.raises(CheckpointError):
        FACTORY.open(replace(REQUEST, checkpoint=tmp_path))
