"""A sharded safetensors checkpoint as mapped raw bytes. Free of torch and of arithmetic.

Opening reads headers only and checks all of them: every shard present and whole, every tensor of the inventory there
with the right dtype and shape, and the index in agreement with the shards. Bytes are mapped, never copied, and checked for
NaN and infinity when a tensor is first read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.errors import CheckpointError
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.scan import scan_folder
from oracle.kolibri1.shard import ITEM_BYTES, StoredTensor
from oracle.mapped_pages import give_back

RawBytes = npt.NDArray[np.uint8]


class Checkpoint:
    """An opened checkpoint: its config and, by tensor name, read-only raw bytes.

    Use `Checkpoint.open(folder)`. Holds one memory map per shard.
    """

    def __init__(self, folder: Path, config: Kolibri1Config, stored: Mapping[str, StoredTensor]) -> None:
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
        scan = scan_folder(folder)
        if scan.faults:
            raise CheckpointError(scan.faults[0].message)
        _check_inventory(folder, config, scan.tensors)
        return cls(folder, config, scan.tensors)

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
                values = raw.size // ITEM_BYTES[entry.spec.dtype]
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
                raw = self.raw(name)
                body = hashlib.sha256(raw.data).hexdigest()
                whole.update(f"{name} {spec.dtype} {list(spec.shape)} {body}\n".encode())
                give_back([raw])
            self._digest = f"sha256:{whole.hexdigest()}"
        return self._digest

    def total_bytes(self) -> int:
        """Bytes of tensor data over all shards."""
        return sum(entry.end - entry.start for entry in self._stored.values())

    def __len__(self) -> int:
        return len(self._stored)

    def _mapped(self, entry: StoredTensor) -> RawBytes:
        """The whole shard of an entry, mapped once."""
        if entry.shard not in self._maps:
            self._maps[entry.shard] = np.memmap(entry.shard, dtype=np.uint8, mode="r")
        return np.asarray(self._maps[entry.shard])

    def _entry(self, name: str) -> StoredTensor:
        try:
            return self._stored[name]
        except KeyError:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}; names are those of the release") from None


def _check_inventory(folder: Path, config: Kolibri1Config, stored: Mapping[str, StoredTensor]) -> None:
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
