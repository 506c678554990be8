"""What the machine was doing when a bench began: wall times of a busy machine compare with nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

BUSY_LOAD = 0.25
"""Of the 1-minute load average, for each CPU allowed: a mark of ours. Work that has just ended counts too."""

BUSY_SHARE = 0.1
"""Of the time of the CPUs allowed that was not idle, others' virtual machines included: a mark of ours."""

_SECONDS = 0.5
_SYSTEM_CPUS = Path("/sys/devices/system/cpu")
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class MachineState:
    """Measured before anything of the bench ran.

    Attributes:
        cpus: of the machine.
        affinity: the CPUs that this process may use.
        governor: of those, as Linux names them, joined by commas; `not stated` where it doesn't.
        load: averages over 1, 5 and 15 minutes; None where the system has none.
        busy_share: of the allowed CPUs' time, over half a second; None where the system doesn't tell.
        busy: why this start is busy, each in a few words; empty if it isn't.
    """

    cpus: int
    affinity: tuple[int, ...]
    governor: str
    load: tuple[float, float, float] | None
    busy_share: float | None
    busy: tuple[str, ...]


def machine_state() -> MachineState:
    """Look for half a second."""
    cpus = os.cpu_count() or 1
    affinity = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(cpus))
    before = _read(_STAT)
    time.sleep(_SECONDS)
    share = busy_share(before, _read(_STAT), affinity)
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return MachineState(cpus, affinity, _governor(affinity), load, share, busy_reasons(load, share, len(affinity)))


def busy_reasons(load: tuple[float, float, float] | None, share: float | None, allowed: int) -> tuple[str, ...]:
    """Which of the two marks are passed."""
    reasons = []
    if load is not None and load[0] > BUSY_LOAD * allowed:
        reasons.append(f"load {load[0]:.2f} on {allowed} CPUs, above {BUSY_LOAD} each")
    if share is not None and share > BUSY_SHARE:
        reasons.append(f"CPUs {share:.0%} busy, above {BUSY_SHARE:.0%}")
    return tuple(reasons)


def busy_share(before: str, after: str, affinity: tuple[int, ...]) -> float | None:
    """Of the CPUs in `affinity`, between two contents of `/proc/stat`; None where these don't tell."""
    first, last = _ticks(before), _ticks(after)
    pairs = [(first[cpu], last[cpu]) for cpu in affinity if cpu in first and cpu in last]
    total = sum(sum(now) - sum(then) for then, now in pairs)
    idle = sum(sum(now[3:5]) - sum(then[3:5]) for then, now in pairs)  # idle, and waiting for input
    return (total - idle) / total if total > 0 else None


def _ticks(stat: str) -> dict[int, list[int]]:
    """By CPU: user, nice, system, idle, iowait, irq, softirq, steal."""
    lines = [line.split() for line in stat.splitlines()]
    return {int(line[0][3:]): [int(n) for n in line[1:9]] for line in lines if line and line[0][3:].isdigit()}


def _governor(affinity: tuple[int, ...]) -> str:
    read = {_read(_SYSTEM_CPUS / f"cpu{cpu}" / "cpufreq" / "scaling_governor").strip() for cpu in affinity}
    return ",".join(sorted(read - {""})) or "not stated"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
