"""`reference` and `transformers`, step by step through the harness, against the shipped golden: they must be green."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from goldens import mini_checkpoint
from oracle.errors import SubjectError
from oracle.golden.format import Golden
from oracle.judge.alignment import AlignmentGate
from oracle.judge.chain import ChainGate
from oracle.judge.flips import FlipsGate
from oracle.judge.gate import Case, Gate
from oracle.judge.logits import LogitsGate
from oracle.judge.residual import ResidualGate
from oracle.judge.routing import RoutingGate
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.harness import drive
from oracle.subjects.protocol import NumericClass, SubjectRequest
from oracle.subjects.registry import subject_factory
from oracle.subjects.run import Run

PROMPTS = 2
GATES: tuple[Gate, ...] = (AlignmentGate(), ChainGate(), FlipsGate(), LogitsGate(), ResidualGate(), RoutingGate())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a worker: threads that wait for each other on a shared core take minutes over these small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "arm", "numeric_class"),
    [
        ("reference", "float32", "fp32"),
        ("reference", "float32-blas", "fp32"),
        ("reference", "bfloat16-fused", "bf16"),
        pytest.param("reference", "w8a8", "w8a8", marks=pytest.mark.slow),
        pytest.param("reference", "fp8-kv", "fp8-kv", marks=pytest.mark.slow),
        ("transformers", "float32", "fp32"),
        pytest.param("transformers", "bfloat16", "bf16", marks=pytest.mark.slow),
    ],
)
def test_an_honest_engine_is_green_by_every_gate_of_its_class(
    golden: Golden, name: str, arm: str, numeric_class: NumericClass
) -> None:
    subject = subject_factory(name).open(SubjectRequest(mini_checkpoint(), arm=arm))
    identity = subject.identity
    assert (identity.name, identity.arm, identity.numeric_class) == (name, arm, numeric_class)
    prompts = tuple(sorted(golden.prompts, key=lambda p: (len(p.fed), p.name))[:PROMPTS])
    runs = {prompt.name: drive(subject, prompt, golden.probes_of(prompt.name).positions) for prompt in prompts}
    run = Run(identity, golden.digest, runs)
    part = Golden(golden.document, prompts, golden.probes)
    case = Case(part, run, Checkpoint.open(mini_checkpoint()), golden.document.classes[numeric_class])
    judgements = {gate.name: gate.judge(case) for gate in GATES}
    assert {name: j.findings for name, j in judgements.items()} == {gate.name: () for gate in GATES}
    assert all(judgement.compared for judgement in judgements.values())
    shown = (judgements["logits"].measured["kl max"], judgements["residual"].measured["largest distance over its limit"])
    # An engine of its own, not the golden read back; but the golden's own arm, token by token, has the golden's bits.
    assert (max(map(float, shown)) > 0) == ((name, arm) != ("reference", golden.document.recipe.truth))


def test_a_bf16_reference_with_forced_routing_uses_the_golden_s_experts_in_both_passes(golden: Golden) -> None:
    prompt = min(golden.prompts, key=lambda p: len(p.fed))
    probes = golden.probes_of(prompt.name).positions
    subject = subject_factory("reference").open(SubjectRequest(mini_checkpoint(), arm="bfloat16"))
    own, forced = drive(subject, prompt, probes), drive(subject, prompt, probes, forced=True)
    assert np.array_equal(forced.expert_ids, prompt.expert_ids)  # type: ignore[arg-type]
    assert np.array_equal(forced.free_expert_ids, prompt.expert_ids)  # type: ignore[arg-type]
    assert not np.array_equal(own.router_logits, forced.router_logits)  # type: ignore[arg-type]
    assert drive(subject, prompt, probes).logsumexp.tobytes() == own.logsumexp.tobytes()  # `reset` ended it
    checkpoint, calibration = Checkpoint.open(mini_checkpoint()), golden.document.classes["bf16"]
    part = Golden(golden.document, (prompt,), golden.probes)
    for shown, verdict in ((forced, "pass"), (own, "fail")):  # as of a subject that did not do what it was told
        run = Run(subject.identity, golden.digest, {prompt.name: shown}, forced=True)
        assert RoutingGate().judge(Case(part, run, checkpoint, calibration)).verdict == verdict


def test_a_subject_without_that_ability_is_refused_by_name(golden: Golden) -> None:
    perfect = subject_factory("perfect").open(SubjectRequest(mini_checkpoint(), mini_checkpoint() / "golden"))
    with pytest.raises(SubjectError, match="subject 'perfect' cannot have its routing forced; judge it without"):
        drive(perfect, golden.prompts[0], forced=True)
