"""Wrong arithmetic, planted one fault at a time in the reference, is red by the gates that must see it; honest arms are green.

In class `bf16` the fault must stand out of honest bf16 noise; in class `fp32` it stands 1e3 times above it and more, which
is why ports are judged in their exact arm too. Scaling the norm before attention is no fault at all: q and k are normed
again, v's scale is normed away behind the output projection, and only eps tells. So it is planted nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import planted_rules as planted
import pytest
import torch

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.golden.sketch import sketch
from oracle.judge.gate import Case
from oracle.judge.gates import GATES
from oracle.kolibri1.arms import arm_named
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.subjects.harness import PassEvidence, digest_embedding, record
from oracle.subjects.perfect import HOST_GATES
from oracle.subjects.protocol import SubjectIdentity
from oracle.subjects.run import Run

pytestmark = pytest.mark.slow

JUDGED = ("flips", "logits", "residual")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden(mini_checkpoint() / "golden")


def judge(golden: Golden, checkpoint: Checkpoint, arm: str, fault: planted.Fault) -> dict[str, list[str]]:
    """Findings by gate, of the whole golden teacher-forced through a reference with the fault."""
    reference = Reference(checkpoint, arm_named(arm))
    fault(reference)
    runs = {}
    for prompt in golden.prompts:
        passed = reference.forward(prompt.fed, reference.new_cache())
        evidence = PassEvidence(
            consumed=np.array(prompt.fed, dtype=np.int32),
            positions=np.arange(len(prompt.fed), dtype=np.int32),
            embedding_digest=np.stack([digest_embedding(checkpoint.row("model.embed_tokens.weight", i)) for i in prompt.fed]),
            logits=passed.logits.numpy().astype(np.float32),
            expert_ids=passed.expert_ids.numpy().astype(np.int32),
            expert_weights=passed.expert_weights.numpy().astype(np.float32),
            sketch=sketch(passed.residual.numpy()),
        )
        runs[prompt.name] = record(prompt, evidence)
    identity = SubjectIdentity("reference", reference.arm.numeric_class, arm, HOST_GATES)
    run = Run(identity, golden.digest, runs)
    case = Case(golden, run, checkpoint, golden.document.classes[identity.numeric_class])
    judgements = {gate.name: gate.judge(case) for gate in GATES if gate.name in JUDGED}
    assert all(judgement.compared for judgement in judgements.values())
    return {name: [str(finding) for finding in judgement.findings] for name, judgement in judgements.items()}


@pytest.mark.parametrize("arm", ["bfloat16-once", "float32-per-expert"])
def test_an_honest_arm_is_green_through_the_same_pass(golden, checkpoint, arm):
    assert judge(golden, checkpoint, arm, planted.honest) == {name: [] for name in JUDGED}


@pytest.mark.parametrize(
    ("fault", "gates"),
    [
        pytest.param(planted.norm_sums_in_bf16, {"residual", "logits"}, id="norm sums in bf16"),
        pytest.param(planted.norms_scaled("norm"), {"residual", "logits"}, id="every norm 1 % short"),
        pytest.param(planted.norms_scaled("layers.1.post_attn_norm"), {"residual"}, id="one post norm 1 % short"),
        pytest.param(planted.window(-1), {"residual", "logits"}, id="window one short"),
        pytest.param(planted.window(+1), {"residual", "logits"}, id="window one long"),
        pytest.param(planted.gate_and_up_swapped(2, 3), {"residual", "logits"}, id="one expert's gate and up swapped"),
        pytest.param(planted.without_shared_expert(3), {"residual", "logits"}, id="no shared expert in one layer"),
        pytest.param(planted.attention_scale(1.02), {"logits"}, id="attention scale 2 % off"),
        pytest.param(planted.neighbours_norm("post_ffn_norm", 3, 4), {"residual", "logits"}, id="a neighbour's post norm"),
        pytest.param(planted.neighbours_norm("k_norm", 2, 3), {"residual", "logits"}, id="a neighbour's k_norm"),
    ],
)
def test_a_wrong_rule_stands_out_of_honest_bf16_noise(golden, checkpoint, fault, gates):
    found = judge(golden, checkpoint, "bfloat16", fault)
    assert {name for name in gates if found[name]} == gates, found


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(planted.norms_scaled("layers.0.self_attn.q_norm"), id="one q_norm 1 % short"),
        pytest.param(planted.norms_scaled("layers.2.post_attention_layernorm"), id="one norm before experts 1 % short"),
        pytest.param(planted.attention_scale(1.0002), id="attention scale 0.02 % off"),
        pytest.param(planted.neighbours_norm("q_norm", 4, 0), id="a neighbour's q_norm in the last layer"),
    ],
)
def test_what_bf16_noise_hides_stands_out_in_the_exact_class(golden, checkpoint, fault):
    found = judge(golden, checkpoint, "float32-blas", fault)
    assert found["logits"], found
    assert found["residual"], found
