"""What the simulated card refuses, ttnn's device refuses too: the same calls on both, so that neither is laxer.

The calls are those of the simulated card's own test, on operands of this device. Some are refused by ttnn, some before it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from oracle.errors import DeviceFault
from tt_impl.device.ttnn.device import TtnnDevice

_SIM_TESTS = Path(__file__).parents[1] / "tt_impl" / "device" / "sim"


def _sim_refusals():
    sys.path.insert(0, str(_SIM_TESTS))
    try:
        spec = importlib.util.spec_from_file_location("sim_refusals_for_ttnn", _SIM_TESTS / "test_sim_refusals.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(_SIM_TESTS))


SIM = _sim_refusals()


@pytest.mark.parametrize("name", SIM.REFUSED)
def test_operands_that_the_simulated_card_refuses_are_refused(device: TtnnDevice, name: str) -> None:
    bench = SIM.Bench()
    bench.device = device
    before = device.event_counts().get("ops", 0)
    with pytest.raises(DeviceFault) as caught:
        SIM.REFUSED[name](bench, device)
    assert caught.value.kind == "bad-operand"
    assert device.event_counts().get("ops", 0) == before, "a refused op was logged as run"


def test_more_users_than_a_tile_has_rows_are_refused(device: TtnnDevice) -> None:
    """nlp_concat_heads_decode of 40 users fails in ttnn as `bad optional access`; the message here names the operand."""
    bench = SIM.Bench()
    bench.device = device
    with pytest.raises(DeviceFault, match=r"nlp_concat_heads_decode does not take 33x4x64"):
        device.nlp_concat_heads_decode(bench(33, 4, 64))
