"""Which experts a token goes to, decided on the host from the device's fp32 logits; `device_router` asks the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Device, ReadHandle, Tensor
from tt_impl.lifetimes import Scratch
from tt_impl.stats import StepStats

Float32 = npt.NDArray[np.float32]

_EXP_LIMIT = np.float32(88)  # exp stays finite in float32; a weight of 6e-39 stands for all smaller ones


@dataclass(frozen=True)
class Routing:
    """Where one token went.

    Attributes:
        experts: int32 [k], by falling selection score.
        weights: float32 [k], in the same order.
        read: of the logits [users, experts], all of them, as evidence; settled at the latest by the step's last read.
        row: the token's in `read`.
    """

    experts: npt.NDArray[np.int32]
    weights: Float32
    read: ReadHandle
    row: int = 0

    @property
    def logits(self) -> Float32:
        """float32 [experts]. Raises DeviceFault("unsettled-read") before the read has settled."""
        return np.asarray(self.read.array()[self.row], np.float32)


class Scored(NamedTuple):
    """What the device has for the host to choose by.

    Attributes:
        logits: FLOAT32 TILE [rows, experts].
        chosen, selected: where the device has chosen: ids and their logits, TILE [rows, k].
    """

    logits: Tensor
    chosen: Tensor | None = None
    selected: Tensor | None = None


class Selection(Protocol):
    """How one layer's experts are chosen: what the device does, and what the host then does."""

    def score(self, passing: Scratch, later: Scratch, logits: Tensor, count: int) -> Scored:
        """Enqueue the ops for choosing the top `count` of `logits`, FLOAT32 TILE [rows, experts], plus the layer's bias. What
        the host reads of them lives as long as `later`, what is on the way as long as `passing`."""
        ...

    def choose(self, scored: Scored, count: int, stats: StepStats, users: Sequence[int] = (0,)) -> list[Routing]:
        """Of the rows of `users`, and no others. What it waits for, once for all of them, is counted in `stats`.

        Raises:
            DeviceFault: logits or ids that can't be.
        """
        ...


def top_experts(logits: Float32, bias: Float32, count: int) -> npt.NDArray[np.int32]:
    """The top `count` of logits + bias, both float32 [experts]; of equal scores the lowest id wins (facts section 5).

    Raises:
        DeviceFault: `non-finite` for a NaN or infinite logit.
    """
    if not np.isfinite(logits).all():
        bad = np.flatnonzero(~np.isfinite(logits))
        raise DeviceFault("non-finite", f"{bad.size} of {logits.size} router logits, the first of expert {bad[0]}")
    return np.argsort(-(logits + bias), kind="stable")[:count].astype(np.int32)


def sigmoid_weights(selected: Float32) -> Float32:
    """Weights of the selected logits, float32 [k]: the bias does not weigh, and nothing is renormalized (facts section 5)."""
    return np.float32(1) / (np.float32(1) + np.exp(np.minimum(-selected, _EXP_LIMIT)))


class HostSelection:
    """The host waits for all logits, adds its copy of the bias and takes the top k; see `Selection`."""

    def __init__(self, device: Device, bias: RouterBias) -> None:
        self._device = device
        self._bias = bias

    def score(self, passing: Scratch, later: Scratch, logits: Tensor, count: int) -> Scored:
        return Scored(logits)

    def choose(self, scored: Scored, count: int, stats: StepStats, users: Sequence[int] = (0,)) -> list[Routing]:
        read = self._device.copy_device_to_host_tensor(scored.logits, blocking=True)
        stats.round_trips += 1
        rows, bias = np.asarray(read.array(), np.float32), self._bias.values(stats)
        chosen = [top_experts(rows[user], bias, count) for user in users]
        return [Routing(e, sigmoid_weights(rows[user][e]), read, user) for user, e in zip(users, chosen, strict=True)]


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
