"""The shipped mini checkpoint and its golden, as package data: present after a plain `pip install`, in any folder."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def mini_checkpoint() -> Path:
    """The folder of the shipped mini checkpoint; its golden is in `golden` below it."""
    return Path(str(files(__name__) / "kolibri1-mini"))
