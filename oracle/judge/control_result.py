"""What came of one control: a gate that must pass, or must fire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControlResult:
    """One control of one gate.

    Attributes:
        name: `perfect` for the positive one, the planted fault's name for a negative one.
        expected, seen: `pass` or `fire`, or the words of a `DeviceFault`.
    """

    name: str
    expected: str
    seen: str

    @property
    def behaved(self) -> bool:
        return self.expected == self.seen
