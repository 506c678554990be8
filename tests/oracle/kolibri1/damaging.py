"""How tests damage a checkpoint folder; nothing here uses the code under test to read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import deserialize
from safetensors.numpy import save_file

from oracle.kolibri1.scan import INDEX_FILE

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
NUMPY = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "BF16": ml_dtypes.bfloat16, "F32": np.float32}


def stored(shard: Path) -> dict[str, np.ndarray]:
    """A shard's tensors, by safetensors' own reader."""
    entries = deserialize(shard.read_bytes())
    return {name: np.frombuffer(e["data"], dtype=NUMPY[e["dtype"]]).reshape(e["shape"]) for name, e in entries}


def edit_shard(shard: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Rewrite a shard with changed tensors."""
    tensors = stored(shard)
    change(tensors)
    save_file(tensors, shard)


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX_FILE
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX_FILE).read_text())["weight_map"][name]


def place(folder: Path, name: str) -> tuple[Path, int]:
    """The shard that holds a tensor, and the file offset of its first byte; read without the code under test."""
    shard = shard_of(folder, name)
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return shard, 8 + length + json.loads(raw[8 : 8 + length])[name]["data_offsets"][0]


def overwrite(folder: Path, name: str, offset: int, value: bytes) -> None:
    """Write raw bytes into a tensor on disk."""
    shard, start = place(folder, name)
    with shard.open("r+b") as file:
        file.seek(start + offset)
        file.write(value)


def edit_header(shard: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a shard's JSON header and leave its data alone."""
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header = change(header) or header
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
