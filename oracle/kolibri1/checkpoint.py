"""A sharded safetensors checkpoint as mapped raw bytes. Free of torch and of arithmetic.

Opening reads headers only and checks all of them: every shard present and whole, every tensor of the inventory there
with the right dtype and shape, and the index in agreement with the shards. Bytes are mapped, never copied, and checked for
NaN and infinity when a tensor is first read.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.errors import CheckpointError
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.inventory import TensorSpec, inventory

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_LFS_POINTER = b"version https://git-lfs"

RawBytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Stored:
    spec: TensorSpec
    shard: Path
    start: int
    end: int


class Checkpoint:
    """An opened checkpoint: its config and, by tensor name, read-only raw bytes.

    Use `Checkpoint.open(folder)`. Holds one memory map per shard.
    """

    def __init__(self, folder: Path, config: Kolibri1Config, stored: dict[str, _Stored]) -> None:
        self.folder = folder
        self.config = config
        self._stored = stored
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}
        self._checked: set[str] = set()
        self._digest: str | None = None

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Open `folder` and check its headers.

        Raises:
            CheckpointError: no checkpoint there; a missing, truncated, swapped or pointer-file shard; an index that names
                a tensor no shard has; a missing or surplus tensor; a wrong dtype or shape.
        """
        folder = Path(folder)
        config = read_config(folder)
        stored: dict[str, _Stored] = {}
        for shard in _shards(folder):
            for entry in _read_header(shard):
                if entry.spec.name in stored:
                    first = stored[entry.spec.name].shard.name
                    raise CheckpointError(
                        f"{entry.spec.name} is in {first} and again in {shard.name}; a shard was copied over another: "
                        f"restore {shard} from the release"
                    )
                stored[entry.spec.name] = entry
        _check_index(folder, stored)
        _check_inventory(folder, config, stored)
        return cls(folder, config, stored)

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of one tensor."""
        return self._entry(name).spec

    def raw(self, name: str) -> RawBytes:
        """The tensor's bytes as stored, a read-only mapped uint8 vector (row-major, little-endian).

        Raises:
            CheckpointError: no such tensor, or its bytes encode NaN or infinity.
        """
        entry = self._entry(name)
        raw = self._mapped(entry)[entry.start : entry.end]
        if name not in self._checked:
            if bad := _count_non_finite(raw, entry.spec.dtype):
                values = raw.size // _ITEM_BYTES[entry.spec.dtype]
                raise CheckpointError(
                    f"{name} in {entry.shard} holds {bad} NaN or infinite values of {values}; restore it from the release"
                )
            self._checked.add(name)
        return raw

    def row(self, name: str, index: int) -> RawBytes:
        """The bytes of row `index` of a matrix, as stored; only they are read and checked.

        Raises:
            CheckpointError: no such tensor, or the row's bytes encode NaN or infinity.
        """
        entry = self._entry(name)
        length = (entry.end - entry.start) // entry.spec.shape[0]
        start = entry.start + index * length
        raw = self._mapped(entry)[start : start + length]
        if _count_non_finite(raw, entry.spec.dtype):
            raise CheckpointError(f"row {index} of {name} in {entry.shard} holds NaN or infinity; restore it from the release")
        return raw

    def digest(self) -> str:
        """`sha256:` over the config and every tensor's name, dtype, shape and bytes; reads everything once, then cached."""
        if self._digest is None:
            config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
            whole = hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
            for name in sorted(self._stored):
                spec = self._stored[name].spec
                body = hashlib.sha256(self.raw(name).data).hexdigest()
                whole.update(f"{name} {spec.dtype} {list(spec.shape)} {body}\n".encode())
            self._digest = f"sha256:{whole.hexdigest()}"
        return self._digest

    def total_bytes(self) -> int:
        """Bytes of tensor data over all shards."""
        return sum(entry.end - entry.start for entry in self._stored.values())

    def __len__(self) -> int:
        return len(self._stored)

    def _mapped(self, entry: _Stored) -> RawBytes:
        """The whole shard of an entry, mapped once."""
        if entry.shard not in self._maps:
            self._maps[entry.shard] = np.memmap(entry.shard, dtype=np.uint8, mode="r")
        return np.asarray(self._maps[entry.shard])

    def _entry(self, name: str) -> _Stored:
        try:
            return self._stored[name]
        except KeyError:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}; names are those of the release") from None


def _shards(folder: Path) -> list[Path]:
    """The shard files, in name order: those of the index, or the single file."""
    index = folder / INDEX_FILE
    if not index.exists():
        if not (folder / SINGLE_FILE).exists():
            raise CheckpointError(f"{folder} has neither {INDEX_FILE} nor {SINGLE_FILE}; restore it from the release")
        return [folder / SINGLE_FILE]
    names = sorted(set(_read_weight_map(index).values()))
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index} names {name!r}, which is not a file of this folder; restore it from the release")
    shards = [folder / name for name in names]
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f"shard {shard} is missing; restore it from the release")
    return shards


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index} cannot be read ({error!r}); restore it from the release") from None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map must map tensor names to shard files; restore it from the release")
    return weight_map


def _read_header(shard: Path) -> list[_Stored]:
    try:
        return _parse_header(shard)
    except OSError as error:
        raise CheckpointError(f"{shard} cannot be read ({error.strerror}); check its permissions") from None


def _parse_header(shard: Path) -> list[_Stored]:
    size = shard.stat().st_size
    with shard.open("rb") as file:
        start = file.read(max(8, len(_LFS_POINTER)))
        if start.startswith(_LFS_POINTER):
            raise CheckpointError(f"{shard} is a Git LFS pointer, not the shard; run `git lfs pull` in its folder")
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > min(_MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(f"{shard} is truncated or no safetensors file ({size} bytes); restore it from the release")
        file.seek(8)
        header_bytes = file.read(length)
    try:
        header = json.loads(header_bytes)
        header.pop("__metadata__", None)
        entries = [_parse_entry(shard, name, value, 8 + length) for name, value in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{shard} has a damaged header ({error!r}); restore it from the release") from None
    entries.sort(key=lambda entry: entry.start)
    cursor = 8 + length
    for entry in entries:
        if entry.start != cursor:
            raise CheckpointError(f"{shard}: {entry.spec.name} starts at byte {entry.start}, not {cursor}; restore the shard")
        cursor = entry.end
    if cursor != size:
        kind = "truncated" if size < cursor else "longer than its header says"
        raise CheckpointError(f"{shard} is {kind}: {size} bytes, expected {cursor}; restore it from the release")
    return entries


def _parse_entry(shard: Path, name: str, value: dict[str, Any], base: int) -> _Stored:
    start, end = (int(offset) for offset in value["data_offsets"])
    spec = TensorSpec(name, str(value["dtype"]), tuple(int(n) for n in value["shape"]))
    expected = _ITEM_BYTES.get(spec.dtype, 0) * math.prod(spec.shape)
    if spec.dtype in _ITEM_BYTES and end - start != expected:
        raise ValueError(f"{name} has {end - start} bytes for {spec.dtype} {list(spec.shape)}")
    return _Stored(spec, shard, base + start, base + end)


def _check_index(folder: Path, stored: dict[str, _Stored]) -> None:
    index = folder / INDEX_FILE
    if not index.exists():
        return
    weight_map = _read_weight_map(index)
    for name, shard in weight_map.items():
        if name not in stored:
            raise CheckpointError(f"{index} names {name} in {shard}, but no shard has it; restore the index or the shard")
        if stored[name].shard.name != shard:
            raise CheckpointError(
                f"{name} is in {stored[name].shard.name}, but {index} puts it in {shard}; two shards were swapped: restore them"
            )
    if surplus := sorted(stored.keys() - weight_map.keys()):
        raise CheckpointError(f"{index} does not name {surplus[0]} ({len(surplus)} such tensors); restore the index")


def _check_inventory(folder: Path, config: Kolibri1Config, stored: dict[str, _Stored]) -> None:
    expected = {spec.name: spec for spec in inventory(config)}
    if missing := [name for name in expected if name not in stored]:
        raise CheckpointError(f"{folder} lacks {missing[0]} ({len(missing)} of {len(expected)} tensors missing); restore it")
    if surplus := sorted(stored.keys() - expected.keys()):
        raise CheckpointError(
            f"{folder} has {surplus[0]}, which Kolibri-1 has not ({len(surplus)} such tensors); check the model"
        )
    for name, spec in expected.items():
        found = stored[name].spec
        if found != spec:
            raise CheckpointError(
                f"{name} in {stored[name].shard} is {found.dtype} {list(found.shape)}, expected {spec.dtype} "
                f"{list(spec.shape)}; restore it from the release"
            )


_CHECKED_AT_ONCE = 1 << 24
"""Bytes checked at once: the temporary copies of a whole embedding would take a gigabyte."""


def _count_non_finite(raw: RawBytes, dtype: str) -> int:
    """How many values of these bytes are NaN or infinite, from the exponent bits alone."""
    word, exponent = {"F8_E4M3": ("u1", 0x7F), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000)}[dtype]
    parts = (raw[start : start + _CHECKED_AT_ONCE].view(word) for start in range(0, raw.size, _CHECKED_AT_ONCE))
    return sum(int(np.count_nonzero((part & exponent) == exponent)) for part in parts)
