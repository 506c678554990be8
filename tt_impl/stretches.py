"""Stretches of a step: the ops between two waits of the host, enqueued each time anew, or captured once and replayed.

A step of L layers has L + 1 stretches. The host waits behind each, for a router or for the step's logits, and does what depends
on data: it chooses experts, fills slots, uploads what it dequantized, and enqueues their products. So neither routing nor
streaming is ever inside a stretch; what goes into one from outside stands in tensors that stay where they are and are written
before each step: ids, positions, page tables, the routed experts' sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from tt_impl.device.protocol import Device, Trace
from tt_impl.lifetimes import Scratch
from tt_impl.stats import StepStats

T = TypeVar("T")


class Scopes(NamedTuple):
    """How long the tensors of a stretch live, at least: until all of it is enqueued, until the next one is, or all the step."""

    stretch: Scratch
    next: Scratch
    step: Scratch


Ops = Callable[[Scopes], T]


class Stretches(Protocol):
    """How a step's ops reach the device. `step` surrounds a step, also one that fails."""

    def step(self) -> Any: ...

    def run(self, number: int, ops: Ops[T]) -> T:
        """Have the device do the ops of stretch `number`, from 0, and return what `ops` does: tensors, that live as it says."""
        ...

    def release(self) -> None:
        """Forget whatever refers to the tensors of the present sequences, which are about to be freed."""
        ...


class Enqueued:
    """Each op is enqueued at every step."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._step = Scratch(device)
        self._next = Scratch(device)

    @contextmanager
    def step(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._next.close()
            self._step.close()

    def run(self, number: int, ops: Ops[T]) -> T:
        with Scratch(self._device) as stretch:
            before, self._next = self._next, Scratch(self._device)
            try:
                return ops(Scopes(stretch, self._next, self._step))
            finally:
                before.close()

    def release(self) -> None:
        pass


class _Traced(NamedTuple):
    trace: Trace
    result: Any


class Captured:
    """Each stretch is captured when it first comes by, and then replayed; in the first step of all it is only enqueued.

    That first step compiles what ttnn compiles when it first meets an op, which it must not do within a capture. A trace knows
    the tensors that it was captured over: with the sequences' caches it is given up. What it allocated, it keeps until then.

    Args:
        stats: told of captures, replays, and what traces hold.
    """

    def __init__(self, device: Device, stats: StepStats) -> None:
        self._device = device
        self._stats = stats
        self._first = Enqueued(device)
        self._warm = False
        self._traced: dict[int, _Traced] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        with self._first.step():
            yield
        self._warm = True

    def run(self, number: int, ops: Ops[T]) -> T:
        if not self._warm:
            return self._first.run(number, ops)
        if number not in self._traced:
            self._traced[number] = self._capture(ops)
        traced = self._traced[number]
        self._device.execute_trace(traced.trace, blocking=False)
        self._stats.replays += 1
        return traced.result

    def release(self) -> None:
        self._stats.trace_bytes = 0
        while self._traced:
            self._device.release_trace(self._traced.popitem()[1].trace)

    def _capture(self, ops: Ops[Any]) -> _Traced:
        device = self._device
        before = device.get_memory_view().allocated_bytes
        trace = device.begin_trace_capture()
        held = Scratch(device)  # never closed: these tensors are the trace's
        try:
            result = ops(Scopes(held, held, held))
        except BaseException:
            device.end_trace_capture(trace)
            device.release_trace(trace)
            raise
        device.end_trace_capture(trace)
        self._stats.captures += 1
        self._stats.trace_bytes += device.get_memory_view().allocated_bytes - before
        return _Traced(trace, result)


STRETCHES: dict[str, Callable[[Device, StepStats], Stretches]] = {
    "eager": lambda device, _: Enqueued(device),
    "captured": Captured,
}
"""By the value of the lever `dispatch`."""
