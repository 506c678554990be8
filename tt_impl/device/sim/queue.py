"""The asynchronous command queues: each in order, but only a schedule knows when, and which goes before which.

A command runs when the schedule says or, at the latest, when something settles its queue. A read that has run holds its
bytes in flight; they reach the host's destination only when the read is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeGuard

from oracle.errors import DeviceFault
from tt_impl.device.sim.read_handle import SimReadHandle
from tt_impl.device.sim.schedule import Schedule
from tt_impl.device.sim.trace import SimTrace

Command = Callable[[], None]


class SimEvent:
    """A mark after the `position`-th command of queue `cq_id`."""

    def __init__(self, queues: CommandQueues, cq_id: int, position: int) -> None:
        self._queues = queues
        self.cq_id = cq_id
        self.position = position

    @property
    def reached(self) -> bool:
        """The host may rely on it: the queue was settled that far."""
        return self._queues.settled[self.cq_id] >= self.position


class _Wait:
    """A command that holds its queue until `event`'s queue has run that far."""

    def __init__(self, event: SimEvent, ran: list[int]) -> None:
        self.event = event
        self._ran = ran

    @property
    def over(self) -> bool:
        return self._ran[self.event.cq_id] >= self.event.position

    def __call__(self) -> None:
        pass


class CommandQueues:
    """Commands and unsettled reads of all queues. A command that faults is gone; those behind it stay queued.

    Args:
        placed: says in a command's fault when it happened, and under which schedule.

    Attributes:
        count: how many queues there are, 1 or 2; what is kept per queue is always kept for two.
        ran, settled: per queue, up to which position its commands have run, and the host has waited for them.
        tails: per queue, the position of the command enqueued last.
        capture: the trace that ops are recorded into, if any.
        behind_next: commands that run right behind the next one enqueued.
        closed: the device was closed, and takes nothing.
    """

    def __init__(self, schedule: Schedule, count: int, placed: Callable[[DeviceFault], DeviceFault]) -> None:
        self.count = count
        self._schedule = schedule
        self._turns = None if schedule.only_settled else schedule.turns
        self._placed = placed
        self._commands: tuple[deque[Command], deque[Command]] = (deque(), deque())
        self._reads: tuple[deque[tuple[int, SimReadHandle]], ...] = (deque(), deque())
        self._behind: tuple[dict[int, list[Command]], ...] = ({}, {})
        self._late: tuple[list[Command], list[Command]] = ([], [])
        self.ran = [0, 0]
        self.tails = [0, 0]
        self.settled = [0, 0]
        self.capture: SimTrace | None = None
        self.behind_next: list[Command] = []
        self.closed = False

    def enqueue(self, command: Command, cq_id: int = 0) -> None:
        """Let `command` run on queue `cq_id` in its turn; while a trace is captured, record it instead."""
        if self.capture is not None:
            self.capture.record(command)
            return
        self.push(command, cq_id)
        while self.behind_next:
            self.push(self.behind_next.pop(0), cq_id)

    def push(self, command: Command, cq_id: int) -> None:
        """As `enqueue`, also while a trace is captured."""
        if self.closed:
            self.refuse_if_closed()
        first, second = self._commands
        self._commands[cq_id].append(command)
        self.tails[cq_id] += 1
        if self._turns is not None and (turns := self._turns(len(first) + len(second))):
            self._run(turns)

    def refuse_if_closed(self) -> None:
        """Raise `DeviceFault("closed")` after the device was closed."""
        if self.closed:
            raise DeviceFault("closed", "the device was closed; open a new one")

    def enqueue_read(self, handle: SimReadHandle, command: Command, cq_id: int) -> None:
        self._reads[cq_id].append((self.tails[cq_id] + 1, handle))
        self.enqueue(command, cq_id)

    def behind(self, uses: Sequence[int], then: Command) -> None:
        """Do `then` as soon as each queue has run up to its position in `uses`, which is at once if both have.

        It is no command of either queue: who waits for the last use by an event waits for this, too.
        """
        first, second = uses
        if first <= self.ran[0]:
            if second <= self.ran[1]:
                then()
            else:
                self._behind[1].setdefault(second, []).append(then)
        elif second <= self.ran[1]:
            self._behind[0].setdefault(first, []).append(then)
        else:
            self._behind[0].setdefault(first, []).append(lambda: self.behind((first, second), then))

    def wait(self, event: SimEvent, cq_id: int) -> None:
        self.push(_Wait(event, self.ran), cq_id)

    def mark(self, cq_id: int) -> SimEvent:
        return SimEvent(self, cq_id, self.tails[cq_id])

    def postpone(self, command: Command, cq_id: int) -> None:
        """Run `command` when the next settling of its queue is over: a transfer that is late."""
        self._late[cq_id].append(command)

    def settle(self, goals: dict[int, int], event: int) -> None:
        """Run each queue in `goals` up to that position, then let its reads arrive, at event number `event`."""
        self._advance(dict(goals))
        for cq_id, position in goals.items():
            self.settled[cq_id] = max(self.settled[cq_id], position)
            self._land(cq_id, position, event)

    def _land(self, cq_id: int, position: int, event: int) -> None:
        reads, held = self._reads[cq_id], []
        while reads and reads[0][0] <= position:
            at, handle = reads.popleft()
            if handle.held:
                handle.held -= 1
                held.append((at, handle))
            else:
                handle.settle(event)
        reads.extendleft(reversed(held))
        late = self._late[cq_id]
        for _ in range(len(late)):
            late.pop(0)()

    def _run(self, turns: int) -> None:
        """Run up to `turns` commands, fewer if all that are left wait."""
        for _ in range(turns):
            ready = [q for q, commands in enumerate(self._commands) if commands and not _blocked(commands[0])]
            if not ready:
                return
            self._step(ready[0] if len(ready) == 1 else self._schedule.pick(ready))

    def _advance(self, goals: dict[int, int]) -> None:
        """Run until every goal is reached, and what these wait for."""
        ran = self.ran
        while True:
            ready = []
            for q, goal in list(goals.items()):
                if ran[q] >= goal:
                    continue
                head = self._commands[q][0]
                if _blocked(head):
                    other = head.event
                    goals[other.cq_id] = max(goals.get(other.cq_id, 0), other.position)
                else:
                    ready.append(q)
            if len(ready) == 1:
                self._run_one(ready[0], goals)
            elif ready:
                self._step(self._schedule.pick(ready))
            elif all(ran[q] >= goal for q, goal in goals.items()):
                return

    def _run_one(self, q: int, goals: dict[int, int]) -> None:
        """Run queue `q`, the only one that can go on, until its goal, a wait, or the end of another queue's wait."""
        alone = all(self.ran[other] >= goal for other, goal in goals.items() if other != q)
        commands, ran, behind = self._commands[q], self.ran, self._behind[q]
        try:
            for _ in range(goals[q] - ran[q] if alone else 1):
                command = commands[0]
                if command.__class__ is _Wait and _blocked(command):
                    return
                ran[q] += 1
                commands.popleft()
                command()
                if ran[q] in behind:
                    self._pass(q)
        except DeviceFault as fault:
            self._pass(q)
            raise self._placed(fault) from None

    def _step(self, q: int) -> None:
        self.ran[q] += 1
        try:
            self._commands[q].popleft()()
        except DeviceFault as fault:
            raise self._placed(fault) from None
        finally:
            self._pass(q)

    def _pass(self, q: int) -> None:
        """Do what was to be done behind the command that queue `q` has just run."""
        for then in self._behind[q].pop(self.ran[q], ()):
            then()


def _blocked(command: Command) -> TypeGuard[_Wait]:
    return command.__class__ is _Wait and not command.over  # type: ignore[attr-defined]
