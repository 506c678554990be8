"""Python in a process of its own, in this environment and from this source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class RunsPython:
    """Called with Python's arguments; `mock`: with the variables of the mock device, or with none of them."""

    mock_environment: Mapping[str, str]

    def __call__(self, *arguments: str, mock: bool) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in self.mock_environment}
        environment |= {"PYTHONPATH": str(ROOT), **(self.mock_environment if mock else {})}
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=240, check=False)
