"""Which test modules this environment can run; what it cannot is named, never silently left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
HAS_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
HAS_TTNN = find_spec("ttnn") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules named `*_torch.py` need the `reference` extra, those in `tests/ttnn` the `ttnn` extra."""
    if collection_path.name.endswith("_torch.py") and not HAS_TORCH:
        return True
    return True if collection_path == ROOT / "tests" / "ttnn" and not HAS_TTNN else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for needed, there, pattern in (
        ("torch and transformers are", HAS_TORCH, "*_torch.py"),
        ("ttnn is", HAS_TTNN, "ttnn/test_*.py"),
    ):
        if not there:
            tests = ROOT / "tests"
            names = ", ".join(sorted(str(path.relative_to(tests)) for path in tests.rglob(pattern)))
            terminalreporter.section("not run")
            terminalreporter.line(f"{needed} not installed; these modules did not run: {names}", yellow=True)
