"""An audit finds everything in which a checkpoint differs from its inventory, names it, and finds nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import ml_dtypes
import pytest
from damaging import FIRST, SECOND, edit_index, edit_shard, shard_of
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_faults import ITEM_BYTES, SHARD_FAULTS, SPECS, TENSOR_FAULTS, Named, a_pointer, header, in_both_shards, other

from oracle.errors import CheckpointError
from oracle.kolibri1.audit import Audit, audit
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.scan import INDEX_FILE, SINGLE_FILE
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.kolibri1.tensor_kind import tensor_kind

TOTAL_BYTES = sum(ITEM_BYTES[spec.dtype] * prod(spec.shape) for spec in SPECS.values())


def differences(found: Audit) -> Named:
    return {(tensor.what, tensor.name) for tensor in found.tensors}


def faults(found: Audit) -> Named:
    return {(fault.kind, fault.file) for fault in found.faults}


def opens(folder: Path) -> bool:
    try:
        Checkpoint.open(folder)
    except CheckpointError:
        return False
    return True


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


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_header_or_an_index_it_agrees_exactly_where_the_checkpoint_opens(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_synthetic(Path(temporary))
        path = folder / data.draw(st.sampled_from([FIRST, SECOND, INDEX_FILE]))
        raw = bytearray(path.read_bytes())
        length = len(raw) if path.name == INDEX_FILE else 8 + int.from_bytes(raw[:8], "little")
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, length - 1))
            raw[place : place + 1] = data.draw(
                st.sampled_from([b"0", b"9", b'"', b"-", b"e", b",", b"]", b"\\ud800", b"\xff", b""])
            )
        path.write_bytes(raw)
        assert audit(folder).agrees == opens(folder)


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
    for fault, file, told in zip(found.faults, (SECOND, FIRST), (FIRST, SECOND), strict=True):
        name, said = fault.message.split(" ", 1)
        assert name in header(tiny_copy / file)
        assert said == f"is in {file}, but {tiny_copy / INDEX_FILE} puts it in {told}; two shards were swapped: restore them"


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
