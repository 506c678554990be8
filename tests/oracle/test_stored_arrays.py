"""Arrays as safetensors: the same bytes for the same arrays, and nothing read back that is not exactly what was written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load

from oracle.errors import GoldenError
from oracle.serialization import digest
from oracle.stored_arrays import open_arrays, pack_arrays

ADVICE = "make it again"
DTYPES = ("int32", "int64", "float32", "float64", "uint8", "bool")
on_disk = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def named_arrays() -> st.SearchStrategy[dict[str, np.ndarray]]:
    finite = {"allow_nan": False, "allow_infinity": False}
    any_array = st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_side=0, max_side=4), elements=finite if "float" in dtype else None)
    )
    return st.dictionaries(st.text("ab/_9é", min_size=1, max_size=6), any_array, max_size=4)


def edit_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write the file's header anew, changed; its data stays."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[end:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_at_write(bad: float, dtype: str) -> None:
    with pytest.raises(ValueError, match="'x' holds NaN or infinity"):
        pack_arrays({"x": np.array([0, bad], dtype=dtype)})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("size", [1, (1 << 22) + 3])  # in the last part of a long array too
def test_nan_in_an_array_is_refused_at_load(tmp_path: Path, bad: float, size: int) -> None:
    data = bytearray(pack_arrays({"x": np.zeros(size, np.float32)}))
    data[-4:] = np.array(bad, "<f4").tobytes()
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(GoldenError, match=f"f: array 'x' holds NaN or infinity; {ADVICE}"):
        open_arrays(tmp_path / "f", GoldenError, ADVICE)


def test_packed_arrays_are_the_same_bytes_whatever_their_order_and_strides() -> None:
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.ones(3, np.float64)
    data = pack_arrays({"a": a, "b": b})
    assert data == pack_arrays({"b": b, "a": a})
    assert data == pack_arrays({"a": np.asfortranarray(a), "b": np.ones(6)[::2]})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header.keys() == {"a", "b"}


@on_disk
@given(written=named_arrays())
def test_what_is_read_back_is_what_was_written_and_what_the_library_reads(tmp_path: Path, written: Any) -> None:
    packed = pack_arrays(written)
    (tmp_path / "f").write_bytes(packed)
    read, library = open_arrays(tmp_path / "f", GoldenError, ADVICE), load(packed)
    assert read.keys() == written.keys() == library.keys()
    for name, array in written.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes() == library[name].tobytes()
        assert not read[name].flags.writeable


@on_disk
@given(length=st.integers(0, 200))
def test_arrays_cut_short_are_refused(tmp_path: Path, length: int) -> None:
    data = pack_arrays({"a": np.arange(40, dtype=np.int32)})
    (tmp_path / "f").write_bytes(data[: min(length, len(data) - 1)])
    with pytest.raises(GoldenError, match=f"f is (damaged|empty).*{ADVICE}"):
        open_arrays(tmp_path / "f", GoldenError, ADVICE)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda h: h["a"].update(dtype="F16"), id="an unknown dtype"),
        pytest.param(lambda h: h["a"].update(dtype=[]), id="a dtype that is no name"),
        pytest.param(lambda h: h["a"].update(shape=[4]), id="another shape"),
        pytest.param(lambda h: h["a"].update(shape=[-1, -3]), id="negative sizes"),
        pytest.param(lambda h: h["a"].update(shape=[1.5, 2]), id="sizes that are no whole numbers"),
        pytest.param(lambda h: h["a"].update(shape=[True, 3]), id="a size that is a truth value"),
        pytest.param(lambda h: h["a"].update(shape=None), id="no shape"),
        pytest.param(lambda h: h["a"].pop("data_offsets"), id="no place"),
        pytest.param(lambda h: h["b"].update(data_offsets=[0, 12]), id="arrays that overlap"),
        pytest.param(lambda h: h["b"].update(data_offsets=[16, 28]), id="a gap"),
        pytest.param(lambda h: h.pop("b"), id="bytes of no array"),
        pytest.param(lambda h: h.update(c={"dtype": "U8", "shape": [1], "data_offsets": [24, 25]}), id="beyond the end"),
        pytest.param(lambda h: h.update(a=1), id="an entry that is no object"),
    ],
)
def test_a_header_that_does_not_fit_its_data_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    path = tmp_path / "f"
    path.write_bytes(pack_arrays({"a": np.arange(3, dtype=np.int32), "b": np.arange(3, dtype=np.int32)}))
    open_arrays(path, GoldenError, ADVICE)
    edit_header(path, change)
    with pytest.raises(GoldenError, match=f"f is damaged.*{ADVICE}"):
        open_arrays(path, GoldenError, ADVICE)


def test_the_digest_that_a_document_gives_is_asked_of_the_whole_file(tmp_path: Path) -> None:
    data = pack_arrays({"a": np.arange(3, dtype=np.int32)})
    (tmp_path / "f").write_bytes(data)
    assert list(open_arrays(tmp_path / "f", GoldenError, ADVICE, (digest(data), "f.json"))) == ["a"]
    (tmp_path / "f").write_bytes(data[:-1] + b"\x01")
    with pytest.raises(GoldenError, match=f"f does not have the digest that f.json gives.*{ADVICE}"):
        open_arrays(tmp_path / "f", GoldenError, ADVICE, (digest(data), "f.json"))


def test_a_file_that_is_missing_a_folder_or_a_pointer_is_an_error_with_advice(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(GoldenError, match=f"cannot be read.*{ADVICE}"):
            open_arrays(path, GoldenError, ADVICE)
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(GoldenError, match="is a Git LFS pointer; run `git lfs pull`"):
        open_arrays(tmp_path / "pointer", GoldenError, ADVICE)
