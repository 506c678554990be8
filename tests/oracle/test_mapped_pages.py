"""Pages of mapped files: given back once looked at, and nothing lost by it."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from resident import resident_bytes

import oracle.mapped_pages as mapped_pages
from oracle.errors import GoldenError
from oracle.mapped_pages import give_back, parts
from oracle.serialization import digest, digest_of_parts
from oracle.stored_arrays import open_arrays, pack_arrays

linux = pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A file of some hundred pages, and what was written into it."""
    written = {
        "floats": np.arange(150_000, dtype=np.float32).reshape(-1, 3),
        "ids": np.arange(70_001, dtype=np.int32),
        "one": np.ones(1, dtype=np.uint8),
    }
    (tmp_path / "f").write_bytes(pack_arrays(written))
    return tmp_path / "f", written


@linux
def test_opened_arrays_take_no_memory_until_they_are_looked_at_and_none_once_given_back(
    stored: tuple[Path, dict[str, np.ndarray]],
) -> None:
    path, written = stored
    arrays = open_arrays(path, GoldenError, "", (digest(path.read_bytes()), "f.json"))
    assert resident_bytes(path) == 0
    for _ in range(2):
        for name, array in written.items():
            assert np.array_equal(arrays[name], array), name
        assert resident_bytes(path) > 0.8 * path.stat().st_size
        give_back([arrays["ids"][5:9]])
        assert resident_bytes(path) == 0


@linux
def test_what_is_no_array_of_a_file_mapped_read_only_stays_as_it_is(tmp_path: Path) -> None:
    """Pages of a private map hold its changes, and nothing else does."""
    (tmp_path / "f").write_bytes(bytes(2 * mmap.PAGESIZE))
    with (tmp_path / "f").open("r+b") as file:
        private, anonymous = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), mmap.mmap(-1, mmap.PAGESIZE)
    own = [np.frombuffer(private, dtype=np.uint8), np.frombuffer(anonymous, dtype=np.uint8), np.zeros(3, dtype=np.uint8)]
    for array in own:
        array[:] = 7
    give_back([*own, *(memoryview(array) for array in own), None, "text", 3.0])
    for array in own:
        assert (array == 7).all()


@linux
def test_pages_that_the_kernel_keeps_are_no_error(stored: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, written = stored
    ids = open_arrays(path, GoldenError, "")["ids"]
    libc, where = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p(ids.ctypes.data)
    if libc.mlock(where, ctypes.c_size_t(64)):
        pytest.skip("no page can be locked here")
    with pytest.raises(OSError, match="Invalid argument"):
        ids.base.base.obj.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]
    give_back([ids])
    assert np.array_equal(ids, written["ids"])
    libc.munlock(where, ctypes.c_size_t(64))


def test_where_no_page_can_be_given_back_everything_is_read_all_the_same(
    stored: tuple[Path, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = stored
    monkeypatch.setattr(mapped_pages, "_DROP", None)
    arrays = open_arrays(path, GoldenError, "", (digest(path.read_bytes()), "f.json"))
    give_back(arrays.values())
    assert all(np.array_equal(arrays[name], array) for name, array in written.items())


@pytest.mark.parametrize("size", [1, 6, 7, 8, 20, 21])
def test_the_digest_of_the_parts_is_the_digest_of_the_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_pages, "_PART_BYTES", 7)
    content = bytes(range(size))
    assert [len(part) for part in parts(memoryview(content))] == [7] * (size // 7) + [size % 7] * (size % 7 > 0)
    assert digest_of_parts(parts(memoryview(content))) == digest(content)


@linux
def test_a_walk_over_the_parts_of_a_file_holds_one_of_them(
    stored: tuple[Path, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = stored
    monkeypatch.setattr(mapped_pages, "_PART_BYTES", 1 << 17)
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for part in parts(content):
        assert resident_bytes(path) == 0
        np.frombuffer(part, dtype=np.uint8).sum()
        assert resident_bytes(path) >= len(part) - mmap.PAGESIZE
    assert resident_bytes(path) == 0
