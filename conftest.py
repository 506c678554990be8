"""Which test modules this environment can run; what it cannot is named, never silently left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules named `*_torch.py` need the `reference` extra."""
    return True if collection_path.name.endswith("_torch.py") and not HAS_TORCH else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAS_TORCH:
        root = Path(__file__).parent / "tests"
        names = ", ".join(sorted(str(path.relative_to(root)) for path in root.rglob("*_torch.py")))
        terminalreporter.section("not run")
        terminalreporter.line(f"torch and transformers are not installed; these modules did not run: {names}", yellow=True)
