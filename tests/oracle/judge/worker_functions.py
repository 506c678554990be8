"""What worker processes are given to do in tests: importable by name, so that a spawned process finds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from oracle.errors import UsageError
from oracle.judge.workers import moving


def do(job: str) -> object:
    """`WORD` or `WORD ARGUMENT`."""
    word, _, argument = job.partition(" ")
    return globals()[f"_{word}"](argument)


def _echo(argument: str) -> str:
    return argument


def _pid(_: str) -> int:
    return os.getpid()


def _exit(code: str) -> None:
    os._exit(int(code))


def _signal(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def _hang(file: str) -> None:
    """Forever, and deaf to a polite end; its process id goes into `file`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if file:
        Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


def _walk(seconds: str) -> str:
    """In small steps, each of them told."""
    for _ in range(8):
        time.sleep(float(seconds) / 8)
        moving()
    return "arrived"


def _raise(message: str) -> None:
    raise UsageError(message)


def _leave(_: str) -> None:
    sys.exit(0)


def _orphan(_: str) -> None:
    """Dies, but leaves a process behind that holds all it had open."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"], close_fds=False)
    os._exit(3)


def _unsendable(_: str) -> object:
    return lambda: None


def _nothing(_: str) -> None:
    """No answer but that it is done."""
