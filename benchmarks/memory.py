"""What memory a process takes and the machine has left. Linux (`/proc`)."""

from __future__ import annotations

from pathlib import Path


def process_memory(pid: int | str = "self") -> dict[str, int]:
    """Bytes by the names of `/proc/PID/status`: `VmHWM` (peak resident), `RssAnon`, `RssFile`; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith(("VmHWM:", "RssAnon:", "RssFile:")))
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in fields}


def available_memory() -> int:
    """Bytes that new processes can take without swapping (`MemAvailable`)."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
