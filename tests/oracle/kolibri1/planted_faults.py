"""Faults for a tiny checkpoint of two shards: each damages a folder and returns what an audit of it must name, no more.

To add one: write a function that returns the differences (what, tensor) and the faults (kind, file), and put it in its list.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from damaging import FIRST, SECOND, edit_header, edit_index, edit_shard, shard_of

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.scan import INDEX_FILE
from oracle.kolibri1.synthetic import TINY

SPECS = {spec.name: spec for spec in inventory(Kolibri1Config.model_validate(TINY))}
ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}

Named = set[tuple[str, str]]


def header(shard: Path) -> dict[str, Any]:
    raw = shard.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def other(shard: Path) -> Path:
    return shard.with_name(SECOND if shard.name == FIRST else FIRST)


# Of one tensor.


def left_out(folder: Path, name: str) -> tuple[Named, Named]:
    edit_shard(shard_of(folder, name), lambda tensors: tensors.__delitem__(name))
    edit_index(folder, lambda names: names.pop(name))
    return {("missing", name)}, set()


def left_out_of_its_shard(folder: Path, name: str) -> tuple[Named, Named]:
    edit_shard(shard_of(folder, name), lambda tensors: tensors.__delitem__(name))
    return {("missing", name)}, {("index", INDEX_FILE)}


def left_out_of_the_index(folder: Path, name: str) -> tuple[Named, Named]:
    edit_index(folder, lambda names: names.pop(name))
    return set(), {("index", INDEX_FILE)}


def put_elsewhere_by_the_index(folder: Path, name: str) -> tuple[Named, Named]:
    file = other(shard_of(folder, name)).name
    edit_index(folder, lambda names: names.update({name: file}))
    return set(), {("index", INDEX_FILE)}


def renamed(folder: Path, name: str) -> tuple[Named, Named]:
    file = shard_of(folder, name)
    edit_shard(file, lambda tensors: tensors.update({f"{name}_old": tensors.pop(name)}))
    edit_index(folder, lambda names: (names.pop(name), names.update({f"{name}_old": file.name})))
    return {("missing", name), ("surplus", f"{name}_old")}, set()


def of_a_further_layer(folder: Path, name: str) -> tuple[Named, Named]:
    file, further = shard_of(folder, name), "model.layers.3.moe.router.expert_bias"
    edit_shard(file, lambda tensors: tensors.update({further: np.ones(8, ml_dtypes.bfloat16)}))
    edit_index(folder, lambda names: names.update({further: file.name}))
    return {("surplus", further)}, set()


def of_another_dtype(folder: Path, name: str) -> tuple[Named, Named]:
    edit_shard(shard_of(folder, name), lambda tensors: tensors.update({name: np.zeros(SPECS[name].shape, np.float16)}))
    return {("wrong", name)}, set()


def of_another_shape(folder: Path, name: str) -> tuple[Named, Named]:
    edit_shard(shard_of(folder, name), lambda tensors: tensors.update({name: tensors[name][None]}))
    return {("wrong", name)}, set()


def shorter(folder: Path, name: str) -> tuple[Named, Named]:
    edit_shard(shard_of(folder, name), lambda tensors: tensors.update({name: tensors[name][:-1]}))
    return {("wrong", name)}, set()


def of_a_damaged_entry(folder: Path, name: str) -> tuple[Named, Named]:
    file = shard_of(folder, name)
    edit_header(file, lambda entries: entries[name].pop("dtype") and None)
    return {("missing", name)}, {("damaged header", file.name)}


def in_both_shards(folder: Path, name: str) -> tuple[Named, Named]:
    file = shard_of(folder, name)
    edit_shard(other(file), lambda tensors: tensors.update({name: np.zeros(SPECS[name].shape, ml_dtypes.bfloat16)}))
    named: Named = {("repeated", name)}
    named_files: Named = {("duplicate tensors", SECOND)}
    if file.name == SECOND:  # then what is in the first shard counts: it is not where the index says, and bf16
        named_files |= {("index", INDEX_FILE)}
        named |= set() if SPECS[name].dtype == "BF16" else {("wrong", name)}
    return named, named_files


TENSOR_FAULTS = [
    left_out,
    left_out_of_its_shard,
    left_out_of_the_index,
    put_elsewhere_by_the_index,
    renamed,
    of_a_further_layer,
    of_another_dtype,
    of_another_shape,
    shorter,
    of_a_damaged_entry,
    in_both_shards,
]

# Of one shard.


def all_missing(shard: Path) -> Named:
    return {("missing", name) for name in header(shard) if name != "__metadata__"}


def gone(shard: Path) -> tuple[Named, Named]:
    named = all_missing(shard)
    shard.unlink()
    return named, {("missing", shard.name)}


def a_pointer(shard: Path) -> tuple[Named, Named]:
    named = all_missing(shard)
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    return named, {("LFS pointer", shard.name)}


def cut_in_the_header(shard: Path) -> tuple[Named, Named]:
    named = all_missing(shard)
    os.truncate(shard, 500)
    return named, {("truncated", shard.name)}


def cut_in_the_data(shard: Path) -> tuple[Named, Named]:
    size, entries = shard.stat().st_size, header(shard)
    os.truncate(shard, size - 5000)
    last = max(end for e in entries.values() if "data_offsets" in e for end in e["data_offsets"])
    cut = {("wrong", name) for name, e in entries.items() if "data_offsets" in e and e["data_offsets"][1] > last - 5000}
    return cut, {("truncated", shard.name)}


def longer(shard: Path) -> tuple[Named, Named]:
    with shard.open("ab") as file:
        file.write(b"\x00")
    return set(), {("too long", shard.name)}


def of_no_json(shard: Path) -> tuple[Named, Named]:
    named = all_missing(shard)
    with shard.open("r+b") as file:
        file.seek(8)
        file.write(b"]")
    return named, {("damaged header", shard.name)}


def with_shifted_offsets(shard: Path) -> tuple[Named, Named]:
    def shift(entries: dict[str, Any]) -> None:
        first = min((e for e in entries.values() if "data_offsets" in e), key=lambda e: e["data_offsets"][0])
        first["data_offsets"] = [offset + 2 for offset in first["data_offsets"]]

    edit_header(shard, shift)
    return set(), {("damaged header", shard.name)}


SHARD_FAULTS = [gone, a_pointer, cut_in_the_header, cut_in_the_data, longer, of_no_json, with_shifted_offsets]
