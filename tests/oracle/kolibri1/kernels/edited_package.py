"""A copy of the `oracle` package to edit, and scripts run on it in their own process with their own cache of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import oracle


class EditedPackage:
    """`folder/oracle`, a copy of the package under test; compiled kernels are cached in `folder/cache`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        source = Path(oracle.__file__).parent
        shutil.copytree(source, folder / "oracle", ignore=shutil.ignore_patterns("__pycache__"))

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace the only `old` in a file of the package."""
        path = self._folder / "oracle" / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once; this plant is out of date")
        path.write_text(text.replace(old, new), encoding="utf-8")

    def run(self, script: str) -> str:
        """What the script prints."""
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "NUMBA_CACHE_DIR": str(self._folder / "cache")}
        environment |= {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=self._folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()
