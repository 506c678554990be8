"""Importing ttnn, and opening what it finds: a card, a simulated chip or, only where asked for, the mock device."""

from __future__ import annotations

import importlib
import os
from typing import Any

from oracle.accelerator import MOCK_VARIABLE, level_in_use
from oracle.errors import SubjectError

TRACE_REGION_BYTES = 32 << 20
L1_SMALL_BYTES = 32 << 10
"""What ttnn's own decoders set aside for traces, and in each core for halo and index buffers."""


def import_ttnn() -> Any:
    """The module, with its log at errors unless the environment says otherwise.

    Raises:
        SubjectError: it is not installed, or its native library does not load.
    """
    for variable, value in (("TT_LOGGER_LEVEL", "error"), ("LOGURU_LEVEL", "ERROR")):
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module("ttnn")
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise SubjectError(
            f"device ttnn cannot be used here: {reason}; it needs Python 3.10 or 3.12 on x86-64 Linux and "
            "`pip install 'kolibri-oracle[ttnn]'`; `kolibri-oracle doctor` shows what is there"
        ) from None


def open_mesh(*, command_queues: int, mock: bool) -> tuple[Any, Any]:
    """ttnn and its opened device.

    Args:
        mock: whether ttnn's mock device is wanted: it checks and allocates, and reads back zeros whatever was written.

    Raises:
        SubjectError: no card and no simulator; a mock device where none is wanted; or ttnn did not open what is there.
    """
    level = level_in_use()
    if level.name == "mock" and not mock:
        raise SubjectError(
            f"{MOCK_VARIABLE} is set: ttnn's mock device reads back zeros, so no gate can be judged on it; unset it, or run "
            "`python -m tt_impl.device.ttnn.acceptance`"
        )
    if not level.available or (mock and level.name != "mock"):
        missing = f"{MOCK_VARIABLE} is not set" if mock else level.why
        raise SubjectError(f"device ttnn cannot be opened: {missing}; `kolibri-oracle doctor` shows what is there")
    ttnn = import_ttnn()
    try:
        mesh = ttnn.open_device(
            device_id=0,
            trace_region_size=TRACE_REGION_BYTES,
            l1_small_size=L1_SMALL_BYTES,
            num_command_queues=command_queues,
        )
    except RuntimeError as error:
        raise SubjectError(
            f"ttnn does not open the {level.name} device: {said(error)}; `kolibri-oracle doctor` shows what is there"
        ) from None
    return ttnn, mesh


def said(error: BaseException) -> str:
    """What ttnn's error says, on one line: the text after `info:` and before the backtrace, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    if "info:" in lines:
        start = lines.index("info:") + 1
        stop = lines.index("backtrace:") if "backtrace:" in lines else len(lines)
        lines = lines[start:stop]
    return " ".join(filter(None, lines[:3])) or type(error).__name__
