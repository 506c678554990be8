"""The release's tensors: names, shapes, dtypes, and the totals that its shard headers give."""

from __future__ import annotations

from collections import Counter
from math import prod

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, TensorSpec, expert_weight, inventory
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.synthetic import TINY

ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def release_tensors() -> list[TensorSpec]:
    return list(inventory(Kolibri1Config.model_validate(RELEASE_CONFIG)))


def test_the_release_has_the_published_number_of_tensors_bytes_and_parameters() -> None:
    tensors = release_tensors()
    assert Counter(t.dtype for t in tensors) == {"F8_E4M3": 57_950, "F32": 57_950, "BF16": 403}
    assert len({t.name for t in tensors}) == 116_303
    assert sum(prod(t.shape) * ITEM_BYTES[t.dtype] for t in tensors) == 78_827_029_120
    assert sum(prod(t.shape) for t in tensors if t.dtype != "F32") == 78_103_074_560


def test_the_release_has_these_tensors_of_these_shapes() -> None:
    shapes = {t.name: (t.dtype, t.shape) for t in release_tensors()}
    layer = "model.layers.49"
    expected = {
        "model.embed_tokens.weight": ("BF16", (128000, 2560)),
        "lm_head.weight": ("BF16", (128000, 2560)),
        "model.norm.weight": ("BF16", (2560,)),
        f"{layer}.input_layernorm.weight": ("BF16", (2560,)),
        f"{layer}.post_attn_norm.weight": ("BF16", (2560,)),
        f"{layer}.post_attention_layernorm.weight": ("BF16", (2560,)),
        f"{layer}.post_ffn_norm.weight": ("BF16", (2560,)),
        f"{layer}.self_attn.q_norm.weight": ("BF16", (128,)),
        f"{layer}.self_attn.k_norm.weight": ("BF16", (128,)),
        f"{layer}.self_attn.q_proj.weight": ("F8_E4M3", (6144, 2560)),
        f"{layer}.self_attn.q_proj.weight_scale_inv": ("F32", (48, 20)),
        f"{layer}.self_attn.k_proj.weight_scale_inv": ("F32", (4, 20)),
        f"{layer}.self_attn.v_proj.weight": ("F8_E4M3", (512, 2560)),
        f"{layer}.self_attn.o_proj.weight": ("F8_E4M3", (2560, 6144)),
        f"{layer}.self_attn.o_proj.weight_scale_inv": ("F32", (20, 48)),
        f"{layer}.mlp.gate.weight": ("BF16", (384, 2560)),
        f"{layer}.moe.router.expert_bias": ("BF16", (384,)),
        f"{layer}.mlp.experts.383.gate_proj.weight": ("F8_E4M3", (512, 2560)),
        f"{layer}.mlp.experts.383.up_proj.weight_scale_inv": ("F32", (4, 20)),
        f"{layer}.mlp.experts.383.down_proj.weight": ("F8_E4M3", (2560, 512)),
        f"{layer}.mlp.experts.383.down_proj.weight_scale_inv": ("F32", (20, 4)),
        f"{layer}.mlp.shared_experts.up_proj.weight": ("F8_E4M3", (512, 2560)),
        f"{layer}.mlp.shared_experts.down_proj.weight_scale_inv": ("F32", (20, 4)),
    }
    assert {name: shapes.get(name) for name in expected} == expected


def test_every_fp8_weight_has_its_scales_and_nothing_else_has() -> None:
    tensors = release_tensors()
    scaled = {t.name.removesuffix(SCALE_SUFFIX) for t in tensors if t.dtype == "F32"}
    assert scaled == {t.name for t in tensors if t.dtype == "F8_E4M3"}


def test_widths_come_from_the_config_and_not_from_the_release() -> None:
    shapes = {t.name: t.shape for t in inventory(Kolibri1Config.model_validate(TINY | {"moe_intermediate_size": 32}))}
    assert shapes["model.layers.0.mlp.experts.0.down_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"] == (2, 1)
    assert shapes["model.layers.0.mlp.shared_experts.down_proj.weight"] == (64, 64)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (192, 64)


def test_an_experts_name_is_the_inventorys() -> None:
    names = {t.name for t in inventory(Kolibri1Config.model_validate(TINY))}
    assert {expert_weight(2, 7, projection) for projection in EXPERT_PROJECTIONS} <= names
    assert expert_weight(2, 8, "up_proj") not in names
