"""Faults planted in the real decoder on the simulated device, each caught by the gate that must catch it.

The controls of a session spoil recorded arrays; here the decoder itself computes wrongly. Three prompts of the shipped
golden are enough: they outgrow the window and fill the slots many times. A fault test also asks that the same gates pass
the healthy decoder on the same prompts: limits on medians hold for the whole golden, and a gate that is red without the
fault proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.environment import environment_record
from oracle.errors import DeviceFault
from oracle.golden.format import Golden, load_golden
from oracle.judge.gate import Case
from oracle.judge.gates import GATES
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.harness import drive
from oracle.subjects.protocol import StepEvidence, Subject, SubjectRequest
from oracle.subjects.registry import subject_factory
from oracle.subjects.run import Run, SlotEvidence
from tt_impl.router import HostSelection, Routing

pytestmark = pytest.mark.slow

PROMPTS = ("copying", "digits", "one-id")
Wrap = Callable[[Subject], Subject]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture(scope="module")
def golden() -> Golden:
    """The shipped golden with three of its prompts; its digests no longer hold, so gate `golden` is not asked here."""
    whole = load_golden(mini_checkpoint() / "golden")
    return replace(whole, prompts=tuple(p for p in whole.prompts if p.name in PROMPTS))


class Wrapped:
    """A subject around `tt`; faults below override one method."""

    def __init__(self, inner: Subject) -> None:
        self.inner = inner
        self.identity, self.reset, self.start, self.stats = inner.identity, inner.reset, inner.start, inner.stats

    def step(self, token: int) -> StepEvidence:
        return self.inner.step(token)

    def close(self) -> None:
        self.inner.close()


class EmbedsTheNextId(Wrapped):
    """Looks up the row of the next id, and reports the id it was given: only the embedding row's bytes show it."""

    def step(self, token: int) -> StepEvidence:
        return replace(self.inner.step((token + 1) % 512), token=token)


class RoundsLogitsToBf16(Wrapped):
    """A bf16 head: exact ties appear at the top."""

    def step(self, token: int) -> StepEvidence:
        step = self.inner.step(token)
        bits = step.logits.view(np.uint32) + 0x8000 & np.uint32(0xFFFF0000)
        return replace(step, logits=bits.view(np.float32))


class ShiftsTheArgmaxLate(Wrapped):
    """Answers correctly for 40 positions, then gives the second choice's logit the lead: a fault that free runs follow."""

    def step(self, token: int) -> StepEvidence:
        step = self.inner.step(token)
        if step.position < 40:
            return step
        logits = step.logits.copy()
        first, second = np.argsort(-logits, kind="stable")[:2]
        logits[second] = logits[first] + np.float32(1.0)
        return replace(step, logits=logits)


class OverstatesVerification(Wrapped):
    """Reports twice the bytes it verified."""

    def __init__(self, inner: Subject) -> None:
        super().__init__(inner)
        self.stats = lambda: {**inner.stats(), "verified_bytes": 2 * inner.stats()["verified_bytes"]}


class RoundsRouterLogits(Wrapped):
    """Shows router logits rounded to bf16, and the sigmoids of them."""

    def step(self, token: int) -> StepEvidence:
        step = self.inner.step(token)
        assert step.router_logits is not None
        assert step.expert_ids is not None
        bits = (step.router_logits.view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)
        rounded = bits.view(np.float32)
        weights = 1 / (1 + np.exp(-np.take_along_axis(rounded, step.expert_ids, axis=1)))
        return replace(step, router_logits=rounded, expert_weights=weights)


def judge(
    golden: Golden, checkpoint: Checkpoint, *, arm: str = "bf16", plant: str | None = None, wrap: Wrap = lambda s: s
) -> dict:
    """Verdicts by gate name."""
    runs, slots, stats = {}, SlotEvidence(), {"fills": 0, "staged_bytes": 0, "verified_bytes": 0}
    for prompt in golden.prompts:
        auditor = SlotAuditor(checkpoint)
        request = SubjectRequest(mini_checkpoint(), arm=arm, plant=plant)
        subject = wrap(subject_factory("tt").open(request, auditor))
        runs[prompt.name] = drive(subject, prompt, golden.probes_of(prompt.name).positions)
        slots += auditor.evidence()
        stats = {name: count + subject.stats()[name] for name, count in stats.items()}
        identity = subject.identity
        subject.close()
    run = Run(identity, golden.digest, runs, slots=slots, stats=stats, environment=environment_record())
    case = Case(golden, run, checkpoint, golden.document.classes[identity.numeric_class])
    return {gate.name: gate.judge(case).verdict for gate in GATES if gate.name != "golden"}


@pytest.fixture(scope="module")
def healthy(golden, checkpoint) -> dict[str, dict]:
    return {arm: judge(golden, checkpoint, arm=arm) for arm in ("bf16", "exact")}


@pytest.mark.parametrize(
    ("arm", "fault", "gates"),
    [
        pytest.param("bf16", {"wrap": EmbedsTheNextId}, {"alignment"}, id="embeds the next id"),
        pytest.param("bf16", {"wrap": ShiftsTheArgmaxLate}, {"flips", "chain"}, id="second choice leads from position 40"),
        pytest.param("exact", {"wrap": RoundsLogitsToBf16}, {"logits"}, id="bf16 head"),
        pytest.param("bf16", {"wrap": OverstatesVerification}, {"slots"}, id="twice the verified bytes"),
        pytest.param("bf16", {"wrap": RoundsRouterLogits}, {"routing"}, id="router logits rounded to bf16"),
        pytest.param("bf16", {"plant": "wrong-expert"}, {"slots"}, id="wrong expert fetched whole"),
        pytest.param("bf16", {"plant": "memo-stale"}, {"residual", "flips"}, id="memo of the slot's first expert"),
        pytest.param("bf16", {"plant": "norm-swap"}, {"residual", "flips"}, id="norms swapped"),
        pytest.param("exact", {"plant": "window-short"}, {"logits", "residual"}, id="window one short, exact arm"),
    ],
)
def test_a_fault_in_the_decoder_is_caught_by_its_gate(healthy, golden, checkpoint, arm, fault, gates):
    assert {name for name in gates if healthy[arm][name] == "pass"} == gates, healthy[arm]
    verdicts = judge(golden, checkpoint, arm=arm, **fault)
    assert {name for name in gates if verdicts[name] == "fail"} == gates, verdicts


def _renormalized(routing: Routing, _logits: np.ndarray, _bias: np.ndarray) -> Routing:
    return replace(routing, weights=routing.weights / routing.weights.sum())


def _softmax(routing: Routing, logits: np.ndarray, _bias: np.ndarray) -> Routing:
    odds = np.exp(logits - logits.max())
    return replace(routing, weights=(odds / odds.sum())[routing.experts])


def _bias_weighs(routing: Routing, logits: np.ndarray, bias: np.ndarray) -> Routing:
    scores = (logits + bias)[routing.experts]
    return replace(routing, weights=(1 / (1 + np.exp(-scores))).astype(np.float32))


@pytest.mark.parametrize("rule", [_renormalized, _softmax, _bias_weighs])
def test_a_router_that_weighs_by_another_rule_is_caught(healthy, golden, checkpoint, monkeypatch, rule):
    """The decoder computes with those weights too: everything downstream is off, and `routing` names the router."""
    honest = HostSelection.choose

    def choose(self, scored, count, stats, users):
        routings = honest(self, scored, count, stats, users)
        return [rule(routing, routing.logits, self._bias.values(stats)) for routing in routings]

    monkeypatch.setattr(HostSelection, "choose", choose)
    assert healthy["bf16"]["routing"] == "pass"
    assert judge(golden, checkpoint)["routing"] == "fail"


@pytest.mark.parametrize(("plant", "kind"), [("slot-byte", "slot-verification"), ("missing-drain", "unsettled-read")])
def test_the_decoders_own_drain_catches_what_goes_wrong_below_it(golden, checkpoint, plant, kind):
    with pytest.raises(DeviceFault) as caught:
        judge(golden, checkpoint, plant=plant)
    assert caught.value.kind == kind
