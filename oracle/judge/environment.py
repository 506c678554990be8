"""What a run happened on: the versions and the machine that can change its bits. No paths, no host names."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("kolibri-oracle", "numpy", "ml_dtypes", "safetensors", "torch", "transformers", "tokenizers", "ttnn")


def environment_record() -> dict[str, str]:
    """Library versions (`not installed` where missing), Python and machine, by name."""
    record = {name: _version(name) for name in _LIBRARIES}
    record["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    record["machine"] = f"{platform.system()} {platform.machine()}"
    return record


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
