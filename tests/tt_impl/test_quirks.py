"""Each quirk of a simulated card turns gate `ops` red, at the op that has it; the card without one is green."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.errors import DeviceFault
from oracle.judge.jobs import PromptJob, run_job
from oracle.judge.ops import judge_ops
from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_cases import MINI, REAL, plans, whole
from oracle.subjects.protocol import SubjectRequest
from tt_impl.device.sim import EXACT, QUIRK_PROFILES
from tt_impl.plants import PLANTS
from tt_impl.subject import FACTORY

AT = {
    "norm-sum-bf16": {"rms_norm"},
    "narrow-norm-zero": {"rms_norm"},
    "fp32-on-bf16-grid": {"linear", "matmul"},
    "subnormals-flushed": {"typecast"},
    "ties-to-highest": {"topk", "argmax"},
    "attention-sum-bf16": {"paged_scaled_dot_product_attention_decode"},
    "truncating": {
        *("typecast", "rms_norm", "linear", "matmul", "add", "mul", "silu", "sigmoid", "swiglu", "rotary_embedding_hf"),
        "paged_scaled_dot_product_attention_decode",
    },
}


def red_ops(folder: Path, plant: str | None, planned) -> set[str]:
    device = FACTORY.open_ops(SubjectRequest(folder, plant=plant))
    judged = judge_ops(audit_ops(device, planned), tuple((plan.name, plan.dtype) for plan in planned))
    assert judged.compared > 0
    return {finding.where.split()[0] for finding in judged.findings}


def test_every_quirk_is_planted_and_tried_here() -> None:
    assert {f"quirk-{name}" for name in AT} == {name for name, plant in PLANTS.items() if plant.caught_by == "gate:ops"}
    assert {name for name, quirks in QUIRK_PROFILES.items() if quirks != EXACT} == AT.keys()


@pytest.mark.parametrize("geometry", [MINI, REAL], ids=lambda g: g.name)
def test_a_card_without_quirks_is_green(tiny_folder: Path, geometry) -> None:
    assert red_ops(tiny_folder, None, plans((geometry,))) == set()


@pytest.mark.parametrize("name", AT)
def test_a_quirk_is_red_at_the_ops_that_have_it_and_nowhere_else(tiny_folder: Path, name: str) -> None:
    assert red_ops(tiny_folder, f"quirk-{name}", plans((MINI,))) == AT[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", AT)
def test_a_quirk_is_red_at_the_release_s_widths_too(tiny_folder: Path, name: str) -> None:
    assert red_ops(tiny_folder, f"quirk-{name}", plans((REAL,))) == AT[name]


@pytest.mark.slow
def test_whole_weights_of_the_release_are_green(tiny_folder: Path) -> None:
    """All rows of the projections and 8,192 of the head's 128,000."""
    planned = tuple(plan for plan in plans((whole(REAL, 8192),)) if plan.op in ("linear", "argmax"))
    assert red_ops(tiny_folder, None, planned) == set()


def test_the_device_says_which_quirks_it_has(tiny_folder: Path) -> None:
    assert FACTORY.open_ops(SubjectRequest(tiny_folder)).identity.device["quirks"] == "none"
    for name, quirks in QUIRK_PROFILES.items():
        if quirks != EXACT:
            identity = FACTORY.open_ops(SubjectRequest(tiny_folder, plant=f"quirk-{name}")).identity
            assert identity.device["quirks"] == quirks.names != "none"


def test_running_ops_leaves_nothing_on_the_device(tiny_folder: Path) -> None:
    device = FACTORY.open_ops(SubjectRequest(tiny_folder))
    before = device._device.get_memory_view()
    audit_ops(device, plans((MINI,)))
    assert device._device.get_memory_view() == before


@pytest.mark.parametrize("name", ["close", "get_memory_view", "softmax"])
def test_what_is_no_op_is_refused(tiny_folder: Path, name: str) -> None:
    with pytest.raises(DeviceFault, match=f"no device has an op '{name}'"):
        FACTORY.open_ops(SubjectRequest(tiny_folder)).run_op(name, {}, {})


def test_a_job_of_ops_asks_the_device_and_drives_no_prompt(mini_job: PromptJob) -> None:
    outcome = run_job(mini_job)
    assert (outcome.run, outcome.fault, outcome.residents) == (None, None, None)
    assert outcome.ops is not None
    assert [each.case for each in outcome.ops.cases] == [plan.name for plan in plans()]


@pytest.fixture
def mini_job() -> PromptJob:
    from goldens import mini_checkpoint

    folder = mini_checkpoint()
    return PromptJob("tt", SubjectRequest(folder), folder / "golden", "copying", ops=True)
