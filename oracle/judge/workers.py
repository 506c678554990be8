"""Worker processes: jobs spread over cores, where one that hangs or dies takes nothing along but its own job.

A process pool of the standard library cannot end one hanging worker, and is broken as a whole by one that dies, so a
subject that hung or crashed natively once ended the session. Here the parent watches each worker by its pipe: a job whose
worker dies, or does not move on within the job's time limit, is answered with a `DeviceFault`, and another worker takes
its place. Workers are spawned, one arithmetic thread each: results depend neither on how many there are nor on this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from oracle.errors import DeviceFault, UsageError

START_LIMIT = 300.0
"""Seconds in which a worker process must have started; only then do the limits of its jobs count."""

_POLL = 1.0
_GRACE = 5.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

J = TypeVar("J")
R = TypeVar("R")


def work(
    function: Callable[[J], R], jobs: Iterable[J], workers: int, limit: Callable[[J], float]
) -> Generator[tuple[int, J, R | DeviceFault], None, None]:
    """Yield each job's number, the job and what `function` made of it, as soon as it is done.

    Args:
        function: importable by its name; what it raises is raised here, and ends all other jobs.
        jobs: the next one is taken only when a worker is free for it, so that an iterator may end early.
        limit: seconds in which the function must return or call `moving`.

    Yields:
        A `DeviceFault` of kind `timeout` or `worker-died` in place of a result that never came.

    Raises:
        UsageError: a worker process does not even start.
    """
    waiting = enumerate(jobs)
    idle: list[_Worker[J, R]] = []
    busy: list[_Worker[J, R]] = []
    try:
        while True:
            while len(busy) < workers and (numbered := next(waiting, None)) is not None:
                worker = idle.pop() if idle else _Worker(function)
                busy.append(worker)
                worker.give(*numbered, limit(numbered[1]))
            if not busy:
                return
            wait([worker.connection for worker in busy], min([_POLL, *(worker.seconds_left() for worker in busy)]))
            for worker in list(busy):
                answer = worker.answer()
                if answer is None:
                    continue
                busy.remove(worker)
                if worker.alive:
                    idle.append(worker)
                yield worker.number, worker.job, answer[0]
    finally:
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.connection.close()  # what it waits for ends, and so does it
        for worker in idle:
            worker.join()


def moving() -> None:
    """Tell that the job in this process is still moving: its time limit starts anew. Nothing outside a worker."""
    if _pulse is not None:
        _pulse.beat()


class _Worker(Generic[J, R]):
    """One process, as its parent sees it. Messages from it are (what, value)."""

    number: int
    job: J

    def __init__(self, function: Callable[[J], R]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(function, theirs))
        with _single_threaded_children():
            self._process.start()
        theirs.close()
        self.alive, self._started = True, False

    def give(self, number: int, job: J, limit: float) -> None:
        self.number, self.job, self._limit = number, job, limit
        self._deadline = time.monotonic() + (limit if self._started else START_LIMIT)
        with contextlib.suppress(OSError):  # it is dead; `answer` says so
            self.connection.send((job, limit))

    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def answer(self) -> tuple[R | DeviceFault] | None:
        """The job's result, which may be None, or the fault that ended it, alone in a tuple; None while it goes on."""
        code = self._process.exitcode  # before reading: what a dead one sent is all in the pipe
        try:
            while self.connection.poll():
                what, value = self.connection.recv()
                if what == "done":
                    return (value,)
                if what == "raised":
                    raise value
                self._started, self._deadline = True, time.monotonic() + self._limit
        except (EOFError, ConnectionError):
            return (self._died(),)
        if code is not None:
            return (self._died(),)
        if self.seconds_left() > 0:
            return None
        self.kill()
        if not self._started:
            raise UsageError(f"a worker process did not start within {START_LIMIT:g} s; run again with fewer --jobs")
        return (DeviceFault("timeout", f"no step ended within {self._limit:g} s; its process was ended"),)

    def _died(self) -> DeviceFault:
        self.join()
        code = self._process.exitcode
        if not self._started:
            raise UsageError(
                f"a worker process ended with code {code} before it took a job; if a script of yours starts the session, "
                'put that under `if __name__ == "__main__":`'
            )
        how = f"with exit code {code}" if code is None or code >= 0 else f"by {_signal_name(-code)}"
        return DeviceFault("worker-died", f"its process ended {how}, as from a crash of a native library")

    def kill(self) -> None:
        self._process.kill()
        self.join()

    def join(self) -> None:
        """Wait for its end; a process that does not end is killed, and left where even that does not help."""
        self._process.join(_GRACE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(_GRACE)
        self.connection.close()
        self.alive = False


class _Pulse:
    """Tells the parent, not more often than needed, that the job moves."""

    def __init__(self, connection: Connection, limit: float) -> None:
        self._connection, self._every, self._last = connection, min(_POLL, limit / 4), time.monotonic()

    def beat(self) -> None:
        if time.monotonic() - self._last >= self._every:
            self._connection.send(("moving", None))
            self._last = time.monotonic()


_pulse: _Pulse | None = None


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """The life of a worker: job after job, until the parent closes the pipe."""
    global _pulse
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; only the parent answers it
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    connection.send(("started", None))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            job, limit = connection.recv()
            _pulse = _Pulse(connection, limit)
            try:
                answer = ("done", function(job))
            except Exception as error:
                answer = ("raised", error)
            connection.send(answer)


def _end_with_the_parent() -> None:
    """A worker whose parent was killed would go on with its job, and hold its device."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Children start with one arithmetic thread each: as many processes as cores, and bits that depend on neither."""
    saved = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
