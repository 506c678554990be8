"""The staging plan counts what is staged, and gives the release's published totals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.synthetic import TINY
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.settings import default_settings
from tt_impl.staging import plan_staging, stage

RELEASE = {
    **TINY,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 128000,
    "num_experts": 384,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "sliding_window": 513,
    "layer_types": ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(50)],
    "quantization_config": {**TINY["quantization_config"], "weight_block_size": [128, 128]},
}


def test_the_releases_residents_are_the_port_s_published_numbers() -> None:
    plan = plan_staging(Kolibri1Config.model_validate(RELEASE), DType.BFLOAT16)
    assert (plan.fp8_operands, plan.grid_operands, plan.plain_operands, plan.bias_operands) == (350, 350, 353, 50)
    assert plan.resident_bytes == 3_311_163_520
    assert plan.computing_bytes == 3_801_088_000


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_staging_uploads_what_is_planned_and_keeps_fp8_verbatim(tiny: Checkpoint, activation: DType) -> None:
    device = SimDevice()
    settings = default_settings(tiny.config, activation)
    residents = stage(device, tiny.config, tiny, settings)
    plan = plan_staging(tiny.config, activation)
    verbatim = {name: tensor for name, tensor in residents.staged.items() if "_proj" in name}
    assert len(verbatim) == plan.fp8_operands + plan.grid_operands == 2 * 7 * tiny.config.num_hidden_layers
    assert len(residents.staged) - len(verbatim) == plan.plain_operands + plan.bias_operands
    for name, tensor in verbatim.items():
        assert device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tobytes() == tiny.raw(name).tobytes()
    for layer, weights in enumerate(residents.layers):
        bias = tiny.raw(f"model.layers.{layer}.moe.router.expert_bias").view(DType.BFLOAT16.host).astype(np.float32)
        assert weights.router_bias.tolist() == bias.tolist()


def test_every_tensor_but_the_routed_experts_is_read_for_staging(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder]
) -> None:
    asked: list[str] = []

    class Recorder:
        def raw(self, name: str) -> np.ndarray:
            asked.append(name)
            return tiny.raw(name)

    open_decoder(weights=Recorder())
    assert sorted(asked) == sorted(spec.name for spec in inventory(tiny.config) if ".mlp.experts." not in spec.name)
