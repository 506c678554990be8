"""Which experts a token goes to, decided on the device: the host waits for k ids and their k logits, not for all logits.

Which of equal scores a card picks, and in which order it gives them, ttnn does not specify: the rule that the lowest id wins
is the card's to keep. The host holds no bias here, so it cannot tell a wrong choice from a right one; it refuses ids that no
choice can have. A judge that knows the bias does the rest (gate `routing`, at the golden's probes, by the logits read for it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Device, HostArray, Tensor
from tt_impl.lifetimes import Scratch
from tt_impl.router import Float32, Routing, Scored, sigmoid_weights
from tt_impl.stats import StepStats


class DeviceSelection:
    """See `router.Selection`.

    The ids are read without waiting, and settle with the selected logits behind them, the one read that is waited for. All
    logits are read too, for the evidence; nobody waits for them.

    Args:
        bias: FLOAT32 TILE [users, experts], the same for each.
    """

    def __init__(self, device: Device, bias: Tensor) -> None:
        self._device = device
        self._bias = bias

    def score(self, passing: Scratch, later: Scratch, logits: Tensor, count: int) -> Scored:
        device = self._device
        values, chosen = device.topk(passing.own(device.add(logits, self._bias)), count)
        passing.own(values)
        later.own(chosen)
        return Scored(logits, chosen, later.own(device.gather(logits, chosen)))

    def choose(self, scored: Scored, count: int, stats: StepStats, users: Sequence[int] = (0,)) -> list[Routing]:
        device, logits = self._device, scored.logits
        assert scored.chosen is not None, "not of `score`"
        assert scored.selected is not None, "not of `score`"
        stats.device_topks += 1
        ids = device.copy_device_to_host_tensor(scored.chosen, blocking=False)
        values = device.copy_device_to_host_tensor(scored.selected, blocking=True)
        stats.round_trips += 1
        shown = device.copy_device_to_host_tensor(logits, blocking=False)
        routings = []
        for user in users:
            experts = checked_ids(ids.array()[user], logits.shape[1])
            weights = sigmoid_weights(_checked_logits(np.asarray(values.array()[user], np.float32), experts))
            routings.append(Routing(experts, weights, shown, user))
        return routings


def checked_ids(ids: HostArray, experts: int) -> npt.NDArray[np.int32]:
    """`ids` [k] as int32.

    Raises:
        DeviceFault: `router-ids` for an id that is none of the `experts`, or one chosen twice.
    """
    if (beyond := ids[ids >= experts]).size:
        raise DeviceFault("router-ids", f"{beyond.size} of {ids.size} ids are none of {experts} experts, first {beyond[0]}")
    found, times = np.unique(ids, return_counts=True)
    if (twice := found[times > 1]).size:
        raise DeviceFault("router-ids", f"{twice.size} of {found.size} experts chosen more than once, first {twice[0]}")
    return ids.astype(np.int32)


def _checked_logits(selected: Float32, experts: npt.NDArray[np.int32]) -> Float32:
    if not np.isfinite(selected).all():
        bad = experts[~np.isfinite(selected)]
        raise DeviceFault("non-finite", f"{bad.size} of {selected.size} selected router logits, the first of expert {bad[0]}")
    return selected
