"""The content epoch: did any slot of any layer get another content since the last step began?

Whatever is derived from the slots as a whole is reset where the epoch moves. The fingerprint is compared and re-recorded
when a step begins, **before its own fills**. A port once re-recorded it after them: every step then found what it had
itself recorded, the epoch never moved, and what it should have reset lived until memory ran out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tt_impl.experts.slots import SlotTable


def content_fingerprint(tables: Iterable[SlotTable]) -> int:
    """One number for what all tables hold, whatever the order: it changes with any (layer, slot, expert, generation).

    A 64-bit hash of a set of integers; it means nothing outside this process.
    """
    return hash(frozenset(entry for table in tables for entry in table.content()))


class ContentEpoch:
    """Watches `tables`, empty at first.

    Attributes:
        recorded: the fingerprint as of the last beginning of a step.
    """

    def __init__(self, tables: Sequence[SlotTable]) -> None:
        self._tables = tables
        self.recorded = content_fingerprint(tables)

    def begin_step(self) -> bool:
        """Whether any content has changed since the last call; call it once a step, before the step touches anything."""
        present = content_fingerprint(self._tables)
        changed = present != self.recorded
        self.recorded = present
        return changed
