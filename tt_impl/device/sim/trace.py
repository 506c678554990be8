"""A captured sequence of ops: recorded once, run over what its buffers hold then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tt_impl.device.protocol import Tensor
from tt_impl.device.sim.buffer import Buffer


class TraceState(Enum):
    CAPTURING = "still being captured"
    READY = "ready"
    RELEASED = "released"


class CapturedOp(NamedTuple):
    """What the event log is told of an op each time it runs."""

    name: str
    dram_bytes: int
    flops: int
    operands: Sequence[Tensor] = ()


class SimTrace:
    """See `protocol.Trace`.

    Attributes:
        steps: the recorded commands in order, with the op that each belongs to; frees within the capture belong to none.
        operands: every buffer that a recorded op takes, by identity.
        outputs: every buffer allocated in the capture; their memory is the trace's until it is released.
        freed_inside: identities of outputs that the capture itself gave up.
    """

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.state = TraceState.CAPTURING
        self.steps: list[tuple[Callable[[], None], CapturedOp | None]] = []
        self.operands: dict[int, Buffer] = {}
        self.outputs: dict[int, Buffer] = {}
        self.freed_inside: set[int] = set()
        self._op: CapturedOp | None = None

    def note_op(self, op: CapturedOp) -> None:
        """The next recorded command is `op`'s."""
        self._op = op

    def record(self, command: Callable[[], None]) -> None:
        self.steps.append((command, self._op))
        self._op = None

    def lost(self) -> Buffer | None:
        """A buffer that a replay would need and that was deallocated since."""
        needed = (*self.operands.values(), *self.outputs.values())
        return next((b for b in needed if not b.is_allocated and b.identity not in self.freed_inside), None)
