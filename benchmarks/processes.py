"""Jobs in processes of their own, one after the other, with their memory sampled from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import thread_environment
from memory import process_memory

WORKER = Path(__file__).with_name("worker.py")
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Ran:
    """How a job ended.

    Attributes:
        result: what the worker returned; None when it failed.
        failure: why there is no result; None when there is one.
        peak_anonymous: bytes, the largest `RssAnon` sampled every 20 ms.
        peak_resident: bytes, `VmHWM`; mapped weights are part of it, and the kernel may take those back.
    """

    result: dict[str, Any] | None
    failure: str | None
    peak_anonymous: int
    peak_resident: int


def run_worker(job: dict[str, Any], threads: int) -> Ran:
    """Run one job of `worker.py`. It is killed if this process is interrupted meanwhile."""
    command = [sys.executable, str(WORKER), json.dumps(job)]
    process = subprocess.Popen(command, env=thread_environment(threads), stdout=subprocess.PIPE, text=True)
    anonymous = resident = 0
    try:
        while process.poll() is None:
            memory = process_memory(process.pid)
            anonymous = max(anonymous, memory.get("RssAnon", 0))
            resident = max(resident, memory.get("VmHWM", 0))
            time.sleep(_SAMPLE_SECONDS)
        out, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        how = "killed" if process.returncode < 0 else "ended"
        return Ran(None, f"{how} with {process.returncode}; its last line says why", anonymous, resident)
    return Ran(json.loads(out), None, anonymous, resident)
