"""Each quirk of a simulated card turns gate `ops` red, at the op that has it; the card without one is green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.errors import DeviceFault
from oracle.judge.auditing import device_controls
from oracle.judge.jobs import PromptJob, run_job
from oracle.judge.ops import judge_ops, planned_evidence
from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_cases import MINI, REAL, whole
from oracle.judge.ops_plans import OpPlan, planned, plans
from oracle.subjects.protocol import NumericClass, SubjectRequest
from tt_impl.device.sim import QUIRK_PROFILES
from tt_impl.plants.catalogue import PLANTS
from tt_impl.subject import FACTORY

CLASSES: dict[str, NumericClass] = {"bf16": "bf16", "exact": "fp32"}
"""By arm."""

AT = {
    "norm-sum-bf16": {"rms_norm"},
    "narrow-norm-zero": {"rms_norm"},
    "fp32-on-bf16-grid": {"linear"},
    "subnormals-flushed": {"typecast"},
    "ties-to-highest": {"topk", "argmax"},
    "attention-sum-bf16": {"paged_scaled_dot_product_attention_decode"},
    "truncating": {
        *("typecast", "rms_norm", "linear", "matmul", "add", "mul", "silu", "sigmoid", "swiglu", "rotary_embedding_hf"),
        "paged_scaled_dot_product_attention_decode",
    },
}
"""Where the arm `bf16` shows each."""

AT_IN_EXACT = AT | {"fp32-on-bf16-grid": {"linear", "matmul"}, "truncating": {"typecast"}}
"""In the arm `exact` the experts' weighted sum is float32 too, and only a cast makes bfloat16."""


def asked(arm: str, *geometries) -> tuple[OpPlan, ...]:
    return plans(CLASSES[arm], geometries)


def red_ops(folder: Path, plant: str | None, cases: tuple[OpPlan, ...], arm: str = "bf16") -> set[str]:
    device = FACTORY.open_ops(SubjectRequest(folder, plant=plant, arm=arm))
    judged = judge_ops(audit_ops(device, cases), planned(cases))
    assert judged.compared > 0
    return {finding.where.split()[0] for finding in judged.findings}


def test_every_quirk_is_planted_and_tried_here() -> None:
    assert {f"quirk-{name}" for name in AT} == {name for name, plant in PLANTS.items() if plant.caught_by == "gate:ops"}
    assert QUIRK_PROFILES.keys() == AT.keys()


@pytest.mark.parametrize("arm", CLASSES)
@pytest.mark.parametrize("geometry", [MINI, REAL], ids=lambda g: g.name)
def test_a_card_without_quirks_is_green(tiny_folder: Path, geometry, arm: str) -> None:
    assert red_ops(tiny_folder, None, asked(arm, geometry), arm) == set()


@pytest.mark.parametrize(("arm", "expected"), [("bf16", AT), ("exact", AT_IN_EXACT)])
@pytest.mark.parametrize("name", AT)
def test_a_quirk_is_red_at_the_ops_that_have_it_and_nowhere_else(tiny_folder: Path, name: str, arm: str, expected) -> None:
    assert red_ops(tiny_folder, f"quirk-{name}", asked(arm, MINI), arm) == expected[name]


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "expected"), [("bf16", AT), ("exact", AT_IN_EXACT)])
@pytest.mark.parametrize("name", AT)
def test_a_quirk_is_red_at_the_release_s_widths_too(tiny_folder: Path, name: str, arm: str, expected) -> None:
    assert red_ops(tiny_folder, f"quirk-{name}", asked(arm, REAL), arm) == expected[name]


@pytest.mark.slow
def test_whole_weights_of_the_release_are_green(tiny_folder: Path) -> None:
    """All rows of the projections and 8,192 of the head's 128,000."""
    cases = tuple(plan for plan in asked("bf16", whole(REAL, 8192)) if plan.op in ("linear", "argmax"))
    assert red_ops(tiny_folder, None, cases) == set()


def test_the_device_says_which_quirks_it_has(tiny_folder: Path) -> None:
    assert FACTORY.open_ops(SubjectRequest(tiny_folder)).identity.device["quirks"] == "none"
    for name, quirks in QUIRK_PROFILES.items():
        identity = FACTORY.open_ops(SubjectRequest(tiny_folder, plant=f"quirk-{name}")).identity
        assert identity.device["quirks"] == quirks.names != "none"


def test_running_ops_leaves_nothing_on_the_device(tiny_folder: Path) -> None:
    device = FACTORY.open_ops(SubjectRequest(tiny_folder))
    before = device._device.get_memory_view()
    audit_ops(device, asked("bf16", MINI))
    assert device._device.get_memory_view() == before


@pytest.mark.parametrize("name", ["close", "get_memory_view", "softmax"])
def test_what_is_no_op_is_refused(tiny_folder: Path, name: str) -> None:
    with pytest.raises(DeviceFault, match=f"no device has an op '{name}'"):
        FACTORY.open_ops(SubjectRequest(tiny_folder)).run_op(name, {}, {})


@pytest.mark.parametrize("arm", CLASSES)
def test_a_job_asks_the_device_for_the_ops_of_its_arm_and_drives_no_prompt(mini_job: PromptJob, arm: str) -> None:
    outcome = run_job(replace(mini_job, request=replace(mini_job.request, arm=arm)))
    assert (outcome.run, outcome.fault, outcome.residents) == (None, None, None)
    assert outcome.ops is not None
    assert [each.case for each in outcome.ops.cases] == [plan.name for plan in asked(arm, MINI, REAL)]
    assert judge_ops(outcome.ops, planned(asked(arm, MINI, REAL))).verdict == "pass"


@pytest.mark.parametrize("arm", CLASSES)
def test_a_planted_quirk_is_looked_for_in_the_ops_of_its_arm(mini_job: PromptJob, arm: str) -> None:
    """As every session does it: a control that asked for another arm's ops would fire on a device that lacks them."""
    request = replace(mini_job.request, arm=arm, plant="quirk-fp32-on-bf16-grid")
    outcome = run_job(replace(mini_job, request=request))
    assert outcome.ops is not None
    assert [each.case for each in outcome.ops.cases] == [plan.name for plan in asked(arm, MINI)]
    [control] = device_controls([(outcome, "gate:ops")])
    assert control.behaved
    healthy = replace(outcome, ops=replace(outcome.ops, cases=planned_evidence(CLASSES[arm]).cases[: len(asked(arm, MINI))]))
    [control] = device_controls([(healthy, "gate:ops")])
    assert control.seen == "not caught"


@pytest.fixture
def mini_job() -> PromptJob:
    from goldens import mini_checkpoint

    folder = mini_checkpoint()
    return PromptJob("tt", SubjectRequest(folder), folder / "golden", "copying", ops=True)
