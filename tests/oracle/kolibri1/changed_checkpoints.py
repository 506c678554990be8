"""Checkpoints that differ from an honest one in stated values: read under another config, or with tensors really rewritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory

_NUMPY = {"BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F32": np.dtype("<f4")}

Read = Callable[[str], np.ndarray]
"""A tensor's values by name: float32, shaped as stored, fp8 values without their scales."""

Rewrite = Callable[[str, Read], "np.ndarray | None"]
"""The new values of the named tensor, or None to leave it."""


def reread(checkpoint: Checkpoint, **config: Any) -> Checkpoint:
    """The same bytes under a config with other values."""
    other = Checkpoint.open(checkpoint.folder)
    other.config = checkpoint.config.model_copy(update=config)
    return other


def rewritten(checkpoint: Checkpoint, folder: Path, rewrite: Rewrite) -> Checkpoint:
    """A copy of the checkpoint's files in `folder`, which must not exist, with tensors overwritten in place.

    Raises:
        ValueError: nothing was rewritten.
    """
    shutil.copytree(checkpoint.folder, folder)
    specs = {spec.name: spec for spec in inventory(checkpoint.config)}

    def read(name: str) -> np.ndarray:
        return checkpoint.raw(name).view(_NUMPY[specs[name].dtype]).astype(np.float32).reshape(specs[name].shape)

    changed = 0
    for shard in sorted(folder.glob("*.safetensors")):
        with shard.open("r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            for name in header.keys() & specs.keys():
                if (values := rewrite(name, read)) is None:
                    continue
                file.seek(8 + length + header[name]["data_offsets"][0])
                file.write(np.broadcast_to(values, specs[name].shape).astype(_NUMPY[specs[name].dtype]).tobytes())
                changed += 1
    if not changed:
        raise ValueError("the rewrite names no tensor of this checkpoint")
    return Checkpoint.open(folder)
