"""Captures, replays and releases traces. See `protocol.Device` for what each call does."""

from __future__ import annotations

from collections.abc import Callable

from tt_impl.device.protocol import Trace
from tt_impl.device.sim.buffer import Buffer, FaultMaker
from tt_impl.device.sim.dram import Dram
from tt_impl.device.sim.event_log import EventLog
from tt_impl.device.sim.queue import CommandQueues
from tt_impl.device.sim.trace import SimTrace, TraceState


class Tracer:
    """The traces of one device.

    A buffer allocated in a capture keeps its address until the trace is released, also when the capture itself frees it: a
    replay poisons it at that place, so nothing later in the trace can have relied on it.

    Args:
        reclaim: gives a freed buffer's memory back once the device is done with it.
    """

    def __init__(
        self, dram: Dram, queues: CommandQueues, log: EventLog, fault: FaultMaker, reclaim: Callable[[Buffer], None]
    ) -> None:
        self._dram = dram
        self._queues = queues
        self._log = log
        self._fault = fault
        self._reclaim = reclaim
        self._count = 0

    def refuse_in_capture(self, call: str) -> None:
        """Raise `DeviceFault("trace-capture")` while a trace is being captured."""
        if self._queues.capture is not None:
            raise self._fault("trace-capture", f"{call} while trace {self._queues.capture.identity} is being captured")

    def begin(self) -> SimTrace:
        self.refuse_in_capture("begin_trace_capture")
        self._log.note("traces_captured")
        self._count += 1
        trace = SimTrace(self._count)
        self._queues.capture = self._log.capture = trace
        self._log.captures.begin(trace.identity)
        return trace

    def end(self, trace: Trace) -> None:
        if self._queues.capture is None or trace is not self._queues.capture:
            raise self._fault("trace-capture", f"end_trace_capture of trace {trace.identity}, which is not being captured")
        self._queues.capture.state = TraceState.READY
        self._queues.capture = self._log.capture = None
        self._log.captures.end()

    def execute(self, trace: Trace, *, blocking: bool) -> None:
        """Enqueue the trace's commands."""
        self.refuse_in_capture("execute_trace")
        ready = self._ready(trace, "execute_trace")
        lost = ready.lost()
        if lost is not None:
            raise self._fault(
                "use-after-free",
                f"execute_trace of trace {ready.identity}: it needs {lost}, which was deallocated at event {lost.freed_at}",
            )
        if blocking:
            self._log.note_wait("traces_executed")
        else:
            self._log.note("traces_executed")
        self._log.captures.replayed(ready.identity)
        for command, op in ready.steps:
            if op is not None:
                self._log.note_replayed_op(op)
            self._queues.enqueue(command)
        last = self._queues.tails[0]
        for buffer in (*ready.operands.values(), *ready.outputs.values()):
            buffer.used[0] = last

    def release(self, trace: Trace) -> None:
        ready = self._ready(trace, "release_trace")
        self._log.note("traces_released")
        ready.state = TraceState.RELEASED
        self._log.captures.released(ready.identity)
        for buffer in ready.outputs.values():
            if buffer.is_allocated:
                self._dram.free(buffer, "release_trace", self._log.number)
            self._reclaim(buffer)

    def allocated(self, buffer: Buffer) -> None:
        """`buffer` is new; within a capture it becomes the trace's."""
        trace = self._queues.capture
        if trace is not None:
            trace.outputs[buffer.identity] = buffer
            buffer.owner = trace

    def keeps(self, buffer: Buffer) -> bool:
        """The host has freed `buffer`: whether a trace keeps its memory for now."""
        trace = buffer.owner
        if not isinstance(trace, SimTrace):
            return False
        if trace.state is TraceState.CAPTURING:
            trace.freed_inside.add(buffer.identity)
            trace.record(buffer.poison)
        return True

    def _ready(self, trace: Trace, call: str) -> SimTrace:
        if not isinstance(trace, SimTrace):
            raise self._fault("bad-operand", f"{call} of {trace!r}, which is no trace of the simulated device")
        if trace.state is TraceState.RELEASED:
            raise self._fault("trace-released", f"{call} of trace {trace.identity}, which was released")
        if trace.state is TraceState.CAPTURING:
            raise self._fault("trace-capture", f"{call} of trace {trace.identity}, which is still being captured")
        return trace
