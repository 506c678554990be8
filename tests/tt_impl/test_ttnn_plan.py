"""The memory plan that the mock device is asked for is what the decoder really allocates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from goldens import mini_checkpoint
from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.device import SimDevice
from tt_impl.device.sim.memory import SimTensor
from tt_impl.device.ttnn.plan import Held, residents
from tt_impl.settings import default_settings
from tt_impl.staging import stage
from tt_impl.stats import StepStats


class _Listing(SimDevice):
    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[Held] = []

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> SimTensor:
        self.allocated.append(Held(label, tuple(shape), dtype, layout))
        return super().allocate_tensor_on_device(shape, dtype, layout, label)


@pytest.mark.parametrize("topk", ["host", "device"])
def test_the_plan_is_what_staging_and_the_kv_cache_allocate(topk: Literal["host", "device"]) -> None:
    checkpoint = Checkpoint.open(mini_checkpoint())
    settings = replace(default_settings(checkpoint.config, DType.BFLOAT16), topk=topk)
    device = _Listing()
    stage(device, checkpoint.config, checkpoint, settings)
    PagedKvCache(device, checkpoint.config, settings, StepStats())
    small = {
        "page_table",
        "ring_page_table",
        "position",
        "ring_position",
        "rope_positions",
    }  # per sequence or step, a few bytes
    allocated = Counter(held for held in device.allocated if held.label not in small)
    assert allocated == Counter(residents(checkpoint.config, settings))
