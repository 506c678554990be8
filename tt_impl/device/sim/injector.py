"""Carries out a fault plan on the simulated card."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import numpy as np

from tt_impl.device.protocol import Bytes
from tt_impl.device.sim.buffer import Buffer
from tt_impl.device.sim.dram import Dram
from tt_impl.device.sim.faults import Delay, Drop, Fault, FaultPlan, Flip, OnDrain, OnEvent, OnOp, OnRead, OnWrite, Overwrite
from tt_impl.device.sim.queue import Command, CommandQueues
from tt_impl.device.sim.read_handle import SimReadHandle


class FaultInjector:
    """Watches transfers, ops, events and drains for the moments of a plan.

    Attributes:
        struck: for each fault of the plan, how many buffers or transfers it has struck so far; 0 means it never happened.
    """

    def __init__(self, plan: FaultPlan, dram: Dram, queues: CommandQueues) -> None:
        self._plan = plan
        self._dram = dram
        self._queues = queues
        self._drains = 0
        self._ops: dict[str, int] = {}
        self.struck = [0] * len(plan.faults)

    def write(self, buffer: Buffer, land: Command, cq_id: int) -> None:
        """A write into `buffer` has its turn; `land` does it."""
        due = self._due(OnWrite, buffer.host_writes, [buffer])
        if any(isinstance(fault.what, Drop) for _, fault in due):
            self._count(due, Drop)
            return
        if any(isinstance(fault.what, Delay) for _, fault in due):
            self._count(due, Delay)
            self._queues.postpone(land, cq_id)
            return
        land()
        self._strike(due, [buffer])

    def read(self, buffer: Buffer, handle: SimReadHandle) -> None:
        """A read of `buffer` has its turn."""
        in_flight = handle.take_off()
        due = self._due(OnRead, buffer.host_reads, [buffer])
        for index, fault in due:
            what = fault.what
            if isinstance(what, Drop):
                handle.dropped = True
            elif isinstance(what, Delay):
                handle.held += 1
            elif not _change(in_flight, what):
                continue
            self.struck[index] += 1

    def op(self, name: str) -> None:
        """One more op called `name` is about to be enqueued."""
        count = self._ops[name] = self._ops.get(name, 0) + 1
        due = [(i, f) for i, f in self._of(OnOp) if isinstance(f.when, OnOp) and f.when.name == name and f.when.nth == count]
        self._strike_behind_next(due)

    def event(self, number: int) -> None:
        """Event `number` is about to be carried out."""
        self._strike_behind_next([(i, f) for i, f in self._of(OnEvent) if f.when.nth == number])

    def drained(self) -> None:
        """A synchronization is over."""
        self._drains += 1
        self._strike(self._due(OnDrain, self._drains, self._dram.live.values()), list(self._dram.live.values()))

    def _strike_behind_next(self, due: list[tuple[int, Fault]]) -> None:
        if due:
            self._queues.behind_next.append(lambda: self._strike(due, list(self._dram.live.values())))

    def _strike(self, due: list[tuple[int, Fault]], buffers: list[Buffer]) -> None:
        for index, fault in due:
            for buffer in buffers:
                if fnmatchcase(buffer.label, fault.where) and self._change_on_device(buffer, fault.what):
                    self.struck[index] += 1

    def _change_on_device(self, buffer: Buffer, what: object) -> bool:
        if isinstance(what, Overwrite):
            self._dram.write_past(buffer, what.offset, bytes.fromhex(what.data) * what.repeat)
            return True
        if not _change(buffer.bytes, what):
            return False
        buffer.changed()
        return True

    def _of(self, when: type) -> Iterable[tuple[int, Fault]]:
        return [(i, fault) for i, fault in enumerate(self._plan.faults) if isinstance(fault.when, when)]

    def _due(self, when: type, count: int, buffers: Iterable[Buffer]) -> list[tuple[int, Fault]]:
        """The faults of that kind of moment whose `nth` is `count` and that one of `buffers` matches."""
        return [
            (i, f) for i, f in self._of(when) if f.when.nth == count and any(fnmatchcase(b.label, f.where) for b in buffers)
        ]

    def _count(self, due: list[tuple[int, Fault]], what: type) -> None:
        for index, fault in due:
            self.struck[index] += isinstance(fault.what, what)


def _change(data: Bytes, what: object) -> bool:
    """Change `data` as far as it goes; whether anything was in reach."""
    if isinstance(what, Flip):
        if what.offset >= data.size:
            return False
        data[what.offset] ^= np.uint8(what.mask)
        return True
    if isinstance(what, Overwrite):
        room = data[what.offset : what.offset + len(what.data) // 2 * what.repeat]
        room[:] = np.frombuffer(bytes.fromhex(what.data) * what.repeat, np.uint8)[: room.size]
        return room.size > 0
    return False
