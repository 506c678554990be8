"""How much of a mapped file is in this process's memory. Linux."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(path: Path) -> int:
    """Bytes of all maps of the file (`Rss` of `/proc/self/smaps`).

    Raises:
        ValueError: it is not mapped.
    """
    found, of_file = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            of_file = words[-1] == str(path.resolve())
        elif of_file and words[0] == "Rss:":
            found.append(int(words[1]) * 1024)
    if not found:
        raise ValueError(f"{path} is not mapped")
    return sum(found)
