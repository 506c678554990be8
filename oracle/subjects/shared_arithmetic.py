"""Arms that differ in transfers and caching alone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SharesArithmetic(Protocol):
    """An ability of a subject's factory: to say which of its arms compute the same, so that a difference is a fault."""

    def arithmetic(self, arm: str) -> str:
        """A name for what `arm` computes: arms of one name must give the same logits, bit for bit."""
        ...
