"""A checkpoint is whole and consistent, or refused in one line that says what, where, and what to do next."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from damaging import FIRST, SECOND, edit_header, edit_index, edit_shard, overwrite, shard_of, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from resident import resident_bytes

from oracle.errors import CheckpointError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.scan import INDEX_FILE, SINGLE_FILE
from oracle.kolibri1.synthetic import TINY, write_synthetic

NORM = "model.norm.weight"
FP8 = "model.layers.1.mlp.experts.3.up_proj.weight"
SCALE = FP8 + "_scale_inv"


def refusal(folder: Path, *named: str) -> str:
    """The one-line error that opening `folder` gives; it must contain every string in `named`."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert any(word in message for word in ("restore", "pass ", "run `git lfs pull`", "check the model")), message
    for text in named:
        assert text in message
    return message


def test_a_whole_checkpoint_holds_its_inventory(tiny: Checkpoint) -> None:
    specs = list(inventory(Kolibri1Config.model_validate(TINY)))
    assert len(tiny) == len(specs)
    assert [tiny.spec(spec.name) for spec in specs] == specs
    assert tiny.total_bytes() == sum(tiny.raw(spec.name).size for spec in specs)


def test_raw_bytes_are_those_of_safetensors_own_reader(tiny: Checkpoint, tiny_folder: Path) -> None:
    seen = 0
    for shard in sorted(tiny_folder.glob("*.safetensors")):
        for name, array in stored(shard).items():
            assert tiny.raw(name).tobytes() == array.tobytes(), name
            seen += 1
    assert seen == len(tiny)


def test_raw_bytes_cannot_be_written_to(tiny: Checkpoint) -> None:
    with pytest.raises(ValueError, match="read-only"):
        tiny.raw(NORM)[0] = 1


def test_a_single_file_without_index_is_a_checkpoint_too(tiny_folder: Path, tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path / "one", shards=1)
    (folder / INDEX_FILE).unlink()
    (folder / "model-00001-of-00001.safetensors").rename(folder / SINGLE_FILE)
    assert Checkpoint.open(folder).raw(FP8).tobytes() == Checkpoint.open(tiny_folder).raw(FP8).tobytes()


def test_a_tensor_that_the_model_has_not_is_refused_by_name(tiny: Checkpoint) -> None:
    for ask in (tiny.raw, tiny.spec):
        with pytest.raises(CheckpointError, match=r"has no tensor 'model\.norm\.bias'; names are those of the release"):
            ask("model.norm.bias")


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    refusal(tmp_path, str(tmp_path), "is no checkpoint")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    refusal(tmp_path, str(tmp_path), "neither model.safetensors.index.json nor model.safetensors")


def test_a_missing_shard(tiny_copy: Path) -> None:
    (tiny_copy / SECOND).unlink()
    refusal(tiny_copy, SECOND, "is missing")


def test_a_folder_in_place_of_a_shard(tiny_copy: Path) -> None:
    (tiny_copy / SECOND).unlink()
    (tiny_copy / SECOND).mkdir()
    refusal(tiny_copy, SECOND)


@pytest.mark.parametrize("keep", [-1, 4, 0], ids=["last byte", "inside the length", "empty"])
def test_a_truncated_shard(tiny_copy: Path, keep: int) -> None:
    shard = tiny_copy / FIRST
    shard.write_bytes(shard.read_bytes()[:keep])
    refusal(tiny_copy, FIRST, "truncated")


def test_a_shard_cut_inside_its_header(tiny_copy: Path) -> None:
    shard = tiny_copy / FIRST
    shard.write_bytes(shard.read_bytes()[:500])
    refusal(tiny_copy, FIRST, "truncated or no safetensors file (500 bytes)")


def test_a_shard_with_bytes_after_its_end(tiny_copy: Path) -> None:
    with (tiny_copy / FIRST).open("ab") as file:
        file.write(b"\x00")
    refusal(tiny_copy, FIRST, "longer than its header says")


def test_two_swapped_shards(tiny_copy: Path) -> None:
    (tiny_copy / FIRST).rename(tiny_copy / "aside")
    (tiny_copy / SECOND).rename(tiny_copy / FIRST)
    (tiny_copy / "aside").rename(tiny_copy / SECOND)
    refusal(tiny_copy, "two shards were swapped", INDEX_FILE)


def test_a_shard_copied_over_another(tiny_copy: Path) -> None:
    shutil.copy(tiny_copy / FIRST, tiny_copy / SECOND)
    refusal(tiny_copy, f"is in {FIRST} and again in {SECOND}")


def test_a_git_lfs_pointer_names_the_command_that_fetches_it(tiny_copy: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tiny_copy / SECOND).write_text(pointer)
    refusal(tiny_copy, SECOND, "is a Git LFS pointer, not the shard; run `git lfs pull`")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{}", "[" * 200_000],
    ids=lambda text: repr(text[:20]),
)
def test_an_index_that_maps_nothing(tiny_copy: Path, text: str) -> None:
    (tiny_copy / INDEX_FILE).write_text(text)
    refusal(tiny_copy, INDEX_FILE)


def test_an_index_that_names_a_tensor_no_shard_has(tiny_copy: Path) -> None:
    edit_index(tiny_copy, lambda names: names.update({"model.extra.weight": FIRST}))
    refusal(tiny_copy, f"names model.extra.weight in {FIRST}, but no shard has it")


def test_an_index_that_leaves_a_tensor_out(tiny_copy: Path) -> None:
    edit_index(tiny_copy, lambda names: names.pop(NORM))
    refusal(tiny_copy, f"does not name {NORM} (1 such tensors)")


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/hostname", "sub/x.safetensors", "../damaged/" + FIRST])
def test_an_index_cannot_point_outside_its_folder(tiny_copy: Path, file: str) -> None:
    shutil.copy(tiny_copy / FIRST, tiny_copy.parent / "outside.safetensors")
    edit_index(tiny_copy, lambda names: names.update({NORM: file}))
    refusal(tiny_copy, INDEX_FILE, f"names {file!r}, which is not a file of this folder")


@pytest.mark.parametrize("file", ["..", "", ".", "a\0b"])
def test_an_index_cannot_name_what_is_no_file(tiny_copy: Path, file: str) -> None:
    edit_index(tiny_copy, lambda names: names.update({NORM: file}))
    refusal(tiny_copy)


def test_a_missing_tensor(tiny_copy: Path) -> None:
    edit_shard(shard_of(tiny_copy, SCALE), lambda tensors: tensors.__delitem__(SCALE))
    edit_index(tiny_copy, lambda names: names.pop(SCALE))
    refusal(tiny_copy, f"lacks {SCALE} (1 of {len(list(inventory(Kolibri1Config.model_validate(TINY))))} tensors missing)")


def test_a_surplus_tensor(tiny_copy: Path) -> None:
    bias = "model.layers.0.self_attn.q_proj.bias"
    edit_shard(tiny_copy / FIRST, lambda tensors: tensors.update({bias: np.zeros(192, dtype=ml_dtypes.bfloat16)}))
    edit_index(tiny_copy, lambda names: names.update({bias: FIRST}))
    refusal(tiny_copy, f"has {bias}, which Kolibri-1 has not")


@pytest.mark.parametrize(
    ("name", "changed", "found", "expected"),
    [
        (NORM, np.zeros(64, np.float32), "F32 [64]", "BF16 [64]"),
        (NORM, np.zeros(64, np.float16), "F16 [64]", "BF16 [64]"),
        (NORM, np.zeros(32, ml_dtypes.bfloat16), "BF16 [32]", "BF16 [64]"),
        (FP8, np.zeros((64, 64), np.uint8), "U8 [64, 64]", "F8_E4M3 [64, 64]"),
        (SCALE, np.ones((1, 1), np.float32), "F32 [1, 1]", "F32 [2, 2]"),
        (SCALE, np.ones((4,), np.float32), "F32 [4]", "F32 [2, 2]"),
        (SCALE, np.ones((2, 2), ml_dtypes.bfloat16), "BF16 [2, 2]", "F32 [2, 2]"),
    ],
)
def test_a_wrong_dtype_or_shape(tiny_copy: Path, name: str, changed: np.ndarray, found: str, expected: str) -> None:
    edit_shard(shard_of(tiny_copy, name), lambda tensors: tensors.update({name: changed}))
    refusal(tiny_copy, name, f"is {found}, expected {expected}")


def test_a_transposed_rectangular_grid_of_scales(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path / "wide")
    name = "model.layers.0.self_attn.q_proj.weight_scale_inv"  # 6 x 2
    edit_shard(shard_of(folder, name), lambda tensors: tensors.update({name: tensors[name].T.copy()}))
    refusal(folder, name, "is F32 [2, 6], expected F32 [6, 2]")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header[NORM].pop("dtype") and None,
        lambda header: header[NORM].update(shape=[65]),
        lambda header: header[NORM].update(shape="64"),
        lambda header: header[NORM].update(shape=[10**30]),
        lambda header: header[NORM].update(shape=[float("inf")]),
        lambda header: header[NORM].update(data_offsets=[0]),
        lambda header: header[NORM].update(data_offsets=[0, float("nan")]),
        lambda header: header[NORM].update(data_offsets=[v + 2 for v in header[NORM]["data_offsets"]]),
        lambda header: header.update({NORM: None}),
        lambda header: [header],
    ],
    ids=["no dtype", "shape", "text", "huge", "infinite", "one offset", "NaN offset", "overlap", "null", "list"],
)
def test_a_header_that_contradicts_itself(tiny_copy: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    shard = shard_of(tiny_copy, NORM)
    edit_header(shard, change)
    refusal(tiny_copy, shard.name)


def test_a_header_nested_beyond_reason(tiny_copy: Path) -> None:
    text = b"[" * 200_000
    (tiny_copy / FIRST).write_bytes(len(text).to_bytes(8, "little") + text)
    refusal(tiny_copy, FIRST)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (NORM, np.array(np.nan, ml_dtypes.bfloat16)),
        (NORM, np.array(np.inf, ml_dtypes.bfloat16)),
        (NORM, np.array(-np.inf, ml_dtypes.bfloat16)),
        (FP8, np.array(0x7F, np.uint8)),
        (FP8, np.array(0xFF, np.uint8)),
        (SCALE, np.array(np.nan, "<f4")),
        (SCALE, np.array(-np.inf, "<f4")),
    ],
    ids=["bf16 NaN", "bf16 inf", "bf16 -inf", "fp8 NaN", "fp8 -NaN", "fp32 NaN", "fp32 -inf"],
)
def test_nan_and_infinity_are_refused_when_first_read_and_by_the_digest(tiny_copy: Path, name: str, code: np.ndarray) -> None:
    opened = Checkpoint.open(tiny_copy)
    values = opened.raw(name).size // code.nbytes
    overwrite(tiny_copy, name, (values - 1) * code.nbytes, code.tobytes())
    damaged = Checkpoint.open(tiny_copy)
    for ask in (lambda: damaged.raw(name), damaged.digest):
        with pytest.raises(CheckpointError, match=rf"holds 1 NaN or infinite values of {values}; restore it") as caught:
            ask()
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "code"),
    [(NORM, b"\x7f\x7f"), (FP8, b"\x7e"), (FP8, b"\xfe"), (SCALE, b"\xff\xff\x7f\x7f"), (NORM, b"\x01\x00"), (FP8, b"\x01")],
    ids=["largest bf16", "448", "-448", "largest fp32", "smallest bf16", "smallest fp8"],
)
def test_the_largest_and_smallest_finite_values_are_accepted(tiny_copy: Path, name: str, code: bytes) -> None:
    overwrite(tiny_copy, name, 0, code)
    assert Checkpoint.open(tiny_copy).raw(name)[: len(code)].tobytes() == code


@pytest.fixture(scope="module")
def flipped_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which single bits are flipped and flipped back."""
    return shutil.copytree(tiny_folder, tmp_path_factory.mktemp("flipped") / "checkpoint")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_digest_changes_with_any_one_bit(flipped_folder: Path, tiny: Checkpoint, data: st.DataObject) -> None:
    names = [spec.name for spec in inventory(tiny.config)]
    name = data.draw(st.sampled_from(names))
    offset = data.draw(st.integers(0, tiny.raw(name).size - 1))
    flipped = tiny.raw(name)[offset] ^ np.uint8(1 << data.draw(st.integers(0, 7)))
    original = tiny.raw(name)[offset].tobytes()
    expected = tiny.digest()
    try:
        overwrite(flipped_folder, name, offset, flipped.tobytes())
        try:
            got = Checkpoint.open(flipped_folder).digest()
        except CheckpointError as error:  # the one changed bit made a NaN
            got = str(error)
        assert got != expected
    finally:
        overwrite(flipped_folder, name, offset, original)
    assert Checkpoint.open(flipped_folder).digest() == expected


def test_the_digest_changes_with_the_config(tiny: Checkpoint, tiny_copy: Path) -> None:
    for change in ({"sliding_window": 10}, {"rms_norm_eps": 1e-5}, {"layer_types": ["full_attention"] * 3}, {"extra": 1}):
        (tiny_copy / "config.json").write_text(json.dumps(TINY | change))
        assert Checkpoint.open(tiny_copy).digest() != tiny.digest(), change


def test_the_digest_does_not_change_with_what_holds_the_same_values(tiny: Checkpoint, tiny_copy: Path, tmp_path: Path) -> None:
    assert Checkpoint.open(tiny_copy).digest() == tiny.digest()
    for shards in (1, 3):
        assert Checkpoint.open(write_synthetic(tmp_path / str(shards), shards=shards)).digest() == tiny.digest()
    (tiny_copy / "config.json").write_text(json.dumps(dict(reversed(TINY.items())), indent=7))
    assert Checkpoint.open(tiny_copy).digest() == tiny.digest()


def test_two_tensors_of_one_shape_that_trade_places_change_the_digest(tiny: Checkpoint, tiny_copy: Path) -> None:
    one, other = "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight"

    def trade(tensors: dict[str, np.ndarray]) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    edit_shard(tiny_copy / FIRST, trade)
    assert Checkpoint.open(tiny_copy).digest() != tiny.digest()


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_a_digest_of_a_whole_checkpoint_leaves_none_of_it_in_memory(tiny_copy: Path, tiny: Checkpoint) -> None:
    opened = Checkpoint.open(tiny_copy)
    shards = sorted(tiny_copy.glob("*.safetensors"))
    opened.digest()
    assert [resident_bytes(shard) for shard in shards] == [0] * len(shards)
    assert np.array_equal(opened.raw(FP8), tiny.raw(FP8))
    assert sum(map(resident_bytes, shards)) > 0
