"""Experts of exactly equal scores: who chooses otherwise than the lowest id, and what a judge makes of it.

In the last layer two experts have one router row and one bias, so their scores are equal to the bit at every position. Nothing
that comes after that layer's choice is read by another position, so the choice is all that can differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracle.golden.calibration import Bands
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.flip_class import classify_at
from oracle.golden.sketch import sketch
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.harness import collect, record
from oracle.subjects.protocol import StepEvidence
from tt_impl.decode import Decoder
from tt_impl.device.protocol import Bytes
from tt_impl.device.sim import QUIRK_PROFILES, Quirks, SimDevice

Open = Callable[..., Decoder]
TWINS = (0, 1)
PLAIN = Quirks()
HIGHEST = QUIRK_PROFILES["ties-to-highest"]


class TwinExperts:
    """A checkpoint whose last router cannot tell `TWINS` apart."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        last = f"model.layers.{checkpoint.config.num_hidden_layers - 1}"
        self._tied = (f"{last}.mlp.gate.weight", f"{last}.moe.router.expert_bias")

    def raw(self, name: str) -> Bytes:
        data = self._checkpoint.raw(name)
        if name in self._tied:
            rows = data.copy().reshape(self._checkpoint.config.num_experts, -1)
            rows[TWINS[1]] = rows[TWINS[0]]
            data = rows.reshape(-1)
        return data


@pytest.fixture
def steps(open_decoder: Open, tiny: Checkpoint, tokens: list[int]) -> Callable[..., list[StepEvidence]]:
    def run(topk: str, quirks: Quirks = PLAIN) -> list[StepEvidence]:
        decoder = open_decoder(weights=TwinExperts(tiny), device=SimDevice(quirks=quirks), topk=topk)
        return [decoder.step(token) for token in tokens]

    return run


def tied_positions(steps: list[StepEvidence]) -> list[int]:
    """Where the last place went to the lower twin, and the higher one was left out."""
    sets = [set(array(step.expert_ids)[-1].tolist()) for step in steps]
    return [position for position, chosen in enumerate(sets) if TWINS[0] in chosen and TWINS[1] not in chosen]


def array(values: Any) -> np.ndarray:
    assert values is not None
    return values


def test_a_card_that_keeps_the_rule_chooses_as_the_host_does(steps: Callable[..., list[StepEvidence]]) -> None:
    host, device = steps("host"), steps("device")
    assert len(tied_positions(host)) >= 3
    for ours, theirs in zip(host, device, strict=True):
        for name in ("logits", "expert_ids", "expert_weights", "residual", "router_logits"):
            assert array(getattr(ours, name)).tobytes() == array(getattr(theirs, name)).tobytes()


def test_a_card_that_does_not_differs_at_the_exact_ties_alone(steps: Callable[..., list[StepEvidence]]) -> None:
    host, device = steps("host"), steps("device", HIGHEST)
    differs = []
    for position, (ours, theirs) in enumerate(zip(host, device, strict=True)):
        assert array(ours.router_logits).tobytes() == array(theirs.router_logits).tobytes()
        assert array(ours.expert_ids)[:-1].tolist() == array(theirs.expert_ids)[:-1].tolist()
        mine, other = (set(array(step.expert_ids)[-1].tolist()) for step in (ours, theirs))
        assert mine ^ other in (set(), set(TWINS))
        if mine != other:
            differs.append(position)
            assert ours.logits.tobytes() != theirs.logits.tobytes()
    assert differs == tied_positions(host)


def test_a_host_that_chooses_minds_no_quirk_of_the_cards_topk(steps: Callable[..., list[StepEvidence]]) -> None:
    assert [s.logits.tobytes() for s in steps("host")] == [s.logits.tobytes() for s in steps("host", HIGHEST)]


def test_the_judge_sees_sets_that_differ_at_a_gap_of_zero_and_calls_no_flip_hard(
    steps: Callable[..., list[StepEvidence]], tiny: Checkpoint, tokens: list[int]
) -> None:
    """With bands of 0, as if no floor arm ever moved: only exact ties are excused."""
    host, device = steps("host"), steps("device", HIGHEST)
    comparison = judged(tiny, tokens, host, device)
    tied = tied_positions(host)
    last = tiny.config.num_hidden_layers - 1
    assert np.flatnonzero(comparison.set_differs.any(axis=1)).tolist() == tied
    assert comparison.first_set_difference[tied].tolist() == [last] * len(tied)
    assert comparison.set_gap[tied].tolist() == [0.0] * len(tied)
    flips = np.flatnonzero(comparison.flip).tolist()
    assert set(flips) <= set(tied)
    for position in tied:
        assert classify_at(comparison, position, NO_BANDS, "float32") == "router-near-tie"


_ZEROS = dict.fromkeys(("regret", "router_gap", "router_regret", "floor_regret", "floor_router_gap", "floor_router_regret"), 0)
NO_BANDS = Bands.model_validate({**_ZEROS, "near_multiple": 1, "multiple": 2})


def judged(tiny: Checkpoint, tokens: list[int], truth: list[StepEvidence], shown: list[StepEvidence]) -> Comparison:
    """`shown` against a golden's evidence that says what `truth` says."""
    count = tiny.config.num_experts_per_tok
    logits = np.stack([step.logits for step in truth])
    ids, values = top_logits(logits, 64)
    scores = np.sort(np.stack([array(step.router_logits) for step in truth]) + biases(tiny), axis=2)
    golden = PromptEvidence(
        name="twins",
        text=None,
        prompt_ids=tuple(tokens),
        generated=(0,),
        top_ids=ids,
        top_logits=values,
        logsumexp=log_sum_exp(logits),
        expert_ids=np.stack([array(step.expert_ids) for step in truth]),
        expert_weights=np.stack([array(step.expert_weights) for step in truth]),
        router_gap=scores[..., -count] - scores[..., -count - 1],
        sketch=np.stack([sketch(array(step.residual)) for step in truth]),
    )
    return compare(golden, record(golden, collect(shown)))


def biases(tiny: Checkpoint) -> np.ndarray:
    """float32 [L, E], as `TwinExperts` has them."""
    source = TwinExperts(tiny)
    names = [f"model.layers.{layer}.moe.router.expert_bias" for layer in range(tiny.config.num_hidden_layers)]
    return np.stack([(source.raw(name).view("<u2").astype(np.uint32) << 16).view(np.float32) for name in names])
