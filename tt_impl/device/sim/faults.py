"""Faults planted on the device: bits that flip as a write from the host lands, unseen by whoever wrote."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from oracle.errors import UsageError
from tt_impl.device.sim.dram import Buffer


@dataclass(frozen=True)
class BitFlip:
    """Flip the bits of `mask` in byte `offset` of every buffer whose label matches, when its `write`-th write lands.

    Attributes:
        label: a glob over buffer labels, such as `layer1.slot0` or `layer*.q_proj`.
        write: counts writes from the host into the same buffer, from 1.
        offset: in bytes from the buffer's start.
        mask: of one byte, not 0.
    """

    label: str
    write: int = 1
    offset: int = 0
    mask: int = 1

    def __post_init__(self) -> None:
        if self.write < 1 or self.offset < 0 or not 0 < self.mask < 256:
            raise UsageError(f"{self}: write counts from 1, offset from 0, and mask is a byte other than 0")


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run. Empty in every run that is judged."""

    flips: tuple[BitFlip, ...] = ()

    def write_landed(self, buffer: Buffer) -> None:
        """Flip what is due in `buffer`, whose latest host write has just landed."""
        for flip in self.flips:
            if flip.write == buffer.host_writes and flip.offset < buffer.nbytes and fnmatchcase(buffer.label, flip.label):
                buffer.bytes[flip.offset] ^= np.uint8(flip.mask)
