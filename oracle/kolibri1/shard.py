"""One safetensors file of a checkpoint: what its header says, and everything that is wrong with it. Reads no tensor.

A fault is a value here. `Checkpoint.open` raises the first; `audit` collects them all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oracle.kolibri1.inventory import TensorSpec

ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
"""Bytes of one value, by safetensors dtype name: the dtypes that a Kolibri-1 checkpoint has."""

FaultKind = Literal[
    "missing", "unreadable", "LFS pointer", "truncated", "too long", "damaged header", "duplicate tensors", "index"
]
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with one file: its name in the folder, a message that says what, where and what next.

    `more` counts further tensors that the same message would be said of.
    """

    kind: FaultKind
    file: str
    message: str
    more: int = 0


@dataclass(frozen=True)
class StoredTensor:
    """Where a shard's header puts a tensor: file offsets in bytes; `on_disk` is how many of its bytes the file has."""

    spec: TensorSpec
    shard: Path
    start: int
    end: int
    on_disk: int


@dataclass(frozen=True)
class Shard:
    """A shard's entries by file offset, the names whose entries cannot be read, and its faults.

    `unread` is true where the header itself could not be read, so that the shard's tensors are not known.
    """

    tensors: tuple[StoredTensor, ...] = ()
    damaged: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    unread: bool = False


def read_shard(path: Path) -> Shard:
    """Read and check the header of the shard at `path`; whatever is wrong with it is in the result's faults."""
    try:
        size, header_bytes = _read_header(path)
        data_start = 8 + len(header_bytes)
        entries = _parse_json(path, header_bytes)
    except _Unread as unread:
        return Shard(faults=(unread.fault,), unread=True)
    tensors: list[StoredTensor] = []
    damaged: list[str] = []
    faults: list[Fault] = []
    for name, value in entries.items():
        try:
            tensors.append(_parse_entry(path, name, value, data_start, size))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            damaged.append(name)
            faults.append(_damaged_header(path, error))
    tensors.sort(key=lambda tensor: tensor.start)
    if not damaged:
        faults += _layout_faults(path, tensors, data_start, size)
    return Shard(tuple(tensors), tuple(damaged), tuple(faults))


class _Unread(Exception):  # noqa: N818 - carries a fault to `read_shard`, and goes no further
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _read_header(path: Path) -> tuple[int, bytes]:
    """The file's size in bytes, and the bytes of its JSON header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(max(8, len(_LFS_POINTER)))
            if start.startswith(_LFS_POINTER):
                message = f"{path} is a Git LFS pointer, not the shard; run `git lfs pull` in its folder"
                raise _Unread(Fault("LFS pointer", path.name, message))
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(_MAX_HEADER_BYTES, size - 8):
                message = f"{path} is truncated or no safetensors file ({size} bytes); restore it from the release"
                raise _Unread(Fault("truncated", path.name, message))
            file.seek(8)
            return size, file.read(length)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); check its permissions"
        raise _Unread(Fault("unreadable", path.name, message)) from None


def _parse_json(path: Path, header_bytes: bytes) -> dict[str, Any]:
    try:
        header = json.loads(header_bytes)
        header.pop("__metadata__", None)
        return header
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # no JSON, or no JSON object
        raise _Unread(_damaged_header(path, error)) from None


def _parse_entry(path: Path, name: str, value: dict[str, Any], data_start: int, size: int) -> StoredTensor:
    start, end = (data_start + int(offset) for offset in value["data_offsets"])
    spec = TensorSpec(name, str(value["dtype"]), tuple(int(n) for n in value["shape"]))
    expected = ITEM_BYTES.get(spec.dtype, 0) * math.prod(spec.shape)
    if spec.dtype in ITEM_BYTES and end - start != expected:
        raise ValueError(f"{name} has {end - start} bytes for {spec.dtype} {list(spec.shape)}")
    return StoredTensor(spec, path, start, end, on_disk=max(0, min(end, size) - max(start, data_start)))


def _damaged_header(path: Path, error: Exception) -> Fault:
    return Fault("damaged header", path.name, f"{path} has a damaged header ({error!r}); restore it from the release")


def _layout_faults(path: Path, tensors: list[StoredTensor], data_start: int, size: int) -> list[Fault]:
    """Tensors must follow one another without gap or overlap, from the header's end to the file's."""
    faults: list[Fault] = []
    cursor = data_start
    for tensor in tensors:
        if tensor.start != cursor:
            message = f"{path}: {tensor.spec.name} starts at byte {tensor.start}, not {cursor}; restore the shard"
            faults.append(Fault("damaged header", path.name, message))
        cursor = tensor.end
    if cursor != size:
        kind: FaultKind = "truncated" if size < cursor else "too long"
        said = "truncated" if size < cursor else "longer than its header says"
        message = f"{path} is {said}: {size} bytes, expected {cursor}; restore it from the release"
        faults.append(Fault(kind, path.name, message))
    return faults
