"""The card that plans are made for, and the refusal of a plan that does not fit it."""

from __future__ import annotations

from oracle.errors import UsageError

P150_DRAM_BYTES = 34_178_731_008
"""Usable DRAM of one Blackhole P150: the budget that the port to it published (8 banks of 4,272,947,072 bytes hold 4.8 MB
more)."""


class PlanError(UsageError):
    """A plan that cannot be carried out; the message names what is short, and by how many bytes."""


def require(what: str, needed: int, available: int, advice: str) -> None:
    """Raise `PlanError` where `needed` bytes exceed `available`."""
    if needed > available:
        raise PlanError(f"{what}: needs {needed:,} of {available:,} bytes, {needed - available:,} too many; {advice}")
