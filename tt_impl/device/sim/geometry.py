"""How much DRAM there is, in how many banks, and what an interleaved buffer takes of each."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import UsageError
from tt_impl.device.pages import DRAM_ALIGNMENT, DRAM_BANKS

ALIGNMENT = DRAM_ALIGNMENT
"""DRAM read alignment of a Blackhole in bytes (tt-metal's Blackhole bring-up guide); every page starts at a multiple."""


@dataclass(frozen=True)
class DramGeometry:
    """`banks` of `bank_bytes` each, of which `reserved_bytes` are nobody's to allocate.

    A buffer's pages (a tile, or a row of a ROW_MAJOR tensor) go to the banks in turn, and it has the same address in each:
    it takes as much of every bank as of the fullest. A tensor of one long row would so take its whole length eight times
    over, which is why vectors lie in many (`pages`). That is what ttnn 0.81.1 does (mock P150: a uint8 row of 3,933,120 bytes
    takes 3,933,120 of each bank; the same bytes as 12,291 rows of 320 take 491,840).

    Raises:
        UsageError: no bank, or no room in it.
    """

    banks: int
    bank_bytes: int
    reserved_bytes: int = 0

    def __post_init__(self) -> None:
        if self.banks < 1 or self.reserved_bytes < 0 or self.usable_bank_bytes < ALIGNMENT:
            raise UsageError(f"{self}: DRAM needs a bank, and {ALIGNMENT} usable bytes in it")

    @property
    def usable_bank_bytes(self) -> int:
        usable = self.bank_bytes - self.reserved_bytes
        return usable - usable % ALIGNMENT

    @property
    def usable_bytes(self) -> int:
        return self.banks * self.usable_bank_bytes

    def bank_share(self, nbytes: int, page_bytes: int) -> int:
        """Bytes of each bank that `nbytes` in pages of `page_bytes` take; at least one page."""
        pages = max(1, -(-nbytes // page_bytes))
        return -(-pages // self.banks) * (-(-page_bytes // ALIGNMENT) * ALIGNMENT)


P150 = DramGeometry(banks=DRAM_BANKS, bank_bytes=4_277_141_376, reserved_bytes=4_800_000)
"""One Blackhole P150: 34,178,731,008 bytes for tensors, what a port that ran on one had.

The banks are those of a mock P150 that ttnn 0.81.1 opens without a trace region; one takes its share of every bank, rounded
up to 8,192 (32 MiB leave 4,272,947,072). The port's figure is these banks less 38,400,000 bytes in all, which is what an
evenly split trace region of that size would take; that it had one is a guess.
"""

SMALL = DramGeometry(banks=DRAM_BANKS, bank_bytes=128 << 20)
"""1 GiB: enough for small checkpoints."""


def one_bank(nbytes: int) -> DramGeometry:
    """All of `nbytes` in one bank, for tests that count bytes."""
    return DramGeometry(banks=1, bank_bytes=nbytes)
