"""What a run happened on: the versions and the machine that can change its bits. No paths, no host names."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from oracle.accelerator import accelerator_record

_LIBRARIES = (
    "kolibri-oracle",
    "numpy",
    "ml_dtypes",
    "safetensors",
    "torch",
    "numba",
    "llvmlite",
    "transformers",
    "tokenizers",
    "ttnn",
)
_ARITHMETIC = ("kolibri-oracle", "numpy", "torch", "numba", "llvmlite", "python", "machine", "processor")
_VECTOR_FLAGS = ("fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def environment_record() -> dict[str, str]:
    """Library versions (`not installed` where missing), Python, machine, processor and accelerator, by name."""
    record = {name: _version(name) for name in _LIBRARIES}
    record["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    record["machine"] = f"{platform.system()} {platform.machine()}"
    record["processor"] = _processor()
    return record | accelerator_record()


def arithmetic_record() -> dict[str, str]:
    """The part of the environment that decides the bits of the reference: equal records promise equal bits."""
    record = environment_record()
    return {name: record[name] for name in _ARITHMETIC}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """Model and vector extensions, from which libraries choose their code; `unknown` where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return " ".join([model[1].strip() if model else "unknown", *(flag for flag in _VECTOR_FLAGS if flag in present)])
