"""Which experts a token goes to, decided on the host from the device's fp32 logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Device, Tensor
from tt_impl.stats import StepStats

Float32 = npt.NDArray[np.float32]

_EXP_LIMIT = np.float32(88)  # exp stays finite in float32; a weight of 6e-39 stands for all smaller ones


@dataclass(frozen=True)
class Routing:
    """`experts` int32 [k] by falling selection score, `weights` float32 [k] in the same order; `logits` of all experts."""

    experts: npt.NDArray[np.int32]
    weights: Float32
    logits: Float32


def route(logits: Float32, bias: Float32, count: int) -> Routing:
    """The top `count` of logits + bias, and their sigmoid weights (facts section 5).

    The bias selects but does not weigh, the weights are not renormalized, and of equal scores the lowest id wins.

    Args:
        logits: float32 [experts], never rounded to bf16.
        bias: float32 [experts].

    Raises:
        DeviceFault: `non-finite` for a NaN or infinite logit.
    """
    if not np.isfinite(logits).all():
        bad = np.flatnonzero(~np.isfinite(logits))
        raise DeviceFault("non-finite", f"{bad.size} of {logits.size} router logits, the first of expert {bad[0]}")
    experts = np.argsort(-(logits + bias), kind="stable")[:count]
    weights = np.float32(1) / (np.float32(1) + np.exp(np.minimum(-logits[experts], _EXP_LIMIT)))
    return Routing(experts.astype(np.int32), weights, logits)


class RouterBias:
    """The host's copy of one layer's expert bias, good for one generation of one device tensor; never known by address.

    Args:
        tensor: FLOAT32 [experts]; read once at once, when it is staged.
        keep: whether the copy is kept until the tensor's bytes change, or fetched each time.
    """

    def __init__(self, device: Device, tensor: Tensor, *, keep: bool) -> None:
        self._device = device
        self._tensor = tensor
        self._keep = keep
        self._copy = self._fetch()

    def values(self, stats: StepStats) -> Float32:
        """float32 [experts], as the device holds it; a fetch is counted in `stats`."""
        if not self._keep or self._generation != self._tensor.generation:
            stats.bias_reads += 1
            stats.round_trips += 1
            self._copy = self._fetch()
        return self._copy

    def _fetch(self) -> Float32:
        read = self._device.copy_device_to_host_tensor(self._tensor, blocking=True)
        self._generation = self._tensor.generation
        return read.array().copy()
