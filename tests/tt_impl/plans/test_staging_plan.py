"""The staging plan counts what is staged, and gives the release's published totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from geometry import RELEASE

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.plans.staging_plan import plan_staging
from tt_impl.settings import default_settings
from tt_impl.staging import stage


def test_the_releases_residents_are_the_port_s_published_numbers() -> None:
    plan = plan_staging(RELEASE, DType.BFLOAT16, 4096)
    assert [plan.count(kind) for kind in ("fp8", "grid", "plain", "bias")] == [350, 350, 353, 50]
    assert plan.count("fp8", "grid", "plain", "bias") == 1_103
    assert plan.resident_bytes == 3_311_163_520
    assert plan.computing_bytes == 3_801_088_000


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("topk", ["host", "device"])
@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_staging_takes_of_the_device_what_is_planned_to_the_byte(
    tiny: Checkpoint, activation: DType, topk: Literal["host", "device"], users: int
) -> None:
    device = SimDevice()
    settings = replace(default_settings(tiny.config, activation), topk=topk, users=users)
    residents = stage(device, tiny.config, tiny, settings)
    plan = plan_staging(tiny.config, activation, settings.max_positions, topk=topk, users=users)
    assert device.get_memory_view().allocated_bytes == plan.device_bytes
    planned = {operand.name: operand for operand in plan.operands}
    for name, tensor in residents.staged.items():
        operand = planned[name]
        assert (tensor.shape, tensor.dtype, tensor.layout) == (operand.shape, operand.dtype, operand.layout), name
    assert planned.keys() - residents.staged.keys() == {o.name for o in plan.operands if o.kind in ("copy", "table")}


def test_fp8_and_grids_are_staged_verbatim_and_biases_in_fp32(tiny: Checkpoint) -> None:
    device = SimDevice()
    residents = stage(device, tiny.config, tiny, default_settings(tiny.config, DType.BFLOAT16))
    verbatim = {name: tensor for name, tensor in residents.staged.items() if "_proj" in name}
    assert len(verbatim) == 2 * 7 * tiny.config.num_hidden_layers
    for name, tensor in verbatim.items():
        assert device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tobytes() == tiny.raw(name).tobytes()
    for layer in range(tiny.config.num_hidden_layers):
        name = f"model.layers.{layer}.moe.router.expert_bias"
        bias = tiny.raw(name).view(DType.BFLOAT16.host).astype(np.float32)
        assert device.copy_device_to_host_tensor(residents.staged[name], blocking=True).array().tolist() == bias.tolist()


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
