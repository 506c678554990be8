"""The benchmark's checkpoints: where they are made, that there is room, and that they go away again."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.synthetic import tensor_bytes, write_synthetic


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder (below `TMPDIR`), deleted however the block ends."""
    with tempfile.TemporaryDirectory(prefix="kolibri-benchmark-") as folder:
        yield Path(folder)


def make_checkpoint(folder: Path, config: dict[str, Any], *, shards: int) -> Path:
    """Write a random checkpoint, with progress on stderr.

    Raises:
        UsageError: the disk has no room for it.
    """
    total = sum(map(tensor_bytes, inventory(Kolibri1Config.model_validate(config))))
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < 1.05 * total:
        raise UsageError(
            f"{existing} has {free / 1e9:.1f} GB free, {total / 1e9:.1f} GB are needed; set TMPDIR to a larger disk"
        )
    progress(f"writing a random checkpoint of {total / 1e9:.2f} GB to {folder}")
    begun = shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 2 or done == total:
            shown = time.monotonic()
            rate = done / 1e6 / max(shown - begun, 1e-9)
            progress(f"  {done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate:.0f} MB/s")

    return write_synthetic(folder, config, shards=shards, progress=show)


def progress(line: str) -> None:
    """A line for the person who waits."""
    print(line, file=sys.stderr, flush=True)
