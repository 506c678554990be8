"""A device that stands before another: its calls are the other's, and what the other says of itself is never an old answer."""

from __future__ import annotations

from tt_impl.device.passing import Passing
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice


def test_what_a_device_says_of_itself_is_asked_each_time() -> None:
    device = SimDevice()
    before = Passing(device)
    seen = []
    for _ in range(2):
        before.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "x")
        seen.append(before.event_number)
    assert seen == [1, 2]
    assert before.event_counts() == device.event_counts()
