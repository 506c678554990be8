"""What `doctor --plan` shows of the release: the published figures, in its tables and in its JSON."""

from __future__ import annotations

from collections import Counter

import pytest

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.planning import Plan, PlanRequest
from tt_impl.plans.planner import PLANNER

CONFIG = Kolibri1Config.model_validate(RELEASE_CONFIG)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return PLANNER.plan(CONFIG, PlanRequest())


def rows(plan: Plan) -> dict[str, int | float | str]:
    return {name: value for section in plan.sections for name, value, _ in section.rows}


def test_the_release_s_figures_are_the_published_ones(plan: Plan) -> None:
    shown = rows(plan)
    assert shown["operands of the checkpoint (1103)"] == 3_311_163_520
    assert shown["dequantized copies for compute"] == 3_801_088_000
    assert shown["one expert as fp8 with its grids"] == 3_932_160 + 960
    assert shown["all of them as fp8 with grids"] == 75_515_904_000  # 70.33 GiB
    assert shown["experts filled in one step, at most"] == 50 * 6
    assert shown["fills of one step, at most; read back as many"] == 1_179_936_000
    assert (shown["fills alone at 25 GB/s (modelled)"], shown["fills alone at 60 GB/s (modelled)"]) == (47.2, 19.67)
    assert shown["expected share of a layer's experts a step touches"] == round(6 / 384, 4)
    assert "streaming on one P150 of 34,178,731,008 bytes" in [section.title for section in plan.sections]


def test_slots_and_memos_of_the_release_fill_the_card(plan: Plan) -> None:
    shown = {name: value for name, value in rows(plan).items() if isinstance(value, int)}
    slots, memos = shown["slots a layer"], shown["memos, over all layers"]
    taken = 50 * slots * shown["DRAM of a slot, over all banks"] + memos * shown["DRAM of a memo, over all banks"]
    caches = next(section for section in plan.sections if section.title.startswith("KV cache"))
    kv = next(value for name, value, _ in caches.rows if name == "DRAM")
    assert isinstance(kv, int)
    held = shown["DRAM for all of it, tiles padded"] + kv + (256 << 20)
    assert (slots, memos) == (45, 45 * 50)
    assert held + taken + shown["DRAM to spare"] == 34_178_731_008


def test_the_whole_model_on_one_card_is_refused_by_name_and_meshes_of_1_to_32_are_worked_out(plan: Plan) -> None:
    [refusal] = plan.refused
    assert refusal.startswith("the whole model on 1 card, 384 experts a layer each: needs ")
    meshes = [(name, says) for section in plan.sections for name, says, _ in section.rows if " x P150, " in name]
    assert [name.split()[0] for name, _ in meshes] == [str(chips) for chips in range(1, 33)]
    short = str(meshes[0][1]).split()[0]
    assert f"{short} too many" in refusal
    assert [str(says).startswith("fits") for _, says in meshes] == [False, False] + [True] * 30


def test_a_mesh_of_more_chips_than_experts_is_worked_out_too() -> None:
    few = CONFIG.model_copy(update={"num_experts": 16})
    meshes = [name for section in PLANNER.plan(few, PlanRequest()).sections for name, *_ in section.rows if " x P150" in name]
    assert meshes[-1] == "32 x P150, 1 experts a layer each"


def test_every_tensor_that_stays_is_listed_with_dtype_layout_and_bytes(plan: Plan) -> None:
    """fp8 as packed; router, norms, embedding and head in bf16; biases and grids in fp32."""
    listed = {entry["name"]: entry for entry in plan.to_json()["tensors"]}
    assert len(listed) == len(plan.tensors) == 1_103 + 4 * 50 + 2
    prefix = "model.layers.7."
    expected = {
        "model.embed_tokens.weight": ((128_000, 2560), "bfloat16", "row_major", 655_360_000),
        "lm_head.weight": ((128_000, 2560), "bfloat16", "tile", 655_360_000),
        "model.norm.weight": ((1, 2560), "bfloat16", "row_major", 5_120),
        prefix + "self_attn.q_proj.weight": ((6144, 2560), "fp8_e4m3", "row_major", 15_728_640),
        prefix + "self_attn.q_proj.weight_scale_inv": ((48, 20), "float32", "row_major", 3_840),
        prefix + "mlp.gate.weight": ((384, 2560), "bfloat16", "tile", 1_966_080),
        prefix + "moe.router.expert_bias": ((384,), "float32", "row_major", 1_536),
        prefix + "self_attn.qkv": ((7168, 2560), "bfloat16", "tile", 36_700_160),
    }
    for name, (shape, dtype, layout, nbytes) in expected.items():
        found = listed[name]
        assert (tuple(found["shape"]), found["dtype"], found["layout"], found["nbytes"]) == (shape, dtype, layout, nbytes), name
        assert found["device_bytes"] >= nbytes
    dtypes = Counter(entry["dtype"] for entry in listed.values())
    assert (dtypes["fp8_e4m3"], dtypes["float32"]) == (350, 350 + 50)
    assert sum(entry["device_bytes"] for entry in listed.values()) == rows(plan)["DRAM for all of it, tiles padded"]
