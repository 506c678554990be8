"""Every tensor of a Kolibri-1 is of one kind, and all of one kind share dtype and shape."""

from __future__ import annotations

from collections import defaultdict

import pytest

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.synthetic import TINY
from oracle.kolibri1.tensor_kind import KINDS, UNKNOWN_KIND, tensor_kind

GROUPS = {"F8_E4M3": "fp8", "F32": "scales", "BF16": "bf16"}


@pytest.mark.parametrize("config", [TINY, RELEASE_CONFIG], ids=["tiny", "release"])
def test_a_kind_is_one_dtype_and_one_shape(config: dict[str, object]) -> None:
    kinds: defaultdict[str, set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
    for spec in inventory(Kolibri1Config.model_validate(config)):
        kinds[tensor_kind(spec.name)].add((spec.dtype, spec.shape))
    assert kinds.keys() == KINDS.keys()
    assert {kind: len(specs) for kind, specs in kinds.items()} == dict.fromkeys(KINDS, 1)
    assert {kind: GROUPS[dtype] for kind, [(dtype, _)] in kinds.items()} == KINDS


def test_the_release_has_so_many_of_each_kind() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    for spec in inventory(Kolibri1Config.model_validate(RELEASE_CONFIG)):
        counts[tensor_kind(spec.name)] += 1
    fp8 = {
        "attention q": 50,
        "attention k, v": 100,
        "attention o": 50,
        "routed gate, up": 38_400,
        "routed down": 19_200,
        "shared gate, up": 100,
        "shared down": 50,
    }
    bf16 = {
        "embedding": 1,
        "layer norms": 200,
        "q and k norms": 100,
        "router": 50,
        "router bias": 50,
        "final norm": 1,
        "head": 1,
    }
    assert counts == fp8 | {f"{kind}, scales": count for kind, count in fp8.items()} | bf16


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.50.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.experts.384.down_proj.weight_scale_inv", "routed down, scales"),
        ("model.layers.0.mlp.experts.down_proj.weight", UNKNOWN_KIND),
        ("model.layers.0.mlp.experts.gate_up_proj", UNKNOWN_KIND),
        ("model.layers.00.mlp.gate.weight", UNKNOWN_KIND),
        ("model.layers.-1.mlp.gate.weight", UNKNOWN_KIND),
        ("model.layers.0.mlp.moe.router.expert_bias", UNKNOWN_KIND),
        ("model.layers.0.self_attn.q_proj.bias", UNKNOWN_KIND),
        ("lm_head.weight_scale_inv", UNKNOWN_KIND),
        ("language_model.model.norm.weight", UNKNOWN_KIND),
        ("model.norm.weight\n", UNKNOWN_KIND),
        ("", UNKNOWN_KIND),
    ],
)
def test_a_name_beyond_the_model_keeps_its_kind_and_any_other_is_none(name: str, kind: str) -> None:
    assert tensor_kind(name) == kind
