"""The asynchronous command queue: in order, but only a schedule knows when.

A command runs when the schedule says or, at the latest, when something settles the queue. A read that has run holds its
bytes in flight; they reach the host's destination only when the read is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.protocol import Bytes, DType, HostArray, Layout
from tt_impl.device.sim.layout import unpack

HOST_POISON = 0xDB


class Schedule(Protocol):
    """Decides how many of the oldest `pending` commands run by themselves, asked after each one is enqueued."""

    def due(self, pending: int) -> int: ...


class LazySchedule:
    """Nothing runs before it must: the latest that a device may be."""

    def due(self, pending: int) -> int:
        return 0


class EagerSchedule:
    """Everything runs at once: the earliest."""

    def due(self, pending: int) -> int:
        return pending


class SeededSchedule:
    """A random share of what is pending runs, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def due(self, pending: int) -> int:
        return int(self._rng.integers(0, pending + 1)) if self._rng.random() < 0.5 else 0


def schedule_named(name: str) -> Schedule:
    """The schedule called `lazy`, `eager` or `seeded:N`.

    Raises:
        UsageError: another name.
    """
    if name == "lazy":
        return LazySchedule()
    if name == "eager":
        return EagerSchedule()
    kind, _, seed = name.partition(":")
    if kind == "seeded" and seed.isdecimal():
        return SeededSchedule(int(seed))
    raise UsageError(f"unknown schedule {name!r}; use lazy, eager or seeded:N")


class SimReadHandle:
    """A device-to-host transfer on its way; see `protocol.ReadHandle`."""

    def __init__(self, label: str, shape: tuple[int, ...], dtype: DType, layout: Layout, destination: Bytes) -> None:
        self.label = label
        self._shape, self._dtype, self._layout = shape, dtype, layout
        self._in_flight: Bytes | None = None
        self._event: int | None = None
        self.destination = destination
        destination.fill(HOST_POISON)

    def take_off(self, data: Bytes) -> None:
        """The read command runs: the device's bytes of this moment are on their way."""
        self._in_flight = data.copy()

    def settle(self, event: int) -> None:
        """The bytes arrive."""
        assert self._in_flight is not None, "settled before its command ran"
        self.destination[:] = self._in_flight
        self._in_flight = None
        self._event = event

    @property
    def settled(self) -> bool:
        return self._event is not None

    @property
    def event(self) -> int:
        if self._event is None:
            raise DeviceFault("unsettled-read", f"the read of {self.label} was used before anything settled it")
        return self._event

    def bytes(self) -> Bytes:
        _ = self.event
        return self.destination

    def array(self) -> HostArray:
        return unpack(self.bytes(), self._shape, self._dtype, self._layout)


class SimEvent:
    """A mark after the `position`-th command."""

    def __init__(self, queue: CommandQueue, position: int) -> None:
        self._queue = queue
        self.position = position

    @property
    def reached(self) -> bool:
        return self._queue.settled_position >= self.position


class CommandQueue:
    """Commands and unsettled reads, in order of enqueueing. A command that faults is gone; those behind it stay queued."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._commands: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[int, SimReadHandle]] = deque()
        self._ran = 0
        self.settled_position = 0

    def enqueue(self, command: Callable[[], None]) -> None:
        commands = self._commands
        commands.append(command)
        due = self._schedule.due(len(commands))
        if due:
            self._run(due)

    def enqueue_read(self, command: Callable[[], None], handle: SimReadHandle) -> None:
        self._reads.append((self._ran + len(self._commands) + 1, handle))
        self.enqueue(command)

    def mark(self) -> SimEvent:
        return SimEvent(self, self._ran + len(self._commands))

    def settle(self, event: int, position: int | None = None) -> None:
        """Run all commands up to `position` (all when None), then let their reads arrive, at event number `event`."""
        self._run(len(self._commands) if position is None else position - self._ran)
        position = self._ran if position is None else position
        while self._reads and self._reads[0][0] <= position:
            self._reads.popleft()[1].settle(event)
        self.settled_position = max(self.settled_position, position)

    def _run(self, count: int) -> None:
        commands = self._commands
        for _ in range(count):
            command = commands.popleft()
            self._ran += 1
            command()


class ClosedQueue(CommandQueue):
    """The queue of a closed device: takes nothing."""

    def __init__(self) -> None:
        super().__init__(LazySchedule())

    def enqueue(self, command: Callable[[], None]) -> None:
        raise DeviceFault("closed", "the device was closed; open a new one")

    def settle(self, event: int, position: int | None = None) -> None:
        raise DeviceFault("closed", "the device was closed; open a new one")
