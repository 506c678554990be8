"""The census auditor: which orders of weights are a decoder's own affair, and that nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle.judge.census_controls as census_controls
from oracle.judge.census_audit import CensusAuditor
from oracle.judge.census_plan import stages
from oracle.judge.census_watch import recorded
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import expert_weight, inventory
from oracle.subjects.census import CensusEvidence, DeclaredOps, OpTally, OpUse
from oracle.subjects.protocol import StepEvidence

LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def config(tiny: Checkpoint) -> Kolibri1Config:
    return tiny.config


def experts_of(config: Kolibri1Config) -> list[list[int]]:
    """Other experts in each layer, not in the order of their ids."""
    k = config.num_experts_per_tok
    return [[(layer + 3 * i) % config.num_experts for i in range(k)] for layer in range(config.num_hidden_layers)]


def honest(config: Kolibri1Config) -> list[OpUse]:
    """A step with one op for each weight, and one without weights before the second layer."""
    ops = [OpUse(sorted(stage.ops)[0], (name,)) for stage in stages(config, experts_of(config)) for name in stage.names]
    at = next(i for i, op in enumerate(ops) if op.weights[0] == f"{LAYER}.input_layernorm.weight")
    return [*ops[:at], OpUse("add"), *ops[at:]]


def audited(config: Kolibri1Config, *steps: Sequence[OpUse]) -> CensusEvidence:
    auditor = CensusAuditor(config, "prompt")
    for position, ops in enumerate(steps):
        auditor.step(position, ops, experts_of(config))
    return auditor.evidence()


def place(ops: Sequence[OpUse], name: str) -> int:
    return next(i for i, op in enumerate(ops) if name in op.weights)


def test_a_step_uses_every_weight_of_the_checkpoint_but_experts_not_chosen(config: Kolibri1Config) -> None:
    used = [name for stage in stages(config, experts_of(config)) for name in stage.names]
    weights = {spec.name for spec in inventory(config) if spec.name.endswith(".weight")}
    left_out = config.num_hidden_layers * (config.num_experts - config.num_experts_per_tok) * 3
    assert len(used) == len(set(used)) == len(weights) - left_out
    assert set(used) <= weights


def test_an_honest_step_has_no_violation_and_counts_its_ops_by_place(config: Kolibri1Config) -> None:
    evidence = audited(config, honest(config), honest(config))
    assert (evidence.steps, evidence.weights, evidence.violations) == (2, 2 * (len(honest(config)) - 1), ())
    assert {tally.where for tally in evidence.tallies} == {"step", "layer", "sliding"}
    assert [tally.ops for tally in evidence.tallies if tally.where == "step"] == [
        (("embedding", 1), ("linear", 1), ("rms_norm", 1))
    ]
    sliding = [tally for tally in evidence.tallies if tally.where == "sliding"]
    assert {dict(tally.ops).get("add", 0) for tally in sliding} == {0, 1}
    assert sum(tally.times for tally in evidence.tallies if tally.where != "step") == 2 * config.num_hidden_layers
    with_add = next(tally for tally in sliding if "add" in dict(tally.ops))
    assert (with_add.times, with_add.first) == (2, "prompt[0] layer 0")


@given(data=st.data())
def test_weights_may_be_stacked_and_a_layer_s_experts_come_in_any_order(tiny: Checkpoint, data: Any) -> None:
    config, ops = tiny.config, honest(tiny.config)
    layer = data.draw(st.integers(0, config.num_hidden_layers - 1))
    networks: list[list[OpUse]] = []
    names = [[expert_weight(layer, e, f"{p}_proj") for p in ("gate", "up", "down")] for e in experts_of(config)[layer]]
    names.append([f"model.layers.{layer}.mlp.shared_experts.{p}_proj.weight" for p in ("gate", "up", "down")])
    for gate, up, down in names:
        stacked = [OpUse("linear", (up, gate))] if data.draw(st.booleans()) else [OpUse("linear", (n,)) for n in (gate, up)]
        networks.append([*stacked, OpUse("swiglu"), OpUse("matmul", (down,))])
    start, stop = place(ops, names[0][0]), place(ops, names[-1][2]) + 1
    mixture: list[OpUse] = []
    while networks:  # interleaved, each in its own order
        chosen = data.draw(st.integers(0, len(networks) - 1))
        mixture.append(networks[chosen].pop(0))
        networks = [network for network in networks if network]
    q, k = (place(ops, f"model.layers.{layer}.self_attn.{name}_norm.weight") for name in "qk")
    if data.draw(st.booleans()):
        ops[q], ops[k] = ops[k], ops[q]
    assert audited(config, [*ops[:start], *mixture, *ops[stop:]]).violations == ()


@given(data=st.data())
def test_any_weight_left_out_doubled_or_exchanged_with_any_other_stage_s_is_found(tiny: Checkpoint, data: Any) -> None:
    config, ops = tiny.config, honest(tiny.config)
    used = [i for i, op in enumerate(ops) if op.weights]
    at = data.draw(st.sampled_from(used))
    assert audited(config, ops[:at] + ops[at + 1 :]).violations[0].endswith(f"not used: {ops[at].weights[0]}")
    doubled = audited(config, [*ops[: at + 1], *ops[at:]]).violations
    assert doubled[0].endswith(f"used besides, or once too often: {ops[at].weights[0]}")
    stage_of = {name: i for i, stage in enumerate(stages(config, experts_of(config))) for name in stage.names}
    other = data.draw(st.sampled_from([i for i in used if stage_of[ops[i].weights[0]] != stage_of[ops[at].weights[0]]]))
    swapped = list(ops)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    [first] = audited(config, swapped).violations
    assert "belongs" in first
    assert any(ops[i].weights[0] in first for i in (at, other))


def test_a_violation_says_step_layer_and_names(config: Kolibri1Config) -> None:
    names = {f"{LAYER}.post_attn_norm.weight": f"{LAYER}.post_ffn_norm.weight"}
    names |= {other: name for name, other in names.items()}
    swapped = [OpUse(op.name, tuple(names.get(name, name) for name in op.weights)) for op in honest(config)]
    assert audited(config, honest(config), swapped).violations == (
        f"prompt[1] layer 1: {LAYER}.post_ffn_norm.weight used where {LAYER}.post_attn_norm.weight belongs",
    )
    wrong = audited(config, [op for op in honest(config) if not op.weights or not op.weights[0].startswith("model.layers.2")])
    assert wrong.violations[0].startswith("prompt[0] layer 2: not used: model.layers.2.input_layernorm.weight, ")
    assert wrong.violations[0].endswith(" more")
    outside = audited(config, honest(config)[:-1])
    assert outside.violations == ("prompt[0] outside the layers: not used: lm_head.weight",)


def test_the_experts_are_those_that_the_step_itself_shows(config: Kolibri1Config) -> None:
    auditor = CensusAuditor(config, "prompt")
    other = experts_of(config)
    other[2][0] = next(e for e in range(config.num_experts) if e not in other[2])
    auditor.step(0, honest(config), other)
    missing, surplus = auditor.evidence().violations
    assert "layer 2: not used" in missing
    assert f"experts.{other[2][0]}." in missing
    assert f"experts.{experts_of(config)[2][0]}." in surplus


def test_a_router_s_bias_may_be_used_once_by_the_device(config: Kolibri1Config) -> None:
    ops = honest(config)
    at = place(ops, f"{LAYER}.mlp.gate.weight") + 1
    bias = OpUse("add", (f"{LAYER}.moe.router.expert_bias",))
    assert audited(config, [*ops[:at], bias, *ops[at:]]).violations == ()
    [found] = audited(config, [*ops, bias]).violations
    assert found.endswith("expert_bias used behind lm_head.weight, and not behind a weight of model.layers.1")
    [found] = audited(config, [*ops[:at], bias, bias, *ops[at:]]).violations
    assert "once too often" in found


def test_a_weight_is_used_by_an_op_of_its_kind(config: Kolibri1Config) -> None:
    for name, op in ((f"{LAYER}.post_attn_norm.weight", "linear"), (f"{LAYER}.mlp.gate.weight", "rms_norm")):
        changed = [OpUse(op if name in each.weights else each.name, each.weights) for each in honest(config)]
        [found] = audited(config, changed).violations
        assert found.startswith(f"prompt[0] layer 1: {name} used by {op}, not by ")


def test_each_control_reports_its_fault(tiny: Checkpoint) -> None:
    results = census_controls.census_controls(tiny)
    assert len(results) == len(census_controls.FAULTS) + 1
    assert all(control.behaved for control in results), results


def test_at_most_100_violations_are_spelled_out(config: Kolibri1Config) -> None:
    evidence = audited(config, *[honest(config)[:-1]] * 103)
    assert len(evidence.violations) == 101
    assert evidence.violations[-1] == "and 3 more"


def test_evidence_adds_up_by_place_and_counts() -> None:
    one = CensusEvidence(1, 5, (("step", "add", 1),), (OpTally("step", (("add", 1),), 1, "a[0]"),), ("x",))
    two = CensusEvidence(
        2,
        10,
        (("layer", "add", 2), ("step", "add", 1)),
        (OpTally("step", (("add", 1),), 2, "b[0]"), OpTally("step", (("add", 2),), 1, "b[1]")),
    )
    assert one + two == CensusEvidence(
        3,
        15,
        (("layer", "add", 2), ("step", "add", 1)),
        (OpTally("step", (("add", 1),), 3, "a[0]"), OpTally("step", (("add", 2),), 1, "b[1]")),
        ("x",),
    )


class Counted:
    """A subject whose record is the number of its step."""

    def __init__(self) -> None:
        self.on: list[bool] = []
        self.steps = self.taken = 0
        self.other = "its own"

    def reset(self) -> None: ...

    def start(self) -> None: ...

    def step(self, token: int) -> StepEvidence:
        self.steps += 1
        evidence: Any = type("Evidence", (), {"position": token, "expert_ids": type("Ids", (), {"tolist": lambda _: []})()})
        return evidence()

    def declared_ops(self) -> DeclaredOps:
        return DeclaredOps({}, {}, {})

    def record_ops(self, on: bool) -> None:
        self.on.append(on)

    def recorded_ops(self) -> list[OpUse]:
        self.taken += 1
        return []


def test_only_the_teacher_forced_pass_is_recorded_and_all_of_it() -> None:
    class Ear:
        def __init__(self) -> None:
            self.positions: list[int] = []

        def declare(self, declared: DeclaredOps) -> None: ...

        def step(self, position: int, ops: object, experts: object) -> None:
            self.positions.append(position)

    subject, ear = Counted(), Ear()
    watched = recorded(subject, ear)  # type: ignore[arg-type]
    for _ in range(2):
        watched.reset()
        watched.start()
        for position in range(3):
            watched.step(position)
        watched.start()
        watched.step(9)
    assert ear.positions == [0, 1, 2, 0, 1, 2]
    assert (subject.steps, subject.taken, subject.on, watched.other) == (8, 6, [True, False] * 2, "its own")
    plain = object()
    assert recorded(plain, ear) is plain  # type: ignore[arg-type]
