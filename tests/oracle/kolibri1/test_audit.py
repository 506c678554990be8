"""An audit finds everything in which a checkpoint differs from its inventory, names it, and finds nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from damaging import FIRST, SECOND, edit_header, edit_index, edit_shard, shard_of
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import CheckpointError
from oracle.kolibri1.audit import Audit, audit
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.scan import INDEX_FILE, SINGLE_FILE
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.kolibri1.tensor_kind import tensor_kind

SPECS = {spec.name: spec for spec in inventory(Kolibri1Config.model_validate(TINY))}
ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
TOTAL_BYTES = sum(ITEM_BYTES[spec.dtype] * prod(spec.shape) for spec in SPECS.values())
NORM = "model.norm.weight"

Named = set[tuple[str, str]]


def differences(found: Audit) -> Named:
    return {(tensor.what, tensor.name) for tensor in found.tensors}


def faults(found: Audit) -> Named:
    return {(fault.kind, fault.file) for fault in found.faults}


def header(shard: Path) -> dict[str, Any]:
    raw = shard.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def other(shard: Path) -> Path:
    return shard.with_name(SECOND if shard.name == FIRST else FIRST)


def opens(folder: Path) -> bool:
    try:
        Checkpoint.open(folder)
    except CheckpointError:
        return False
    return True


# One tensor. Each fault damages the folder and returns which differences and which faults an audit must name.


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

# One shard.


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


def check(folder: Path, named: Named, named_files: Named) -> None:
    """The audit of `folder` names these differences and faults and no other, and its counts are theirs."""
    found = audit(folder)
    assert differences(found) == named
    assert faults(found) == named_files
    assert found.agrees == opens(folder) == (not named and not named_files)
    for kind in found.kinds:
        of_kind = [spec for spec in SPECS.values() if tensor_kind(spec.name) == kind.kind]
        assert kind.expected == len(of_kind)
        assert kind.expected_bytes == sum(ITEM_BYTES[spec.dtype] * prod(spec.shape) for spec in of_kind)
        counted = {w: getattr(kind, w) for w in ("missing", "surplus", "wrong", "repeated")}
        assert counted == {w: sum(what == w and tensor_kind(name) == kind.kind for what, name in named) for w in counted}
        assert kind.found == kind.expected - kind.missing + kind.surplus
    *groups, whole = found.totals
    assert [total.kind for total in found.totals] == ["fp8", "scales", "bf16", "all"]
    for field in ("expected", "found", "expected_bytes", "found_bytes", "missing", "surplus", "wrong", "repeated"):
        assert getattr(whole, field) == sum(getattr(kind, field) for kind in found.kinds)
        for total in groups:
            of_group = [kind for kind in found.kinds if kind.group == total.kind]
            assert getattr(total, field) == sum(getattr(kind, field) for kind in of_group)


def test_a_whole_checkpoint_agrees_and_its_counts_are_the_inventorys(tiny_folder: Path) -> None:
    check(tiny_folder, set(), set())
    whole = audit(tiny_folder).totals[-1]
    assert whole.expected == whole.found == len(SPECS)
    assert whole.expected_bytes == whole.found_bytes == TOTAL_BYTES


def test_a_single_file_agrees_too_whatever_lies_beside_it(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path / "one", shards=1)
    (folder / INDEX_FILE).unlink()
    (folder / "model-00001-of-00001.safetensors").rename(folder / SINGLE_FILE)
    (folder / "adapter.safetensors").write_text("no shard of this checkpoint")
    check(folder, set(), set())


@settings(max_examples=60, deadline=None)
@given(fault=st.sampled_from(TENSOR_FAULTS), name=st.sampled_from(sorted(SPECS)))
def test_any_fault_of_any_tensor_is_named(fault: Callable[..., tuple[Named, Named]], name: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_synthetic(Path(temporary))
        check(folder, *fault(folder, name))


@settings(max_examples=60, deadline=None)
@given(
    first=st.sampled_from([fault for fault in TENSOR_FAULTS if fault is not in_both_shards]),
    second=st.sampled_from(SHARD_FAULTS),
    name=st.sampled_from(sorted(SPECS)),
)
def test_a_fault_of_one_shard_hides_none_in_the_other(
    first: Callable[..., tuple[Named, Named]], second: Callable[..., tuple[Named, Named]], name: str
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_synthetic(Path(temporary))
        shard = other(shard_of(folder, name))
        named, named_files = first(folder, name)
        also, also_files = second(shard)
        check(folder, named | also, named_files | also_files)


@pytest.mark.parametrize("fault", SHARD_FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("file", [FIRST, SECOND])
def test_every_fault_of_every_shard_is_named(tiny_copy: Path, fault: Callable[..., tuple[Named, Named]], file: str) -> None:
    check(tiny_copy, *fault(tiny_copy / file))


@pytest.mark.parametrize("text", [None, "", "{", '{"weight_map": {}}'], ids=["no index", "empty", "cut", "maps nothing"])
def test_without_an_index_the_shards_are_still_read(tiny_copy: Path, text: str | None) -> None:
    (tiny_copy / INDEX_FILE).unlink()
    if text is not None:
        (tiny_copy / INDEX_FILE).write_text(text)
    check(tiny_copy, set(), {("index", INDEX_FILE)})
    check(tiny_copy, *(lambda also: (also[0], also[1] | {("index", INDEX_FILE)}))(a_pointer(tiny_copy / FIRST)))


def test_a_config_without_any_shard_lacks_every_tensor(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    check(tmp_path, {("missing", name) for name in SPECS}, {("index", INDEX_FILE)})


def test_an_index_that_points_outside_the_folder_is_not_followed(tiny_copy: Path) -> None:
    (tiny_copy / SECOND).rename(tiny_copy.parent / "outside.safetensors")
    moved = {name for name in SPECS if shard_of(tiny_copy, name).name == SECOND}
    edit_index(tiny_copy, lambda names: names.update(dict.fromkeys(moved, "../outside.safetensors")))
    check(tiny_copy, {("missing", name) for name in moved}, {("index", INDEX_FILE)})


def test_two_swapped_shards_are_two_faults_and_not_one_for_every_tensor(tiny_copy: Path) -> None:
    (tiny_copy / FIRST).rename(tiny_copy / "aside")
    (tiny_copy / SECOND).rename(tiny_copy / FIRST)
    (tiny_copy / "aside").rename(tiny_copy / SECOND)
    found = audit(tiny_copy)
    assert [fault.kind for fault in found.faults] == ["index", "index"]
    assert sum(1 + fault.more for fault in found.faults) == len(SPECS)
    assert found.tensors == ()


def test_a_shard_copied_over_another_is_one_fault_that_counts_its_tensors(tiny_copy: Path) -> None:
    lost = {name for name in SPECS if shard_of(tiny_copy, name).name == SECOND}
    (tiny_copy / SECOND).write_bytes((tiny_copy / FIRST).read_bytes())
    found = audit(tiny_copy)
    assert faults(found) == {("duplicate tensors", SECOND), ("index", INDEX_FILE)}
    [duplicates] = [fault for fault in found.faults if fault.kind == "duplicate tensors"]
    assert 1 + duplicates.more == len(SPECS) - len(lost)
    assert differences(found) == {("missing", n) for n in lost} | {("repeated", n) for n in SPECS if n not in lost}


def test_a_missing_tensor_of_an_unread_shard_says_why(tiny_copy: Path) -> None:
    a_pointer(tiny_copy / SECOND)
    details = {tensor.detail for tensor in audit(tiny_copy).tensors if tensor.name == "model.layers.2.mlp.gate.weight"}
    assert details == {f"{SECOND}: LFS pointer; must be BF16 [8, 64]"}


def test_a_cut_tensor_says_how_much_of_it_is_there(tiny_copy: Path) -> None:
    os.truncate(tiny_copy / FIRST, (tiny_copy / FIRST).stat().st_size - 1)
    [cut] = audit(tiny_copy).tensors
    size = ITEM_BYTES[SPECS[cut.name].dtype] * prod(SPECS[cut.name].shape)
    assert cut.detail == f"{FIRST} has {size - 1:,} of its {size:,} bytes"
    assert audit(tiny_copy).totals[-1].found_bytes == TOTAL_BYTES - 1


def test_what_is_found_in_place_of_the_right_dtype_and_shape_is_counted(tiny_copy: Path) -> None:
    scales = [f"model.layers.0.self_attn.{p}_proj.weight_scale_inv" for p in "kv"]
    edit_shard(tiny_copy / FIRST, lambda tensors: tensors.update({n: tensors[n].astype(ml_dtypes.bfloat16) for n in scales}))
    [kind] = [kind for kind in audit(tiny_copy).kinds if kind.otherwise]
    assert (kind.kind, kind.must_be, kind.otherwise) == ("attention k, v, scales", "F32 [2, 2]", {"BF16 [2, 2]": 2})
    assert {t.detail for t in audit(tiny_copy).tensors} == {f"BF16 [2, 2] in {FIRST}; must be F32 [2, 2]"}


def test_a_folder_without_a_config_cannot_be_audited(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no config\.json"):
        audit(tmp_path)


def test_another_geometry_is_checked_against_its_own_config_and_told_apart(tiny_folder: Path) -> None:
    found = audit(tiny_folder)
    assert found.agrees
    assert ("hidden_size", "64", "2560") in {(d.key, d.here, d.release) for d in found.geometry}
    assert {d.key for d in found.config} > {d.key for d in found.geometry}
